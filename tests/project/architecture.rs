//! Conventions of the core that a compiler does not check: imports only go from higher to lower layers, and `unsafe` only occurs in the listed files.

use std::fs;
use std::path::{Path, PathBuf};

/// Modules by layer, the lowest first. A module may use its layer's children and lower layers, never higher ones.
const LAYERS: [&[&str]; 16] = [
    &["cast", "delta", "dtype", "fingerprint", "quant", "simd"], // the crate of the numerics, whose modules have their names here
    &["text", "sync", "huge_pages"],
    &["rules"],
    &["error"],
    &["budget"],
    &["workers"],
    &["tensor"],
    &["device"],
    &["memory"],
    &["source"],
    &["buffer"],
    &["names"],
    &["format"],
    &["checkpoint"],
    &["load"],
    &["check", "write"],
];
/// The same of the numerics.
const KERNELS_LAYERS: [&[&str]; 4] = [&["dtype", "error"], &["simd"], &["cast", "delta"], &["fingerprint", "quant"]];
/// The same of validation.
const CHECK_LAYERS: [&[&str]; 12] = [
    &["bytes", "expressions", "glob", "json", "words"],
    &["amount", "dangerous", "kind", "options", "progress", "quantized", "walk"],
    &["code_digest", "share"],
    &["report"],
    &["context"],
    &["folder", "values"],
    &["repository"],
    &["security"],
    &["checkpoint", "content", "difference"],
    &["validate", "expectation"],
    &["manifest", "output"],
    &["baseline", "merge", "settings_file"],
];
/// The files that may contain `unsafe`, each of which opts in separately.
const UNSAFE_MODULES: [&str; 12] = [
    "crates/kernels/src/simd/",
    "crates/kernels/src/cast/lanes",
    "crates/kernels/src/cast/x86",
    "crates/kernels/src/quant/lanes",
    "crates/kernels/src/quant/x86",
    "src/memory/",
    "src/sync/",
    "src/source/",
    "src/device/",
    "crates/python/src/dlpack.rs",
    "crates/python/src/buffer.rs",
    "crates/python/src/buffer_protocol.rs",
];

pub(crate) fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// A file without its comments and tests. Tests may use higher layers: they are at the end of a file.
pub(crate) fn code_of(text: &str) -> String {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    code.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .fold(String::new(), |code, line| code + line + "\n")
}

pub(crate) fn relative(path: &Path) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    path.strip_prefix(root).expect("inside").to_string_lossy().replace('\\', "/")
}

fn layer(layers: &[&[&str]], module: &str) -> usize {
    let found = layers.iter().position(|layer| layer.contains(&module));
    found.unwrap_or_else(|| panic!("module `{module}` has no layer; give it one here and in docs/architecture.md"))
}

/// The modules that code names by `crate::`, alone or in braces.
fn used(code: &str) -> Vec<&str> {
    let mut used = Vec::new();
    for after in code.split("crate::").skip(1) {
        let list = after.strip_prefix('{').and_then(|list| list.split('}').next());
        let names = list.map_or_else(|| vec![after], |list| list.split(',').map(str::trim).collect());
        let words = names.into_iter().filter_map(|name| name.split(|c: char| !c.is_alphanumeric() && c != '_').next());
        used.extend(words.filter(|word| word.starts_with(|first: char| first.is_lowercase())));
    }
    used
}

fn assert_one_way(folder: &str, layers: &[&[&str]]) {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut files);
    assert!(files.len() > 10);
    for path in files {
        let name = relative(&path);
        let module = name[folder.len() + 1..].split(['/', '.']).next().expect("a module");
        if module == "lib" {
            continue;
        }
        let code = code_of(&fs::read_to_string(&path).expect("a source file"));
        for used in used(&code).into_iter().filter(|used| *used != module) {
            let is_below = layer(layers, used) < layer(layers, module);
            assert!(is_below, "{name} uses crate::{used}, which does not stand below it");
        }
    }
}

#[test]
fn imports_run_one_way() {
    assert_one_way("src", &LAYERS);
    assert_one_way("crates/kernels/src", &KERNELS_LAYERS);
    assert_one_way("crates/check/src", &CHECK_LAYERS);
}

#[test]
fn unsafe_stays_in_its_rooms() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    sources(&root.join("crates"), &mut files);
    for path in files {
        let name = relative(&path);
        let text = fs::read_to_string(&path).expect("a source file");
        if text.contains("allow(unsafe_code)") {
            assert!(UNSAFE_MODULES.iter().any(|buffer| name.starts_with(buffer)), "{name} allows unsafe code");
        }
    }
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("the manifest");
    assert!(manifest.contains("unsafe_code = \"deny\""), "unsafe code is denied everywhere else");
}

/// Files that may parse JSON into a document: the readers of untrusted JSON, and three files that read the project's output.
const JSON_READERS: [&str; 5] = [
    "src/format/json.rs",
    "crates/check/src/json.rs",
    "src/write/in_folder.rs",
    "crates/cli/src/convert/hugging_face.rs",
    "crates/cli/src/convert/layouts.rs",
];

#[test]
fn json_of_strangers_has_one_reader() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "crates/check/src", "crates/cli/src", "crates/python/src", "crates/remote/src"] {
        sources(&root.join(folder), &mut files);
    }
    let mut readers: Vec<String> = files
        .iter()
        .filter(|path| {
            let code = code_of(&fs::read_to_string(path).expect("a source file"));
            ["serde_json::from_slice", "serde_json::from_str", "serde_json::from_reader"]
                .iter()
                .any(|call| code.contains(call))
        })
        .map(|path| relative(path))
        .collect();
    readers.sort_unstable();
    let mut allowed = JSON_READERS;
    allowed.sort_unstable();
    assert_eq!(readers, allowed, "read it with `format::json::read`, which has limits");
}

/// The lint that asks for a note at each `unsafe` block, and the groups that it can be silenced with.
const NOTES: &str = "undocumented_unsafe_blocks";
const SILENCERS: [&str; 3] = [NOTES, "clippy::restriction", "warnings"];
/// A note is at most this many lines above its subject: the note itself, the rest of a statement, attributes.
const NOTE_WITHIN: usize = 6;

#[test]
fn every_unsafe_block_says_why_it_holds_and_no_file_silences_the_lint_that_asks() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for manifest in
        ["Cargo.toml", "crates/kernels/Cargo.toml", "crates/python/Cargo.toml", "tests/fake_cuda/Cargo.toml"]
    {
        let text = fs::read_to_string(root.join(manifest)).expect("a manifest");
        assert!(text.contains("[lints]\nworkspace = true"), "{manifest} takes the lints of the workspace");
    }
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("the manifest");
    let asks = [format!("\n{NOTES} = \"warn\"\n"), format!("\n{NOTES} = \"deny\"\n")];
    assert!(asks.iter().any(|line| manifest.contains(line)), "the lint is on in the workspace");

    let mut files = Vec::new();
    for folder in ["src", "crates", "tests", "benches", "fuzz/src", "fuzz/fuzz_targets"] {
        sources(&root.join(folder), &mut files);
    }
    let (mut blocks, this) = (0, root.join(file!()));
    for path in files.iter().filter(|path| **path != this) {
        let name = relative(path);
        let text = fs::read_to_string(path).expect("a source file");
        for attribute in text.match_indices("#[").chain(text.match_indices("#![")).map(|(at, _)| &text[at..]) {
            let attribute = &attribute[..attribute.find(']').unwrap_or(attribute.len())];
            let silences = attribute.contains("allow(") || attribute.contains("expect(");
            let silenced = SILENCERS.iter().find(|lint| silences && attribute.contains(*lint));
            assert!(silenced.is_none(), "{name}: `{attribute}]` hides unsafe blocks that do not say why they hold");
        }
        let lines: Vec<&str> = text.lines().collect();
        let mut before = 0;
        for (number, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if code.contains("unsafe {") || code.contains("unsafe impl") {
                let above = &lines[number.saturating_sub(NOTE_WITHIN).max(before)..number];
                assert!(above.iter().any(|line| line.contains("// SAFETY: ")), "{name}:{}: no note", number + 1);
                (blocks, before) = (blocks + 1, number);
            }
        }
    }
    assert!(blocks > 100, "{blocks} blocks were looked at");
}

/// Asserts that the `mod.rs` of a folder declares every other file and folder in it.
fn assert_declared(folder: &Path) {
    let Ok(declarations) = fs::read_to_string(folder.join("mod.rs")) else { return };
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        if name != "mod" {
            let is_declared = declarations.lines().any(|line| line.ends_with(&format!("mod {name};")));
            assert!(is_declared, "{} belongs into {}/mod.rs", path.display(), folder.display());
            assert_declared(&path);
        }
    }
}

/// A file that no program has is not compiled, and its tests are not run.
#[test]
fn every_file_of_tests_belongs_to_a_program() {
    for folder in ["", "crates/check/", "crates/cli/", "crates/kernels/", "tests/fault_server/"] {
        let crate_root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let read = |name: &str| fs::read_to_string(crate_root.join(name)).expect("a text");
        let (program, manifest) = (read("tests/main.rs"), read("Cargo.toml"));
        let mut modules = 0;
        for entry in fs::read_dir(crate_root.join("tests")).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a name");
            let is_module = path.extension().is_some_and(|extension| extension == "rs") || path.join("mod.rs").exists();
            if is_module && name != "main" {
                let is_in_main = program.contains(&format!("\nmod {name};\n"));
                let is_alone = manifest.contains(&format!("\n[[test]]\nname = \"{name}\"\n"));
                assert!(is_in_main != is_alone, "{folder}tests/{name} belongs into tests/main.rs or into Cargo.toml");
                modules += usize::from(is_in_main);
                assert_declared(&path);
            }
        }
        assert_eq!(modules, program.matches("\nmod ").count());
    }
}
