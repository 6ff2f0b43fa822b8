//! Every form of a report is valid for any names of files, and the names are never taken for anything but text.
#![cfg(unix)]

use crate::fixture;
use std::collections::HashSet;

use max_weights::text::printable;
use max_weights_check::Report;
use max_weights_check::output::{Format, Settings, write};
use proptest::prelude::*;
use serde_json::Value;

fn written(report: &Report, format: Format, settings: &Settings) -> String {
    let mut out = Vec::new();
    write(report, format, settings, &mut out).expect("memory takes everything");
    String::from_utf8(out).expect("reports are UTF-8")
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// All forms of a report of these names.
fn check(names: &[&str]) {
    let (report, settings) = (fixture::hostile(names), fixture::settings());
    let written = |format| written(&report, format, &settings);
    text_has_no_commands(&written(Format::Text));
    json_is_whole(&report, &written(Format::Json));
    junit_is_xml(&written(Format::Junit));
    sarif_has_what_github_demands(&parsed(&written(Format::Sarif)));
    annotations_are_read_back(&report, &written(Format::Github));
    quality_has_what_gitlab_demands(&parsed(&written(Format::Gitlab)), report.findings.len());
    step_summary_has_only_own_markup(&report);
    page_has_only_own_markup(&written(Format::Html));
}

fn text_has_no_commands(text: &str) {
    for line in text.lines() {
        assert!(!line.trim_start().starts_with("::") && !line.contains("##"), "{line}");
        assert_eq!(printable(line), line, "nothing steers the terminal");
    }
}

fn json_is_whole(report: &Report, json: &str) {
    let object = parsed(json);
    let findings = object["findings"].as_array().expect("findings");
    assert_eq!(findings.len(), report.findings.len());
    for (record, finding) in findings.iter().zip(&report.findings) {
        // Programs get the unchanged text.
        assert_eq!(record["message"], finding.message);
        assert_eq!(record["tensor"], finding.tensor.as_deref().expect("each has one"));
    }
    let fingerprints: HashSet<_> = findings.iter().map(|finding| finding["fingerprint"].to_string()).collect();
    assert_eq!(fingerprints.len(), findings.len(), "each has its own");
    assert!(
        json.lines().all(|line| printable(line) == line),
        "nothing steers the terminal, and no reader finds another end of a line"
    );
}

fn junit_is_xml(xml: &str) {
    let document = roxmltree::Document::parse(xml).expect("well-formed XML");
    let suite = document.descendants().find(|node| node.has_tag_name("testsuite")).expect("a suite");
    let cases: Vec<_> = suite.children().filter(|node| node.has_tag_name("testcase")).collect();
    assert_eq!(suite.attribute("tests"), Some(cases.len().to_string().as_str()));
    let mut names = HashSet::new();
    for case in cases {
        let key = (case.attribute("classname").expect("mandatory"), case.attribute("name").expect("mandatory"));
        assert!(!key.0.is_empty() && names.insert(key), "{key:?} is there once");
        let results = ["failure", "error", "skipped"]
            .map(|result| case.children().filter(|node| node.has_tag_name(result)).count());
        assert!(results.iter().sum::<usize>() <= 1);
    }
}

fn filled(value: &Value) -> &str {
    let text = value.as_str().unwrap_or_else(|| panic!("no text: {value}"));
    assert!(!text.trim().is_empty(), "a required text is empty");
    text
}

fn sarif_has_what_github_demands(log: &Value) {
    assert_eq!((filled(&log["version"]), log["runs"].as_array().map(Vec::len)), ("2.1.0", Some(1)));
    filled(&log["$schema"]);
    let run = &log["runs"][0];
    filled(&run["tool"]["driver"]["name"]);
    assert!(filled(&run["automationDetails"]["id"]).ends_with('/'));
    let rules = run["tool"]["driver"]["rules"].as_array().expect("rules");
    for rule in rules {
        filled(&rule["id"]);
        for text in ["shortDescription", "fullDescription"] {
            assert!(filled(&rule[text]["text"]).chars().count() <= 1024);
        }
        filled(&rule["help"]["text"]);
        assert!(rule["properties"]["tags"].as_array().is_some_and(|tags| tags.len() <= 10));
        assert!(["very-high", "high", "medium", "low"].contains(&filled(&rule["properties"]["precision"])));
        if let Some(severity) = rule["properties"].get("security-severity") {
            assert!((0.0..=10.0).contains(&filled(severity).parse::<f64>().expect("a number in a text")));
        }
    }
    for result in run["results"].as_array().expect("results") {
        let rule = &rules[result["ruleIndex"].as_u64().expect("a number") as usize];
        assert_eq!(rule["id"], result["ruleId"]);
        filled(&result["message"]["text"]);
        filled(&result["partialFingerprints"]["primaryLocationLineHash"]);
        let place = &result["locations"][0]["physicalLocation"];
        let uri = filled(&place["artifactLocation"]["uri"]);
        assert!(uri.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}#?:[]".contains(&byte)), "{uri}");
        assert!(!uri.starts_with(['/', '.']), "{uri} is relative");
        for key in ["startLine", "startColumn", "endLine", "endColumn"] {
            assert_eq!(place["region"][key], 1);
        }
    }
}

/// A command, its properties and its message.
type Command = (String, Vec<(String, String)>, String);

/// What GitHub's runner makes of a line.
fn command(line: &str) -> Option<Command> {
    let (head, data) = line.strip_prefix("::")?.split_once("::")?;
    let (command, properties) = head.split_once(' ').unwrap_or((head, ""));
    let unescaped = |text: &str| {
        text.replace("%0D", "\r").replace("%0A", "\n").replace("%3A", ":").replace("%2C", ",").replace("%25", "%")
    };
    let properties = properties.split(',').filter_map(|property| property.split_once('='));
    let properties = properties.map(|(key, value)| (key.to_owned(), unescaped(value))).collect();
    Some((command.to_owned(), properties, data.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")))
}

fn annotations_are_read_back(report: &Report, text: &str) {
    let commands: Vec<_> = text.lines().filter(|line| line.trim_start().starts_with("::")).map(command).collect();
    for name in ["error", "warning", "notice"] {
        let of_name = commands.iter().flatten().filter(|(command, ..)| command == name).count();
        assert!(of_name <= 10, "{of_name} of {name}");
    }
    let paths: HashSet<String> = report
        .files
        .iter()
        .map(|file| printable(&file.path.to_string_lossy()[fixture::ROOT.len() + 1..]).into_owned())
        .collect();
    for annotation in commands {
        let (command, properties, message) = annotation.expect("a whole command");
        assert!(["error", "warning", "notice"].contains(&command.as_str()), "{command}");
        let keys: Vec<_> = properties.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["file", "line", "title"]);
        assert!(paths.contains(&properties[0].1), "{}", properties[0].1);
        assert_eq!(message.lines().count(), 2, "{message}");
    }
}

fn quality_has_what_gitlab_demands(issues: &Value, count: usize) {
    let issues = issues.as_array().expect("an array");
    assert_eq!(issues.len(), count);
    let mut fingerprints = HashSet::new();
    for issue in issues {
        assert!(fingerprints.insert(filled(&issue["fingerprint"])));
        filled(&issue["description"]);
        filled(&issue["check_name"]);
        assert!(["info", "minor", "major", "critical", "blocker"].contains(&filled(&issue["severity"])));
        let path = filled(&issue["location"]["path"]);
        assert!(!path.starts_with("./") && !path.starts_with('/'), "{path}");
        assert_eq!(issue["location"]["lines"]["begin"], 1);
    }
}

/// Each `<` begins one of these tags.
fn has_only_tags(text: &str, tags: &[&str]) {
    for (at, _) in text.match_indices('<') {
        let tag = text[at + 1..].trim_start_matches('/');
        let end = tag.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(tag.len());
        assert!(tags.contains(&&tag[..end]), "<{}", tag.chars().take(60).collect::<String>());
    }
}

fn step_summary_has_only_own_markup(report: &Report) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("summary.md");
    written(report, Format::Github, &Settings { step_summary: Some(path.clone()), ..fixture::settings() });
    let text = std::fs::read_to_string(path).expect("the summary");
    has_only_tags(&text, &["code", "br", "em"]);
    for line in text.lines().filter(|line| line.starts_with('|')) {
        assert_eq!(line.matches('|').count(), 5, "{line}");
    }
    assert!(!text.contains("](") && !text.contains("://") && !text.contains("www."), "no links");
    let number_signs = text
        .trim_start_matches('#')
        .match_indices('#')
        .all(|(at, _)| text.trim_start_matches('#')[..at].ends_with('&'));
    assert!(!text.contains('@') && number_signs, "no mentions and no issues");
}

fn page_has_only_own_markup(page: &str) {
    assert!(!page.contains("<script"), "no script runs");
    let end = page.find("</body>").expect("the end of the page");
    let body = &page[page.find("<body>").expect("a body")..end];
    has_only_tags(
        body,
        &[
            "body", "main", "header", "footer", "section", "div", "span", "p", "h1", "h2", "ul", "li", "details",
            "summary", "code", "pre", "table", "tr", "th", "td", "br",
        ],
    );
    for line in body.lines() {
        assert_eq!(printable(line), line);
    }
    // Every attribute is quoted, and no quote in a text ends one: outside of quotes a tag only has fixed words.
    for tag in body.split('<').skip(1).filter_map(|rest| rest.split_once('>')).map(|(tag, _)| tag) {
        let outside: String = tag.split('"').step_by(2).collect();
        let plain = |c: char| c.is_ascii_alphanumeric() || " =/-".contains(c);
        assert!(tag.matches('"').count() % 2 == 0 && outside.chars().all(plain), "<{tag}>");
        assert!(!outside.contains(" on"), "<{tag}>");
    }
}

#[test]
fn hostile_names_are_text_in_every_form() {
    check(&fixture::HOSTILE);
}

#[test]
fn very_long_names_are_cut_in_what_people_read() {
    let names: Vec<String> = fixture::HOSTILE.iter().take(4).map(|name| name.repeat(20_000)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (mut report, settings) = (fixture::hostile(&names), fixture::settings());
    for (number, file) in report.files.iter_mut().enumerate() {
        file.path = fixture::path(&number.to_string());
    }
    for finding in &mut report.findings {
        finding.path = Some(fixture::path("0"));
    }
    for format in [Format::Junit, Format::Sarif, Format::Github, Format::Gitlab, Format::Html] {
        let len = written(&report, format, &settings).len();
        assert!(len < 500_000, "{}: {len} bytes", format.name());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_names_are_text_in_every_form(
        names in prop::collection::vec(
            prop::collection::vec(
                prop_oneof![
                    prop::sample::select(fixture::HOSTILE.to_vec()).prop_map(str::to_owned),
                    any::<String>(),
                    prop::sample::select(vec!["\"", "'", "<", ">", "&", "|", "%", ":", ",", "\n", "::", "]]>", "--", "{{", "`", "\\", "@a", "##[", "\u{1b}"]).prop_map(str::to_owned),
                ],
                0..4,
            ).prop_map(|parts| parts.concat()),
            1..6,
        )
    ) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        check(&names);
    }
}
