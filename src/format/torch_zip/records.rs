//! The raw records of a zip file, with nothing checked but their signatures: their numbers, and the extra fields with the large ones. This parser
//! and the scanner of `max-weights-check` read them by different rules. The fields are those of the format's specification (APPNOTE.TXT), in its
//! order.
#![allow(missing_docs)]

/// The marker of a 16-bit field whose value is in the zip64 record.
pub const IN_ZIP64_16: u16 = u16::MAX;
/// The marker of a 32-bit field whose value is in a zip64 record or extra field.
pub const IN_ZIP64_32: u32 = u32::MAX;
/// The flag of an entry whose sizes and checksum follow its data; those before it may be zero.
pub const SIZES_FOLLOW: u16 = 1 << 3;
/// Bytes of the longest comment at the end of a file.
pub const MAX_COMMENT: usize = u16::MAX as usize;

/// The little-endian number at `at`; zeros beyond the end.
fn bytes_at<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    record.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn u16_at(record: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(record, at))
}

fn u32_at(record: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(record, at))
}

fn u64_at(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(record, at))
}

/// The bytes of a record, if there are `len` of them, with this signature.
fn signed<'b>(bytes: &'b [u8], signature: &[u8], len: usize) -> Option<&'b [u8]> {
    bytes.get(..len).filter(|record| record.starts_with(signature))
}

/// An end record, the plain one or that of zip64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndRecord {
    pub disks: [u32; 2],
    pub entries: [u64; 2],
    pub size: u64,
    pub offset: u64,
}

impl EndRecord {
    pub const SIGNATURE: &[u8] = b"PK\x05\x06";
    pub const BYTES: usize = 22;
    pub const BYTES64: usize = 56;

    /// The plain record at the start of these bytes, and the length of the comment after it.
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let record = signed(bytes, Self::SIGNATURE, Self::BYTES)?;
        let end = Self {
            disks: [4, 6].map(|at| u16_at(record, at).into()),
            entries: [8, 10].map(|at| u16_at(record, at).into()),
            size: u32_at(record, 12).into(),
            offset: u32_at(record, 16).into(),
        };
        Some((end, u16_at(record, 20).into()))
    }

    /// The record of zip64, and the length that it states after this number.
    pub fn parse64(bytes: &[u8]) -> Option<(Self, u64)> {
        let record = signed(bytes, b"PK\x06\x06", Self::BYTES64)?;
        let end = Self {
            disks: [16, 20].map(|at| u32_at(record, at)),
            entries: [24, 32].map(|at| u64_at(record, at)),
            size: u64_at(record, 40),
            offset: u64_at(record, 48),
        };
        Some((end, u64_at(record, 4)))
    }
}

/// The locator, which leads from the plain end record to that of zip64.
#[derive(Debug, Clone, Copy)]
pub struct Locator {
    pub disk: u32,
    pub offset: u64,
    pub disks: u32,
}

impl Locator {
    pub const BYTES: usize = 20;

    /// The record at the start of these bytes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let record = signed(bytes, b"PK\x06\x07", Self::BYTES)?;
        Some(Self { disk: u32_at(record, 4), offset: u64_at(record, 8), disks: u32_at(record, 16) })
    }
}

/// The fields that the directory and the header before an entry share.
#[derive(Debug, Clone, Copy)]
pub struct LocalHeader {
    pub flags: u16,
    pub method: u16,
    pub crc32: u32,
    pub compressed: u32,
    pub size: u32,
    pub name_len: u16,
    pub extra_len: u16,
}

impl LocalHeader {
    pub const SIGNATURE: &[u8] = b"PK\x03\x04";
    pub const BYTES: usize = 30;

    /// The header at the start of these bytes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        signed(bytes, Self::SIGNATURE, Self::BYTES).map(|record| Self::at(record, 6))
    }

    /// The fields, which begin at `at`.
    fn at(record: &[u8], at: usize) -> Self {
        Self {
            flags: u16_at(record, at),
            method: u16_at(record, at + 2),
            crc32: u32_at(record, at + 8),
            compressed: u32_at(record, at + 12),
            size: u32_at(record, at + 16),
            name_len: u16_at(record, at + 20),
            extra_len: u16_at(record, at + 22),
        }
    }
}

/// An entry of the directory.
#[derive(Debug, Clone, Copy)]
pub struct CentralRecord {
    pub header: LocalHeader,
    pub system: u8,
    pub comment_len: u16,
    pub disk: u16,
    pub mode: u32,
    pub header_offset: u32,
}

impl CentralRecord {
    pub const BYTES: usize = 46;
    pub const SIGNATURE: &[u8] = b"PK\x01\x02";

    /// The record at the start of these bytes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let record = signed(bytes, Self::SIGNATURE, Self::BYTES)?;
        Some(Self {
            header: LocalHeader::at(record, 8),
            system: record.get(5).copied().unwrap_or_default(),
            comment_len: u16_at(record, 32),
            disk: u16_at(record, 34),
            mode: u32_at(record, 38) >> 16,
            header_offset: u32_at(record, 42),
        })
    }
}

/// The relevant extra fields of an entry.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExtraFields<'a> {
    /// The values of the zip64 field that were not used yet.
    zip64: &'a [u8],
    /// A second name of the entry, which some readers prefer.
    pub unicode_path: Option<&'a [u8]>,
    /// The fault of the fields; of duplicates, the last one counts.
    pub defect: Option<&'static str>,
}

impl<'a> ExtraFields<'a> {
    /// Walks over the fields: an id, a length, and the bytes.
    pub fn parse(mut bytes: &'a [u8]) -> Self {
        /// Version and checksum before the name.
        const PATH_PREFIX: usize = 5;
        let (mut extra, mut zip64) = (Self::default(), None);
        while let Some((field, rest)) = bytes.get(4..).and_then(|rest| rest.split_at_checked(u16_at(bytes, 2).into())) {
            let is_duplicate = match u16_at(bytes, 0) {
                0x0001 => zip64.replace(field).is_some(),
                0x7075 => extra.unicode_path.replace(field.get(PATH_PREFIX..).unwrap_or_default()).is_some(),
                _ => false,
            };
            extra.defect = extra.defect.or(is_duplicate.then_some("it has an extra field twice"));
            bytes = rest;
        }
        let is_cut = (!bytes.is_empty()).then_some("its extra fields do not end where they should");
        Self { zip64: zip64.unwrap_or_default(), defect: extra.defect.or(is_cut), ..extra }
    }

    /// The value of a 32-bit field, or the next one of the zip64 field if it is marked as being there; `None` if there is none. The calls must
    /// follow the order of the format: size, compressed size, offset.
    pub fn value(&mut self, field: u32) -> Option<u64> {
        if field != IN_ZIP64_32 {
            return Some(field.into());
        }
        let (value, rest) = self.zip64.split_first_chunk()?;
        self.zip64 = rest;
        Some(u64::from_le_bytes(*value))
    }
}
