//! Tar archives: PyTorch's from before 0.1.10, NeMo's, and any other.

use max_weights::rules;
use max_weights::text::escape;
use max_weights::{Diagnostic, Result};

use super::{Archive, ArchiveMember, check_link, is_zero, leads_out, look_behind, scan_members};
use crate::bytes::{ByteSlice, RandomRead};
use crate::context::{ByteSpan, FileContext};
use crate::kind::Kind;
use crate::report::Depth;
use crate::security::formats;

const BLOCK: u64 = 512;
/// The longest name or list of attributes in extra blocks.
const MAX_LONG: u64 = 1 << 20;
/// Maximum number of members that are examined.
const MAX_MEMBERS: usize = 1_000_000;

/// A tar archive whose members are known.
struct Tar<'p> {
    bytes: &'p dyn RandomRead,
    members: Vec<ArchiveMember>,
}

impl Archive for Tar<'_> {
    fn members(&self) -> &[ArchiveMember] {
        &self.members
    }

    fn open<'a>(&'a self, number: usize, _: &mut FileContext<'_>) -> Result<Option<Box<dyn RandomRead + 'a>>> {
        let slice = self.members.get(number).map(|member| ByteSlice::new(self.bytes, member.start, member.packed));
        Ok(slice.map(|slice| Box::new(slice) as Box<dyn RandomRead>))
    }
}

/// Looks into a tar archive.
pub(crate) fn scan(piece: &ByteSpan<'_>, context: &mut FileContext<'_>) -> Result<()> {
    let tar = read(piece, context)?;
    let names: Vec<&str> = tar.members.iter().map(|member| member.name.trim_start_matches("./")).collect();
    if let (None, Some(kind)) = (piece.member, formats::of_tar_members(&names)) {
        context.file.kind = kind.into();
    }
    let accounted = vec![false; tar.members.len()];
    formats::check_members(piece, &tar, context);
    scan_members(piece, &tar, &accounted, context)?;
    context.looked(Depth::Structure);
    Ok(())
}

/// What the blocks before a member declare about it.
#[derive(Default)]
struct Before {
    name: Option<String>,
    target: Option<String>,
    size: Option<u64>,
    is_sparse: bool,
}

fn read<'p>(piece: &ByteSpan<'p>, context: &mut FileContext<'_>) -> Result<Tar<'p>> {
    let bytes = piece.bytes;
    let mut tar = Tar { bytes, members: Vec::new() };
    let (mut at, mut before, mut is_whole) = (0, Before::default(), true);
    // Declared for all members that follow.
    let mut of_all = Before::default();
    loop {
        context.check_cancelled()?;
        let block = bytes.part(at, BLOCK as usize)?;
        if block.is_empty() || block.iter().all(|byte| *byte == 0) {
            break;
        }
        let Some(header) = TarHeader::of(&block) else {
            let message = format!("the tar archive has no header of a member at byte {at}");
            context.report(piece, Diagnostic::new(rules::ARCHIVE_DAMAGED, message).offset(at));
            is_whole = false;
            break;
        };
        if tar.members.len() >= MAX_MEMBERS {
            let message = format!("at most {MAX_MEMBERS} members are looked at");
            context.report(piece, Diagnostic::new(rules::ARCHIVE_MANY, message).offset(at));
            return Ok(tar);
        }
        let size = before.size.filter(|_| !matches!(header.kind, b'x' | b'g' | b'L' | b'K')).unwrap_or(header.size);
        let start = at + BLOCK;
        let present = bytes.len().saturating_sub(start);
        if size > present {
            let message =
                format!("a member of {size} bytes begins at byte {start}, but the archive has only {present} more");
            context.report(piece, Diagnostic::new(rules::ARCHIVE_DAMAGED, message).offset(start));
        }
        let long = |most: u64| bytes.part(start, size.min(most) as usize);
        match header.kind {
            b'L' => before.name = Some(text(&long(MAX_LONG)?)),
            b'K' => before.target = Some(text(&long(MAX_LONG)?)),
            b'x' => before.take(&long(MAX_LONG)?),
            b'g' => {
                of_all.take(&long(MAX_LONG)?);
                if of_all.size.take().is_some() {
                    let message =
                        "the archive gives one size for all of its members: readers differ in which they believe";
                    context.report(piece, Diagnostic::new(rules::ARCHIVE_LOCAL, message).offset(at));
                }
            }
            kind => {
                let declared = std::mem::take(&mut before);
                let is_sparse = declared.is_sparse || of_all.is_sparse || kind == b'S';
                let name = declared.name.or_else(|| of_all.name.clone()).unwrap_or(header.name);
                let with_prefix = header.with_prefix.filter(|name| leads_out(name));
                if let Some(name) = Some(&name).filter(|name| leads_out(name)).or(with_prefix.as_ref()) {
                    let message =
                        format!("the name '{}' of a member leads out of the folder of the archive", escape(name));
                    context.report(piece, Diagnostic::new(rules::ARCHIVE_PATH, message).offset(at));
                }
                if matches!(kind, b'1' | b'2') {
                    // A hard link counts from the top of the archive.
                    let from = if kind == b'1' { "" } else { name.as_str() };
                    let target = declared.target.or_else(|| of_all.target.clone()).unwrap_or(header.target);
                    check_link(piece, from, &target, context);
                }
                let packed = size.min(present);
                if is_sparse {
                    let message = format!(
                        "member '{}' is sparse: unpacked, it has zeros that are not in the archive",
                        escape(&name)
                    );
                    context.report(piece, Diagnostic::new(rules::ARCHIVE_UNSUPPORTED, message).offset(at));
                    // The list of its parts precedes them, in separate blocks.
                    let parts = packed.saturating_sub(BLOCK);
                    let start = start.saturating_add(BLOCK);
                    tar.members.push(ArchiveMember {
                        name: name.clone(),
                        start,
                        packed: parts,
                        size: parts,
                        stored: true,
                    });
                }
                tar.members.push(ArchiveMember { name, start, packed, size, stored: true });
            }
        }
        at = start.saturating_add(size.div_ceil(BLOCK).saturating_mul(BLOCK));
        if at >= bytes.len() {
            return Ok(tar);
        }
    }
    behind(piece, at, is_whole, context)?;
    Ok(tar)
}

/// What follows the zeros at the end.
fn behind(piece: &ByteSpan<'_>, at: u64, is_whole: bool, context: &mut FileContext<'_>) -> Result<()> {
    let mut start = at;
    while start < piece.bytes.len() && is_zero(&ByteSlice::new(piece.bytes, start, BLOCK), context)? {
        start += BLOCK;
    }
    // A file without any archive was reported, and nothing follows it. A tar archive here is the rest of this one, which was truncated.
    if start == 0 { Ok(()) } else { look_behind(piece, start, ("archive", Kind::Tar, is_whole), context) }
}

impl Before {
    /// The records of a list of attributes: their length, a space, `key=value`, the end of the line.
    fn take(&mut self, mut bytes: &[u8]) {
        while let Some(space) = memchr::memchr(b' ', bytes) {
            let len = bytes.get(..space).and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<usize>().ok());
            let Some((record, rest)) =
                len.and_then(|len| bytes.split_at_checked(len)).filter(|(record, _)| record.len() > space)
            else {
                return;
            };
            let pair = record.get(space + 1..).unwrap_or_default();
            let pair = String::from_utf8_lossy(pair.strip_suffix(b"\n").unwrap_or(pair)).into_owned();
            match pair.split_once('=') {
                Some(("path", name)) => self.name = Some(name.to_owned()),
                Some(("linkpath", target)) => self.target = Some(target.to_owned()),
                Some(("size", size)) => self.size = size.parse().ok(),
                Some((key, _)) if key.starts_with("GNU.sparse.") => self.is_sparse = true,
                _ => {}
            }
            bytes = rest;
        }
    }
}

struct TarHeader {
    name: String,
    target: String,
    size: u64,
    kind: u8,
    /// The name as readers have it that take the first part of long names from headers that have none.
    with_prefix: Option<String>,
}

impl TarHeader {
    /// The header in a block, if its checksum is right.
    fn of(block: &[u8]) -> Option<Self> {
        let block: &[u8; BLOCK as usize] = block.first_chunk()?;
        let sum = |signed: bool| -> i64 {
            let each = |byte: &u8| if signed { i64::from(*byte as i8) } else { i64::from(*byte) };
            block[..148].iter().map(each).sum::<i64>() + 8 * 0x20 + block[156..].iter().map(each).sum::<i64>()
        };
        let declared = number(&block[148..156])? as i64;
        if declared != sum(false) && declared != sum(true) {
            return None;
        }
        let mut name = text(&block[..100]);
        let with_prefix = (block[345] != 0).then(|| format!("{}/{name}", text(&block[345..500])));
        // Only POSIX has the first part of long names there; GNU has times.
        if &block[257..263] == b"ustar\0" && block[345] != 0 {
            name = format!("{}/{name}", text(&block[345..500]));
        }
        Some(Self {
            name,
            target: text(&block[157..257]),
            size: number(&block[124..136])?,
            kind: block[156],
            with_prefix,
        })
    }
}

/// A number in octal digits, or in binary where the first bit is set.
fn number(field: &[u8]) -> Option<u64> {
    if let [first @ (0x80 | 0xff), rest @ ..] = field {
        let start = u64::from(*first & 0x7f);
        return rest.iter().try_fold(start, |value, byte| Some(value.checked_mul(256)? + u64::from(*byte)));
    }
    // Readers ignore everything after a NUL.
    let digits = field.split(|byte| *byte == 0).next().unwrap_or_default().trim_ascii();
    if digits.is_empty() {
        return Some(0);
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

/// The text before the first NUL.
fn text(field: &[u8]) -> String {
    let end = memchr::memchr(0, field).unwrap_or(field.len());
    String::from_utf8_lossy(field.get(..end).unwrap_or_default()).into_owned()
}
