//! `max-weights` as a separate program.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(feature = "remote")]
    max_weights_remote::Remote::default().install();
    ExitCode::from(max_weights_cli::main(std::env::args_os(), &max_weights_cli::Host::default()))
}
