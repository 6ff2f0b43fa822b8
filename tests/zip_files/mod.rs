//! Zip files made by hand: whole at first, with the places of all their records, so that every field can be made to lie.

#![allow(dead_code)] // each test uses its part
#![allow(clippy::expect_used, clippy::panic)] // helpers of tests fail as tests do

use max_weights::error::{Diagnostic, Error, Result};
use max_weights::format::torch_zip::{self, CheckedArchive, ZipEntry, crc32};
use max_weights::format::{HeaderOptions, Parse, drive};
use max_weights::source::InMemory;
use max_weights::workers::uninterrupted;

/// An entry to be.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) name: Vec<u8>,
    /// The bytes in the file.
    pub(crate) data: Vec<u8>,
    pub(crate) method: u16,
    pub(crate) size: u32,
    pub(crate) crc: u32,
    pub(crate) flags: u16,
    pub(crate) local_extra: Vec<u8>,
    pub(crate) extra: Vec<u8>,
    pub(crate) listed: bool,
}

impl Part {
    pub(crate) fn stored(name: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Self {
        let data = data.as_ref().to_vec();
        let (size, crc) = (data.len() as u32, crc32(&data));
        let name = name.as_ref().to_vec();
        Self { name, data, method: 0, size, crc, flags: 0x800, local_extra: vec![], extra: vec![], listed: true }
    }

    pub(crate) fn deflated(name: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Self {
        let compressed = miniz_oxide::deflate::compress_to_vec(data.as_ref(), 6);
        Self { data: compressed, method: 8, ..Self::stored(name, data) }
    }

    /// As PyTorch does: sizes and checksum behind the data, zeros before it.
    pub(crate) fn follows(mut self) -> Self {
        self.flags |= 8;
        self
    }
}

/// A file, and where its records are.
#[derive(Debug, Clone)]
pub(crate) struct Zip {
    pub(crate) bytes: Vec<u8>,
    pub(crate) locals: Vec<usize>,
    pub(crate) centrals: Vec<usize>,
    /// The zip64 end record and its locator.
    pub(crate) zip64: Option<usize>,
    pub(crate) end: usize,
}

/// The fields of both headers, as the offset in the one of the directory; the own header has them 2 earlier.
pub(crate) const FLAGS: usize = 8;
pub(crate) const METHOD: usize = 10;
pub(crate) const CRC: usize = 16;
pub(crate) const COMPRESSED: usize = 20;
pub(crate) const SIZE: usize = 24;
pub(crate) const OFFSET: usize = 42;

impl Zip {
    pub(crate) fn new(parts: &[Part]) -> Self {
        Self::with(parts, false, b"")
    }

    pub(crate) fn with(parts: &[Part], zip64: bool, comment: &[u8]) -> Self {
        let mut zip = Self { bytes: vec![], locals: vec![], centrals: vec![], zip64: None, end: 0 };
        for part in parts {
            zip.locals.push(zip.bytes.len());
            let follows = part.flags & 8 != 0;
            let after = if follows { [0; 3] } else { [part.crc, part.data.len() as u32, part.size] };
            zip.raw(b"PK\x03\x04\0\0").u16(part.flags).u16(part.method).u32(0);
            let _ = after.iter().fold(&mut zip, |zip, value| zip.u32(*value));
            zip.u16(part.name.len() as u16).u16(part.local_extra.len() as u16);
            zip.raw(&part.name).raw(&part.local_extra).raw(&part.data);
            if follows {
                zip.raw(b"PK\x07\x08").u32(part.crc).u32(part.data.len() as u32).u32(part.size);
            }
        }
        let start = zip.bytes.len();
        for (part, local) in parts.iter().zip(zip.locals.clone()).filter(|(part, _)| part.listed) {
            zip.centrals.push(zip.bytes.len());
            zip.raw(b"PK\x01\x02\0\0\0\0").u16(part.flags).u16(part.method).u32(0).u32(part.crc);
            zip.u32(part.data.len() as u32).u32(part.size).u16(part.name.len() as u16).u16(part.extra.len() as u16);
            zip.raw(&[0; 10]).u32(local as u32).raw(&part.name).raw(&part.extra);
        }
        let (size, count) = (zip.bytes.len() - start, zip.centrals.len());
        if zip64 {
            let at = zip.bytes.len();
            zip.zip64 = Some(at);
            zip.raw(b"PK\x06\x06").u64(44).raw(&[0; 12]);
            let _ = [count, count, size, start].iter().fold(&mut zip, |zip, value| zip.u64(*value as u64));
            zip.raw(b"PK\x06\x07").u32(0).u64(at as u64).u32(1);
        }
        zip.end = zip.bytes.len();
        zip.raw(b"PK\x05\x06\0\0\0\0").u16(count as u16).u16(count as u16).u32(size as u32).u32(start as u32);
        zip.u16(comment.len() as u16).raw(comment);
        zip
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// Overwrites the bytes at `at`.
    pub(crate) fn put(mut self, at: usize, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Changes a field in the own header of an entry.
    pub(crate) fn local(self, entry: usize, field: usize, bytes: impl AsRef<[u8]>) -> Self {
        let at = self.locals[entry] + field - 2;
        self.put(at, bytes)
    }

    /// Changes a field in the directory.
    pub(crate) fn central(self, entry: usize, field: usize, bytes: impl AsRef<[u8]>) -> Self {
        let at = self.centrals[entry] + field;
        self.put(at, bytes)
    }

    /// Changes a field in both.
    pub(crate) fn both(self, entry: usize, field: usize, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        self.local(entry, field, bytes).central(entry, field, bytes)
    }
}

/// What `torch.save` writes, but for the pickle.
pub(crate) fn torch_parts() -> Vec<Part> {
    vec![
        Part::stored("archive/data.pkl", b"\x80\x02}q\x00.").follows(),
        Part::stored("archive/byteorder", b"little").follows(),
        Part::stored("archive/data/0", [1; 40]).follows(),
        Part::stored("archive/data/1", [2; 24]).follows(),
        Part::stored("archive/version", b"3\n").follows(),
    ]
}

/// As above, with sizes and checksums before the data, where they have to agree.
pub(crate) fn plain_parts() -> Vec<Part> {
    vec![
        Part::stored("archive/data.pkl", b"\x80\x02}q\x00."),
        Part::stored("archive/data/0", [1; 40]),
        Part::stored("archive/data/1", [2; 24]),
    ]
}

/// Gives a parser what it asks for.
pub(crate) fn parse<P: Parse>(parser: P, bytes: &[u8]) -> Result<P::Output> {
    drive(parser, &InMemory::new("a.zip", bytes.to_vec()), &uninterrupted)
}

pub(crate) fn try_read(zip: &Zip) -> Result<CheckedArchive> {
    parse(torch_zip::TorchZipParser::new(zip.bytes.len() as u64, &HeaderOptions::default()), &zip.bytes)
}

/// The contents of an entry.
pub(crate) fn contents(entry: &ZipEntry<'_>, most: u64, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut stored = entry.reserve(most)?;
    stored.copy_from_slice(&bytes[entry.data.start() as usize..entry.data.end() as usize]);
    entry.contents(stored, &uninterrupted)
}

#[track_caller]
pub(crate) fn read(zip: &Zip) -> CheckedArchive {
    try_read(zip).expect("accepted")
}

/// The fault of an error, which must be of this rule and place, and say what to do.
#[track_caller]
pub(crate) fn assert_fault(error: Error, rule: &str, offset: impl Into<Option<usize>>) -> Diagnostic {
    let fault = error.diagnostic().unwrap_or_else(|| panic!("{error}")).clone();
    assert_eq!((fault.rule.id, fault.offset), (rule, offset.into().map(|offset| offset as u64)), "{fault}");
    assert!(!fault.help.is_empty(), "{fault}");
    fault
}
