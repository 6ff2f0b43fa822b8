//! Files that are written appear whole or not at all, and look like those that they replace.

use std::fs::{self, File};
use std::path::Path;

use max_weights::write::PendingFile;

fn written(target: &Path, bytes: &[u8]) -> PendingFile {
    let file = PendingFile::create(target, bytes.len() as u64, true).expect("begun");
    file.write_at(0, bytes).expect("written");
    file
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
#[cfg_attr(windows, ignore = "a file that is open or mapped is not replaced there")]
fn nothing_is_seen_before_the_end_and_what_was_there_stays_open() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model.safetensors");
    fs::write(&target, b"old").unwrap();
    let mapped = File::open(&target).unwrap();
    let file = written(&target, b"new bytes");
    assert_eq!(fs::read(&target).unwrap(), b"old");
    file.commit().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"new bytes");
    assert_eq!(std::io::read_to_string(mapped).unwrap(), "old");
    assert_eq!(names(folder.path()), ["model.safetensors"]);
}

#[test]
fn what_is_given_up_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model.safetensors");
    drop(written(&target, b"half"));
    assert!(names(folder.path()).is_empty());
}

#[test]
fn what_a_process_that_died_has_left_is_removed_and_what_one_writes_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let abandoned = folder.path().join(".other.safetensors.1-0.max-weights-unfinished");
    fs::write(&abandoned, b"left by a process that was killed").unwrap();
    let strangers = [".model.swp", "x.max-weights-unfinished", ".hidden"];
    for name in strangers {
        fs::write(folder.path().join(name), b"somebody else's").unwrap();
    }
    let first = written(&folder.path().join("a"), b"a");
    let second = written(&folder.path().join("b"), b"b");
    assert!(!abandoned.exists());
    assert_eq!(names(folder.path()).len(), strangers.len() + 2, "those that are being written are there");
    first.commit().unwrap();
    second.commit().unwrap();
    assert_eq!(names(folder.path()), [".hidden", ".model.swp", "a", "b", "x.max-weights-unfinished"]);
}

#[cfg(unix)]
#[test]
fn a_link_that_is_called_like_an_unfinished_file_leads_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let precious = folder.path().join("precious");
    fs::write(&precious, b"keep").unwrap();
    std::os::unix::fs::symlink(&precious, folder.path().join(".x.1-0.max-weights-unfinished")).unwrap();
    written(&folder.path().join("a"), b"a").commit().unwrap();
    assert_eq!(fs::read(&precious).unwrap(), b"keep");
}

#[cfg(unix)]
#[test]
fn the_mode_is_that_of_the_file_that_is_replaced() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model.safetensors");
    fs::write(&target, b"old").unwrap();
    for mode in [0o600, 0o640, 0o664, 0o755] {
        fs::set_permissions(&target, fs::Permissions::from_mode(mode)).unwrap();
        written(&target, b"new").commit().unwrap();
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o7777, mode);
    }
    // A new one has what any new file has.
    let plain = folder.path().join("plain");
    fs::write(&plain, b"").unwrap();
    let new = folder.path().join("new");
    written(&new, b"new").commit().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&new), mode(&plain));
}

#[cfg(unix)]
#[test]
fn a_link_is_replaced_and_what_it_led_to_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (blob, link) = (folder.path().join("blob"), folder.path().join("model.safetensors"));
    fs::write(&blob, b"shared").unwrap();
    std::os::unix::fs::symlink(&blob, &link).unwrap();
    written(&link, b"own").commit().unwrap();
    assert_eq!(fs::read(&blob).unwrap(), b"shared");
    assert!(fs::symlink_metadata(&link).unwrap().is_file());
}

#[cfg(unix)]
#[test]
fn directories_devices_and_missing_folders_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |target: std::path::PathBuf, what: &str| {
        let error = PendingFile::create(&target, 1, true).map(drop).expect_err("refused");
        let max_weights::Error::Io { path, .. } = &error else { panic!("{error}") };
        assert_eq!(*path, target);
        assert!(error.to_string().contains(what), "{error}");
    };
    refused(folder.path().to_path_buf(), "replace a directory");
    refused("/dev/null".into(), "replace a device");
    refused(folder.path().join("missing/model.safetensors"), "No such file");
    refused("/".into(), "replace a directory");
    assert!(names(folder.path()).is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_without_room_is_found_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model.safetensors");
    fs::write(&target, b"old").unwrap();
    let error = PendingFile::create(&target, 1 << 60, true).map(drop).expect_err("no disk has so much");
    assert!(error.to_string().contains("1152921504606846976 bytes"), "{error}");
    assert_eq!((fs::read(&target).unwrap(), names(folder.path()).len()), (b"old".to_vec(), 1));
}

#[test]
fn long_names_are_written_too() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["n".repeat(255), "ü".repeat(127)] {
        written(&folder.path().join(&name), b"x").commit().unwrap();
        assert!(names(folder.path()).contains(&name));
    }
}

#[test]
fn several_take_their_places_together() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["a", "b", "c"].map(|name| written(&folder.path().join(name), name.as_bytes()));
    PendingFile::commit_all(files.into()).unwrap();
    assert_eq!(names(folder.path()), ["a", "b", "c"]);
    assert_eq!(fs::read(folder.path().join("b")).unwrap(), b"b");
}
