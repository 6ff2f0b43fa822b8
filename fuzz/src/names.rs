//! Target `names`: names of any bytes that a format allows, of tensors, keys, dtypes, files and folders, and all that is printed of them.

use std::fs;
use std::path::Path;

use max_weights::checkpoint::{Catalog, Checkpoint, OpenOptions, PrefixTree, TreeLimits};

use super::folder::in_folder;
use super::gguf::document::{Document, Tensor, Value};
use super::layout::Layout;
use super::memory;
use super::open::check_catalog;
use super::printing::{check_html, check_message, check_text};
use super::random::Random;

/// The separator of names.
pub const BETWEEN: u8 = 0xff;
/// Names of one input at most, and bytes of a file's name.
const NAMES: usize = 6;
const FILE_NAME: usize = 120;
const SUFFIXES: [&str; 8] =
    [".safetensors", ".gguf", "", ".safetensors.index.json", ".pt", ".part", ".h5", "-00001-of-00002.gguf"];

/// A file with the names of the input, under a name of the input, is opened, printed and asked for missing names. No output steers a
/// terminal or a page.
pub fn check(input: &[u8]) {
    let mut names = input.split(|byte| *byte == BETWEEN);
    let first = names.next().unwrap_or_default();
    let (choices, file_name) = first.split_at(first.len().min(2));
    let [kind, suffix] = [0, 1].map(|i| usize::from(choices.get(i).copied().unwrap_or_default()));
    let names: Vec<&[u8]> = names.take(NAMES).collect();
    let content = match kind % 3 {
        0 => safetensors(&names),
        1 => gguf(&names),
        _ => names.concat(),
    };
    in_folder(|folder| {
        let Some(name) = as_file_name(file_name, SUFFIXES[suffix % SUFFIXES.len()]) else { return };
        let folder = folder.join("names");
        let path = folder.join(name);
        fs::create_dir_all(&folder).expect("a folder");
        if fs::write(&path, &content).is_ok() {
            memory::bounded(input.len(), || {
                check_path(&path, true, &names);
                for path in [&path, &folder, &path.join("below"), &path.with_extension("missing")] {
                    check_path(path, false, &names);
                }
            });
        }
        fs::remove_dir_all(&folder).expect("our own folder");
    });
}

#[cfg(unix)]
fn as_file_name(bytes: &[u8], suffix: &str) -> Option<std::ffi::OsString> {
    use std::os::unix::ffi::OsStringExt;
    let mut name: Vec<u8> = bytes.iter().copied().filter(|byte| !b"/\0".contains(byte)).take(FILE_NAME).collect();
    name.extend_from_slice(suffix.as_bytes());
    (!matches!(&name[..], b"" | b"." | b"..")).then(|| std::ffi::OsString::from_vec(name))
}

#[cfg(not(unix))]
fn as_file_name(bytes: &[u8], suffix: &str) -> Option<std::ffi::OsString> {
    let name: String = String::from_utf8_lossy(bytes).chars().filter(|c| c.is_alphanumeric()).collect();
    Some(format!("x{name}{suffix}").into())
}

/// Tensors of these names; the dtype of the first, and a key and a value, are names too.
fn safetensors(names: &[&[u8]]) -> Vec<u8> {
    let texts: Vec<String> = names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    let quoted = |text: &String| serde_json::to_string(text).expect("text");
    let mut entries: Vec<String> = Vec::new();
    for (number, name) in texts.iter().enumerate() {
        let dtype = if number == 0 { texts.last().map_or("\"U8\"".to_owned(), quoted) } else { "\"U8\"".to_owned() };
        entries.push(format!("{}:{{\"dtype\":{dtype},\"shape\":[0],\"data_offsets\":[0,0]}}", quoted(name)));
    }
    if let [.., key, value] = &texts[..] {
        entries.push(format!("\"__metadata__\":{{{}:{}}}", quoted(key), quoted(value)));
    }
    Layout::File.input(format!("{{{}}}", entries.join(",")).as_bytes(), 0, usize::MAX)
}

/// The same as GGUF, where names need not even be UTF-8 to be in the file.
fn gguf(names: &[&[u8]]) -> Vec<u8> {
    let tensor = |name: &&[u8]| Tensor { name: name.to_vec(), dims: vec![0], type_id: 0, offset: 0, place: 0..0 };
    let keys = names.chunks(2).map(|pair| (pair[0].to_vec(), Value::Text(pair[pair.len() - 1].to_vec()))).collect();
    let tensors = names.iter().map(tensor).collect();
    Document { version: 3, big_endian: false, keys, tensors, claims: [None; 2], end: 0 }.write()
}

/// Opens a path, and reads everything that is reported about it.
fn check_path(path: &Path, strict: bool, names: &[&[u8]]) {
    let options = OpenOptions::default().strict(strict);
    match Checkpoint::open(&[path.to_path_buf()], &options) {
        Ok(checkpoint) if strict => check_printed(checkpoint.catalog(), names),
        Ok(checkpoint) => check_catalog(&checkpoint),
        Err(error) => check_message(&error.to_string()),
    }
}

fn check_printed(catalog: &Catalog, names: &[&[u8]]) {
    for finding in catalog.findings() {
        check_message(&finding.to_string());
    }
    for name in names {
        let name = String::from_utf8_lossy(name);
        let limits = TreeLimits { lines: Some(20), fold: true };
        for prefix in [&*name, name.split('.').next().unwrap_or_default()] {
            let tree = PrefixTree::new(catalog, prefix, limits);
            check_text(&tree.text(), true);
            check_html(&tree.html());
        }
        for requested in [format!("{name}x"), name.to_uppercase(), format!("{name}.{name}")] {
            if let Err(error) = catalog.require(&requested) {
                check_message(&error.to_string());
            }
        }
    }
    if let Err(error) = catalog.renamed(|_| names.first().map(|name| String::from_utf8_lossy(name).into_owned())) {
        check_message(&error.to_string());
    }
}

/// What terminals, pages and readers of text obey, and what belongs to other alphabets.
const PIECES: [&[u8]; 32] = [
    b"\x1b[31m",
    b"\x1b]0;title\x07",
    b"\x9b2J",
    b"\xc2\x9b2J",
    b"\r",
    b"\n",
    b"\t",
    b"\x7f",
    b"\x08\x08",
    b"\0",
    "\u{202e}gpj.".as_bytes(),
    "\u{2066}".as_bytes(),
    "\u{200f}".as_bytes(),
    "\u{61c}".as_bytes(),
    "\u{200b}".as_bytes(),
    "\u{feff}".as_bytes(),
    "\u{ad}".as_bytes(),
    "\u{2028}".as_bytes(),
    "\u{e0041}".as_bytes(),
    "\u{e000}".as_bytes(),
    "e\u{301}".as_bytes(),
    "\u{301}".as_bytes(),
    "模型".as_bytes(),
    "נּ".as_bytes(),
    b"<script>",
    b"\"><b>",
    b"&lt;",
    b"'",
    b"weight.",
    b"layers.0.",
    b"..",
    b"\xc3\x28",
];

/// Puts pieces into names, and names between names.
pub fn change(input: &[u8], most: usize, random: &mut Random) -> Vec<u8> {
    let mut changed = input.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(changed.len() + 1);
        match random.below(6) {
            0 => changed.insert(at, BETWEEN),
            1 if at < changed.len() => drop(changed.remove(at)),
            2 if !changed.is_empty() => {
                let at = random.below(changed.len().min(2));
                changed[at] = random.next() as u8;
            }
            3 => {
                let any = char::from_u32(random.next() as u32 % 0x11_0000).unwrap_or('x').to_string();
                drop(changed.splice(at..at, any.bytes()));
            }
            _ => drop(changed.splice(at..at, random.pick(&PIECES).iter().copied())),
        }
    }
    changed.truncate(most);
    changed
}
