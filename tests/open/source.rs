//! What a reader asks its source for, and what becomes of a source that fails, ends early, or answers late.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::gguf_files::{self, ARRAY, STRING};
use crate::legacy_files::{self, Saved};
use crate::source_support::{Counts, Trial};
use crate::zip_files::{self, Zip};
use max_weights::checkpoint::{Checkpoint, OpenOptions};
use max_weights::error::{Error, Result};
use max_weights::format::{HeaderLimits, HeaderOptions, drive, index};
use max_weights::source::{InMemory, LocalFile, ReadRange, Source};
use max_weights::workers::uninterrupted;
use proptest::prelude::*;

/// Entries of the archive: the directory lies before the last bytes, which are looked at first.
const ENTRIES: usize = 1200;
/// Storages of the legacy file: its pickles are longer than the first request.
const STORAGES: usize = 300;

fn safetensors() -> Vec<u8> {
    let entries: Vec<String> = (0..400)
        .map(|i| {
            format!(
                "\"layers.{i}.weight\":{{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[{},{}]}}",
                i * 2,
                i * 2 + 2
            )
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[7; 800]].concat()
}

fn gguf() -> Vec<u8> {
    let mut made = gguf_files::Made::new(2, 1).key("tokenizer.ggml.tokens", ARRAY).array(STRING, 4000);
    for i in 0..4000 {
        made = made.string(format!("token {i}"));
    }
    made.tensor("a", &[8], 0, 0).tensor("b", &[8], 0, 32).pad(32).data(64).bytes
}

/// A list of tensors, of one element each.
fn pickle(tensors: usize) -> Vec<u8> {
    let mut pickle = b"\x80\x02](".to_vec();
    for i in 0..tensors {
        let key = i.to_string();
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nByteStorage\nX");
        pickle.extend([&(key.len() as u32).to_le_bytes()[..], key.as_bytes()].concat());
        pickle.extend(b"X\x03\0\0\0cpuK\x01tQK\x00K\x01\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR");
    }
    pickle.extend(b"e.");
    pickle
}

fn zip() -> Vec<u8> {
    let mut parts = vec![
        zip_files::Part::stored("archive/data.pkl", pickle(ENTRIES)).follows(),
        zip_files::Part::stored("archive/byteorder", b"little").follows(),
    ];
    // One whose sizes are only in the extra fields of its local header.
    let mut large = zip_files::Part::stored("archive/data/0", [1]);
    large.local_extra = [&b"\x01\0\x10\0"[..], &1u64.to_le_bytes(), &1u64.to_le_bytes()].concat();
    parts.push(large);
    parts.extend((1..ENTRIES).map(|i| zip_files::Part::stored(format!("archive/data/{i}"), [1]).follows()));
    parts.push(zip_files::Part::stored("archive/version", b"3\n").follows());
    let zip = Zip::new(&parts);
    let own_sizes = zip.locals[2] + 18;
    zip.put(own_sizes, [0xff; 8]).bytes
}

fn legacy() -> Vec<u8> {
    let saved: Vec<Saved> = (0..STORAGES).map(|i| Saved::floats(&format!("{i:0300}"), 1000)).collect();
    let keys: Vec<&str> = saved.iter().map(|saved| &*saved.key).collect();
    legacy_files::Made::new(&saved, &keys).bytes
}

/// A file of each format, with the batches and the parts that opening it takes.
fn files() -> [(&'static str, Vec<u8>, usize, usize); 4] {
    [
        // The start, and the rest of the header.
        ("a.safetensors", safetensors(), 2, 2),
        // The start, and more of the header until it is whole.
        ("a.gguf", gguf(), 4, 4),
        // The start; the end; the directory; all headers; the extra fields of one; the pickle, byteorder and version.
        ("a.pt", zip(), 6, 3 + (ENTRIES + 3) + 1 + 3),
        // The start; two pieces of the pickles; the counts of all storages but 16, which came with the pieces.
        ("b.pt", legacy(), 4, 3 + STORAGES - 16),
    ]
}

fn open(source: &Arc<Trial>) -> Result<Checkpoint> {
    let source: Arc<dyn Source> = source.clone();
    Checkpoint::open_sources(vec![source], &OpenOptions::default())
}

/// All that is known of the tensors of a checkpoint.
fn table(checkpoint: &Checkpoint) -> String {
    let infos: Vec<String> = checkpoint.catalog().table().iter().map(|info| format!("{info:?}")).collect();
    infos.join("\n")
}

#[test]
fn what_is_needed_at_the_same_time_is_one_batch() {
    for (name, bytes, batches, parts) in files() {
        let source = Arc::new(Trial::of(name, &bytes));
        let checkpoint = open(&source).unwrap_or_else(|error| panic!("{name}: {error}"));
        let Counts { batches: requested, parts: of, .. } = source.counts();
        assert_eq!((requested, of), (batches, parts), "{name}");
        assert!(name == "b.pt" || !checkpoint.catalog().table().is_empty(), "{name}");
        assert!(checkpoint.catalog().findings().is_empty(), "{:?}", checkpoint.catalog().findings());
    }
}

#[test]
fn a_read_that_fails_while_opening_is_an_error_with_the_path_whichever_it_is() {
    for (name, bytes, _, parts) in files() {
        for part in (0..parts).filter(|part| *part < 8 || parts - part < 8 || part % 97 == 0) {
            let error = open(&Arc::new(Trial::of(name, &bytes).fails_at(part))).expect_err("a part failed");
            assert!(matches!(error, Error::Io { .. }), "{name}, part {part}: {error}");
            let text = error.to_string();
            assert!(text.contains(name) && text.contains("the disk is broken"), "part {part}: {text}");
        }
    }
}

#[test]
fn a_source_that_was_cut_since_it_was_opened_gives_an_error_with_the_path_or_the_right_table() {
    for (name, bytes, ..) in files() {
        let whole = table(&open(&Arc::new(Trial::of(name, &bytes))).expect("a valid file"));
        for len in (0..bytes.len()).step_by(bytes.len() / 40) {
            match open(&Arc::new(Trial::of(name, &bytes).ends_at(len as u64))) {
                Ok(checkpoint) => assert_eq!(table(&checkpoint), whole, "{name}, {len} bytes"),
                Err(error) => {
                    assert!(matches!(error, Error::FileChanged(_)), "{name}, {len} bytes: {error}");
                    assert!(error.to_string().contains(name), "{len} bytes: {error}");
                }
            }
        }
    }
}

#[test]
fn a_file_that_ends_early_is_refused_with_the_path_wherever_it_ends() {
    for (name, bytes, ..) in files() {
        for len in (0..bytes.len()).step_by(bytes.len() / 40).chain(bytes.len() - 8..bytes.len()) {
            let error = open(&Arc::new(Trial::of(name, &bytes[..len]))).expect_err("a file that was cut");
            let fault = error.diagnostic().unwrap_or_else(|| panic!("{name}, {len} bytes: {error}"));
            assert!(!fault.help.is_empty() && error.to_string().contains(name), "{len} bytes: {error}");
        }
    }
}

#[test]
fn an_index_is_one_batch_and_one_that_is_too_long_is_not_asked_for() {
    let json = br#"{"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}}"#;
    let options = HeaderOptions::default();
    let source = Trial::of("model.safetensors.index.json", json);
    let index = drive(index::IndexParser::new(source.len(), &options), &source, &uninterrupted).expect("an index");
    assert_eq!((index.len(), source.counts().batches), (2, 1));
    let broken = Trial::of("model.safetensors.index.json", json).fails_at(0);
    let error =
        drive(index::IndexParser::new(broken.len(), &options), &broken, &uninterrupted).expect_err("a part failed");
    assert!(error.to_string().contains("model.safetensors.index.json"), "{error}");
    let options = HeaderOptions { limits: HeaderLimits { header_bytes: 20, ..HeaderLimits::default() }, ..options };
    let error = drive(index::IndexParser::new(source.len(), &options), &source, &uninterrupted).expect_err("too long");
    assert_eq!(error.diagnostic().map(|fault| fault.rule.id), Some("index.too-long"));
    assert_eq!(source.counts().batches, 1);
}

#[test]
fn tensors_are_read_at_the_same_time_by_those_who_take_them() {
    let source = Arc::new(Trial::of("a.safetensors", &safetensors()).delayed(Duration::from_millis(200)));
    let checkpoint = open(&source).expect("a valid file");
    std::thread::scope(|scope| {
        for number in 0..4 {
            let checkpoint = &checkpoint;
            scope.spawn(move || assert_eq!(checkpoint.tensor(number).expect("read").size(), 2));
        }
    });
    assert!(source.most_at_once() > 1, "one tensor waited for another");
}

#[test]
fn two_sources_are_one_checkpoint_and_their_tensors_have_their_bytes() {
    let header = |name: &str| format!("{{\"{name}\":{{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}}}");
    let file = |name: &str, data: &[u8]| {
        let header = header(name);
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
    };
    let sources: Vec<Arc<dyn Source>> = vec![
        Arc::new(InMemory::new("first", file("a", &[1, 2, 3]))),
        Arc::new(InMemory::new("second", file("b", &[4, 5, 6]))),
    ];
    let checkpoint = Checkpoint::open_sources(sources, &OpenOptions::default()).expect("two files");
    for (name, data) in [("a", [1, 2, 3]), ("b", [4, 5, 6])] {
        let tensor = checkpoint.tensor(checkpoint.catalog().require(name).expect("there")).expect("read");
        assert_eq!(tensor.storage().slice(0, 3).unwrap(), data);
    }
    assert!(Checkpoint::open_sources(Vec::new(), &OpenOptions::default()).is_err());
}

proptest! {
    #[test]
    fn a_file_gives_each_part_its_bytes_whether_parts_are_read_together_or_not(
        parts in prop::collection::vec((0usize..300_000, prop::sample::select(vec![0, 1, 30, 4095, 4096, 4097, 50_000])), 1..40),
        sorted: bool,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..400_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = LocalFile::open(&path).unwrap();
        let mut parts = parts;
        if sorted {
            parts.sort_unstable();
        }
        let mut filled: Vec<(usize, Vec<u8>)> = parts.iter().map(|(offset, len)| (*offset, vec![0; *len])).collect();
        let mut batch: Vec<ReadRange<'_>> =
            filled.iter_mut().map(|(offset, bytes)| ReadRange { offset: *offset as u64, bytes }).collect();
        file.read(&mut batch, &uninterrupted).unwrap();
        for (offset, filled) in filled {
            prop_assert!(filled == bytes[offset..offset + filled.len()]);
        }
        let mut beyond = [0; 10];
        let error = file.read(&mut [ReadRange { offset: 399_995, bytes: &mut beyond }], &uninterrupted).unwrap_err();
        prop_assert!(matches!(error, Error::FileChanged(_)));
    }
}

#[cfg(target_os = "linux")] // elsewhere a page that has lost its file ends the process
#[test]
fn pages_are_fetched_and_those_of_a_file_that_was_truncated_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pages");
    std::fs::write(&path, vec![7; 3 * 4096 + 5]).unwrap();
    let file = LocalFile::open(&path).unwrap();
    for (start, len) in [(0, 3 * 4096 + 5), (1, 10), (4096, 4096), (3 * 4096, 5)] {
        file.fetch(start, len).unwrap();
    }
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    file.fetch(0, 4096).unwrap();
    let failed = file.fetch(0, 3 * 4096).expect_err("two pages are gone");
    assert!(matches!(failed, Error::FileChanged(_)) && failed.to_string().contains("truncated"), "{failed}");
    let bytes = InMemory::new("a.safetensors", vec![0; 8]);
    assert!(bytes.fetch(0, 8).unwrap_err().to_string().contains("only files are mapped"));
}

#[cfg(target_os = "linux")] // the page cache is asked
#[test]
fn a_file_that_is_not_held_open_is_read_ahead_and_forgotten_too() {
    let len = 8 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let written = std::fs::File::create(&path).unwrap();
    (&written).write_all(&vec![7; len as usize]).unwrap();
    written.sync_all().unwrap();
    for is_mapped in [false, true] {
        let mut file = LocalFile::open(&path).unwrap();
        file.close_for_now();
        if is_mapped {
            file.mapping().unwrap();
        }
        file.forget(0, len);
        if file.is_cached(0, len) != Some(false) {
            return; // a filesystem in memory, which forgets nothing
        }
        file.readahead(0, len);
        let begun = std::time::Instant::now();
        while file.is_cached(0, len) != Some(true) {
            assert!(begun.elapsed() < Duration::from_secs(30), "nothing comes; mapped: {is_mapped}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
