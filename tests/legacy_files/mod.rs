//! Legacy PyTorch files made by hand, with the places of their parts, so that every part can be made to lie.

#![allow(dead_code)] // each test uses its part

/// A storage, and how the object names it.
#[derive(Debug, Clone)]
pub(crate) struct Saved {
    pub(crate) key: String,
    pub(crate) elements: u64,
    /// The elements that the pickle says it has.
    pub(crate) claim: u64,
    pub(crate) view: Option<(String, u64, u64)>,
}

impl Saved {
    pub(crate) fn floats(key: &str, elements: u64) -> Self {
        Self { key: key.into(), elements, claim: elements, view: None }
    }

    pub(crate) fn view(mut self, key: &str, offset: u64, elements: u64) -> Self {
        self.view = Some((key.into(), offset, elements));
        self
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) bytes: Vec<u8>,
    /// Where the pickle of the object begins.
    pub(crate) object: usize,
    /// Where that of the list of keys begins.
    pub(crate) keys: usize,
    /// The positions of the counts of the storages, in the order of the list.
    pub(crate) counts: Vec<usize>,
}

impl Made {
    pub(crate) fn new(saved: &[Saved], keys: &[&str]) -> Self {
        Self::of([magic(b""), protocol(1001), system(true)], saved, keys)
    }

    pub(crate) fn of(before: [Vec<u8>; 3], saved: &[Saved], keys: &[&str]) -> Self {
        let mut bytes = before.concat();
        let object_at = bytes.len();
        bytes.extend(object(saved));
        let keys_at = bytes.len();
        bytes.extend(list(keys));
        let mut counts = Vec::new();
        for key in keys {
            let elements = saved.iter().find(|saved| saved.key == *key).map_or(1, |saved| saved.elements);
            counts.push(bytes.len());
            bytes.extend(elements.to_le_bytes());
            bytes.resize(bytes.len() + elements as usize * 4, 7);
        }
        Self { bytes, object: object_at, keys: keys_at, counts }
    }
}

/// The first pickle; `start` replaces the first bytes of the number.
pub(crate) fn magic(start: &[u8]) -> Vec<u8> {
    let mut number = *b"\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
    number[..start.len()].copy_from_slice(start);
    [b"\x80\x02\x8a\x0a", &number[..], b"."].concat()
}

pub(crate) fn protocol(number: u16) -> Vec<u8> {
    [b"\x80\x02M", &number.to_le_bytes()[..], b"."].concat()
}

pub(crate) fn system(little_endian: bool) -> Vec<u8> {
    let flag = if little_endian { b"\x88" } else { b"\x89" };
    [b"\x80\x02}(", &text("protocol_version")[..], b"M\xe9\x03", &text("little_endian"), flag, b"u."].concat()
}

fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

fn number(number: u64) -> Vec<u8> {
    [b"\x8a\x08", &number.to_le_bytes()[..]].concat()
}

pub(crate) fn list(items: &[&str]) -> Vec<u8> {
    [b"\x80\x02](", &items.iter().flat_map(|item| text(item)).collect::<Vec<_>>()[..], b"e."].concat()
}

/// A list of storages.
pub(crate) fn object(saved: &[Saved]) -> Vec<u8> {
    let mut bytes = b"\x80\x02]".to_vec();
    for saved in saved {
        bytes.push(b'(');
        bytes.extend(text("storage"));
        bytes.extend(b"ctorch\nFloatStorage\n");
        bytes.extend([text(&saved.key), text("cpu"), number(saved.claim)].concat());
        match &saved.view {
            None => bytes.push(b'N'),
            Some((key, offset, elements)) => {
                bytes.extend([text(key), number(*offset), number(*elements), b"\x87".to_vec()].concat());
            }
        }
        bytes.extend(b"tQa");
    }
    bytes.push(b'.');
    bytes
}
