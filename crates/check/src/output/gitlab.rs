//! GitLab's report of code quality.

use std::io::{self, Write};

use max_weights::rules::{Rule, Severity, Verdict};
use max_weights::{Diagnostic, text};
use serde_json::{Value, json};

use super::json_text::write_pretty;
use super::{ReportPaths, Settings, fingerprints, is_security, sentence, shorten, worst_first};
use crate::report::Report;

/// Findings that are written, the worst first: a merge request with more is not read by anyone.
const MAX_ISSUES: usize = 5000;
/// Characters of texts.
const MAX_TEXT: usize = 1000;

pub(super) fn write(report: &Report, settings: &Settings, out: &mut dyn Write) -> io::Result<()> {
    let mut kept = worst_first(&report.findings);
    let all = kept.len() as u64 + report.omitted;
    kept.truncate(MAX_ISSUES);
    let mut places = ReportPaths::new(&settings.root);
    let numbered = kept.iter().zip(fingerprints(kept.iter().copied(), &settings.root));
    let mut issues: Vec<Value> = numbered
        .map(|(finding, fingerprint)| {
            json!({
                "description": described(finding),
                "check_name": finding.rule.code,
                "fingerprint": fingerprint,
                "severity": severity(finding.rule),
                "location": { "path": relative(places.name(finding.file())), "lines": { "begin": 1 } },
                "categories": [if is_security(finding.rule) { "Security" } else { "Bug Risk" }],
            })
        })
        .collect();
    shorten(&mut issues);
    if let Some(description) = omitted(all, issues.len()) {
        issues.push(json!({
            "description": description,
            "check_name": "left-out",
            "fingerprint": "left-out",
            "severity": "info",
            "location": { "path": kept.first().map_or_else(|| ".".into(), |first| relative(places.name(first.file()))), "lines": { "begin": 1 } },
            "categories": ["Bug Risk"],
        }));
    }
    write_pretty(&issues, out)
}

/// A sentence about findings that are not listed.
fn omitted(all: u64, listed: usize) -> Option<String> {
    let omitted = all.checked_sub(listed as u64).filter(|omitted| *omitted > 0)?;
    let (omitted, listed) = (text::plural(omitted, "finding"), text::grouped(listed as u64));
    Some(format!("{omitted} left out: only the worst {listed} are listed"))
}

fn described(finding: &Diagnostic) -> String {
    let sentence = sentence(finding);
    let sentence = if sentence.trim().is_empty() { finding.rule.meaning } else { &sentence };
    text::cut(&format!("{}: {sentence}", finding.rule.id), MAX_TEXT).into_owned()
}

fn severity(rule: &Rule) -> &'static str {
    match (rule.verdict, rule.severity) {
        (Verdict::Malicious, _) => "blocker",
        (_, Severity::Note) => "info",
        (Verdict::NeedsTrust, _) => "major",
        (_, Severity::Warning) => "minor",
        _ => "critical",
    }
}

/// The relative path that GitLab requires; a file outside the repository has an absolute path.
fn relative(name: &str) -> String {
    name.trim_start_matches('/').to_owned()
}
