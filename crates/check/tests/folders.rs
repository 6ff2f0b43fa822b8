//! The body of the fuzz target `validate`, without libFuzzer: folders of the inputs that the other targets have, and random changes of them.

use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../../fuzz/src/printing.rs"]
#[allow(dead_code, unreachable_pub)] // what other targets call
mod printing;
#[path = "../../../fuzz/src/random.rs"]
#[allow(dead_code, unreachable_pub)]
mod random;
#[path = "../../../fuzz/src/validate.rs"]
#[allow(dead_code, unreachable_pub)]
mod validate;

use random::Random;

/// Files of an input.
const FILES: usize = 4;
/// Folders that are looked at.
const FOLDERS: usize = 400;

/// The inputs of the other targets, which are files and parts of files, in the order of their paths.
fn seeds() -> Vec<Vec<u8>> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")];
    let mut paths: Vec<PathBuf> = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the corpus") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { folders.push(path) } else { paths.push(path) }
        }
    }
    paths.sort();
    paths.into_iter().map(|path| fs::read(path).expect("an input")).collect()
}

#[test]
fn folders_of_any_files_are_validated() {
    let (seeds, mut random) = (seeds(), Random::new(20_261_123));
    assert!(seeds.len() > 240, "{}", seeds.len());
    for _ in 0..FOLDERS {
        let mut files: Vec<(u8, Vec<u8>)> = Vec::new();
        for _ in 0..=random.below(FILES) {
            let mut bytes = seeds[random.below(seeds.len())].clone();
            for _ in 0..random.below(3) {
                let at = random.below(bytes.len().max(1));
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.below(256) as u8;
                }
            }
            if random.one_in(4) {
                bytes.truncate(random.below(bytes.len() + 1));
            }
            files.push((random.below(validate::NAMES.len()) as u8, bytes));
        }
        let files: Vec<(u8, &[u8])> = files.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
        validate::check(&validate::input(&files));
    }
}

#[test]
fn a_folder_of_the_name_of_gits_is_looked_into_as_any_other() {
    for name in [".git/model.pkl", "sub/.git/objects/model.pkl"] {
        let folder = crate::repository_support::folder(&[(name, b"cposix\nsystem\n(Vid\ntR.")]);
        let report = max_weights_check::validate(
            &[folder.path().to_path_buf()],
            &max_weights_check::ValidateOptions::default(),
            &max_weights_check::ValidateProgress::default(),
            &max_weights::uninterrupted,
        );
        let report = report.expect("a report");
        assert_eq!(report.answer(), max_weights::rules::Verdict::Malicious, "{name}");
    }
}
