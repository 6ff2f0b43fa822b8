//! Checkpoints of a few bytes that the tests make for themselves.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::path::Path;

use max_weights::{Checkpoint, OpenOptions};

/// Name, dtype, shape, bytes.
pub(crate) type Entry<'a> = (&'a str, &'a str, &'a [usize], Vec<u8>);

/// A safetensors file of these tensors.
pub(crate) fn saved(entries: &[Entry<'_>], metadata: &str) -> Checkpoint {
    let (mut header, mut data) = (format!("{{\"__metadata__\":{{{metadata}}}"), Vec::new());
    for (name, dtype, shape, bytes) in entries {
        let (start, end) = (data.len(), data.len() + bytes.len());
        let _ = write!(
            header,
            ",\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}"
        );
        data.extend(bytes);
    }
    header.push('}');
    opened(&[&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat(), "a.safetensors")
}

fn opened(bytes: &[u8], name: &str) -> Checkpoint {
    // It stays, as it may be opened again; the same bytes are one file, however often the tests run.
    let mut hash = DefaultHasher::new();
    bytes.hash(&mut hash);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("comparison-{:016x}", hash.finish()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join(name);
    if !path.exists() {
        let mut file = tempfile::NamedTempFile::new_in(&folder).expect("a file");
        file.write_all(bytes).expect("written");
        file.persist(&path).expect("renamed");
    }
    open(&path)
}

/// The checkpoint at this path.
pub(crate) fn open(path: &Path) -> Checkpoint {
    Checkpoint::open(&[path], &OpenOptions::default()).expect("opened")
}

/// A GGUF file of one tensor `w` of this type and number of elements.
#[allow(dead_code)] // each test program has its own copy of this file
pub(crate) fn gguf(kind: u32, elements: u64, data: &[u8]) -> Checkpoint {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend([1u64.to_le_bytes(), 0u64.to_le_bytes(), 1u64.to_le_bytes()].concat());
    bytes.extend(b"w");
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(elements.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    opened(&bytes, "a.gguf")
}
