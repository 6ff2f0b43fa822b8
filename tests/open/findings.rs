//! Files with several faults: one opening finds all of them, and a strict one ends with the first.

use std::fs;
use std::path::{Path, PathBuf};

use crate::gguf_files::{I32, Made, STRING, U16, U32};
use crate::legacy_files::{self, Saved};
use crate::zip_files::{self, FLAGS, OFFSET, SIZE, Zip, plain_parts};
use max_weights::checkpoint::{Checkpoint, OpenOptions, check};
use max_weights::error::{Diagnostic, Policy};
use max_weights::format::HeaderOptions;

fn with(policy: Policy) -> OpenOptions {
    OpenOptions::default().format(HeaderOptions { policy, ..HeaderOptions::default() })
}

fn found(path: &Path) -> Vec<Diagnostic> {
    check(&[path.to_path_buf()], &OpenOptions::default()).expect("nothing but findings")
}

/// The findings in a file, as rules and tensors. A strict opening ends with the first finding that it refuses, word for word.
fn all(path: &Path) -> Vec<(&'static str, Option<String>)> {
    let findings = found(path);
    let refused = Checkpoint::open(&[path.to_path_buf()], &with(Policy::Strict)).expect_err("refused");
    let refused = refused.diagnostic().expect("a fault").clone();
    let first = findings.iter().find(|fault| fault.rule == refused.rule).expect("found, too");
    assert_eq!((&first.message, &first.tensor, first.offset), (&refused.message, &refused.tensor, refused.offset));
    for fault in &findings {
        assert!(fault.path.is_some(), "{fault}");
    }
    findings.into_iter().map(|fault| (fault.rule.id, fault.tensor)).collect()
}

fn rules_of(path: &Path) -> Vec<&'static str> {
    all(path).into_iter().map(|(rule, _)| rule).collect()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).expect("written");
        path
    }

    fn safetensors(&self, name: &str, header: &str, data: usize) -> PathBuf {
        let length = (header.len() as u64).to_le_bytes();
        self.file(name, [&length[..], header.as_bytes(), &vec![0; data]].concat())
    }
}

#[test]
fn safetensors_tensors_that_break_rules_by_themselves_and_together() {
    let header = r#"{
        "": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "size": {"dtype": "F32", "shape": [2], "data_offsets": [8, 12], "strides": [1]},
        "many": {"dtype": "U8", "shape": [9223372036854775807, 4], "data_offsets": [12, 16]},
        "no dtype": {"shape": [1], "data_offsets": [16, 20]},
        "two shapes": {"dtype": "F32", "shape": [1], "shape": [1], "data_offsets": [20, 24]},
        "over": {"dtype": "F32", "shape": [2], "data_offsets": [22, 30]},
        "gap": {"dtype": "F32", "shape": [1], "data_offsets": [34, 38]},
        "gap": {"dtype": "F32", "shape": [0], "data_offsets": [38, 38]}
    }"#;
    let folder = Folder::new();
    let found = all(&folder.safetensors("a.safetensors", header, 40));
    let found: Vec<(&str, &str)> =
        found.iter().map(|(rule, tensor)| (*rule, tensor.as_deref().unwrap_or("-"))).collect();
    assert_eq!(
        found,
        [
            ("safetensors.name-empty", ""),
            ("safetensors.unknown-field", "size"),
            ("safetensors.size", "size"),
            ("safetensors.shape-overflow", "many"),
            ("safetensors.missing-field", "no dtype"),
            ("safetensors.duplicate-field", "two shapes"),
            ("safetensors.duplicate-name", "gap"),
            ("safetensors.overlap", "over"),
            ("safetensors.hole", "gap"),
            ("safetensors.trailing-data", "-"),
        ]
    );
}

#[test]
fn safetensors_findings_have_the_places_that_a_strict_opening_gives() {
    let header = r#" {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        "b": {"dtype": "F32", "shape": [1, 1], "data_offsets": [9, 5]}}"#;
    let folder = Folder::new();
    let findings = found(&folder.safetensors("a.safetensors", header, 4));
    let places: Vec<_> = findings.iter().map(|fault| (fault.rule.id, fault.offset)).collect();
    let key = |name: &str| Some(8 + header.find(name).expect("there") as u64);
    // Where a tensor has no place, the room that it leaves is no finding.
    let expected = [
        ("safetensors.leading-space", Some(8)),
        ("safetensors.size", key("\"a\"")),
        ("safetensors.offsets", key("\"b\"")),
    ];
    assert_eq!(places, expected);
}

#[test]
fn safetensors_findings_survive_a_header_that_cannot_be_read_to_its_end() {
    let header = r#"{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "b": 5}"#;
    let folder = Folder::new();
    assert_eq!(rules_of(&folder.safetensors("a.safetensors", header, 4)), ["safetensors.size", "safetensors.entry"]);
}

#[test]
fn gguf_keys_and_tensors_that_break_rules_by_themselves_and_together() {
    let made = Made::new(6, 3)
        .key("a", U32)
        .u32(1)
        .key("", U32)
        .u32(1)
        .key("a", U32)
        .u32(2)
        .tensor("first", &[16], 0, 0)
        .tensor("first", &[8], 0, 32)
        .tensor("", &[8], 0, 64)
        .tensor("blocks", &[10], 2, 96)
        .tensor("late", &[16], 0, 160)
        .tensor("crooked", &[1], 0, 132)
        .pad(32)
        .data(200);
    let folder = Folder::new();
    let found = all(&folder.file("a.gguf", &made.bytes));
    let found: Vec<(&str, &str)> =
        found.iter().map(|(rule, tensor)| (*rule, tensor.as_deref().unwrap_or("-"))).collect();
    assert_eq!(
        found,
        [
            ("gguf.key-empty", "-"),
            ("gguf.duplicate-key", "-"),
            ("gguf.name-empty", ""),
            ("gguf.block", "blocks"),
            ("gguf.offset-unaligned", "crooked"),
            ("gguf.order", "crooked"),
            ("gguf.overlap", "first"),
            ("gguf.truncated", "late"),
            ("gguf.duplicate-name", "first"),
        ]
    );
}

#[test]
fn gguf_data_that_overlaps_and_lies_outside() {
    let made =
        Made::new(3, 0).tensor("a", &[16], 0, 0).tensor("b", &[8], 0, 32).tensor("far", &[8], 0, 4096).pad(32).data(64);
    let folder = Folder::new();
    assert_eq!(rules_of(&folder.file("a.gguf", &made.bytes)), ["gguf.overlap", "gguf.outside"]);
}

#[test]
fn gguf_sets_of_files_disagree_in_several_ways() {
    let shard = |no: u16, count: u16, total: u32| {
        let made = Made::new(1, 3).key("split.no", U16).number(no.to_le_bytes());
        let made = made.key("split.count", U16).number(count.to_le_bytes()).key("split.tensors.count", I32).u32(total);
        made.tensor(format!("t{no}.{total}"), &[8], 0, 0).pad(32).data(32).bytes
    };
    let folder = Folder::new();
    let path = folder.file("m-00001-of-00003.gguf", shard(0, 3, 3));
    folder.file("m-00002-of-00003.gguf", shard(0, 3, 9));
    folder.file("m-00003-of-00003.gguf", shard(1, 2, 3));
    let expected = ["gguf.split-no", "gguf.split-no", "gguf.split-count", "gguf.split-missing", "gguf.split-total"];
    assert_eq!(rules_of(&path), expected);
}

/// How often a rule is broken, by tensor.
fn broken(path: &Path, rule: &str) -> Vec<Option<String>> {
    all(path).into_iter().filter(|(found, _)| *found == rule).map(|(_, tensor)| tensor).collect()
}

#[test]
fn every_name_that_is_given_again_is_found_in_every_format() {
    let tensors =
        |names: &[&str]| -> Vec<Option<String>> { names.iter().map(|name| Some((*name).to_owned())).collect() };
    let folder = Folder::new();

    let names = ["a", "b", "a", "c", "b", "a"];
    let entry = |name: &str| format!(r#""{name}": {{"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}"#);
    let metadata = r#""__metadata__": {"k": "", "l": "", "k": "", "l": "", "k": ""}"#;
    let header = format!("{{{metadata}, {}}}", names.map(entry).join(", "));
    let path = folder.safetensors("a.safetensors", &header, 0);
    assert_eq!(broken(&path, "safetensors.duplicate-name"), tensors(&["a", "b", "a"]));
    assert_eq!(broken(&path, "safetensors.duplicate-metadata-key").len(), 3);
    let offsets: Vec<usize> = found(&path).iter().filter_map(|fault| fault.offset).map(|at| at as usize - 8).collect();
    let at: Vec<usize> = names
        .iter()
        .scan(0, |from, name| {
            let found = *from + header[*from..].find(&format!("\"{name}\": {{")).expect("there");
            *from = found + 1;
            Some(found)
        })
        .collect();
    assert_eq!(offsets[..3], [at[2], at[4], at[5]]);

    let keys = ["k", "l", "k", "l", "k"].iter().fold(Made::new(4, 5), |made, key| made.key(key, U32).u32(1));
    let made = [("t", 0), ("u", 32), ("t", 64), ("u", 96)];
    let made = made.into_iter().fold(keys, |made, (name, at)| made.tensor(name, &[8], 0, at)).pad(32).data(128);
    let path = folder.file("a.gguf", &made.bytes);
    assert_eq!(broken(&path, "gguf.duplicate-key").len(), 3);
    assert_eq!(broken(&path, "gguf.duplicate-name"), tensors(&["t", "u"]));

    let again = ["archive/x", "archive/y", "archive/x", "archive/y"].map(|name| zip_files::Part::stored(name, b"x"));
    let parts: Vec<zip_files::Part> = plain_parts().into_iter().chain(again).collect();
    assert_eq!(broken(&folder.file("a.pt", &Zip::new(&parts).bytes), "torch-zip.duplicate-name").len(), 2);

    let index = r#"{"weight_map": {"t": "x", "u": "x", "t": "x", "u": "x"}}"#;
    let path = folder.file("model.safetensors.index.json", index);
    assert_eq!(broken(&path, "index.duplicate-name"), tensors(&["t", "u"]));

    let files =
        ["1", "2"].map(|file| folder.safetensors(file, &format!("{{{}}}", ["t", "u"].map(entry).join(", ")), 0));
    let findings = check(&files, &OpenOptions::default()).expect("nothing but findings");
    let twice: Vec<_> = findings.into_iter().map(|fault| (fault.rule.id, fault.tensor.expect("a name"))).collect();
    assert_eq!(twice, ["t", "u"].map(|name| ("checkpoint.duplicate", name.to_owned())));
}

#[test]
fn of_very_many_names_that_are_given_again_the_first_are_found_and_the_others_counted() {
    let entries: Vec<String> = (0..40_000)
        .map(|i| format!(r#""{}": {{"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}"#, i / 2))
        .collect();
    let folder = Folder::new();
    let path = folder.safetensors("a.safetensors", &format!("{{{}}}", entries.join(", ")), 0);
    let findings = found(&path);
    assert_eq!(findings.len(), 101);
    let rest = &findings[100];
    assert_eq!((rest.rule.id, rest.message.as_str()), ("safetensors.duplicate-name", "19900 more of this kind"));
}

#[test]
fn zip_entries_that_lie_in_the_directory_and_in_their_own_headers() {
    let mut parts = plain_parts();
    parts.push(zip_files::Part::stored("archive/../x", b"x"));
    let zip = Zip::new(&parts);
    let local = zip.locals[2];
    let zip = zip.local(0, FLAGS, [2]).central(1, SIZE, [39]).put(local, b"XX");
    let folder = Folder::new();
    let found = rules_of(&folder.file("a.pt", &zip.bytes));
    assert_eq!(found, ["torch-zip.size", "torch-zip.name", "torch-zip.local-flags", "torch-zip.header"]);
}

#[test]
fn zip_entries_that_overlap() {
    let zip = Zip::new(&plain_parts());
    let first = zip.locals[0] as u32;
    let zip = zip.central(1, OFFSET, first.to_le_bytes());
    let folder = Folder::new();
    assert_eq!(rules_of(&folder.file("a.pt", &zip.bytes)), ["torch-zip.overlap", "torch-zip.local-name"]);
}

#[test]
fn legacy_storages_that_are_not_what_the_pickle_says() {
    let saved = [Saved::floats("0", 4), Saved::floats("1", 2).view("0", 0, 2), Saved::floats("3", 1)];
    let made = legacy_files::Made::of(
        [legacy_files::magic(b""), legacy_files::protocol(1001), legacy_files::system(false)],
        &saved,
        &["0", "1", "1"],
    );
    let mut bytes = made.bytes.clone();
    bytes[made.counts[0]] = 5;
    bytes.push(0);
    let folder = Folder::new();
    let expected = [
        "torch-legacy.byteorder",
        "torch-legacy.count",
        "torch-legacy.duplicate-key",
        "torch-legacy.trailing-data",
        "torch-legacy.view",
        "torch-legacy.missing-storage",
    ];
    assert_eq!(rules_of(&folder.file("a.pt", bytes)), expected);
}

#[test]
fn shards_that_are_broken_missing_or_not_those_of_the_index() {
    let tensor = |name: &str| format!(r#"{{"{name}": {{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}}}"#);
    let folder = Folder::new();
    folder.safetensors("1.safetensors", &tensor("stranger"), 4);
    folder.safetensors("2.safetensors", &tensor("broken"), 3);
    folder.safetensors("3.safetensors", &tensor("elsewhere"), 4);
    let index = r#"{"weight_map": {"gone": "1.safetensors", "elsewhere": "1.safetensors", "broken": "2.safetensors",
        "x": "3.safetensors", "y": "4.safetensors"}}"#;
    let findings = found(&folder.file("model.safetensors.index.json", index));
    let found: Vec<(&str, &str)> =
        findings.iter().map(|fault| (fault.rule.id, fault.tensor.as_deref().unwrap_or("-"))).collect();
    assert_eq!(
        found,
        [
            ("safetensors.truncated", "broken"),
            ("index.missing-shard", "-"),
            ("index.unindexed-tensor", "stranger"),
            ("index.other-shard", "elsewhere"),
            ("index.missing-tensor", "gone"),
            ("index.missing-tensor", "x"),
        ]
    );
}

#[test]
#[cfg_attr(windows, ignore = "a file that is mapped is not removed there")]
fn a_file_that_can_be_opened_has_its_findings_and_one_that_is_not_there_is_an_error() {
    let folder = Folder::new();
    let made = Made::new(1, 1).key("text", STRING).string(b"\xff").tensor("a", &[8], 0, 0).pad(32).data(64);
    let path = folder.file("a.gguf", &made.bytes);
    let rules: Vec<&str> = found(&path).iter().map(|fault| fault.rule.id).collect();
    assert_eq!(rules, ["gguf.text-utf8", "gguf.trailing-data"]);
    let opened =
        Checkpoint::open(std::slice::from_ref(&path), &with(Policy::CollectAll)).expect("nothing but warnings");
    assert_eq!(opened.catalog().findings(), found(&path));
    fs::remove_file(&path).expect("removed");
    assert!(check(&[path], &OpenOptions::default()).is_err());
}

#[test]
fn all_that_was_found_is_one_error_with_a_line_for_each() {
    let folder = Folder::new();
    let header = r#"{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4], "x": 1}}"#;
    let path = folder.safetensors("a.safetensors", header, 5);
    let error = Checkpoint::open(&[path], &with(Policy::CollectAll)).expect_err("refused");
    assert_eq!(error.diagnostic().map(|fault| fault.rule.id), Some("safetensors.size"));
    let lines: Vec<String> = error.to_string().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[2].contains("[safetensors.trailing-data]"), "{lines:?}");
}
