//! `max-weights` as a program of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(max_weights_cli::main(std::env::args_os(), &max_weights_cli::Host::default()))
}
