//! One file by itself.

use max_weights_check::{Depth, Level};

use super::support::{Fixture, report, rules, safetensors};

#[test]
fn a_file_says_what_is_in_it_and_how_deep_it_was_looked_into() {
    let folder = Fixture::new().weights("a.safetensors", &[("x", "F32", &[2, 3]), ("y", "BF16", &[4])]);
    for (level, depth) in [(Level::Header, Depth::Header), (Level::Structure, Depth::Structure)] {
        let report = folder.report(level);
        let file = &report.files[0];
        assert_eq!((file.tensors, file.parameters, file.depth), (Some(2), Some(10), depth));
        assert_eq!(rules(&report), [""; 0]);
    }
}

#[test]
fn every_fault_of_a_file_is_listed_and_none_hides_another() {
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend([0; 6]);
    let folder = Fixture::new().with("a.safetensors", file).weights("good.safetensors", &[("x", "F32", &[1])]);
    let report = folder.report(Level::Structure);
    assert_eq!(rules(&report), ["safetensors.overlap", "safetensors.size"]);
    assert_eq!((report.files[0].tensors, report.files[1].tensors), (None, Some(1)));
}

#[test]
fn what_lies_in_the_place_of_weights_is_named() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n";
    for (name, bytes, rule) in [
        ("model.safetensors", pointer, "format.lfs-pointer"),
        ("tokenizer.model", pointer, "format.lfs-pointer"),
        ("model.safetensors", "<!DOCTYPE html><p>Sign in", "format.web-page"),
        ("model.gguf", "", "format.empty"),
        ("model.safetensors", "{\"error\": \"not found\"}", "format.json"),
        ("pytorch_model.bin", "some words that are no weights", "format.unknown"),
        ("weights.pt", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "format.zeros"),
    ] {
        assert_eq!(Fixture::new().with(name, bytes).rules(), [rule], "{name}");
    }
}

#[test]
fn what_is_no_checkpoint_and_is_not_called_one_is_no_finding() {
    let pickle = b"\x80\x04\x95\x05\0\0\0\0\0\0\0]\x94(K\x01e.";
    let mut folder = Fixture::new();
    for (name, bytes) in [
        ("state.pkl", &pickle[..]),
        ("data.bin", &pickle[..]),
        ("tokens.bin", b"\x01\x02\x03\x04\x05\x06\x07\x08"),
        ("__init__.py", b""),
        ("distutils-precedence.pth", b"import os\n"),
        ("array.npy", b"\x93NUMPY\x01\0v\0{'descr': '<f4'}"),
        ("empty.zip", b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        ("cut.zip", b"PK\x03\x04 and then nothing"),
    ] {
        folder = folder.with(name, bytes);
    }
    assert_eq!(folder.rules(), ["file.not-examined"], "the tokens");
}

#[test]
fn an_archive_that_is_called_a_checkpoint_and_is_cut_is_a_finding() {
    let folder = Fixture::new().with("model.pt", b"PK\x03\x04 and then nothing");
    assert_eq!(folder.rules(), ["torch-zip.truncated"]);
}

#[test]
fn of_a_single_file_nothing_is_said_about_files_that_were_not_given() {
    let name = "model-00001-of-00002.safetensors";
    let folder = Fixture::new().with(name, safetensors(&[("x", "F32", &[1])], None));
    assert_eq!(rules(&report(&folder.path().join(name), Level::Structure)), [""; 0]);
    assert_eq!(folder.rules(), ["directory.missing-shards"]);
}

#[test]
fn real_files_have_no_findings_that_are_worse_than_a_note() {
    let Some(models) = std::env::var_os("MAX_WEIGHTS_MODELS") else {
        eprintln!("no real files: MAX_WEIGHTS_MODELS is not set");
        return;
    };
    let report = report(models.as_ref(), Level::Structure);
    let worse = report.findings.iter().filter(|finding| finding.rule.severity > max_weights::rules::Severity::Note);
    assert_eq!(worse.map(|finding| (finding.file(), finding.rule.id)).collect::<Vec<_>>(), []);
    assert!(report.files.len() > 10);
}

#[test]
fn a_dtype_that_safetensors_does_not_have_is_broken_as_its_package_refuses_it() {
    let unknown = vec!["safetensors.unknown-dtype"];
    for (dtype, expected) in [("F33", unknown.clone()), ("f32", unknown), ("F32", vec![])] {
        let header = format!(r#"{{"a":{{"dtype":"{dtype}","shape":[1],"data_offsets":[0,4]}}}}"#);
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
        let report = Fixture::new().with("a.safetensors", file).report(Level::Structure);
        assert_eq!(rules(&report), expected, "{dtype}");
    }
}
