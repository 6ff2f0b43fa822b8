//! Folders written for a test, and what validation finds in them.
#![allow(dead_code, clippy::expect_used, clippy::panic)] // each test uses a part of it, and fails by panicking

use std::fs;
use std::path::Path;

use max_weights::rules::{Severity, Verdict};
use max_weights::{Diagnostic, uninterrupted};
use max_weights_check::{ValidateOptions, ValidateProgress, validate};
use tempfile::TempDir;

/// A finding: its rule, the file, the sentence, and the evidence.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) rule: &'static str,
    pub(crate) severity: Severity,
    pub(crate) answer: Verdict,
    pub(crate) file: String,
    pub(crate) message: String,
    pub(crate) evidence: String,
}

/// A folder with these files.
pub(crate) fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, bytes).expect("a file");
    }
    folder
}

/// The findings in a folder.
pub(crate) fn look(folder: &Path) -> Vec<Found> {
    let report =
        validate(&[folder.to_path_buf()], &ValidateOptions::default(), &ValidateProgress::default(), &uninterrupted)
            .expect("a report");
    let of_repository = |finding: &&Diagnostic| finding.rule.id.starts_with("repository.");
    let found = report.findings.iter().filter(of_repository).map(|finding| Found {
        rule: finding.rule.id,
        severity: finding.rule.severity,
        answer: finding.rule.verdict,
        file: finding.file().strip_prefix(folder).unwrap_or(finding.file()).to_string_lossy().replace('\\', "/"),
        message: finding.message.clone(),
        evidence: finding.evidence.clone().unwrap_or_default(),
    });
    found.collect()
}

/// The findings in a folder with these files.
pub(crate) fn found(files: &[(&str, &str)]) -> Vec<Found> {
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, text)| (*name, text.as_bytes())).collect();
    look(folder(&files).path())
}

/// The rules of the findings, each once, without the note about a program.
pub(crate) fn rules(files: &[(&str, &str)]) -> Vec<&'static str> {
    let mut rules: Vec<&str> =
        found(files).iter().map(|found| found.rule).filter(|rule| *rule != "repository.program").collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

/// The only finding of this rule.
pub(crate) fn only(rule: &str, found: &[Found]) -> Found {
    let of_rule: Vec<&Found> = found.iter().filter(|found| found.rule == rule).collect();
    match of_rule.as_slice() {
        [one] => (*one).clone(),
        _ => panic!("{} findings of {rule} in {found:#?}", of_rule.len()),
    }
}

/// A file of safetensors with one tensor and this metadata.
pub(crate) fn safetensors(metadata: &str) -> Vec<u8> {
    let header =
        format!(r#"{{"__metadata__":{metadata},"a.weight":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
    let padded = format!("{header:<width$}", width = header.len().next_multiple_of(8));
    let mut bytes = (padded.len() as u64).to_le_bytes().to_vec();
    bytes.extend(padded.as_bytes());
    bytes.extend([0; 4]);
    bytes
}

/// A GGUF file without tensors that has these texts as metadata.
pub(crate) fn gguf(metadata: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend((metadata.len() as u64 + 1).to_le_bytes());
    for (key, text) in [("general.architecture", "llama")].iter().chain(metadata) {
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend(8_u32.to_le_bytes());
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes
}
