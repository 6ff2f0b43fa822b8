//! Target `validate`: a folder of arbitrary files is looked at on every level, and reported in every format.

use std::fs;
use std::path::Path;
use std::str::FromStr as _;

use max_weights::uninterrupted;
use max_weights_check::output::{self, Format, Settings};
use max_weights_check::{Level, Report, ValidateOptions, ValidateProgress, validate};

use super::printing::check_text;

/// Names of files: what is looked for by name, and every suffix that says something.
pub const NAMES: [&str; 28] = [
    "model.safetensors",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "adapter_config.json",
    "adapter_model.safetensors",
    "modeling.py",
    "model_config.yaml",
    "README.md",
    "model.gguf",
    "legacy.pt",
    "archive.zip",
    "arrays.npz",
    "array.npy",
    "net.keras",
    "net.h5",
    "net.onnx",
    "object.pkl",
    "object.pkl.gz",
    "old.tar",
    "path.pth",
    "no suffix",
];
const FORMATS: [&str; 7] = ["text", "json", "junit", "sarif", "github", "gitlab", "html"];

/// The files of an input: for each a byte that selects its name, its length in 16 bits, and its bytes.
pub fn files(mut input: &[u8]) -> Vec<(&'static str, &[u8])> {
    let mut files = Vec::new();
    while let [name, low, high, rest @ ..] = input {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        files.push((NAMES[usize::from(*name) % NAMES.len()], &rest[..len]));
        input = &rest[len..];
    }
    files
}

/// An input of these files, each named by its position in [`NAMES`].
pub fn input(files: &[(u8, &[u8])]) -> Vec<u8> {
    let mut input = Vec::new();
    for (name, bytes) in files {
        let bytes = &bytes[..bytes.len().min(usize::from(u16::MAX))];
        input.push(*name);
        input.extend((bytes.len() as u16).to_le_bytes());
        input.extend_from_slice(bytes);
    }
    input
}

/// Every file is listed. A finding names its rule, a file in the folder and a byte in it, and only prints what a terminal may print. A second run
/// gives the same result, a deeper level loses no finding, and every format can be written.
pub fn check(input: &[u8]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, bytes) in files(input) {
        fs::write(folder.path().join(name), bytes).expect("room for the input");
    }
    let there = fs::read_dir(folder.path()).expect("a folder").count();
    let mut answers = Vec::new();
    for level in [Level::Header, Level::Structure, Level::Content] {
        let report = run(folder.path(), level);
        assert_eq!(report.files.len(), there, "every file is listed");
        check_report(&report, folder.path());
        answers.push(report.answer());
    }
    assert!(answers.is_sorted(), "{answers:?}");
}

fn run(folder: &Path, level: Level) -> Report {
    let options = ValidateOptions { level, ..ValidateOptions::default() };
    validate(&[folder.to_path_buf()], &options, &ValidateProgress::default(), &uninterrupted)
        .expect("findings, and no error")
}

fn check_report(report: &Report, folder: &Path) {
    let again = run(folder, report.level);
    assert_eq!(report.findings, again.findings, "twice the same");
    for finding in &report.findings {
        assert!(!finding.message.is_empty() && !finding.help.is_empty(), "{finding:?}");
        assert!(finding.file().starts_with(folder), "{finding:?}");
        for text in [Some(&finding.message), finding.member.as_ref(), finding.evidence.as_ref()].into_iter().flatten() {
            check_text(text, true);
        }
        if let (Some(offset), None) = (finding.offset, &finding.member) {
            let len = fs::metadata(finding.file()).map_or(0, |meta| meta.len());
            assert!(offset <= len, "{finding:?} is beyond the {len} bytes of the file");
        }
    }
    for format in FORMATS {
        let mut text = Vec::new();
        let format = Format::from_str(format).expect("a format");
        output::write(report, format, &Settings::default(), &mut text).expect("memory");
        let text = String::from_utf8(text).expect("every report is UTF-8");
        if matches!(format, Format::Json | Format::Sarif | Format::Gitlab) {
            serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
        }
    }
}
