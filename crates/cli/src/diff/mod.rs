//! `max-weights diff`: the differences of two checkpoints of any formats.

mod tables;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use clap::{Args, ValueHint};
use max_weights::checkpoint::OpenedDelta;
use max_weights::error::Diagnostic;
use max_weights::{Error, OpenOptions, rules, uninterrupted};
use max_weights_check::difference::{self, Pattern};

use crate::failure::CommandFailure;
use crate::inputs::ReadArguments;
use crate::open::open;
use crate::progress::CommandProgress;
use crate::screen::Screen;
use crate::{CLEAN, FINDINGS};

/// Compare two checkpoints: names, dtypes, shapes, values, metadata.
#[allow(clippy::struct_excessive_bools)] // each is an option that is there or not
#[derive(Debug, Args)]
#[command(after_help = "Exit status 1 if anything differs. The two may have different formats.")]
pub(crate) struct Diff {
    /// A file, a folder, an index, a URL, or ORG/MODEL[@REVISION] in the local Hugging Face cache.
    #[arg(value_name = "A", value_hint = ValueHint::AnyPath)]
    a: PathBuf,
    /// What to compare it with; a delta, or a folder of them, is what it makes of A.
    #[arg(value_name = "B", value_hint = ValueHint::AnyPath)]
    b: PathBuf,
    /// Let values differ by this fraction of the value in B.
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0, hide_default_value = true, value_parser = tolerance, conflicts_with = "exact")]
    rtol: f64,
    /// Let values differ by this much.
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0, hide_default_value = true, value_parser = tolerance, conflicts_with = "exact")]
    atol: f64,
    /// Compare bytes instead of numbers: -0.0 is not 0.0.
    #[arg(long)]
    exact: bool,
    /// Compare only what the headers say.
    #[arg(long)]
    no_values: bool,
    /// Let dtypes differ where values do not.
    #[arg(long)]
    no_dtype: bool,
    /// Let metadata differ.
    #[arg(long)]
    no_metadata: bool,
    /// Another name for weights of A; * is any string, the same in TO; repeatable.
    #[arg(long = "rename", value_name = "FROM=TO")]
    renames: Vec<String>,
    /// Print at most this many lines of each kind of difference.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    lines: Option<u32>,
    /// One JSON object.
    #[arg(long, conflicts_with = "lines")]
    pub(crate) json: bool,
    #[command(flatten)]
    reading: ReadArguments,
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number >= 0.0 && number.is_finite() => Ok(number),
        _ => Err("a number that is not negative is needed".into()),
    }
}

/// Whether a path that cannot be opened by itself is a delta, or a folder of some, without the version that they change.
fn is_of_deltas(path: &Path, error: &Error) -> bool {
    let is_delta = |fault: &Diagnostic| [rules::DELTA_ALONE, rules::INDEX_DELTA].contains(&fault.rule);
    error.diagnostic().is_some_and(is_delta) || OpenedDelta::open_all(&[path], &OpenOptions::default()).is_ok()
}

pub(crate) fn run(options: &Diff, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let patterns = options.renames.iter().map(|pattern| Pattern::parse(pattern));
    let names = difference::RenamedTensors {
        patterns: patterns.collect::<Result<_, _>>()?,
        ..difference::RenamedTensors::default()
    };
    let a = open(std::slice::from_ref(&options.a), &options.reading)?;
    let b = match open(std::slice::from_ref(&options.b), &options.reading) {
        Err(CommandFailure::Checkpoint(error)) if is_of_deltas(&options.b, &error) => {
            open(&[options.a.clone(), options.b.clone()], &options.reading)?
        }
        opened => opened?,
    };
    let requested = difference::DifferenceOptions {
        rtol: options.rtol,
        atol: options.atol,
        exact: options.exact,
        values: !options.no_values,
        dtypes: !options.no_dtype,
        metadata: !options.no_metadata,
        a: names,
        ..difference::DifferenceOptions::default()
    };
    let done = Arc::new(AtomicU64::new(0));
    let bytes = a.catalog().table().iter().fold(0u64, |all, info| all.saturating_add(info.bytes()));
    let progress = CommandProgress::new(&done, bytes.saturating_mul(2));
    let found = difference::compare(&a, &b, &requested, &done, &uninterrupted);
    drop(progress);
    let found = found?;
    screen.status = if found.is_none() { CLEAN } else { FINDINGS };
    if options.json {
        serde_json::to_writer_pretty(&mut *screen, &difference::DifferenceJson::new(&found, &requested))?;
        screen.line("")?;
    } else {
        tables::write(&found, options, screen)?;
        screen.warn(a.catalog().findings().iter().chain(b.catalog().findings()))?;
    }
    Ok(screen.status)
}
