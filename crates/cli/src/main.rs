//! `max-weights` as a separate program.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(max_weights_cli::main(std::env::args_os(), &max_weights_cli::Host::default()))
}
