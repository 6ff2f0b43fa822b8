//! `max-weights bench`: how long a checkpoint takes to load. What it is measured beside are packages of Python, so that Python runs it.

use std::process::Command;

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
    finish(&mut command).map_err(|error| {
        let program = max_weights::text::path(&program);
        Failure::Needs(format!("{program} cannot be run: {error}; VIRTUAL_ENV and PATH say where Python is"))
    })
}

/// Becomes this program, so that Ctrl-C and the exit status are its own.
#[cfg(unix)]
fn finish(command: &mut Command) -> std::io::Result<u8> {
    use std::os::unix::process::CommandExt as _;
    Err(command.exec())
}

/// Waits for this program.
#[cfg(not(unix))]
fn finish(command: &mut Command) -> std::io::Result<u8> {
    Ok(command.status()?.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(crate::UNREADABLE))
}
