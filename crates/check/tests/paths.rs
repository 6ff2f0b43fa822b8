//! What is given by name, and not found in a folder.

use std::fs;
use std::path::PathBuf;

use max_weights::rules::Verdict;
use max_weights::uninterrupted;
use max_weights_check::{Report, ValidateOptions, ValidateProgress, validate};

fn checked(paths: &[PathBuf]) -> Report {
    validate(paths, &ValidateOptions::default(), &ValidateProgress::default(), &uninterrupted).expect("validated")
}

#[test]
fn a_path_that_is_not_there_hides_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let (evil, missing) = (folder.path().join("evil.pkl"), folder.path().join("missing.safetensors"));
    fs::write(&evil, b"cos\nsystem\n(S'true'\ntR.").expect("written");
    let report = checked(&[missing.clone(), evil]);
    assert_eq!(report.answer(), Verdict::Malicious);
    let found = report.findings.iter().find(|finding| finding.file() == missing).expect("a finding");
    assert_eq!((found.rule.id, found.rule.verdict), ("file.unreadable", Verdict::Broken));
    assert!(found.message.contains("no such file"), "{}", found.message);
    // A missing path given alone is an error of the caller.
    assert!(validate(&[missing], &ValidateOptions::default(), &ValidateProgress::default(), &uninterrupted).is_err());
}
