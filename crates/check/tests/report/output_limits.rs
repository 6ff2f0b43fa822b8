//! A quarter of a million findings: each form stays within what reads it, keeps the worst, and says what it leaves out.
#![cfg(unix)]

use crate::fixture;
use std::fs;
use std::sync::LazyLock;

use max_weights::rules::Severity;
use max_weights::text;
use max_weights_check::Report;
use max_weights_check::output::{Format, Settings, write};
use serde_json::Value;

const FINDINGS: usize = 250_000;
static REPORT: LazyLock<Report> = LazyLock::new(|| fixture::many(FINDINGS, 500));

fn written(report: &Report, format: Format, settings: &Settings) -> String {
    let mut out = Vec::new();
    write(report, format, settings, &mut out).expect("memory takes everything");
    String::from_utf8(out).expect("reports are UTF-8")
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn sarif_keeps_the_worst_5000() {
    let report = &*REPORT;
    let text = written(report, Format::Sarif, &fixture::settings());
    let log = parsed(&text);
    let run = &log["runs"][0];
    let results = run["results"].as_array().expect("results");
    assert_eq!(results.len(), 5000);
    assert!(results.iter().all(|result| result["ruleId"] == fixture::CALL.code), "the worst are kept");
    assert!(run["tool"]["driver"]["rules"].as_array().is_some_and(|rules| rules.len() == 1));
    let message = run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"].as_str();
    assert_eq!(message, Some("245,000 findings left out: the worst 5,000 are kept"));
    assert!(text.len() < 10 << 20, "10 MB are taken, and that when it is compressed");
}

#[test]
fn long_sentences_do_not_make_reports_longer_than_is_taken() {
    let mut report = fixture::many(3000, 10);
    for (number, finding) in report.findings.iter_mut().enumerate() {
        finding.help = format!("{number} ").repeat(800).into();
        finding.evidence = Some("x".repeat(3000));
    }
    let written = |format| written(&report, format, &fixture::settings());
    let log = parsed(&written(Format::Sarif));
    let run = &log["runs"][0];
    let kept = run["results"].as_array().map_or(0, Vec::len);
    let message = run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"].as_str();
    assert!(
        kept > 100 && message.is_some_and(|message| message.starts_with(&text::plural(3000 - kept as u64, "finding")))
    );
    for format in [Format::Sarif, Format::Gitlab] {
        let bytes = serde_json::to_string(&parsed(&written(format))).map_or(0, |text| text.len());
        assert!((1_000_000..10_000_000).contains(&bytes), "{}: {bytes} bytes", format.name());
    }
}

#[test]
fn junit_stays_below_30_mb_and_250000_objects() {
    for files in [1, 500, FINDINGS] {
        let text = written(&fixture::many(FINDINGS, files), Format::Junit, &fixture::settings());
        assert!(text.len() < 30_000_000, "{files} files: {} bytes", text.len());
        let document = roxmltree::Document::parse(&text).expect("XML");
        assert!(document.descendants().filter(roxmltree::Node::is_element).count() < 250_000);
        let cases = document.descendants().filter(|node| node.has_tag_name("testcase")).count();
        let suite = document.descendants().find(|node| node.has_tag_name("testsuite")).expect("a suite");
        assert_eq!(suite.attribute("tests"), Some(cases.to_string().as_str()));
        assert_eq!(text.contains(" left out: readers of this format take no more"), files == FINDINGS);
    }
}

#[test]
fn a_step_has_10_annotations_of_a_severity_and_the_summary_has_the_rest() {
    let folder = tempfile::tempdir().expect("a folder");
    let summary = folder.path().join("summary.md");
    fs::write(&summary, "# What an earlier command wrote\n").expect("a file");
    let settings = Settings { step_summary: Some(summary.clone()), ..fixture::settings() };
    let text = written(&REPORT, Format::Github, &settings);
    for command in ["::error ", "::warning ", "::notice "] {
        assert_eq!(text.lines().filter(|line| line.starts_with(command)).count(), 10, "{command}");
    }
    assert!(
        text.ends_with("249,970 more findings in the step summary: a step shows 10 annotations of a severity\n"),
        "{text}"
    );
    let summary = fs::read_to_string(summary).expect("the summary");
    assert!(summary.starts_with("# What an earlier command wrote\n## max-weights validate\n"));
    assert!(summary.len() <= 1 << 20 && summary.len() > 1 << 19, "{} bytes", summary.len());
    assert!(summary.contains(" findings left out: the size limit is reached."));
}

#[test]
fn a_summary_that_is_full_is_left_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let summary = folder.path().join("summary.md");
    fs::write(&summary, vec![b'a'; (1 << 20) - 100]).expect("a file");
    let settings = Settings { step_summary: Some(summary.clone()), ..fixture::settings() };
    written(&fixture::sample(), Format::Github, &settings);
    assert_eq!(fs::metadata(summary).expect("the summary").len(), (1 << 20) - 100);
}

#[test]
fn gitlab_gets_the_worst_5000() {
    let report = &*REPORT;
    let issues = parsed(&written(report, Format::Gitlab, &fixture::settings()));
    let issues = issues.as_array().expect("an array");
    assert_eq!(issues.len(), 5001);
    assert!(issues[..5000].iter().all(|issue| issue["severity"] == "blocker"));
    assert_eq!(issues[5000]["description"], "245,000 findings left out: only the worst 5,000 are listed");
}

#[test]
fn the_page_lists_the_worst_2000() {
    let page = written(&REPORT, Format::Html, &fixture::settings());
    assert_eq!(page.matches("<details class=\"finding").count(), 2000);
    assert!(page.contains("248,000 findings left out"));
    assert!(page.len() < 5 << 20, "{} bytes", page.len());
}

#[test]
fn programs_get_all_findings() {
    let report = &*REPORT;
    let object = parsed(&written(report, Format::Json, &fixture::settings()));
    assert_eq!(object["findings"].as_array().map(Vec::len), Some(FINDINGS));
    assert_eq!(object["summary"]["errors"], report.count(Severity::Error));
}
