//! Reports in the forms that people and CI systems read, each within the limits of its reader. Findings that do not fit are counted.
//!
//! Everything in a report that comes from a file is taken for hostile: each form escapes what it would take for its own.

mod colors;
mod fingerprint;
mod github;
mod gitlab;
mod html;
mod json;
mod json_text;
mod junit;
mod place;
mod sarif;
mod step_summary;
mod summary;
mod text;
mod xml;

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::SystemTime;

use max_weights::Diagnostic;
use max_weights::rules::{Rule, Severity, Verdict};
use serde_json::Value;

pub(crate) use fingerprint::fingerprints;
pub use json_text::json_escaped;
pub(crate) use json_text::write_pretty;
pub(crate) use place::ReportPaths;
pub use text::wrap;

use crate::report::Report;
use crate::words::named;

/// The name of the program in reports.
const PROGRAM: &str = "max-weights";
/// Its version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Bytes of JSON for findings that CI systems surely take: GitHub takes 10 MB of SARIF when it is packed, to which texts may not shrink, and spaces
/// do.
const MAX_JSON: usize = 8 << 20;
/// Bytes that are written at a time.
const BUFFER: usize = 64 << 10;

named! {
    /// The form of a report.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    Format {
        Text "text", "for a terminal";
        Json "json", "one object, `max-weights.validate/1`";
        Junit "junit", "JUnit's XML, a case for each file and group of rules";
        Sarif "sarif", "SARIF 2.1.0, as GitHub's code scanning takes it";
        Github "github", "the commands that GitHub Actions makes annotations of, and the summary of the step";
        Gitlab "gitlab", "GitLab's report of code quality";
        Html "html", "a page in one file";
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::from_name(word).ok_or_else(|| {
            let all: Vec<_> = Self::ALL.iter().map(|format| format.name()).collect();
            format!("'{}' is not a report format: {}", max_weights::text::escape(word), all.join(", "))
        })
    }
}

/// How a report is written.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Files are named by their paths in this folder: the root of the repository, where findings are shown in the files.
    pub root: PathBuf,
    /// Findings from here on fail; none: nothing does.
    pub fail_on: Option<Severity>,
    /// Columns of text.
    pub width: usize,
    /// Whether text has colours.
    pub color: bool,
    /// Whether text lists files without findings, too.
    pub all_files: bool,
    /// Tells reports of the same program in one workflow apart, in SARIF.
    pub category: String,
    /// When the validation began.
    pub started: SystemTime,
    /// The file that settings were read from.
    pub config: Option<PathBuf>,
    /// The file of the step's summary on GitHub, to which [`Format::Github`] adds one.
    pub step_summary: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            root: PathBuf::new(),
            fail_on: Some(Severity::Warning),
            width: 100,
            color: false,
            all_files: false,
            category: "max-weights".into(),
            started: SystemTime::now(),
            config: None,
            step_summary: None,
        }
    }
}

/// Writes a report in this form.
pub fn write(report: &Report, format: Format, settings: &Settings, out: &mut dyn Write) -> io::Result<()> {
    let mut buffer = BufWriter::with_capacity(BUFFER, out);
    let out: &mut dyn Write = &mut buffer;
    match format {
        Format::Text => text::write(report, settings, out),
        Format::Json => json::write(report, settings, out),
        Format::Junit => junit::write(report, settings, out),
        Format::Sarif => sarif::write(report, settings, out),
        Format::Github => github::write(report, settings, out),
        Format::Gitlab => gitlab::write(report, settings, out),
        Format::Html => html::write(report, settings, out),
    }?;
    buffer.flush()
}

/// What a finding is, in a word: the answer about security, or else how severe it is.
fn word(rule: &Rule) -> &'static str {
    match rule.verdict {
        Verdict::Malicious => "malicious",
        Verdict::NeedsTrust => "needs trust",
        _ => rule.severity.name(),
    }
}

/// Whether a rule is about what loading a file does.
fn is_security(rule: &Rule) -> bool {
    rule.verdict >= Verdict::NeedsTrust || rule.code.starts_with("MW-EX")
}

/// Whether any finding fails.
fn fails(report: &Report, settings: &Settings) -> bool {
    settings.fail_on.is_some_and(|fail_on| report.failing(fail_on).is_some())
}

/// The findings, the worst first, those of the same kind in the order of the report.
fn worst_first(findings: &[Diagnostic]) -> Vec<&Diagnostic> {
    let mut worst: Vec<&Diagnostic> = findings.iter().collect();
    worst.sort_by_key(|finding| std::cmp::Reverse((finding.rule.verdict, finding.rule.severity)));
    worst
}

/// Leaves out the last values, so that the others do not have too many bytes.
fn shorten(values: &mut Vec<Value>) {
    let mut bytes = 0;
    let fits = |value: &&Value| {
        bytes += json_text::len(value);
        bytes <= MAX_JSON
    };
    let count = values.iter().take_while(fits).count();
    values.truncate(count);
}

/// The sentence of a finding, with its place in the file and its evidence, for readers without separate fields for these.
fn sentence(finding: &Diagnostic) -> String {
    let mut sentence = finding.message.clone();
    let place = place::inside(finding);
    if !place.is_empty() {
        sentence.push_str(&format!(" ({place})"));
    }
    if let Some(evidence) = &finding.evidence {
        sentence.push_str(": ");
        sentence.push_str(evidence);
    }
    sentence
}

/// `2026-11-23T04:05:06`, in UTC.
fn time(at: SystemTime) -> String {
    let mut text = humantime::format_rfc3339_seconds(at).to_string();
    text.truncate("2026-11-23T04:05:06".len());
    text
}
