//! Numbers in the records of a zip file, and the extra fields in which the large ones stand.

use crate::error::Fault;
use crate::rules;

/// What is in a field of 16 bits whose value is in the zip64 record.
pub(super) const IN_ZIP64_16: u16 = u16::MAX;
/// What is in a field of 32 bits whose value is in a zip64 record or extra field.
pub(super) const IN_ZIP64_32: u32 = u32::MAX;

const ZIP64_FIELD: u16 = 0x0001;
/// A second name of the entry, which some readers prefer.
const UNICODE_PATH_FIELD: u16 = 0x7075;
/// Version and checksum before the name in such a field.
const UNICODE_PATH_PREFIX: usize = 5;

/// The little-endian number at `at`. The callers have records of fixed lengths; beyond the end there are zeros.
fn bytes_at<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    record.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

pub(super) fn u16_at(record: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(record, at))
}

pub(super) fn u32_at(record: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(record, at))
}

pub(super) fn u64_at(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(record, at))
}

/// The extra fields of an entry, as far as they matter.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extra<'a> {
    /// The values of the zip64 field that were not asked for yet.
    zip64: Option<&'a [u8]>,
    /// The name in the Unicode path field.
    pub(super) unicode_path: Option<&'a [u8]>,
}

impl<'a> Extra<'a> {
    /// Walks over the fields: an id, a length, as many bytes.
    pub(super) fn parse(mut bytes: &'a [u8]) -> Result<Self, Fault> {
        let mut extra = Self::default();
        while !bytes.is_empty() {
            let len = usize::from(u16_at(bytes, 2));
            let Some((field, rest)) = bytes.get(4..).and_then(|fields| fields.split_at_checked(len)) else {
                return Err(broken("its extra fields do not end where they should"));
            };
            let given = match u16_at(bytes, 0) {
                ZIP64_FIELD => extra.zip64.replace(field).is_some(),
                UNICODE_PATH_FIELD => {
                    extra.unicode_path.replace(field.get(UNICODE_PATH_PREFIX..).unwrap_or_default()).is_some()
                }
                _ => false,
            };
            if given {
                return Err(broken("it has an extra field twice"));
            }
            bytes = rest;
        }
        Ok(extra)
    }

    /// The value of a field of 32 bits, or the next one of the zip64 field if it is there. The order of the calls is that of the
    /// format: size, compressed size, offset.
    pub(super) fn value(&mut self, field: u32) -> Result<u64, Fault> {
        if field != IN_ZIP64_32 {
            return Ok(field.into());
        }
        let values = self.zip64.unwrap_or_default();
        let Some((value, rest)) = values.split_first_chunk() else {
            return Err(broken("one of its numbers should be in its zip64 field, but is not"));
        };
        self.zip64 = Some(rest);
        Ok(u64::from_le_bytes(*value))
    }
}

fn broken(cause: &str) -> Fault {
    Fault::new(rules::TORCH_ZIP_EXTRA, cause)
}
