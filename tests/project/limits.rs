//! The limits that docs/security.md names are those of the code.

use max_weights::format::{self, gguf, index, pickle, torch_zip};

#[test]
fn docs_give_every_limit_with_its_value() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/security.md")).expect("the page");
    let limits = [
        ("MAX_HEADER_BYTES", format::MAX_HEADER_BYTES),
        ("MAX_RANK", format::MAX_RANK as u64),
        ("MAX_DIMENSIONS", gguf::MAX_DIMENSIONS as u64),
        ("MAX_METADATA_ENTRIES", format::MAX_METADATA_ENTRIES as u64),
        ("MAX_ARRAY_DEPTH", gguf::MAX_ARRAY_DEPTH as u64),
        ("MAX_UNKNOWN_DTYPES", format::MAX_UNKNOWN_DTYPES as u64),
        ("MAX_FINDINGS", max_weights::error::MAX_FINDINGS as u64),
        ("MAX_SHARDS", index::MAX_SHARDS as u64),
        ("MAX_SHARD_NAME_BYTES", index::MAX_SHARD_NAME_BYTES as u64),
        ("MAX_PICKLE_BYTES", pickle::MAX_PICKLE_BYTES as u64),
        ("MAX_OPERATIONS", pickle::MAX_OPERATIONS as u64),
        ("MAX_OBJECTS", pickle::MAX_OBJECTS as u64),
        ("MAX_MEMO", pickle::MAX_MEMO as u64),
        ("MAX_STACK", pickle::MAX_STACK as u64),
        ("MAX_MARKS", pickle::MAX_MARKS as u64),
        ("MAX_STRING_BYTES", pickle::MAX_STRING_BYTES as u64),
        ("MAX_INTEGER_BYTES", pickle::MAX_INTEGER_BYTES as u64),
        ("MAX_GLOBAL_BYTES", pickle::MAX_GLOBAL_BYTES as u64),
        ("MAX_GLOBALS", pickle::MAX_GLOBALS as u64),
        ("MAX_DEPTH", pickle::MAX_DEPTH as u64),
        ("MAX_LEAVES", pickle::MAX_LEAVES as u64),
        ("MAX_NAME_BYTES_PER_BYTE", pickle::MAX_NAME_BYTES_PER_BYTE as u64),
        ("MAX_ZIP_ENTRIES", torch_zip::MAX_ZIP_ENTRIES as u64),
        ("MAX_ZIP_NAME_BYTES", torch_zip::MAX_ZIP_NAME_BYTES as u64),
        ("MAX_INFLATED_RATIO", torch_zip::MAX_INFLATED_RATIO),
    ];
    for (name, value) in limits {
        let digits = value.to_string();
        let groups: Vec<&str> =
            digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
        let row = format!("| `{name}` | {} |", groups.join(","));
        assert!(page.contains(&row), "docs/security.md has no row {row}");
    }
    let (of_files, _) = page.split_once("## What validation looks at").expect("the limits of validation stand apart");
    assert_eq!(of_files.matches("| `MAX_").count(), limits.len(), "a limit of the page that this test does not know");
}
