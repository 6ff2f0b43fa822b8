//! Known findings are not reported again, and known findings that disappeared are reported.
#![cfg(unix)]

use crate::fixture;
use std::num::NonZero;
use std::path::Path;

use max_weights::Error;
use max_weights_check::baseline::{self, Baseline};
use max_weights_check::settings_file::SettingsFile;
use max_weights_check::{Level, Report, RuleSelection};

fn baseline(report: &Report) -> Baseline {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("known.json");
    let mut file = std::fs::File::create(&path).expect("a file");
    baseline::write(report, Path::new(fixture::ROOT), true, &mut file).expect("it can be written");
    baseline::read(&path).expect("it can be read")
}

fn apply(report: &mut Report, known: &Baseline) -> Vec<String> {
    let stale = baseline::apply(report, known, Path::new(fixture::ROOT), &RuleSelection::default());
    stale.into_iter().map(|known| known.line()).collect()
}

#[test]
fn what_is_known_is_counted_and_not_reported() {
    let known = baseline(&fixture::sample());
    let mut report = fixture::sample();
    report.known = 0;
    assert_eq!(apply(&mut report, &known), [""; 0]);
    assert_eq!((report.findings.len(), report.known), (0, 6));
}

#[test]
fn a_finding_is_known_again_where_its_bytes_have_moved() {
    let known = baseline(&fixture::sample());
    let mut report = fixture::sample();
    for finding in &mut report.findings {
        finding.offset = finding.offset.map(|offset| offset + 7);
    }
    apply(&mut report, &known);
    assert_eq!(report.findings, []);
}

#[test]
fn another_call_another_file_and_another_member_are_new() {
    let known = baseline(&fixture::sample());
    let call = fixture::sample().findings.into_iter().find(|finding| finding.rule == fixture::CALL).expect("a call");
    let mut report = fixture::sample();
    report.findings = vec![call.clone().global("os.popen"), call.clone(), call.clone()];
    let mut elsewhere = call.clone();
    elsewhere.path = Some(fixture::path("other.bin"));
    let mut inside = call;
    inside.member = Some("archive/other.pkl".into());
    report.findings.extend([elsewhere, inside]);
    apply(&mut report, &known);
    // The second of two that are alike is new: only one was known.
    assert_eq!(report.findings.len(), 4);
    assert_eq!(report.known, 3);
}

#[test]
fn what_is_malicious_is_written_only_on_request() {
    let mut out = Vec::new();
    let excluded = baseline::write(&fixture::sample(), Path::new(fixture::ROOT), false, &mut out).expect("memory");
    let text = String::from_utf8(out).expect("JSON");
    assert_eq!((excluded, text.contains(fixture::CALL.code), text.contains(fixture::CLASS.code)), (1, false, true));
}

#[test]
fn other_code_in_the_same_place_is_new() {
    let mut known = fixture::sample();
    known.findings.iter_mut().for_each(|finding| finding.code = Some([1; 32]));
    let known = baseline(&known);
    let mut report = fixture::sample();
    report.findings.iter_mut().for_each(|finding| finding.code = Some([1; 32]));
    report.findings[0].code = Some([2; 32]);
    apply(&mut report, &known);
    assert_eq!(report.findings.len(), 1);
}

#[test]
fn what_is_gone_is_told_where_it_was_looked_for() {
    let known = baseline(&fixture::sample());
    let without = || {
        let mut report = fixture::sample();
        report.findings.retain(|finding| finding.rule != fixture::CLASS);
        report
    };
    assert_eq!(
        apply(&mut without(), &known),
        ["models/llama/scaler.joblib: MW-EX-902 the pickle makes a sklearn.preprocessing._data.StandardScaler"]
    );
    let mut shallow = without();
    shallow.level = Level::Structure;
    assert_eq!(apply(&mut shallow, &known), [""; 0], "at this level it was not looked for");
}

#[test]
fn a_file_that_is_no_baseline_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("known.json");
    for (content, part) in [
        ("{}", "missing field"),
        ("[", "is not a baseline"),
        (
            "{\"schema\":\"max-weights.baseline/9\",\"level\":\"header\",\"findings\":[]}",
            "its schema is 'max-weights.baseline/9'",
        ),
    ] {
        std::fs::write(&path, content).expect("a file");
        let message = baseline::read(&path).expect_err(content).to_string();
        assert!(message.contains(part), "{message}");
    }
    assert!(baseline::read(&folder.path().join("missing.json")).is_err());
}

#[test]
fn rules_can_be_ignored_for_paths() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("max-weights.toml");
    std::fs::write(&path, "[validate.per-path-ignores]\n\"models/old/**\" = [\"MW-FI\"]\n").expect("a file");
    let settings = SettingsFile::find(&folder.path().join("a")).expect("settings").expect("they are found above");
    let mut report = fixture::empty();
    for name in ["models/old/a.bin", "models/new/a.bin"] {
        let mut finding = fixture::finding(max_weights::rules::FILE_UNREADABLE, name, "cannot open it");
        finding.path = Some(folder.path().join(name).into());
        report.findings.push(finding);
    }
    settings.apply(&mut report);
    assert_eq!((report.findings.len(), report.ignored), (1, 1));
    assert!(report.findings[0].file().ends_with("models/new/a.bin"));
}

#[test]
fn settings_are_looked_for_up_to_the_root_of_the_repository() {
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("repository/models");
    std::fs::create_dir_all(&inner).expect("folders");
    std::fs::write(folder.path().join("max-weights.toml"), "[validate]\njobs = 1\n").expect("a file");
    std::fs::write(folder.path().join("repository/pyproject.toml"), "[project]\nname = \"a\"\n").expect("a file");
    let jobs = || SettingsFile::find(&inner).expect("TOML").and_then(|settings| settings.jobs).map(NonZero::get);
    assert_eq!(jobs(), Some(1), "a project without settings is passed by");
    std::fs::create_dir(folder.path().join("repository/.git")).expect("a folder");
    assert_eq!(jobs(), None);
    std::fs::write(folder.path().join("repository/pyproject.toml"), "[tool.max-weights.validate]\njobs = 2\n")
        .expect("a file");
    assert_eq!(jobs(), Some(2));
}

#[test]
fn what_is_no_baseline_is_a_mistake_of_whoever_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("known.json");
    let deep = "[".repeat(100_000);
    let other = r#"{"schema": "\u001b[31m", "level": "content", "findings": []}"#;
    let unknown = r#"{"schema": "max-weights.baseline/1", "level": "content", "findings": [{"\u001b": 1}]}"#;
    for content in
        [&b""[..], b"\xff", b"{}", b"[]", b"{\"schema\": 1}", deep.as_bytes(), other.as_bytes(), unknown.as_bytes()]
    {
        std::fs::write(&path, content).expect("written");
        let error = baseline::read(&path).expect_err("no baseline");
        assert!(matches!(error, Error::Argument(_)) && !error.to_string().contains(char::is_control), "{error:?}");
    }
    for path in [folder.path(), &folder.path().join("none.json")] {
        assert!(matches!(baseline::read(path), Err(Error::Argument(_))), "{path:?}");
    }
}
