//! The options of `validate`, `scan` and `explain`.

use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum, ValueHint};
use max_weights::rules::Severity;
use max_weights::write::TaskNumber;
use max_weights_check::output::Format;
use max_weights_check::{Level, amount};

use crate::inputs::memory;

/// Heads of options in the help: what counts, what is written, and how it is done.
const RULES: &str = "Rules";
const REPORTS: &str = "Reports";
const BOUNDS: &str = "Settings and bounds";

/// Check that files are whole, safe, and what they claim to be.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 5 malicious, 4 needs trust, 3 broken, 1 other findings, 0 else.")]
pub(crate) struct Validate {
    /// header, structure (the default: no values) or content.
    #[arg(long, value_name = "LEVEL", hide_possible_values = true)]
    pub(crate) level: Option<Depth>,
    /// What it should be: spec.json, checkpoint, config.json.
    #[arg(long, value_name = "SPEC", value_hint = ValueHint::AnyPath)]
    pub(crate) expect: Option<PathBuf>,
    /// Write what the checkpoint is, for --expect.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) write_spec: Option<PathBuf>,
    /// Only these: codes, beginnings, names, security.
    #[arg(long, value_name = "RULES", value_delimiter = ',', help_heading = RULES)]
    pub(crate) select: Vec<String>,
    #[command(flatten)]
    pub(crate) checking: CheckArguments,
}

/// Check whether loading files would run code.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 5 malicious, 4 needs trust (loading it runs code), 3 broken or not examined, 0 none of these."
)]
pub(crate) struct ScanArguments {
    #[command(flatten)]
    pub(crate) checking: CheckArguments,
}

/// What `validate` and `scan` share.
#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// Files, folders, indexes, URLs, ORG/MODEL in the cache; - for stdin.
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// Not these.
    #[arg(long, value_name = "RULES", value_delimiter = ',', help_heading = RULES)]
    pub(crate) ignore: Vec<String>,
    /// Leave out anything below: note, warning, error.
    #[arg(long, value_name = "SEVERITY", hide_possible_values = true, help_heading = RULES, value_parser = severities())]
    pub(crate) severity: Option<Severity>,
    /// The lowest that fails (warning); never: nothing.
    #[arg(long, value_name = "SEVERITY", hide_possible_values = true, help_heading = RULES)]
    pub(crate) fail_on: Option<FailOn>,
    /// Findings in this file are not reported again.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = RULES)]
    pub(crate) baseline: Option<PathBuf>,
    /// Write the findings to a file for --baseline.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = RULES)]
    pub(crate) write_baseline: Option<PathBuf>,
    /// Write what is malicious to it as well.
    #[arg(long, requires = "write_baseline", help_heading = RULES)]
    pub(crate) accept_malicious: bool,
    /// text, json, junit, sarif, github, gitlab, html.
    #[arg(long = "output", short, value_name = "FORMAT[=FILE]", value_parser = output, help_heading = REPORTS)]
    pub(crate) outputs: Vec<ReportOutput>,
    /// One JSON object: --output json.
    #[arg(long, help_heading = REPORTS)]
    pub(crate) json: bool,
    /// Tells SARIF reports of one workflow apart.
    #[arg(long, value_name = "NAME", help_heading = REPORTS)]
    pub(crate) category: Option<String>,
    /// Instead of max-weights.toml and pyproject.toml.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = BOUNDS)]
    pub(crate) config: Option<PathBuf>,
    /// Read no settings from files.
    #[arg(long, conflicts_with = "config", help_heading = BOUNDS)]
    pub(crate) no_config: bool,
    /// Files to check at the same time.
    #[arg(long, value_name = "N", help_heading = BOUNDS)]
    pub(crate) jobs: Option<NonZero<usize>>,
    /// Only this task's folders, as 3/16: `report merge`.
    #[arg(long, value_name = "I/N", help_heading = BOUNDS, conflicts_with_all = ["write_baseline"])]
    pub(crate) task: Option<TaskNumber>,
    /// Memory for unpacked data, such as 200MB.
    #[arg(long, value_name = "SIZE", value_parser = memory, help_heading = BOUNDS)]
    pub(crate) max_memory: Option<u64>,
    /// Skip everything left after this time (90s, 10min).
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = BOUNDS)]
    pub(crate) timeout: Option<Duration>,
}

impl CheckArguments {
    /// Whether nothing but JSON is to be on standard output.
    pub(crate) fn wants_json(&self) -> bool {
        let is_json = |output: &ReportOutput| output.file.is_none() && output.format == Format::Json;
        self.json || self.outputs.iter().any(is_json)
    }
}

/// A requested report.
#[derive(Debug, Clone)]
pub(crate) struct ReportOutput {
    pub(crate) format: Format,
    /// None: standard output.
    pub(crate) file: Option<PathBuf>,
}

fn output(text: &str) -> Result<ReportOutput, String> {
    let (format, file) = match text.split_once('=') {
        Some((_, "")) => return Err("a file is missing after the =".into()),
        Some((format, "-" | "/dev/stdout")) => (format, None),
        Some((format, file)) => (format, Some(file.into())),
        None => (text, None),
    };
    Ok(ReportOutput { format: Format::from_str(format)?, file })
}

fn time(text: &str) -> Result<Duration, String> {
    amount::time(text).ok_or_else(|| "a time such as 90s or 10min is needed".to_owned())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Depth {
    Header,
    Structure,
    Content,
}

impl From<Depth> for Level {
    fn from(depth: Depth) -> Self {
        match depth {
            Depth::Header => Self::Header,
            Depth::Structure => Self::Structure,
            Depth::Content => Self::Content,
        }
    }
}

/// The names of severities, and the severity of each.
fn severities() -> impl TypedValueParser<Value = Severity> {
    PossibleValuesParser::new(Severity::ALL.map(Severity::name))
        .map(|name| Severity::from_name(&name).unwrap_or(Severity::Note))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailOn {
    Note,
    Warning,
    Error,
    Never,
}

impl FailOn {
    /// The severity; `None` if no finding fails.
    pub(crate) fn severity(self) -> Option<Severity> {
        match self {
            Self::Note => Some(Severity::Note),
            Self::Warning => Some(Severity::Warning),
            Self::Error => Some(Severity::Error),
            Self::Never => None,
        }
    }
}

/// Say what a rule means, why files break it, and what to do.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Codes (MW-EX-101), beginnings of codes (MW-EX), or names (safetensors.overlap); none: all rules.
    #[arg(value_name = "RULE")]
    pub(crate) rules: Vec<String>,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
