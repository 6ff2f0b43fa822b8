//! Files that are written to relative paths, in a process that changes its folder.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

use std::path::Path;

use max_weights::write::PendingFile;

#[test]
fn a_relative_path_is_that_of_the_folder_in_which_the_file_was_begun() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let begun = |name: &str| PendingFile::create(Path::new(name), 0, true).unwrap();
    std::env::set_current_dir(folder.path()).unwrap();
    let (file, given_up) = (begun("a"), begun("b"));
    std::env::set_current_dir(other.path()).unwrap();
    file.commit().unwrap();
    drop(given_up);
    let names = |folder: &Path| -> Vec<_> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!((names(folder.path()), names(other.path())), (vec!["a".to_owned()], Vec::new()));
}
