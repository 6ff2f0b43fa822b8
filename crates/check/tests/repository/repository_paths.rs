//! Paths that lead out of a folder, and which of several files loaders take.

use std::fs;

use crate::repository_support::{self, folder, found, look, only, rules, safetensors};
use max_weights::rules::{Severity, Verdict};

/// The rules that an index breaks that names this file.
fn of(file: &str) -> Vec<&'static str> {
    let file = serde_json::to_string(file).expect("JSON");
    let index =
        format!(r#"{{"metadata": {{"total_size": NaN}}, "weight_map": {{"a": "model.safetensors", "b": {file}}}}}"#);
    rules(&[("model.safetensors.index.json", &index)])
}

#[test]
fn an_index_that_names_files_outside_is_malicious() {
    for file in [
        "../../etc/passwd",
        "a/../../b.safetensors",
        "/etc/passwd",
        "\\\\server\\share\\a",
        "C:\\a.safetensors",
        "c:/a",
        "a\\..\\..\\b",
        "~/a.safetensors",
        "file:///etc/passwd",
        "https://a/b.safetensors",
        "a/.. /b",
        "model\0.safetensors",
    ] {
        assert_eq!(of(file), ["repository.index-path"], "{file}");
    }
    assert_eq!(of("sub\\model.safetensors"), ["repository.index-backslash"]);
    assert!(of("sub/model-00001-of-00002.safetensors").is_empty());
    assert!(of("..model.safetensors").is_empty());
    let finding =
        only("repository.index-path", &found(&[("pytorch_model.bin.index.json", r#"{"weight_map": {"a": "../b"}}"#)]));
    assert_eq!((finding.answer, finding.evidence.as_str()), (Verdict::Malicious, "../b"));
}

#[cfg(unix)]
#[test]
fn links_to_elsewhere_are_said_and_those_of_the_hubs_cache_are_not() {
    use std::os::unix::fs::symlink;

    let folder = folder(&[("here/model.safetensors", &safetensors("{}")), ("secret.safetensors", &safetensors("{}"))]);
    let here = folder.path().join("here");
    symlink(folder.path().join("secret.safetensors"), here.join("other.safetensors")).expect("a link");
    symlink("model.safetensors", here.join("same.safetensors")).expect("a link");
    let finding = only("repository.link-outside", &look(&here));
    assert_eq!((finding.file.as_str(), finding.severity), ("other.safetensors", Severity::Warning));

    let cache = repository_support::folder(&[("models--a--b/blobs/abc", &safetensors("{}"))]);
    let snapshot = cache.path().join("models--a--b/snapshots/main");
    fs::create_dir_all(&snapshot).expect("a folder");
    symlink("../../blobs/abc", snapshot.join("model.safetensors")).expect("a link");
    assert!(look(&snapshot).is_empty(), "{:#?}", look(&snapshot));
}

#[cfg(unix)]
#[test]
fn a_second_name_of_a_file_is_a_note() {
    let folder = folder(&[("here/model.safetensors", &safetensors("{}"))]);
    let here = folder.path().join("here");
    fs::hard_link(here.join("model.safetensors"), folder.path().join("twin")).expect("a link");
    assert_eq!(only("repository.hard-link", &look(&here)).severity, Severity::Note);
}

#[test]
fn pickles_beside_safetensors_are_noted_with_what_loaders_take() {
    let weights = safetensors("{}");
    for (safe, pickled, library) in [
        ("model.safetensors", "pytorch_model.bin", "Transformers"),
        ("model-00001-of-00002.safetensors", "pytorch_model-00001-of-00002.bin", "Transformers"),
        ("diffusion_pytorch_model.fp16.safetensors", "diffusion_pytorch_model.bin", "Diffusers"),
        ("adapter_model.safetensors", "adapter_model.bin", "PEFT"),
    ] {
        let folder = folder(&[(safe, &weights), (pickled, b"\x80\x02}.")]);
        let finding = only("repository.pickle-beside", &look(folder.path()));
        assert_eq!((finding.file.as_str(), finding.severity), (pickled, Severity::Note));
        assert!(finding.message.contains(&format!("{library} takes the safetensors")), "{}", finding.message);
    }
    let alone = folder(&[("pytorch_model.bin", b"\x80\x02}.".as_slice())]);
    assert!(look(alone.path()).is_empty());
}

#[test]
fn a_pickle_by_the_name_of_safetensors_needs_trust() {
    let folder = folder(&[("adapter_model.safetensors", b"\x80\x04}.".as_slice())]);
    assert_eq!(only("repository.pickle-named-safe", &look(folder.path())).answer, Verdict::NeedsTrust);
}
