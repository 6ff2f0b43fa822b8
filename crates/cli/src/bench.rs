//! `max-weights bench`: how long a checkpoint takes to load. The compared loaders are Python packages, so Python runs it.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use max_weights::source::store;
use max_weights::text;

use crate::failure::CommandFailure;
use crate::host::{Host, instead};

/// Measure how long a checkpoint takes to load, compared to other packages and the lower bound of the machine.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// A file, a folder, an index, or ORG/MODEL[@REVISION] in the local Hugging Face cache; several files are one checkpoint.
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// Any of safetensors, torch, gguf, runai, fastsafetensors, and for a GPU instanttensor, separated by commas; '' for none.
    #[arg(long, value_name = "NAMES")]
    pub(crate) against: Option<String>,
    /// One JSON object, including each run.
    #[arg(long)]
    pub(crate) json: bool,
    /// Leave the files in the page cache.
    #[arg(long, overrides_with = "cold")]
    pub(crate) no_cold: bool,
    /// Drop the files from the page cache to read them from the disk (the default).
    #[arg(long, hide = true)]
    cold: bool,
    /// Stop after this time, even if runs remain.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// A GPU to load to, such as cuda or cuda:1.
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
}

pub(crate) fn run(options: &Bench, host: &Host) -> Result<u8, CommandFailure> {
    if let Some(url) = options.paths.iter().find(|path| store::is_url(path)) {
        let url = text::path(&store::redacted(url));
        return Err(CommandFailure::Usage(format!("{url}: the compared packages only read local files: download it")));
    }
    let mut command = host.module("max_weights._benching")?;
    if let Some(names) = &options.against {
        command.arg(format!("--against={names}"));
    }
    for (flag, requested) in [("--json", options.json), ("--no-cold", options.no_cold)] {
        if requested {
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

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds >= 1.0 && seconds.is_finite() => Ok(seconds),
        _ => Err("a number of seconds, at least 1, is needed".into()),
    }
}
