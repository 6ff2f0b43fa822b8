//! `max-weights bench`: how long a checkpoint takes to load. What it is measured beside are packages of Python, so that Python runs it.

use std::process::Command;

use crate::UNREADABLE;
use crate::arguments::Bench;
use crate::failure::Failure;
use crate::host::Host;

pub(crate) fn run(options: &Bench, host: &Host) -> Result<u8, Failure> {
    let program = host.interpreter()?;
    let mut command = Command::new(&program);
    command.args(["-m", "max_weights.benching"]);
    if let Some(names) = &options.against {
        command.arg(format!("--against={names}"));
    }
    for (flag, wanted) in [("--json", options.json), ("--no-cold", options.no_cold)] {
        if wanted {
            command.arg(flag);
        }
    }
    command.arg(format!("--seconds={}", options.seconds));
    if let Some(device) = &options.device {
        command.arg(format!("--device={device}"));
    }
    command.arg("--").args(&options.paths);
    let status = command.status().map_err(|error| {
        Failure::Needs(format!(
            "{} cannot be run: {error}; VIRTUAL_ENV and PATH say where Python is",
            program.display()
        ))
    })?;
    // Ended by a signal, it has no status: Ctrl-C ends both.
    Ok(status.code().map_or(crate::INTERRUPTED, |code| u8::try_from(code).unwrap_or(UNREADABLE)))
}
