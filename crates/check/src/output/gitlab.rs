//! GitLab's reports: code quality for all findings, and static security analysis for what is about security.

use std::io::{self, Write};

use max_weights::rules::{Answer, Rule, Severity};
use max_weights::text;
use serde_json::{Value, json};

use super::json_text::write_pretty;
use super::{PROGRAM, Places, Settings, VERSION, fingerprints, is_security, sentence, shorten, time, worst_first};
use crate::finding::Finding;
use crate::report::Report;

/// Findings that are written, the worst first: a merge request with more is not read by anyone.
pub(super) const MAX_FINDINGS: usize = 5000;
/// Characters of texts.
const MAX_TEXT: usize = 1000;
/// The version of GitLab's schema of security reports.
const SAST_VERSION: &str = "15.1.4";

pub(super) fn write(report: &Report, settings: &Settings, out: &mut dyn Write) -> io::Result<()> {
    let (kept, all) = kept(report, |_| true);
    let mut places = Places::new(&settings.root);
    let numbered = kept.iter().zip(fingerprints(kept.iter().copied(), &settings.root));
    let mut issues: Vec<Value> = numbered
        .map(|(finding, fingerprint)| {
            json!({
                "description": described(finding),
                "check_name": finding.rule.code,
                "fingerprint": fingerprint,
                "severity": severity(finding.rule),
                "location": { "path": relative(places.name(&finding.path)), "lines": { "begin": 1 } },
                "categories": [if is_security(finding.rule) { "Security" } else { "Bug Risk" }],
            })
        })
        .collect();
    shorten(&mut issues);
    if let Some(description) = left_out(all, issues.len()) {
        issues.push(json!({
            "description": description,
            "check_name": "left-out",
            "fingerprint": "left-out",
            "severity": "info",
            "location": { "path": kept.first().map_or_else(|| ".".into(), |first| relative(places.name(&first.path))), "lines": { "begin": 1 } },
            "categories": ["Bug Risk"],
        }));
    }
    write_pretty(&issues, out)
}

pub(super) fn write_sast(report: &Report, settings: &Settings, out: &mut dyn Write) -> io::Result<()> {
    let (kept, all) = kept(report, is_security);
    let mut places = Places::new(&settings.root);
    let numbered = kept.iter().zip(fingerprints(kept.iter().copied(), &settings.root));
    let mut vulnerabilities: Vec<Value> = numbered
        .map(|(finding, fingerprint)| {
            json!({
                "id": fingerprint,
                "name": finding.rule.meaning,
                "description": described(finding),
                "severity": match finding.rule.answer {
                    Answer::Malicious => "Critical",
                    Answer::NeedsTrust => "Medium",
                    Answer::Broken => "Unknown",
                    _ => "Info",
                },
                "solution": text::cut(&finding.help, MAX_TEXT),
                "identifiers": [{ "type": "max_weights_rule", "name": finding.rule.code, "value": finding.rule.id }],
                "location": { "file": relative(places.name(&finding.path)), "start_line": 1, "end_line": 1 },
            })
        })
        .collect();
    let program = json!({ "id": PROGRAM, "name": PROGRAM, "version": VERSION, "vendor": { "name": PROGRAM } });
    let ended = settings.started.checked_add(report.elapsed).unwrap_or(settings.started);
    let mut scan = json!({
        "analyzer": program,
        "scanner": program,
        "type": "sast",
        "status": "success",
        "start_time": time(settings.started),
        "end_time": time(ended),
    });
    shorten(&mut vulnerabilities);
    if let Some(value) = left_out(all, vulnerabilities.len()) {
        scan["messages"] = json!([{ "level": "warn", "value": value }]);
    }
    let object = json!({ "version": SAST_VERSION, "scan": scan, "vulnerabilities": vulnerabilities });
    write_pretty(&object, out)
}

/// The worst findings of these rules, and how many there are of all.
fn kept(report: &Report, wanted: impl Fn(&Rule) -> bool) -> (Vec<&Finding>, u64) {
    let order = worst_first(&report.findings);
    let all = order.iter().filter_map(|at| report.findings.get(*at)).filter(|finding| wanted(finding.rule));
    (all.clone().take(MAX_FINDINGS).collect(), all.count() as u64 + report.left_out)
}

/// What is said of findings that are not listed.
fn left_out(all: u64, listed: usize) -> Option<String> {
    let left_out = all.checked_sub(listed as u64).filter(|left_out| *left_out > 0)?;
    let (left_out, listed) = (text::plural(left_out, "finding"), text::grouped(listed as u64));
    Some(format!("{left_out} left out: only the worst {listed} are listed"))
}

fn described(finding: &Finding) -> String {
    let sentence = sentence(finding);
    let sentence = if sentence.trim().is_empty() { finding.rule.meaning } else { &sentence };
    text::cut(&format!("{}: {sentence}", finding.rule.id), MAX_TEXT).into_owned()
}

fn severity(rule: &Rule) -> &'static str {
    match (rule.answer, rule.severity) {
        (Answer::Malicious, _) => "blocker",
        (_, Severity::Note) => "info",
        (Answer::NeedsTrust, _) => "major",
        (_, Severity::Warning) => "minor",
        _ => "critical",
    }
}

/// The path as GitLab wants it, relative; what is outside the repository is named from the root of the system on.
fn relative(name: &str) -> String {
    name.trim_start_matches('/').to_owned()
}
