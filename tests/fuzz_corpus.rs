//! The bodies of the fuzz targets, without libFuzzer: every committed input, and a bounded number of random changes of them.
//!
//! `make fuzz` does the same for as long as one likes, guided by coverage.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use std::fs;
use std::path::{Path, PathBuf};

use fuzz::layout::Layout;
use fuzz::memory::bounded;
use fuzz::mutate::{bytes, mutate};
use fuzz::random::Random;
use fuzz::{TARGETS, Target};
use max_weights::checkpoint::{Checkpoint, OpenOptions, PrefixTree, TreeLimits};

#[path = "../fuzz/src/lib.rs"]
#[allow(dead_code, unreachable_pub)] // what only libFuzzer calls; there, this is a library
mod fuzz;

/// The longest input that a change makes.
const MAX: usize = 4096;

fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name)
}

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder(target)).expect("the corpus").map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Shows the input at hand when a check panics.
struct Shown<'a>(&'a Target, &'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("target {}, input b\"{}\"", self.0.name, self.1.escape_ascii());
        }
    }
}

fn check(target: &Target, input: &[u8]) {
    let _shown = Shown(target, input);
    (target.check)(input);
}

fn replay(target: &str, changes: u64) {
    let target = TARGETS.iter().find(|have| have.name == target).expect("a target");
    let corpus = corpus(target);
    assert!(corpus.len() >= 20, "{} inputs of {}", corpus.len(), target.name);
    for input in &corpus {
        check(target, input);
    }
    let mut random = Random::new(20_260_101);
    let mut last = Vec::new();
    for number in 0..changes {
        // Changes of changes get further than one alone.
        let from = if random.one_in(2) && last.len() > 8 { &last } else { &corpus[number as usize % corpus.len()] };
        let from = &from[..from.len().min(MAX)];
        let input = if random.one_in(3) {
            bytes(from, MAX, &mut random)
        } else {
            mutate(from, target.layout, MAX, &mut random)
        };
        check(target, &input);
        last = input;
    }
}

#[test]
fn safetensors_header_keeps_its_promises() {
    replay("safetensors_header", 9_000);
}

#[test]
fn safetensors_open_keeps_its_promises() {
    replay("safetensors_open", 3_000);
}

#[test]
fn gguf_header_keeps_its_promises() {
    replay("gguf_header", 9_000);
}

#[test]
fn gguf_open_keeps_its_promises() {
    replay("gguf_open", 3_000);
}

#[test]
fn index_keeps_its_promises() {
    replay("index", 4_000);
}

#[test]
fn sniff_keeps_its_promises() {
    replay("sniff", 4_000);
}

#[test]
fn pickle_keeps_its_promises() {
    replay("pickle", 6_000);
}

#[test]
fn torch_zip_keeps_its_promises() {
    replay("torch_zip", 9_000);
}

#[test]
fn torch_legacy_keeps_its_promises() {
    replay("torch_legacy", 9_000);
}

#[test]
fn torch_open_keeps_its_promises() {
    replay("torch_open", 2_000);
}

#[test]
fn distributed_keeps_its_promises() {
    replay("distributed", 3_000);
}

#[test]
fn delta_keeps_its_promises() {
    replay("delta", 3_000);
}

#[test]
fn delta_dialects_keeps_its_promises() {
    replay("delta_dialects", 6_000);
}

#[test]
fn names_keep_their_promises() {
    replay("names", 4_000);
}

#[test]
fn buffer_keeps_its_promises() {
    replay("buffer", 20_000);
}

#[test]
fn codebook_keeps_its_promises() {
    replay("codebook", 5_000);
}

#[test]
fn groups_keep_their_promises() {
    replay("groups", 2_500);
}

#[test]
fn every_target_is_built_by_cargo_fuzz() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("the manifest");
    for target in &TARGETS {
        assert!(manifest.contains(&format!("name = \"{}\"", target.name)), "{}", target.name);
        assert!(root.join(format!("fuzz_targets/{}.rs", target.name)).is_file(), "{}", target.name);
    }
}

#[test]
#[should_panic(expected = "bytes were allocated at once for an input of 1")]
fn an_allocation_beyond_the_limit_is_noticed() {
    bounded(1, || drop(std::hint::black_box(vec![0u8; 2 * fuzz::memory::SCRATCH_BYTES])));
}

// Larger headers than a fuzzer makes: the limit on memory, where it grows with more than one property of the file.

/// Opens, lists, walks and prints a file of empty tensors of these names and shapes, within the limit.
fn open_in_proportion(entries: impl Iterator<Item = (String, String)>) {
    let entries: Vec<String> = entries
        .map(|(name, shape)| format!("\"{name}\":{{\"dtype\":\"U8\",\"shape\":[{shape}],\"data_offsets\":[0,0]}}"))
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let file = Layout::File.input(header.as_bytes(), 0, usize::MAX);
    fs::write(&path, &file).expect("room");
    drop((entries, header));
    bounded(file.len(), || {
        let checkpoint = Checkpoint::open(std::slice::from_ref(&path), &OpenOptions::default()).expect("valid");
        let catalog = checkpoint.catalog();
        for lines in [Some(40), None] {
            for fold in [true, false] {
                let tree = PrefixTree::new(catalog, "", TreeLimits { lines, fold });
                assert!(!tree.text().is_empty() && !tree.html().is_empty());
            }
        }
        let name = catalog.table().name(catalog.table().len() - 1);
        assert_eq!(catalog.walk("").len(), catalog.table().len());
        assert!(catalog.require(&format!("{name}.x")).is_err());
    });
}

#[test]
fn a_name_of_a_megabyte_does_not_widen_the_lines_of_all_others() {
    let names = (0..5000).map(|i| (format!("a{i}"), "0".into()));
    open_in_proportion(names.chain([("n".repeat(1 << 20), "0".into())]));
}

#[test]
fn a_long_shape_does_not_widen_the_lines_of_all_others() {
    let shapes = (0..20_000).map(|i| (format!("a{i}"), "0".into()));
    open_in_proportion(shapes.chain([("z".into(), vec!["0"; 64].join(","))]));
}

#[test]
fn a_name_of_a_million_components() {
    let names = (0..4).map(|i| (format!("{}{i}", "a.".repeat(1 << 18)), "0".into()));
    open_in_proportion(names.chain([("a.".repeat(10), "0".into())]));
}

#[test]
fn many_names_with_a_long_prefix_in_common() {
    open_in_proportion((0..2000).map(|i| (format!("{}.{i}.{}", "p".repeat(500), "s.".repeat(i % 50)), "0".into())));
}

// What the targets found.

fn tree_of(header: &str, data: u64) -> (Checkpoint, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    fs::write(&path, Layout::File.input(header.as_bytes(), data, usize::MAX)).expect("room");
    let checkpoint = Checkpoint::open(&[path], &OpenOptions::default()).expect("valid");
    let text = PrefixTree::new(checkpoint.catalog(), "", TreeLimits { lines: None, fold: true }).text();
    (checkpoint, text)
}

#[test]
fn a_name_that_begins_with_a_dot_is_shown_and_suggested() {
    let (checkpoint, text) = tree_of(r#"{".hidden.weight":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#, 3);
    assert_eq!(text, "(all)  1 weight, 3 B\n└── .hidden  1 weight, 3 B\n    └── weight  uint8  [3]        3 B");
    assert_eq!(checkpoint.catalog().children("").collect::<Vec<_>>(), [".hidden"]);
    let error = checkpoint.catalog().require(".hidden.weigth").expect_err("misspelt");
    assert!(error.to_string().contains("did you mean '.hidden.weight'?"), "{error}");
}

#[test]
fn the_name_of_an_unknown_dtype_does_not_reach_the_terminal_as_it_is() {
    let (_, text) = tree_of(r#"{"a":{"dtype":"\u001b[31m","shape":[3],"data_offsets":[0,3]}}"#, 3);
    assert!(text.contains("a  \\x1b[31m  [3]"), "{text}");
}

fn open_index(index: &str, strict: bool) -> max_weights::error::Result<Checkpoint> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors.index.json");
    fs::write(&path, index).expect("room");
    let header = r#"{"w":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}"#;
    fs::write(folder.path().join("a.safetensors"), Layout::File.input(header.as_bytes(), 1, usize::MAX)).expect("room");
    Checkpoint::open(&[path], &OpenOptions::default().strict(strict))
}

#[test]
fn a_long_text_in_an_index_does_not_lengthen_the_message() {
    let long = "n".repeat(1 << 20);
    for index in [
        format!(r#"{{"weight_map":"{long}"}}"#),
        format!(r#"{{"weight_map":{{"w":"{long}"}}}}"#),
        format!(r#"{{"weight_map":{{"w":"a.safetensors","x":"{long}"}}}}"#),
        format!(r#"{{"weight_map":{{"w":"{long}","x":"a.safetensors"}}}}"#),
        format!(r#"{{"weight_map":{{"w":"/{long}"}}}}"#),
        format!(r#"{{"weight_map":{{"w":"a.safetensors","{long}":"a.safetensors"}}}}"#),
    ] {
        let message = open_index(&index, true).expect_err("refused").to_string();
        assert!(message.len() < 4000, "{} bytes", message.len());
    }
}

#[test]
fn what_an_index_says_beside_its_map_is_json_too() {
    for odd in ["1e999".into(), "[".repeat(200) + &"]".repeat(200), "\"\\ud800\"".into()] {
        let index = format!(r#"{{"weight_map":{{"w":"a.safetensors"}},"x":{odd}}}"#);
        let error = open_index(&index, true).expect_err("no other reader takes it");
        assert_eq!(error.diagnostic().map(|fault| fault.rule.id), Some("index.json"), "{odd}");
    }
}

#[test]
fn a_hundred_thousand_missing_shards_are_counted_in_one_walk() {
    let entries: Vec<String> = (0..100_000).map(|i| format!(r#""{i}":"s{i}""#)).collect();
    let checkpoint = open_index(&format!(r#"{{"weight_map":{{{}}}}}"#, entries.join(",")), false).expect("listed");
    let findings = checkpoint.catalog().findings();
    assert!(findings[0].message.contains("the index puts 1 tensor into it"), "{}", findings[0]);
    assert!(findings.iter().any(|finding| finding.message == "99900 more of this kind"));
}
