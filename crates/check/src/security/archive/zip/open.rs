//! The bytes of a zip archive's members.

use max_weights::rules;
use max_weights::source::Spooled;
use max_weights::text::escape;
use max_weights::{Diagnostic, Result};

use super::directory::MemberRecord;
use super::local::LOCKED;
use crate::bytes::{ByteSlice, RandomRead};
use crate::context::{ByteSpan, FileContext};
use crate::security::archive::unpack::{Packing, StreamReader, UnpackEnd, unpack};
use crate::security::archive::{Archive, ArchiveMember, loadable, scan_inside};

/// Stored members up to this length are held against their checksum at every level: pickles are smaller, storages larger.
const ALWAYS_CHECKED: u64 = 1 << 20;
/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// A zip archive whose members are known.
pub(crate) struct Zip<'p> {
    pub(super) piece: ByteSpan<'p>,
    members: Vec<ArchiveMember>,
    details: Vec<Detail>,
    /// From where to where the members and directories reach.
    pub(super) regions: Vec<(u64, u64)>,
    /// The ranges of the end records.
    pub(super) ends: Vec<(u64, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct Detail {
    flags: u16,
    method: u16,
    crc: u32,
}

/// The result of unpacking a member: how it ended, its packed bytes, and the checksum of the unpacked ones.
struct Unpacked {
    end: UnpackEnd,
    taken: u64,
    sum: u32,
}

impl<'p> Zip<'p> {
    pub(super) fn new(piece: ByteSpan<'p>) -> Self {
        Self { piece, members: Vec::new(), details: Vec::new(), regions: Vec::new(), ends: Vec::new() }
    }

    pub(super) fn add(&mut self, record: MemberRecord, start: u64) {
        let MemberRecord { name, flags, method, crc, packed, size, .. } = record;
        self.members.push(ArchiveMember { name, start, packed, size, stored: method == 0 });
        self.details.push(Detail { flags, method, crc });
    }

    /// Whether two members have the same contents, as far as their checksums tell.
    pub(super) fn same(&self, a: usize, b: usize) -> bool {
        let of = |number: usize| Some((self.members.get(number)?.size, self.details.get(number)?.crc));
        of(a) == of(b) && of(a).is_some_and(|(size, crc)| size == 0 || crc != 0)
    }

    fn packed(&self, member: &ArchiveMember) -> ByteSlice<'p> {
        ByteSlice::new(self.piece.bytes, member.start, member.packed)
    }

    /// How a method packs; `None` if it is one that is not read.
    fn packing(method: u16, size: u64) -> Option<Packing> {
        Some(match method {
            8 => Packing::Deflate,
            12 => Packing::Bzip2,
            14 => Packing::LzmaInZip(size),
            20 | 93 => Packing::Zstd,
            95 => Packing::Xz,
            _ => return None,
        })
    }

    /// Reads a member only to hold it against its checksum.
    pub(super) fn check_crc(&self, number: usize, context: &mut FileContext<'_>) -> Result<()> {
        let (Some(member), Some(detail)) = (self.members.get(number), self.details.get(number)) else { return Ok(()) };
        match self.read(member, *detail, context, |_| Ok(()))? {
            Some(Unpacked { sum, .. }) => self.compare_crc(member, *detail, sum, context),
            None => self.report_method(member, *detail, context),
        }
        Ok(())
    }

    /// Hands on the bytes of a member as far as they can be unpacked; `None` if its method is one that is not read.
    fn read(
        &self,
        member: &ArchiveMember,
        detail: Detail,
        context: &mut FileContext<'_>,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<Option<Unpacked>> {
        let (packed, mut crc) = (self.packed(member), flate2::Crc::new());
        let mut each = |bytes: &[u8]| {
            crc.update(bytes);
            each(bytes)
        };
        let (end, taken) = if detail.method == 0 {
            let mut at = 0;
            while at < packed.len() {
                context.check_cancelled()?;
                let piece = packed.part(at, PIECE)?;
                at += piece.len() as u64;
                each(&piece)?;
            }
            (UnpackEnd::Whole, at)
        } else {
            let Some(packing) = Self::packing(detail.method, member.size) else { return Ok(None) };
            let mut reader = StreamReader::new(&packed, 0).at_pace(context.pace());
            (unpack(packing, &mut reader, member.packed, context, each)?, reader.position())
        };
        Ok(Some(Unpacked { end, taken, sum: crc.sum() }))
    }

    fn report_method(&self, member: &ArchiveMember, detail: Detail, context: &mut FileContext<'_>) {
        let message = format!(
            "member '{}' is compressed by method {}, which is not supported: it was not looked at",
            escape(&member.name),
            detail.method
        );
        context.report(&self.piece, Diagnostic::new(rules::ARCHIVE_METHOD, message).offset(member.start));
    }

    /// PyTorch can be told not to compute checksums, and then writes zero.
    fn compare_crc(&self, member: &ArchiveMember, detail: Detail, actual: u32, context: &mut FileContext<'_>) {
        if detail.crc != actual && detail.crc != 0 {
            let (name, declared) = (escape(&member.name), detail.crc);
            let message =
                format!("the bytes of '{name}' have the checksum {actual:08x}, but the archive says {declared:08x}");
            context.report(&self.piece, Diagnostic::new(rules::ARCHIVE_CRC, message).offset(member.start));
        }
    }

    /// Unpacks a member as far as it goes, and says what is wrong with it.
    fn unpacked(
        &self,
        member: &ArchiveMember,
        detail: Detail,
        context: &mut FileContext<'_>,
    ) -> Result<Option<(Spooled, u32)>> {
        let mut spooled = context.spooled();
        let read = self.read(member, detail, context, |bytes| spooled.push(bytes))?;
        let Some(Unpacked { end, taken, sum }) = read else {
            self.report_method(member, detail, context);
            return Ok(None);
        };
        let name = escape(&member.name);
        let made = spooled.len();
        let finding = match end {
            UnpackEnd::TooMuch => {
                let message = format!("member '{name}' of {} bytes would unpack to more than {made}", member.packed);
                Some(Diagnostic::new(rules::ARCHIVE_BOMB, message))
            }
            UnpackEnd::Damaged(why) => {
                let message = format!("member '{name}' cannot be unpacked beyond {made} bytes: {}", escape(&why));
                Some(Diagnostic::new(rules::ARCHIVE_DAMAGED, message))
            }
            UnpackEnd::Whole if made != member.size && member.size > 1 => {
                let message = format!("member '{name}' unpacks to {made} bytes, but the archive says {}", member.size);
                Some(Diagnostic::new(rules::ARCHIVE_LOCAL, message))
            }
            UnpackEnd::Whole => None,
        };
        let was_whole = finding.is_none();
        let packed = self.packed(member);
        let rest = ByteSlice::new(&packed, taken, u64::MAX);
        if was_whole && !rest.is_empty() {
            // Some readers stop at the end of the compressed data, others continue.
            let what = "the bytes after the compressed data";
            let kind = loadable(&rest, what)?;
            let rule = if kind.is_some() { rules::ARCHIVE_HIDDEN } else { rules::ARCHIVE_LOCAL };
            let message = format!("{} bytes follow the compressed data of member '{name}'", rest.len());
            let at = member.start.saturating_add(taken);
            context.report(&self.piece, Diagnostic::new(rule, message).offset(at));
            if kind.is_some() {
                scan_inside(&self.piece, &rest, what, context)?;
            }
        }
        if let Some(finding) = finding {
            context.report(&self.piece, finding.offset(member.start));
        }
        Ok(Some((spooled, if was_whole { sum } else { detail.crc })))
    }
}

impl Archive for Zip<'_> {
    fn members(&self) -> &[ArchiveMember] {
        &self.members
    }

    fn open<'a>(&'a self, number: usize, context: &mut FileContext<'_>) -> Result<Option<Box<dyn RandomRead + 'a>>> {
        let (Some(member), Some(detail)) = (self.members.get(number), self.details.get(number).copied()) else {
            return Ok(None);
        };
        let is_locked = detail.flags & LOCKED != 0;
        if is_locked && !self.is_open(member, detail, context)? {
            let message = format!("member '{}' is encrypted: it was not looked at", escape(&member.name));
            context.report(&self.piece, Diagnostic::new(rules::ARCHIVE_ENCRYPTED, message).offset(member.start));
            return Ok(None);
        }
        if is_locked {
            let (name, flags) = (escape(&member.name), detail.flags);
            let message = format!("member '{name}' is marked as encrypted or patched (flags {flags:#06x}), but is not");
            context.report(&self.piece, Diagnostic::new(rules::ARCHIVE_FLAGS, message).offset(member.start));
        }
        if detail.method == 0 {
            let packed = self.packed(member);
            if packed.len() <= ALWAYS_CHECKED || context.options.level >= crate::options::Level::Content {
                self.check_crc(number, context)?;
            }
            return Ok(Some(Box::new(packed)));
        }
        let Some((spooled, sum)) = self.unpacked(member, detail, context)? else { return Ok(None) };
        self.compare_crc(member, detail, sum, context);
        Ok(Some(Box::new(spooled)))
    }
}

impl Zip<'_> {
    /// Whether a member that is marked as encrypted is not: its bytes have the declared checksum, or can be unpacked.
    fn is_open(&self, member: &ArchiveMember, detail: Detail, context: &mut FileContext<'_>) -> Result<bool> {
        let Some(Unpacked { end, sum, .. }) = self.read(member, detail, context, |_| Ok(()))? else { return Ok(false) };
        Ok(match detail.method {
            0 => sum == detail.crc || detail.crc == 0 && loadable(&self.packed(member), &member.name)?.is_some(),
            _ => end == UnpackEnd::Whole,
        })
    }
}
