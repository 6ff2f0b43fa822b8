//! `max-weights globals`: the classes and functions that the pickles in files name, and what is known of them.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use max_weights::format::pickle::Danger;
use max_weights::rules::{self, Severity};
use max_weights::{Diagnostic, text, uninterrupted};
use max_weights_check::{Report, RuleSelection, ValidateOptions, ValidateProgress};
use serde::Serialize;

use crate::failure::CommandFailure;
use crate::screen::{Screen, padded};
use crate::validate::ValidateInputs;
use crate::{CLEAN, FINDINGS, UNREADABLE};

#[derive(Serialize)]
struct GlobalsJson<'a> {
    schema: &'static str,
    files: Vec<String>,
    /// How many pickles were looked through.
    pickles: u64,
    globals: Vec<GlobalJson<'a>>,
    /// How many are not harmless.
    not_harmless: usize,
    /// What else keeps the files from being clean.
    errors: Vec<Problem<'a>>,
}

/// A class or function that a file names.
#[derive(Serialize)]
struct GlobalJson<'a> {
    #[serde(serialize_with = "as_text")]
    file: &'a Path,
    /// The member of an archive that names it.
    member: Option<&'a str>,
    /// The offset of its first occurrence: in the member, if there is one.
    offset: u64,
    #[serde(serialize_with = "as_word")]
    verdict: Danger,
    name: String,
}

/// A fault of a file, in addition to the listed names.
#[derive(Serialize)]
struct Problem<'a> {
    #[serde(serialize_with = "as_text")]
    file: &'a Path,
    code: &'static str,
    message: &'a str,
    /// Whether loading the file would run code.
    #[serde(skip)]
    runs_code: bool,
}

/// List the code that pickles name, with a verdict on each.
#[derive(Debug, Args)]
#[command(after_help = "\
harmless:     plain data or a tensor is made from it
library:      the code of a library runs when its objects are loaded
needs-trust:  on no list: loading it runs whatever it is
runs-code:    calling it runs code, or reaches files or the network
Every file below the paths is looked at. Exit status 1 if any is not harmless,
3 if something could not be looked at; `max-weights scan` says more.")]
pub(crate) struct Globals {
    /// Files, folders, indexes, URLs, ORG/MODEL in the cache; - for stdin.
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(options: &Globals, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let selection = RuleSelection { select: vec!["security".to_owned()], ignore: Vec::new() };
    let requested = ValidateOptions { selection, severity: Severity::Warning, ..ValidateOptions::default() };
    let inputs = ValidateInputs::new(&options.paths)?;
    let progress = ValidateProgress::default();
    let report = {
        let _bar = crate::progress::CommandProgress::growing(&progress.done, &progress.bytes);
        max_weights_check::validate(&inputs.paths, &requested, &progress, &uninterrupted)?
    };
    let report = inputs.renamed(report);
    let found = globals(&report);
    let errors = problems(&report);
    let not_harmless = found.iter().filter(|global| global.verdict != Danger::Harmless).count();
    screen.status = if not_harmless > 0 || errors.iter().any(|error| error.runs_code) {
        FINDINGS
    } else if errors.is_empty() {
        CLEAN
    } else {
        UNREADABLE
    };
    if options.json {
        let files = report.files.iter().map(|file| file.path.to_string_lossy().into_owned()).collect();
        let pickles = report.files.iter().map(|file| file.pickles).sum();
        let object =
            GlobalsJson { schema: "max-weights.globals/1", files, pickles, globals: found, not_harmless, errors };
        serde_json::to_writer_pretty(&mut *screen, &object)?;
        screen.line("")?;
    } else {
        print(&found, not_harmless, &report, screen)?;
        let declared =
            |of: &Problem<'_>| format!("{}: {} [{}]", text::path(of.file), text::printable(of.message), of.code);
        screen.warn(errors.iter().map(declared))?;
    }
    Ok(screen.status)
}

fn globals(report: &Report) -> Vec<GlobalJson<'_>> {
    let of_file = report.files.iter().flat_map(|file| file.globals.iter().map(move |global| (file, global)));
    let found = of_file.map(|(file, global)| GlobalJson {
        file: &file.path,
        member: global.member.as_deref(),
        offset: global.offset,
        verdict: global.danger,
        name: format!("{}.{}", global.module, global.name),
    });
    found.collect()
}

/// Findings that are broken, hide what they call, or run code without a pickle, so that `scan` and this agree on which files are clean. Listed
/// imports and calls are not repeated.
fn problems<'a>(report: &'a Report) -> Vec<Problem<'a>> {
    let listed = |rule: &str| matches!(rule, "code.malicious-global" | "code.library-global" | "code.unknown-global");
    let counts = report.findings.iter().filter(|of| of.rule.verdict >= rules::Verdict::Broken && !listed(of.rule.id));
    let problem = |of: &'a Diagnostic| Problem {
        file: of.file(),
        code: of.rule.code,
        message: &of.message,
        runs_code: of.rule.verdict > rules::Verdict::Broken,
    };
    counts.map(problem).collect()
}

fn print(
    found: &[GlobalJson<'_>],
    not_harmless: usize,
    report: &Report,
    screen: &mut Screen,
) -> Result<(), CommandFailure> {
    let paint = screen.paint;
    let several = report.files.len() > 1;
    let width = found.iter().map(|global| global.offset.to_string().len()).max().unwrap_or(0);
    for GlobalJson { file, member, offset, verdict, name } in found {
        let style = paint.danger(*verdict);
        let place = match (several, member) {
            (true, Some(member)) => format!("{}!/{member}", text::path(file)),
            (true, None) => text::path(file),
            (false, Some(member)) => (*member).to_owned(),
            (false, None) => String::new(),
        };
        let place = if place.is_empty() { place } else { format!("  {0}{place}{0:#}", paint.dim) };
        let (verdict, name) = (padded(verdict.name(), 11), text::printable(name));
        screen.line(&format!("{offset:>width$}  {style}{verdict}{style:#}  {name}{place}"))?;
    }
    screen.line("")?;
    let count = text::plural(found.len() as u64, "global");
    let pickles = text::plural(report.files.iter().map(|file| file.pickles).sum(), "pickle");
    let files = text::plural(report.files.len() as u64, "file");
    let not_harmless = text::grouped(not_harmless as u64);
    screen.line(&format!("{0}{count}, {not_harmless} not harmless, in {pickles} of {files}{0:#}", paint.bold))?;
    Ok(())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn as_word<S: serde::Serializer>(verdict: &Danger, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(verdict.name())
}

fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}
