//! Sets of GGUF files: what each file says about its place, and the ways in which they can disagree.

use std::path::PathBuf;

use crate::gguf_files::{I32, Made, STRING, U8, U16, U32};
use max_weights::error::Diagnostic;
use max_weights::format::gguf::split::{Shard, check_set};
use max_weights::format::gguf::{self, Gguf, SplitInfo};
use max_weights::format::{HeaderOptions, Parse, ParseProgress};
use max_weights::tensor::TensorTable;

fn read(made: &Made) -> Result<Gguf, Diagnostic> {
    match gguf::GgufParser::new(made.bytes.clone(), made.len(), &HeaderOptions::default()).advance() {
        Ok(ParseProgress::Done(gguf)) => Ok(gguf),
        Ok(ParseProgress::Need(_)) => panic!("the file is complete"),
        Err(error) => Err(error.diagnostic().expect("a fault").clone()),
    }
}

/// File `no` of `count`, with these tensors, which declares `total` tensors in all.
fn shard(no: u16, count: u16, total: u32, names: &[&str]) -> Made {
    let start = Made::new(names.len() as u64, 3)
        .key("split.no", U16)
        .number(no.to_le_bytes())
        .key("split.count", U16)
        .number(count.to_le_bytes())
        .key("split.tensors.count", I32)
        .u32(total);
    let records = names.iter().enumerate().fold(start, |made, (i, name)| made.tensor(name, &[8], 0, i as u64 * 32));
    records.pad(32).data(32 * names.len())
}

/// What is wrong with a set: rule, number of the file it is about, what it says. The files are given with the number in their names.
fn check(files: &[(usize, Made)]) -> Vec<(&'static str, usize, String)> {
    let read: Vec<Gguf> = files.iter().map(|(_, made)| read(made).expect("a valid file")).collect();
    let paths: Vec<PathBuf> = (0..files.len()).map(|i| format!("{i}.gguf").into()).collect();
    let mut table = TensorTable::default();
    for (i, gguf) in read.iter().enumerate() {
        table.append(&gguf.header.tensors, i as u32).expect("room");
    }
    let shards: Vec<Shard<'_>> = paths
        .iter()
        .zip(files)
        .zip(&read)
        .map(|((path, (number, _)), gguf)| Shard { path, number: Some(*number), split: gguf.split })
        .collect();
    check_set(&shards, &table)
        .into_iter()
        .map(|fault| {
            assert!(!fault.help.is_empty(), "{fault}");
            let path = fault.path.clone().expect("a path");
            (fault.rule.id, paths.iter().position(|known| **known == *path).expect("one of the paths"), fault.message)
        })
        .collect()
}

#[track_caller]
fn one_fault(files: &[(usize, Made)], rule: &str, file: usize, says: &str) {
    let faults = check(files);
    let [(found, about, cause)] = &faults[..] else { panic!("{faults:?}") };
    assert_eq!((*found, *about), (rule, file), "{cause}");
    assert!(cause.contains(says), "{cause}");
}

#[test]
fn place_of_a_file_in_its_set() {
    let split = read(&shard(1, 3, 7, &["a"])).expect("a valid file").split;
    assert_eq!(split, Some(SplitInfo { no: 1, count: 3, tensors_count: Some(7) }));
    // What merging a set leaves behind, and what a file that was never split has.
    assert_eq!(read(&shard(0, 0, 1, &["a"])).expect("a valid file").split, None);
    assert_eq!(read(&shard(0, 1, 1, &["a"])).expect("a valid file").split, None);
    assert_eq!(read(&Made::new(0, 0)).expect("a valid file").split, None);
    // Integers of other widths mean the same.
    let made = Made::new(0, 2).key("split.no", U8).raw(&[1]).key("split.count", U32).u32(2);
    let expected = SplitInfo { no: 1, count: 2, tensors_count: None };
    assert_eq!(read(&made).expect("a valid file").split, Some(expected));
}

#[test]
fn keys_that_make_no_sense() {
    let fault = |made: Made| read(&made).expect_err("refused");
    let text = fault(Made::new(0, 1).key("split.count", STRING).string("2"));
    assert_eq!((text.rule.id, text.offset), ("gguf.split-keys", Some(32)));
    assert_eq!(fault(Made::new(0, 1).key("split.count", U32).u32(65_536)).rule.id, "gguf.split-keys");
    assert_eq!(fault(Made::new(0, 1).key("split.tensors.count", I32).u32(u32::MAX)).rule.id, "gguf.split-keys");
    let missing = fault(Made::new(0, 1).key("split.count", U16).raw(&[2, 0]));
    assert_eq!((missing.rule.id, missing.offset), ("gguf.split-no", Some(32)));
    let beyond = fault(shard(3, 3, 1, &["a"]));
    assert_eq!((beyond.rule.id, beyond.offset), ("gguf.split-no", Some(32)));
}

#[test]
fn set_that_is_complete_in_any_order_even_with_a_first_file_without_tensors() {
    let files = [(2, shard(2, 3, 3, &["c"])), (0, shard(0, 3, 3, &[])), (1, shard(1, 3, 3, &["a", "b"]))];
    assert_eq!(check(&files), []);
}

#[test]
fn shard_that_is_missing() {
    let files = [(0, shard(0, 4, 4, &["a"])), (2, shard(2, 4, 4, &["c"]))];
    one_fault(&files, "gguf.split-missing", 0, "of the 4 files of the set, 2 are missing: number 2, 4");
    let files = [(0, shard(0, u16::MAX, 9, &["a"]))];
    one_fault(&files, "gguf.split-missing", 0, "65534 are missing: number 2, 3, 4, 5, 6, 7, 8, 9 and 65526 more");
}

#[test]
fn split_no_that_is_not_that_of_the_name() {
    let files = [(0, shard(1, 2, 2, &["a"])), (1, shard(0, 2, 2, &["b"]))];
    let rules: Vec<_> = check(&files).into_iter().map(|(rule, file, _)| (rule, file)).collect();
    assert_eq!(rules, [("gguf.split-no", 0), ("gguf.split-no", 1)]);
}

#[test]
fn split_no_that_two_files_have() {
    let faults = check(&[(0, shard(0, 2, 2, &["a"])), (0, shard(0, 2, 2, &["b"]))]);
    let rules: Vec<_> = faults.iter().map(|(rule, file, _)| (*rule, *file)).collect();
    assert_eq!(rules, [("gguf.split-no", 1), ("gguf.split-missing", 0)]);
    assert!(faults[0].2.contains("0.gguf"), "{faults:?}");
}

#[test]
fn split_count_of_another_set() {
    let files = [(0, shard(0, 2, 2, &["a"])), (1, shard(1, 2, 2, &["b"])), (2, shard(2, 3, 2, &[]))];
    one_fault(&files, "gguf.split-count", 2, "split.count is 3, but 2 in 0.gguf");
}

#[test]
fn file_that_is_no_part_of_a_set() {
    let whole = Made::new(0, 0);
    let files = [(0, shard(0, 2, 2, &["a"])), (1, shard(1, 2, 2, &["b"])), (2, whole)];
    one_fault(&files, "gguf.split-keys", 2, "no split.count");
}

#[test]
fn total_that_is_wrong() {
    let files = [(0, shard(0, 2, 3, &["a"])), (1, shard(1, 2, 3, &["b"]))];
    one_fault(&files, "gguf.split-total", 0, "is 3; the files of the set have 2");
    let files = [(0, shard(0, 2, 2, &["a"])), (1, shard(1, 2, 3, &["b"]))];
    one_fault(&files, "gguf.split-total", 1, "is 3, but 2 in 0.gguf");
}

#[test]
fn name_that_stands_in_two_files() {
    let files = [(0, shard(0, 2, 2, &["a"])), (1, shard(1, 2, 2, &["a"]))];
    one_fault(&files, "gguf.split-duplicate", 1, "it is also in 0.gguf");
}
