//! `max-weights report merge`: the reports of several tasks as one.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use max_weights::rules::Verdict;
use max_weights_check::merge;

use crate::failure::CommandFailure;
use crate::file;
use crate::screen::Screen;
use crate::{CLEAN, FINDINGS, MALICIOUS, NEEDS_TRUST, UNREADABLE};

/// Join the reports of tasks.
#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    #[command(subcommand)]
    action: ReportCommand,
}

#[derive(Debug, Subcommand)]
enum ReportCommand {
    Merge(ReportMerge),
}

/// Write the report that a single run would have written.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: that of the single run for JSON of validate and scan, 0 for SARIF and manifests; 2 if a task is missing."
)]
struct ReportMerge {
    /// What all tasks wrote: validate and scan as JSON or SARIF, or manifest create.
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    reports: Vec<PathBuf>,
    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
}

pub(crate) fn run(options: &ReportArguments, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let ReportCommand::Merge(ReportMerge { reports, output }) = &options.action;
    output.as_deref().map_or(Ok(()), |path| file::prepare(path, reports))?;
    let merged = merge::merge(reports)?;
    if let Some(path) = output {
        file::write(path, |out| {
            serde_json::to_writer_pretty(&mut *out, &merged.report)?;
            out.write_all(b"\n")
        })?;
    } else {
        serde_json::to_writer_pretty(&mut *screen, &merged.report)?;
        screen.line("")?;
    }
    Ok(match merged.failing {
        None => CLEAN,
        Some(Verdict::Malicious) => MALICIOUS,
        Some(Verdict::NeedsTrust) => NEEDS_TRUST,
        Some(Verdict::Broken) => UNREADABLE,
        Some(_) => FINDINGS,
    })
}
