//! Target `delta_dialects`: deltas as other libraries write them, of a base that is there, whose index, frames, places and sums may lie.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use max_weights::checkpoint::{Checkpoint, OpenOptions, OpenedDelta};
use max_weights::workers::uninterrupted;

use super::delta::{BASE, base, bytes};
use super::folder::in_folder;
use super::program::Program;
use super::{check_message, memory};

const INDEX: &str = "model.safetensors.index.json";
const MANIFEST: &str = "sparse_update_manifest.json";
const FILE: &str = "patch.safetensors";
/// The size to which RLE blocks of a frame unpack: the largest block that zstd has.
const BLOCK: usize = 128 << 10;
const WORDS: [&str; 14] = [
    "xor",
    "overwrite",
    "zstd",
    "lz4",
    "adler32",
    "xxh3-128",
    "blake3",
    "000001",
    "000002",
    "raw",
    "gap_delta",
    "nvcomp_cascaded",
    "18446744073709551616",
    "\\u001b[31m",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Xor,
    Overwrite,
    Trl,
    PrimeRl,
}

/// A tensor of a safetensors file.
struct Entry {
    name: String,
    dtype: &'static str,
    shape: String,
    bytes: Vec<u8>,
}

/// What a delta consists of, before it is written.
struct Parts {
    kind: Kind,
    /// The index or the manifest; none of TRL.
    text: String,
    metadata: Vec<(String, String)>,
    entries: Vec<Entry>,
}

/// A base with a correct delta opens, and has exactly the changes. One with a false delta is refused with a message, or leaves the tensors unchanged
/// that the delta does not name.
pub fn check(input: &[u8]) {
    in_folder(|folder| {
        let first = folder.join("base.safetensors");
        fs::write(&first, base()).expect("room for the base");
        let alone = Checkpoint::open(&[&first], &OpenOptions::default()).expect("the base is whole");
        let before: Vec<(String, Vec<u8>)> =
            bytes(&alone).into_iter().map(|(name, bytes)| (name, bytes.expect("whole"))).collect();
        let mut program = Program::new(input);
        let mut after = before.clone();
        let (mut parts, changed) = make(&mut program, &before, &mut after);
        let lies = program.one_in(2);
        if lies {
            lie(&mut program, &mut parts);
        }
        let second = folder.join("delta");
        let (path, size) = write(&second, &parts, lies.then_some(&mut program));
        memory::bounded(size + input.len(), || compare(&first, &path, &before, &after, &changed, lies));
        fs::remove_dir_all(&second).expect("what was written");
    });
}

/// A correct delta, and the names of the tensors that it changes.
#[expect(clippy::too_many_lines, reason = "it is one list of what each kind has")]
fn make(
    program: &mut Program<'_>,
    before: &[(String, Vec<u8>)],
    after: &mut [(String, Vec<u8>)],
) -> (Parts, Vec<String>) {
    let kind = [Kind::Xor, Kind::Overwrite, Kind::Trl, Kind::PrimeRl][program.below(4)];
    let mut parts = Parts { kind, text: String::new(), metadata: Vec::new(), entries: Vec::new() };
    let (mut map, mut tensors, mut changed) = (Vec::new(), Vec::new(), Vec::new());
    let gaps = kind == Kind::Trl && program.one_in(2);
    for (number, ((name, old), (_, new))) in before.iter().zip(after).enumerate() {
        if program.one_in(3) {
            continue;
        }
        let (_, dtype, shape, width) = BASE.into_iter().find(|(own, ..)| own == name).expect("a tensor of the base");
        let width = width as usize;
        let (mut places, mut place) = (Vec::new(), program.below(9));
        while place < old.len() / width && places.len() < 30 {
            places.push(place);
            for byte in &mut new[place * width..(place + 1) * width] {
                *byte ^= program.byte() | 1;
            }
            place += 1 + program.below(60);
        }
        if places.is_empty() {
            continue;
        }
        changed.push(name.clone());
        match kind {
            Kind::Xor | Kind::Overwrite => {
                let raw = if kind == Kind::Xor {
                    old.iter().zip(&*new).map(|(old, new)| old ^ new).collect()
                } else {
                    let places: Vec<u32> =
                        (0..).zip(old.iter().zip(&*new)).filter(|(_, (a, b))| a != b).map(|(n, _)| n).collect();
                    let mut raw = (places.len() as u32).to_le_bytes().to_vec();
                    raw.extend(places.iter().flat_map(|place| place.to_le_bytes()));
                    raw.extend(places.iter().map(|place| new[*place as usize]));
                    raw
                };
                let frame = frame(&raw, program);
                parts.metadata.push((name.clone(), format!("{:08x}", adler32(new))));
                map.push(format!(r#""{name}":"{FILE}""#));
                parts.entries.push(Entry {
                    name: name.clone(),
                    dtype: "U8",
                    shape: format!("[{}]", frame.len()),
                    bytes: frame,
                });
            }
            Kind::Trl | Kind::PrimeRl => {
                let (indices, of_values) = match (kind, gaps) {
                    (Kind::PrimeRl, _) => (format!("tensor_{number}.indices"), format!("tensor_{number}.values")),
                    (_, true) => (format!("{name}.idx"), format!("{name}.val")),
                    (_, false) => (format!("{name}.indices"), format!("{name}.values")),
                };
                let mut next = 0;
                let written: Vec<usize> = places
                    .iter()
                    .map(|place| {
                        let gap = place - next;
                        next = place + 1;
                        if gaps { gap } else { *place }
                    })
                    .collect();
                let (of_places, bytes): (_, Vec<u8>) = match (gaps, program.one_in(2)) {
                    (true, true) => ("U16", written.iter().flat_map(|n| (*n as u16).to_le_bytes()).collect()),
                    (true, false) => ("U32", written.iter().flat_map(|n| (*n as u32).to_le_bytes()).collect()),
                    (false, true) => ("I32", written.iter().flat_map(|n| (*n as u32).to_le_bytes()).collect()),
                    (false, false) => ("I64", written.iter().flat_map(|n| (*n as u64).to_le_bytes()).collect()),
                };
                let row = format!("[{}]", places.len());
                tensors.push(format!(
                    r#"{{"name":"{name}","shape":{shape:?},"indices":"{indices}","values":"{of_values}"}}"#
                ));
                parts.entries.push(Entry { name: indices, dtype: of_places, shape: row.clone(), bytes });
                let values =
                    places.iter().flat_map(|place| &new[place * width..(place + 1) * width]).copied().collect();
                parts.entries.push(Entry { name: of_values, dtype, shape: row, bytes: values });
            }
        }
    }
    match kind {
        Kind::Xor | Kind::Overwrite => {
            let encoding = if kind == Kind::Xor { "xor" } else { "overwrite" };
            parts.text = format!(
                r#"{{"metadata":{{"version":"000002","base_version":"000001","delta_encoding":"{encoding}","compression_format":"zstd","checksum_format":"adler32"}},"weight_map":{{{}}}}}"#,
                map.join(",")
            );
        }
        Kind::PrimeRl => {
            let file = if tensors.is_empty() { "null".to_owned() } else { format!("\"{FILE}\"") };
            parts.text = format!(
                r#"{{"format":"prime-rl-sparse-update","version":1,"step":2,"base_step":1,"compressed":false,"patch_file":{file},"tensors":[{}]}}"#,
                tensors.join(",")
            );
        }
        Kind::Trl => {
            let pairs = [
                ("format", "sparse_weight_patch"),
                ("version", "1"),
                ("model_version", "2"),
                ("encoding", if gaps { "gap_delta" } else { "raw" }),
            ];
            parts.metadata = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
            if tensors.is_empty() {
                parts.entries.push(Entry {
                    name: "__empty_delta__".to_owned(),
                    dtype: "U8",
                    shape: "[1]".to_owned(),
                    bytes: vec![0],
                });
            }
        }
    }
    (parts, changed)
}

/// Changes something, which need not be a lie in the end.
fn lie(program: &mut Program<'_>, parts: &mut Parts) {
    for _ in 0..=program.below(2) {
        let (number, word) = (program.below(parts.entries.len()), WORDS[program.below(WORDS.len())]);
        let at = program.below(200);
        let entry = parts.entries.get_mut(number);
        match (program.below(10), entry) {
            (0, Some(entry)) => entry.shape = format!("[{}]", program.dim()),
            (1, Some(entry)) => entry.dtype = ["F32", "U8", "I32", "U16", "F16", "BOOL"][program.below(6)],
            (2, Some(entry)) => {
                ["a", "b", "x", "c.idx", "d.values", "__empty_delta__"][program.below(6)].clone_into(&mut entry.name);
            }
            (3, Some(entry)) => {
                let len = entry.bytes.len();
                if let Some(byte) = entry.bytes.get_mut(at % len.max(1)) {
                    *byte = program.byte();
                }
            }
            (4, Some(entry)) => entry.bytes.truncate(at % (entry.bytes.len() + 1)),
            (5, Some(entry)) => {
                // Numbers that follow each other are the same, or change places.
                let width = [2, 4, 8][program.below(3)];
                let count = entry.bytes.len() / width;
                let (one, other) = (program.below(count) * width, program.below(count) * width);
                if count > 0 {
                    let moved: Vec<u8> = entry.bytes[one..one + width].to_vec();
                    entry.bytes[other..other + width].copy_from_slice(&moved);
                }
            }
            (6, Some(entry)) => {
                // A frame of many blocks that are one byte each, and unpack to much.
                let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58];
                let blocks = 1 + program.below(100);
                for block in 1..=blocks {
                    bomb.extend(&((BLOCK << 3 | 1 << 1 | usize::from(block == blocks)) as u32).to_le_bytes()[..3]);
                    bomb.push(program.byte());
                }
                entry.shape = format!("[{}]", bomb.len());
                entry.bytes = bomb;
            }
            (7, _) => {
                let count = parts.metadata.len();
                if let Some((_, value)) = parts.metadata.get_mut(at % count.max(1)) {
                    word.clone_into(value);
                }
            }
            (8, _) if parts.text.is_ascii() => {
                let quotes: Vec<usize> = parts.text.match_indices('"').map(|(at, _)| at).collect();
                if let Some([start, end]) = quotes.chunks(2).nth(at % (quotes.len() / 2).max(1)) {
                    parts.text.replace_range(start + 1..*end, word);
                }
            }
            (_, _) if parts.text.is_ascii() => {
                let byte = char::from(program.byte() & 0x7f);
                let len = parts.text.len();
                if len > 0 {
                    parts.text.replace_range(at % len..=at % len, &byte.to_string());
                }
            }
            _ => {}
        }
    }
}

/// Writes the files, and says by which path the delta is opened, and how many bytes they have.
fn write(folder: &Path, parts: &Parts, lies: Option<&mut Program<'_>>) -> (PathBuf, usize) {
    fs::create_dir_all(folder).expect("room for a folder");
    let (mut header, mut data) = (String::from("{"), Vec::<u8>::new());
    if !parts.metadata.is_empty() {
        let pairs: Vec<String> = parts.metadata.iter().map(|(key, value)| format!(r#""{key}":"{value}""#)).collect();
        let _ = write!(header, r#""__metadata__":{{{}}},"#, pairs.join(","));
    }
    for Entry { name, dtype, shape, bytes } in &parts.entries {
        let start = data.len();
        data.extend(bytes);
        let _ = write!(
            header,
            r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{}]}},"#,
            data.len()
        );
    }
    header.truncate(header.trim_end_matches(',').len());
    header.push('}');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    if let Some(program) = lies
        && program.one_in(6)
    {
        file.truncate(program.below(file.len() + 1));
    }
    let size = file.len() + parts.text.len();
    let path = folder.join(FILE);
    if !parts.entries.is_empty() {
        fs::write(&path, file).expect("room for the file");
    }
    let named = match parts.kind {
        Kind::Xor | Kind::Overwrite => INDEX,
        Kind::PrimeRl => MANIFEST,
        Kind::Trl => return (path, size),
    };
    fs::write(folder.join(named), &parts.text).expect("room for what names it");
    (folder.to_path_buf(), size)
}

fn compare(
    first: &Path,
    path: &Path,
    before: &[(String, Vec<u8>)],
    after: &[(String, Vec<u8>)],
    changed: &[String],
    lies: bool,
) {
    let delta = OpenedDelta::open(path, &OpenOptions::default());
    let opened = Checkpoint::open(&[first, path], &OpenOptions::default());
    let refused = |error: &max_weights::error::Error| {
        check_message(&error.to_string());
        assert!(lies, "it tells the truth: {error}");
    };
    let delta = match &delta {
        Ok(delta) => delta,
        // A file that is no longer a delta may be a second file of weights.
        Err(error) => return refused(error),
    };
    match delta.elements(&uninterrupted) {
        Ok(all) if !lies => {
            assert_eq!(all.iter().map(|one| &one.name).collect::<Vec<_>>(), changed.iter().collect::<Vec<_>>());
        }
        Ok(_) => {}
        Err(error) => refused(&error),
    }
    let checkpoint = match &opened {
        Ok(checkpoint) => checkpoint,
        Err(error) => return refused(error),
    };
    for (name, bytes) in bytes(checkpoint) {
        let of = |all: &[(String, Vec<u8>)]| all.iter().find(|(own, _)| *own == name).map(|(_, bytes)| bytes.clone());
        let is_own = delta.changed().any(|(own, _)| own == name);
        match bytes {
            Ok(bytes) if !lies => assert_eq!(Some(bytes), of(after), "{name}"),
            Ok(bytes) if !is_own => assert_eq!(Some(bytes), of(before), "{name}"),
            Ok(bytes) => assert_eq!(Some(bytes.len()), of(before).map(|bytes| bytes.len()), "{name}"),
            Err(error) => refused(&error),
        }
    }
}

/// A zstd frame of raw blocks.
fn frame(raw: &[u8], program: &mut Program<'_>) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    frame.extend((raw.len() as u32).to_le_bytes());
    let step = 1 + program.below(256);
    let blocks: Vec<&[u8]> = if raw.is_empty() { vec![raw] } else { raw.chunks(step).collect() };
    for (number, block) in blocks.iter().enumerate() {
        let head = block.len() << 3 | usize::from(number + 1 == blocks.len());
        frame.extend(&(head as u32).to_le_bytes()[..3]);
        frame.extend(*block);
    }
    frame
}

/// As zlib defines it.
fn adler32(bytes: &[u8]) -> u32 {
    let (mut low, mut high) = (1_u32, 0_u32);
    for byte in bytes {
        low = (low + u32::from(*byte)) % 65_521;
        high = (high + low) % 65_521;
    }
    high << 16 | low
}
