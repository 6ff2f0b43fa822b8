//! The mistakes that people really make, and the sentence that each gets: the path, what is wrong, and what to do.

use std::fs;
use std::path::PathBuf;

use max_weights::checkpoint::{Checkpoint, OpenOptions};
use max_weights::error::Error;

fn good() -> Vec<u8> {
    let header = br#"{"w":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}}"#;
    [&(header.len() as u64).to_le_bytes()[..], header, &[0; 64]].concat()
}

/// Opens a file of this name and content, and gives the error's rule and text.
fn refused(name: &str, content: &[u8]) -> (&'static str, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    fs::write(&path, content).expect("written");
    let error = Checkpoint::open(std::slice::from_ref(&path), &OpenOptions::default()).expect_err("refused");
    let text = error.to_string();
    assert!(text.contains(&path.display().to_string()), "{text} names the file");
    let fault = error.diagnostic().expect("a fault");
    assert!(!fault.help.is_empty(), "{text} says what to do");
    (fault.rule.id, text)
}

#[test]
fn a_truncated_download() {
    let (rule, text) = refused("model.safetensors", &good()[..100]);
    assert_eq!(rule, "safetensors.truncated");
    assert!(text.contains("ends 28 bytes early: expected 128 bytes, found 100"), "{text}");
    assert!(text.contains("downloading"), "{text}");
}

#[test]
fn a_download_cut_in_the_header() {
    assert_eq!(refused("model.safetensors", &good()[..30]).0, "safetensors.truncated");
    assert_eq!(refused("model.safetensors", &good()[..8]).0, "safetensors.truncated");
}

#[test]
fn a_git_lfs_pointer() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 4096\n";
    let (rule, text) = refused("model.safetensors", pointer);
    assert_eq!(rule, "format.lfs-pointer");
    assert!(text.contains("67-byte git-LFS pointer") && text.contains("git lfs pull"), "{text}");
}

#[test]
fn a_web_page() {
    for page in ["<!DOCTYPE html><html>Sign in</html>", "<html><body>404</body></html>"] {
        assert_eq!(refused("model.safetensors", page.as_bytes()).0, "format.web-page");
    }
}

#[test]
fn a_partial_download_by_its_name() {
    for name in ["model.safetensors.incomplete", "model.safetensors.part", "model.safetensors.crdownload"] {
        assert_eq!(refused(name, &good()).0, "file.partial");
    }
}

#[test]
fn a_pytorch_zip_named_safetensors() {
    let (rule, text) = refused("model.safetensors", b"PK\x03\x04 and so on");
    assert_eq!(rule, "torch-zip.truncated");
    assert!(text.contains("named .safetensors but is a PyTorch (zip) file"), "{text}");
}

#[test]
fn an_empty_file() {
    assert_eq!(refused("model.safetensors", b"").0, "format.empty");
}

#[test]
fn a_file_of_zeros_that_a_download_reserved() {
    assert_eq!(refused("model.safetensors", &[0; 4096]).0, "format.zeros");
}

#[test]
fn an_index_under_another_name() {
    assert_eq!(refused("shards.json", br#"{"weight_map": {"a": "b.safetensors"}}"#).0, "format.json-index");
}

#[test]
fn a_directory_without_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("config.json"), "{}").expect("written");
    let error = Checkpoint::open(&[folder.path().to_path_buf()], &OpenOptions::default()).expect_err("refused");
    assert_eq!(error.diagnostic().expect("a fault").rule.id, "directory.empty");
    assert!(error.to_string().contains("config.json"));
}

#[test]
fn a_missing_file() {
    let path = PathBuf::from("/nonexistent/model.safetensors");
    let error = Checkpoint::open(std::slice::from_ref(&path), &OpenOptions::default()).expect_err("refused");
    assert!(matches!(error, Error::MissingFile { path: missing, .. } if missing == path));
}

#[test]
fn a_safetensors_file_of_another_name_opens_and_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.bin");
    fs::write(&path, good()).expect("written");
    let checkpoint = Checkpoint::open(&[path], &OpenOptions::default()).expect("opened by its content");
    let finding = &checkpoint.catalog().findings()[0];
    assert_eq!(finding.rule.id, "file.suffix");
    assert!(finding.message.contains("named .bin but is a safetensors file"));
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pipe.safetensors");
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
    assert!(made.success());
    let error = Checkpoint::open(&[path], &OpenOptions::default()).expect_err("refused");
    assert_eq!(error.diagnostic().expect("a fault").rule.id, "file.special");
}

#[cfg(unix)]
#[test]
fn a_socket_is_refused_as_what_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket.safetensors");
    let _bound = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let error = Checkpoint::open(&[path], &OpenOptions::default()).expect_err("refused");
    assert_eq!(error.diagnostic().expect("a fault").rule.id, "file.special");
}
