//! The baseline: a file of the findings that are known, which are not reported again.
//!
//! A finding is known by its rule, the path in the repository, member, tensor and global; its offset does not count. A finding about code that runs
//! is also compared by the digest of that code. The file is JSON in a stable order, kept in the repository with the settings.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use max_weights::format::json;
use max_weights::rules::Verdict;
use max_weights::source::store;
use max_weights::workers::stopped_here;
use max_weights::{Diagnostic, Error, Result, text};
use serde::{Deserialize, Serialize};

use crate::bytes::read_file;
use crate::options::{Level, RuleSelection};
use crate::output::{ReportPaths, fingerprints, write_pretty};
use crate::report::Report;

/// The name and version of the object.
const SCHEMA: &str = "max-weights.baseline/1";
/// The largest file that is read: each finding has a few hundred bytes.
const MAX_BYTES: u64 = 256 << 20;

/// The known findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    schema: String,
    level: String,
    findings: Vec<KnownFinding>,
}

/// A known finding. All fields except the fingerprint are for people.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownFinding {
    /// The path in the repository.
    pub path: String,
    /// The code of the rule.
    pub code: String,
    /// The member of an archive.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub member: Option<String>,
    /// The tensor.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tensor: Option<String>,
    /// What it was when it was written down.
    pub message: String,
    /// What it is known by.
    pub fingerprint: String,
}

impl KnownFinding {
    /// The finding in a line.
    pub fn line(&self) -> String {
        format!("{}: {} {}", text::printable(&self.path), text::escape(&self.code), text::escape(&self.message))
    }
}

/// Writes the findings of a report as those that are known, with paths in this folder. What is malicious is written only where that is asked for; gives
/// back how many findings were not.
///
/// # Errors
/// The output cannot be written.
pub fn write(report: &Report, root: &Path, malicious: bool, out: &mut dyn Write) -> std::io::Result<usize> {
    let mut places = ReportPaths::new(root);
    let requested = |finding: &Diagnostic| malicious || finding.rule.verdict != Verdict::Malicious;
    let numbered = report.findings.iter().zip(fingerprints(&report.findings, root));
    let known = numbered.filter(|(finding, _)| requested(finding)).map(|(finding, fingerprint)| KnownFinding {
        path: places.name(finding.file()).to_owned(),
        code: finding.rule.code.to_owned(),
        member: finding.member.clone(),
        tensor: finding.tensor.clone(),
        message: finding.message.clone(),
        fingerprint,
    });
    let mut findings: Vec<KnownFinding> = known.collect();
    findings.sort();
    let baseline = Baseline { schema: SCHEMA.into(), level: report.level.name().into(), findings };
    let excluded = report.findings.len() - baseline.findings.len();
    write_pretty(&baseline, out).map(|()| excluded)
}

/// Reads a baseline.
///
/// # Errors
/// A file that cannot be read, or is not a baseline.
pub fn read(path: &Path) -> Result<Baseline> {
    let wrong = |cause: String| Error::Argument(format!("{} is not a baseline: {cause}", text::path(path)));
    let failed = |error| Error::Argument(format!("{}: the baseline cannot be read: {error}", text::path(path)));
    let content = read_file(path, MAX_BYTES, &stopped_here).map_err(failed)?;
    let content = content.ok_or_else(|| wrong(format!("it has more than {}", text::size(MAX_BYTES))))?;
    let baseline: Baseline = json::read(&content, MAX_BYTES).map_err(wrong)?;
    if baseline.schema != SCHEMA {
        return Err(wrong(format!("its schema is '{}', not '{SCHEMA}'", text::escape(&baseline.schema))));
    }
    Ok(baseline)
}

/// Removes the known findings from a report and counts them there. Returns the stale entries of the baseline: those that were not found again
/// although their rules were selected, at the same depth or a deeper one, and their files were examined or are gone.
pub fn apply(report: &mut Report, baseline: &Baseline, root: &Path, selection: &RuleSelection) -> Vec<KnownFinding> {
    let mut known: HashMap<&str, bool> =
        baseline.findings.iter().map(|known| (known.fingerprint.as_str(), false)).collect();
    let mut is_known = |fingerprint: String| known.get_mut(fingerprint.as_str()).map(|seen| *seen = true).is_some();
    let which: Vec<bool> = fingerprints(&report.findings, root).into_iter().map(&mut is_known).collect();
    report.known += report.leave_out(&which);
    if report.level.name() != baseline.level && report.level < Level::Content {
        return Vec::new();
    }
    let mut places = ReportPaths::new(root);
    let looked_at: std::collections::HashSet<String> =
        report.files.iter().map(|file| places.name(&file.path).to_owned()).collect();
    let stale = |entry: &&KnownFinding| {
        let is_selected = max_weights::rules::find(&entry.code).is_none_or(|rule| selection.has(rule));
        let unseen = known.get(entry.fingerprint.as_str()) == Some(&false);
        // Of a server it is not asked what is no longer there.
        let is_gone = || !store::is_url(Path::new(&entry.path)) && !root.join(&entry.path).exists();
        unseen && is_selected && (looked_at.contains(&entry.path) || is_gone())
    };
    baseline.findings.iter().filter(stale).cloned().collect()
}
