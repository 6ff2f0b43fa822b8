//! Each type has a unique name in the workspace, so that a search for it finds one definition.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::architecture::{code_of, relative, sources};

/// Names with several definitions, and why.
const SHARED: [(&str, &str); 9] = [
    ("Bytes16", "a vector per architecture"),
    ("CuFile", "the build without GPUs has a type without values"),
    ("DeviceKernel", "the build without GPUs has a type without values"),
    ("DeviceMemory", "the build without GPUs has a type without values"),
    ("DeviceUpload", "the build without GPUs has a type without values"),
    ("Error", "each crate has one, as is the custom in Rust"),
    ("FileId", "an alias per operating system"),
    ("Restore", "a guard per architecture"),
    ("Result", "each crate has one, as is the custom in Rust"),
];

/// The type that a line defines at the top level of a module.
fn defined(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub").map_or(line, |rest| {
        let scope = rest.strip_prefix('(').and_then(|scope| scope.split_once(')'));
        scope.map_or(rest, |(_, rest)| rest).trim_start()
    });
    let kind = ["struct ", "enum ", "trait ", "union ", "type "].iter().find_map(|kind| rest.strip_prefix(kind))?;
    kind.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

#[test]
fn each_type_has_a_unique_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    for entry in fs::read_dir(root.join("crates")).expect("the crates") {
        sources(&entry.expect("a crate").path().join("src"), &mut files);
    }
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| !file.ends_with("tests.rs")) {
        let code = code_of(&fs::read_to_string(file).expect("a source file"));
        for name in code.lines().filter_map(defined) {
            places.entry(name.to_owned()).or_default().push(relative(file));
        }
    }
    assert!(places.len() > 500, "the definitions were found");
    let several: BTreeMap<&str, &Vec<String>> =
        places.iter().filter(|(_, files)| files.len() > 1).map(|(name, files)| (name.as_str(), files)).collect();
    let unexpected: Vec<_> =
        several.iter().filter(|(name, _)| !SHARED.iter().any(|(shared, _)| shared == *name)).collect();
    assert!(unexpected.is_empty(), "give each of these a unique name: {unexpected:#?}");
    for (name, why) in SHARED {
        assert!(several.contains_key(name), "{name} ({why}) has one definition: remove the exception");
    }
}

#[test]
fn definitions_are_found_in_all_forms() {
    for line in
        ["struct A {", "pub struct A;", "pub(crate) enum A {", "pub(in crate::cast) type A<T> = B;", "pub trait A: B {"]
    {
        assert_eq!(defined(line), Some("A"), "{line}");
    }
    for line in ["    type A = B;", "impl A {", "structure A", "// struct A"] {
        assert_eq!(defined(line), None, "{line}");
    }
}
