//! The header that is before each member of a zip archive, held against the directory's.

use max_weights::Result;
use max_weights::format::torch_zip::records::{ExtraFields, LocalHeader, SIZES_FOLLOW};
use max_weights::text::escape;

use super::directory::MemberRecord;
use crate::bytes::RandomRead;

/// Encrypted, patched, strongly encrypted, masked.
pub(super) const LOCKED: u16 = 1 | 1 << 5 | 1 << 6 | 1 << 13;
/// Bytes that are read beyond the name, in which extra fields mostly end.
const EXTRA: usize = 96;

/// Bytes before a header that belong to the member before it: a descriptor of its sizes.
const BEFORE: u64 = 64;

/// Where the header of a member is, and what is looked at around it.
pub(super) fn around(member: &MemberRecord) -> (u64, u64) {
    let start = member.header.saturating_sub(BEFORE);
    let len = LocalHeader::BYTES + member.name.len() + EXTRA;
    (start, (member.header - start).saturating_add(len as u64))
}

/// The header before a member.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) record: MemberRecord,
    /// Where the bytes of the member begin.
    pub(super) data: u64,
}

/// The header there; `None` if there is none.
pub(super) fn read(bytes: &dyn RandomRead, at: u64, name: usize) -> Result<Option<Local>> {
    let mut header = bytes.part(at, LocalHeader::BYTES + name + EXTRA)?;
    let Some(record) = LocalHeader::parse(&header) else { return Ok(None) };
    let name_len = usize::from(record.name_len);
    let len = LocalHeader::BYTES + name_len + usize::from(record.extra_len);
    if header.len() < len {
        header = bytes.part(at, len)?;
    }
    header.truncate(len);
    let (name, extra) =
        header.get(LocalHeader::BYTES..).and_then(|rest| rest.split_at_checked(name_len)).unwrap_or_default();
    let record = MemberRecord { header: at, ..MemberRecord::new(name, record, &mut ExtraFields::parse(extra)) };
    Ok(Some(Local { record, data: at.saturating_add(len as u64) }))
}

impl Local {
    /// In what it differs from the directory's record, in words.
    pub(super) fn differs(&self, central: &MemberRecord) -> Vec<String> {
        let own = &self.record;
        let mut found = Vec::new();
        if own.name != central.name || own.raw != central.raw {
            found.push(format!("the name '{}', and the directory '{}'", escape(&own.name), escape(&central.name)));
        }
        let mut second_names = own.second_name.iter().chain(&central.second_name);
        if let Some(second) = second_names.find(|second| **second != central.name) {
            found.push(format!("a second name '{}' for '{}'", escape(second), escape(&central.name)));
        }
        if own.method != central.method {
            found.push(format!("method {}, and the directory {}", own.method, central.method));
        }
        // Whether the sizes follow, and how names are encoded, changes nothing for readers that go by the directory.
        let flags = LOCKED;
        if own.flags & flags != central.flags & flags {
            found.push(format!("the flags {:#06x}, and the directory {:#06x}", own.flags, central.flags));
        }
        let follow = own.flags & SIZES_FOLLOW != 0;
        for (what, own, central) in [
            ("checksum", u64::from(own.crc), u64::from(central.crc)),
            ("packed size", own.packed, central.packed),
            ("size", own.size, central.size),
        ] {
            let is_open = follow && (own == 0 || own == u64::from(u32::MAX));
            if own != central && !is_open {
                found.push(format!("the {what} {own}, and the directory {central}"));
            }
        }
        found
    }

    /// Whether a reader that goes by this header would take other bytes, or unpack them otherwise.
    pub(super) fn is_another_view(&self, central: &MemberRecord) -> bool {
        let own = &self.record;
        let open = own.flags & SIZES_FOLLOW != 0 && own.packed == 0;
        own.method != central.method || own.name != central.name || (own.packed != central.packed && !open)
    }
}

/// The first header from `at` on, if there is one.
pub(super) fn find(bytes: &dyn RandomRead, mut at: u64) -> Result<Option<Local>> {
    const MAX_SEARCH_BYTES: usize = 256 << 10;
    // The next header is mostly near.
    let mut size = 1 << 10;
    loop {
        let window = bytes.part(at, size)?;
        if let Some(place) = memchr::memmem::find(&window, LocalHeader::SIGNATURE) {
            return read(bytes, at + place as u64, 0);
        }
        if window.len() < size {
            return Ok(None);
        }
        at += (size - LocalHeader::SIGNATURE.len() + 1) as u64;
        size = (2 * size).min(MAX_SEARCH_BYTES);
    }
}
