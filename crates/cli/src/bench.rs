//! `max-weights bench`: how long a checkpoint takes to load. What it is measured beside are packages of Python, so that Python runs it.

use crate::arguments::Bench;
use crate::failure::Failure;
use crate::host::{Host, instead};

pub(crate) fn run(options: &Bench, host: &Host) -> Result<u8, Failure> {
    let mut command = host.module("max_weights.benching")?;
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
    instead(&mut command)
}
