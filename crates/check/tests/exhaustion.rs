//! Files made to exhaust time, memory or the process. Each is answered quickly, with a finding about what was not examined.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::repository_support::{folder, found};
use crate::support::{scan, scan_archive};
use max_weights::rules::Verdict;
use max_weights::{Error, uninterrupted};
use max_weights_check::{Depth, Report, ValidateOptions, ValidateProgress, validate};

fn report(path: &Path, options: &ValidateOptions) -> Report {
    validate(&[path.to_path_buf()], options, &ValidateProgress::default(), &uninterrupted).expect("a report")
}

/// A pickle that is read on from the middle of some bytes, if a reader takes the end of its frame at its word.
fn frame_that_ends_within(payload: &[u8]) -> Vec<u8> {
    [&b"\x95\x03\0\0\0\0\0\0\0C"[..], &[payload.len() as u8], payload].concat()
}

#[test]
fn pickles_that_go_on_within_one_another_are_read_only_so_often() {
    // The bytes of each pickle lead to those of the next, up to the end of the file.
    let payload = b"x0C\x11y";
    let one = [&b"\x80\x04"[..], &frame_that_ends_within(payload), b"N."].concat();
    let scanned = scan(&one.repeat(20_000));
    assert!(scanned.has("code.incomplete"), "{:?}", scanned.ids());
}

#[test]
fn pickles_in_pickles_that_are_reached_in_many_ways_are_read_once() {
    let mut inner = b"\x80\x04cos\nsystem\n.".to_vec();
    for _ in 0..6 {
        let way = [&frame_that_ends_within(b"xcos\npath\n0N")[..], b"0"].concat();
        let loads = [&b"cpickle\nloads\nB"[..], &(inner.len() as u32).to_le_bytes(), &inner, b"\x85R."].concat();
        inner = [&b"\x80\x04"[..], &way.repeat(16), &loads].concat();
    }
    let scanned = scan(&inner);
    assert_eq!(scanned.answer(), Verdict::Malicious);
}

#[test]
fn bytes_that_are_decoded_again_and_again_are_decoded_only_so_often() {
    let text = b"gASV".repeat(100_000);
    let start = [&b"\x80\x03B"[..], &(text.len() as u32).to_le_bytes(), &text, b"q\x000"].concat();
    let names = b"cpickle\nloads\nq\x010cbase64\nb64decode\nq\x020";
    let calls = b"h\x01h\x02h\x00\x85R\x85R0".repeat(10_000);
    let scanned = scan(&[&start[..], names, &calls, b"N."].concat());
    assert!(scanned.has("code.incomplete"), "{:?}", scanned.ids());
}

#[test]
fn beginnings_of_pickles_with_lines_without_an_end_are_tried_only_so_often() {
    let scanned = scan(&[&b"\x80\x04N."[..], &b"\x80\x02(V".repeat(500_000)].concat());
    assert!(scanned.has("code.incomplete"), "{:?}", scanned.ids());
}

#[test]
fn an_archive_of_very_many_pytorch_archives_is_said_not_to_be_proved() {
    let names: Vec<String> = (0..101).map(|number| format!("{number}/data.pkl")).collect();
    let members: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b"\x80\x02N."[..])).collect();
    let (scanned, accounted) = scan_archive(&members);
    assert!(scanned.has("code.incomplete"), "{:?}", scanned.ids());
    assert_eq!(accounted.iter().filter(|accounted| **accounted).count(), 100);
    let (scanned, _) = scan_archive(&members[..100]);
    assert!(!scanned.has("code.incomplete"), "{:?}", scanned.ids());
}

#[test]
fn very_many_classes_of_remote_code_are_told_apart_only_so_far() {
    let classes: Vec<String> = (0..5000).map(|number| format!(r#""A{number}": "m{number}.C""#)).collect();
    let config = format!(r#"{{"auto_map": {{{}}}}}"#, classes.join(", "));
    let found = found(&[("config.json", &config)]);
    let of_code: Vec<_> = found.iter().filter(|found| found.rule == "repository.remote-code").collect();
    assert!(matches!(of_code[..], [one] if one.message.ends_with("and 994 more")), "{found:?}");
}

#[test]
fn trust_that_is_asked_for_many_times_is_one_finding() {
    let config = format!("[{}]", [r#"{"trust_remote_\u0063ode": true}"#; 1000].join(", "));
    let found = found(&[("config.json", &config)]);
    assert_eq!(found.iter().filter(|found| found.rule == "repository.trust-key").count(), 1, "{found:?}");
}

#[test]
fn of_each_rule_so_many_findings_are_kept_of_a_file_and_the_others_are_counted() {
    let template = |number| format!(r#"{{"name": "a{number}", "template": "{{{{ a.__class__ }}}}"}}"#);
    let templates = (0..300).map(template).collect::<Vec<_>>().join(", ");
    let config = format!(r#"{{"chat_template": [{templates}]}}"#);
    let folder = folder(&[("tokenizer_config.json", config.as_bytes())]);
    let report = report(folder.path(), &ValidateOptions::default());
    let escapes = report.findings.iter().filter(|finding| finding.rule.id == "repository.template-escape").count();
    assert_eq!((escapes, report.omitted), (100, 200));
}

#[test]
fn a_line_as_long_as_the_file_is_not_shown_whole() {
    let requirement = format!("git+http://{}", "a".repeat(100_000));
    let found = found(&[("requirements.txt", &requirement)]);
    let shown = found.iter().find(|found| found.rule == "repository.requirement").expect("a finding");
    assert!(shown.evidence.len() < 2000, "{}", shown.evidence.len());
}

#[test]
fn folders_in_very_many_folders_are_a_finding_and_hide_no_other() {
    let folder = folder(&[("z/evil.pkl", b"cos\nsystem\n(S'id'\ntR.")]);
    fs::create_dir_all(folder.path().join("a/".repeat(70))).expect("folders");
    let report = report(folder.path(), &ValidateOptions::default());
    let deep = report.findings.iter().find(|finding| finding.rule.id == "file.unreadable").expect("a finding");
    assert!(deep.message.contains("more than 64 folders"), "{deep:?}");
    assert_eq!((report.answer(), report.files.len()), (Verdict::Malicious, 1));
}

#[cfg(unix)]
#[test]
fn pipes_by_the_names_of_files_of_a_model_are_not_waited_for() {
    let names =
        ["model.safetensors.index.json", "tokenizer.json", "config.json", "model.safetensors", "README.md", "a.py"];
    let folder = tempfile::tempdir().expect("a folder");
    for name in names {
        let made = std::process::Command::new("mkfifo").arg(folder.path().join(name)).status();
        assert!(made.expect("mkfifo").success());
    }
    let index = folder.path().join(names[0]);
    let (sender, answers) = std::sync::mpsc::channel();
    // A thread that waits for a pipe would never end: it is left behind, and the test fails.
    let path = folder.path().to_path_buf();
    std::thread::spawn(move || {
        let all = report(&path, &ValidateOptions::default());
        let one = report(&index, &ValidateOptions::default());
        let _ = sender.send((all, one));
    });
    let (all, one) = answers.recv_timeout(Duration::from_secs(60)).expect("an answer");
    let special = |report: &Report| {
        let found = report.findings.iter().filter(|found| found.rule.id == "file.special");
        found.map(|found| found.path.clone()).collect::<BTreeSet<_>>().len()
    };
    assert_eq!((special(&all), special(&one)), (names.len(), 1));
}

#[test]
fn without_time_every_file_is_listed_and_none_is_clean() {
    let folder = folder(&[("a.json", b"{}"), ("b/c.pkl", b"N."), ("b/model.py", b"import os")]);
    let options = ValidateOptions { timeout: Some(Duration::ZERO), ..ValidateOptions::default() };
    let of_files = [folder.path().join("a.json"), folder.path().join("b/c.pkl")];
    let by_name = validate(&of_files, &options, &ValidateProgress::default(), &uninterrupted).expect("a report");
    assert!(by_name.files.iter().all(|file| file.depth == Depth::NotLookedAt && file.answer == Verdict::Broken));
    assert_eq!(by_name.files.len(), 2);
    let whole = report(folder.path(), &options);
    assert_eq!(whole.answer(), Verdict::Broken);
    assert!(whole.findings.iter().any(|finding| finding.message.contains("in the given time")));
}

#[test]
fn an_interrupt_ends_the_walk_through_folders() {
    let folder = folder(&[("a.json", b"{}")]);
    let stop = || Err(Error::Interrupted);
    let stopped =
        validate(&[folder.path().to_path_buf()], &ValidateOptions::default(), &ValidateProgress::default(), &stop);
    assert!(matches!(stopped, Err(Error::Interrupted)));
}

#[test]
fn programs_and_templates_of_one_line_without_end_take_as_long_as_they_are() {
    let many = 100_000;
    for (name, text, rule) in [
        ("a.py", "requests ".repeat(many), "repository.program"),
        ("b.py", "from . import (".repeat(many), "repository.program"),
        ("c.py", "os.a;".repeat(many), "repository.program"),
        ("a.jinja", "{{ \\' }}".repeat(many), "repository.template-unreadable"),
        ("b.jinja", format!("{{{{ {} }}}}", "'a'.format(".repeat(90)).repeat(900), "repository.template-unreadable"),
        ("c.jinja", "{#".repeat(many), "repository.template-unreadable"),
        ("d.jinja", "{% raw %}".repeat(many), "repository.template-unreadable"),
        ("e.jinja", format!("{{{{ {} }}}}", "x[".repeat(480)).repeat(900), "repository.template-unreadable"),
        ("f.jinja", "{{ '__class__' }}".repeat(many), "repository.template-escape"),
    ] {
        let found: BTreeSet<&str> = found(&[(name, &text)]).iter().map(|found| found.rule).collect();
        assert!(found.contains(rule), "{name}: {found:?}");
    }
}

#[test]
fn configurations_of_a_megabyte_of_nesting_are_answered_with_one_finding_each() {
    let nested = ["[", "{\"auto_map\": ", "[{\"a\": ["].map(|nest| nest.repeat((1 << 20) / nest.len()));
    let found = found(&[
        ("config.json", &nested[0]),
        ("generation_config.json", &nested[1]),
        ("model.safetensors.index.json", &nested[2]),
    ]);
    let unreadable = found.iter().filter(|found| found.rule == "repository.config-unreadable").count();
    assert_eq!(unreadable, 2, "{found:?}");
    assert!(found.len() < 10 && found.iter().all(|found| found.message.len() < 500), "{found:?}");
}

#[test]
fn what_is_found_very_often_is_counted_and_hides_nothing_that_comes_after_it() {
    let calls = "- !!python/name:models.Thing\n".repeat(50_000);
    let text = format!("{calls}- !!python/object/apply:os.system [id]\n");
    let folder = folder(&[("config.yaml", text.as_bytes())]);
    let report = report(folder.path(), &ValidateOptions::default());
    let of = |rule: &str| report.findings.iter().filter(|finding| finding.rule.id == rule).count();
    assert_eq!((of("repository.yaml-object"), of("repository.yaml-call")), (100, 1));
    assert_eq!((report.omitted, report.verdict()), (49_900, Verdict::Malicious));
}
