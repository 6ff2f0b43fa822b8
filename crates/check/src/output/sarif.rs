//! SARIF 2.1.0 with all that GitHub's code scanning demands, and within what it takes.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use max_weights::rules::{Rule, Severity, Verdict};
use max_weights::{Diagnostic, text};
use serde_json::{Value, json};

use super::json_text::write_pretty;
use super::{
    PROGRAM, ReportPaths, Settings, VERSION, fingerprints, is_security, place, sentence, shorten, worst_first,
};
use crate::report::{Depth, Report};

/// Results of one run that are kept by GitHub, by severity; the others are left out here, and counted.
pub(super) const MAX_RESULTS: usize = 5000;
/// Files that are named as not looked at.
const MAX_NOTIFICATIONS: usize = 100;
/// Characters of texts: GitHub takes 1,024 of those of rules.
const MAX_RULE_TEXT: usize = 1000;
const MAX_MESSAGE: usize = 2000;
/// Where the schema is.
const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

pub(super) fn write(report: &Report, settings: &Settings, out: &mut dyn Write) -> io::Result<()> {
    let mut kept = worst_first(&report.findings);
    kept.truncate(MAX_RESULTS);
    let mut rules: Vec<&'static Rule> = Vec::new();
    let mut places = ReportPaths::new(&settings.root);
    let fingerprints = fingerprints(kept.iter().copied(), &settings.root);
    let mut results = Vec::with_capacity(kept.len());
    for (finding, fingerprint) in kept.iter().zip(fingerprints) {
        let rule = rules.iter().position(|rule| *rule == finding.rule).unwrap_or_else(|| {
            rules.push(finding.rule);
            rules.len() - 1
        });
        results.push(result(finding, rule, places.name(finding.file()), &fingerprint));
    }
    shorten(&mut results);
    let omitted = report.omitted + (report.findings.len() - results.len()) as u64;
    let mut run = json!({
        "tool": { "driver": {
            "name": PROGRAM,
            "version": VERSION,
            "semanticVersion": VERSION,
            "rules": rules.iter().map(|rule| describe(rule)).collect::<Vec<_>>(),
        }},
        "automationDetails": { "id": format!("{}/", settings.category.trim_end_matches('/')) },
        "columnKind": "unicodeCodePoints",
        "invocations": [{
            "executionSuccessful": true,
            "startTimeUtc": utc(settings.started),
            "endTimeUtc": utc(settings.started.checked_add(report.elapsed).unwrap_or(settings.started)),
            "toolExecutionNotifications": notifications(report, omitted, results.len(), &mut places),
        }],
        "results": results,
    });
    if let Some(share) = &report.share {
        run["properties"] = json!({ "task": share });
    }
    let log = json!({ "$schema": SCHEMA, "version": "2.1.0", "runs": [run] });
    write_pretty(&log, out)
}

fn result(finding: &Diagnostic, rule: usize, path: &str, fingerprint: &str) -> Value {
    let mut region = json!({ "startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1 });
    // The byte of a member is none of the file.
    if let Some(offset) = finding.offset.filter(|offset| finding.member.is_none() && i64::try_from(*offset).is_ok()) {
        region["byteOffset"] = offset.into();
    }
    let mut location = json!({ "physicalLocation": { "artifactLocation": artifact(path), "region": region } });
    let inside = |name: &Option<String>, kind: &str| {
        let name = name.as_deref().filter(|name| !name.is_empty())?;
        Some(json!({ "fullyQualifiedName": text::cut(name, MAX_RULE_TEXT), "kind": kind }))
    };
    let logical: Vec<Value> =
        [inside(&finding.member, "member"), inside(&finding.tensor, "tensor")].into_iter().flatten().collect();
    if !logical.is_empty() {
        location["logicalLocations"] = logical.into();
    }
    json!({
        "ruleId": finding.rule.code,
        "ruleIndex": rule,
        "level": level(finding.rule),
        "message": { "text": filled(&text::cut(&sentence(finding), MAX_MESSAGE), finding.rule.meaning) },
        "locations": [location],
        "partialFingerprints": { "primaryLocationLineHash": fingerprint },
        "properties": { "help": text::cut(&finding.help, MAX_MESSAGE) },
    })
}

fn describe(rule: &Rule) -> Value {
    let help = format!("{}. {}.", capital(rule.cause), capital(rule.help));
    let subject = rule.id.split('.').next().unwrap_or(rule.id);
    let mut tags = vec!["checkpoint", subject];
    let mut properties = json!({ "precision": precision(rule), "problem.severity": problem(rule) });
    if is_security(rule) {
        tags.extend(["security", "supply-chain"]);
        properties["security-severity"] = security_severity(rule).into();
    }
    properties["tags"] = tags.into();
    json!({
        "id": rule.code,
        "name": rule.id,
        "shortDescription": { "text": text::cut(&capital(rule.meaning), MAX_RULE_TEXT) },
        "fullDescription": { "text": text::cut(&format!("{}. The cause: {}.", capital(rule.meaning), rule.cause), MAX_RULE_TEXT) },
        "help": { "text": help, "markdown": format!("**Why:** {}.\n\n**What to do:** {}.", rule.cause, rule.help) },
        "defaultConfiguration": { "level": level(rule) },
        "properties": properties,
    })
}

/// What is not a finding about a line: what was left out, and what was not looked at.
fn notifications<'a>(report: &'a Report, omitted: u64, kept: usize, places: &mut ReportPaths<'a>) -> Vec<Value> {
    let mut notifications = Vec::new();
    if omitted > 0 {
        let (omitted, kept) = (text::plural(omitted, "finding"), text::grouped(kept as u64));
        let sentence = format!("{omitted} left out: the worst {kept} are kept");
        notifications.push(json!({ "level": "warning", "message": { "text": sentence } }));
    }
    for (count, of) in [(report.known, "known from the baseline"), (report.ignored, "ignored by settings")] {
        if count > 0 {
            let sentence = format!("{} {of}", text::plural(count, "finding"));
            notifications.push(json!({ "level": "note", "message": { "text": sentence } }));
        }
    }
    let not_looked_at = report.files.iter().filter(|file| file.depth == Depth::NotLookedAt);
    for file in not_looked_at.clone().take(MAX_NOTIFICATIONS) {
        let why = filled(file.note.as_deref().unwrap_or_default(), "it could not be read");
        notifications.push(json!({
            "level": "warning",
            "message": { "text": format!("not looked at: {}", text::cut(&why, MAX_MESSAGE)) },
            "locations": [{ "physicalLocation": { "artifactLocation": artifact(places.name(&file.path)) } }],
        }));
    }
    if let Some(more) = not_looked_at.count().checked_sub(MAX_NOTIFICATIONS).filter(|more| *more > 0) {
        let sentence = format!("{} not looked at", text::plural(more as u64, "more file"));
        notifications.push(json!({ "level": "warning", "message": { "text": sentence } }));
    }
    notifications
}

fn artifact(path: &str) -> Value {
    let mut artifact = json!({ "uri": place::uri(path) });
    if place::is_inside(path) {
        artifact["uriBaseId"] = "%SRCROOT%".into();
    }
    artifact
}

fn level(rule: &Rule) -> &'static str {
    rule.severity.name()
}

/// GitHub takes more than 9 for critical, from 7 on for high, from 4 on for medium.
fn security_severity(rule: &Rule) -> &'static str {
    match rule.verdict {
        Verdict::Malicious => "9.8",
        Verdict::NeedsTrust => "7.0",
        Verdict::Broken => "5.0",
        _ => "3.0",
    }
}

/// How often a finding of the rule is a fault: malice and broken files are proven by their bytes, trust is for people to decide.
fn precision(rule: &Rule) -> &'static str {
    match (rule.verdict, rule.severity) {
        (Verdict::Malicious | Verdict::Broken, _) => "very-high",
        (Verdict::NeedsTrust, _) | (_, Severity::Warning | Severity::Error) => "high",
        _ => "medium",
    }
}

fn problem(rule: &Rule) -> &'static str {
    match rule.severity {
        Severity::Note => "recommendation",
        Severity::Warning => "warning",
        _ => "error",
    }
}

/// The text, or another one where it is empty: no required text may be.
fn filled(text: &str, other: &str) -> String {
    if text.trim().is_empty() { other.to_owned() } else { text.to_owned() }
}

fn capital(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

fn utc(at: SystemTime) -> String {
    let millis = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis();
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(0));
    humantime::format_rfc3339_millis(at).to_string()
}
