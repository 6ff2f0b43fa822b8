//! Archives: what is in them, by every view that a reader can have of them.

pub(crate) mod compressed;
pub(crate) mod tar;
pub(crate) mod unpack;
pub(crate) mod zip;

pub(crate) use unpack::StreamReader;

use max_weights::format::SNIFF_BYTES;
use max_weights::rules;
use max_weights::text::escape;
use max_weights::{Diagnostic, Error, Result};

use crate::bytes::{ByteSlice, RandomRead};
use crate::context::{ByteSpan, FileContext};
use crate::kind::Kind;
use crate::repository;
use crate::security::{PICKLE_BYTES, pickle, scan};

/// Bytes that are read at a time.
const WINDOW: usize = 256 << 10;
/// Minimum bytes that each part of an archive counts for in the limit on examined bytes.
const MIN_PART_BYTES: u64 = 64;

/// A member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveMember {
    /// Its name; what is not UTF-8 is replaced.
    pub name: String,
    /// Where its bytes begin in the archive.
    pub start: u64,
    /// How many bytes it has there.
    pub packed: u64,
    /// How many bytes it has when it is unpacked, as the archive says.
    pub size: u64,
    /// Whether its bytes are stored uncompressed in the archive.
    pub stored: bool,
}

/// An archive whose members can be looked at.
pub trait Archive {
    /// The members, in the order of the archive's directory.
    fn members(&self) -> &[ArchiveMember];

    /// The bytes of a member, unpacked within the limits of `context`; `None` if it cannot be unpacked, which was reported.
    fn open<'a>(&'a self, number: usize, context: &mut FileContext<'_>) -> Result<Option<Box<dyn RandomRead + 'a>>>;
}

/// Scans each member that is not accounted for as a separate file.
pub(crate) fn scan_members(
    piece: &ByteSpan<'_>,
    archive: &dyn Archive,
    accounted: &[bool],
    context: &mut FileContext<'_>,
) -> Result<()> {
    context.file.members += archive.members().len() as u64;
    let open = |number: &usize| accounted.get(*number) != Some(&true);
    if !may_go_deeper(piece, (0..archive.members().len()).any(|number| open(&number)), context) {
        return Ok(());
    }
    // Members that lie over one another could be looked at without end.
    let (mut looked, most) = (0u64, piece.bytes.len().saturating_mul(2));
    for (number, member) in archive.members().iter().enumerate().filter(|(number, _)| open(number)) {
        context.check_cancelled()?;
        looked = looked.saturating_add(member.packed);
        if looked > most && !context.unpack(member.packed) {
            let message = "the members overlap, and come to more in total than may be unpacked";
            context.report(piece, Diagnostic::new(rules::ARCHIVE_BOMB, message).offset(member.start));
            break;
        }
        if member.size == 0 && member.packed == 0 {
            continue;
        }
        if let Some(bytes) = archive.open(number, context)? {
            scan_inside(piece, &*bytes, &member.name, context)?;
        }
    }
    Ok(())
}

/// Whether members of this archive are looked at; if not, that is a finding.
pub(crate) fn may_go_deeper(piece: &ByteSpan<'_>, has_members: bool, context: &mut FileContext<'_>) -> bool {
    let may = piece.depth < context.options.nesting;
    if !may && has_members {
        let message = format!("this archive is nested in {} others: its members were not looked at", piece.depth);
        context.report(piece, Diagnostic::new(rules::ARCHIVE_DEEP, message));
    }
    may
}

/// Scans bytes of this piece as a separate file. A fault in them does not stop the scan of the others.
pub(crate) fn scan_inside(
    piece: &ByteSpan<'_>,
    bytes: &dyn RandomRead,
    name: &str,
    context: &mut FileContext<'_>,
) -> Result<()> {
    let kind = Kind::of(&bytes.first(SNIFF_BYTES)?, bytes.len(), name);
    scan_as(piece, bytes, (name, kind), context)
}

/// The same of bytes of which it is known what they are.
pub(crate) fn scan_as(
    piece: &ByteSpan<'_>,
    bytes: &dyn RandomRead,
    (name, kind): (&str, Kind),
    context: &mut FileContext<'_>,
) -> Result<()> {
    let way = piece.way_to(name);
    let inner = piece.inside(bytes, name, &way);
    if !context.look(bytes.len().max(MIN_PART_BYTES)) {
        let message = "its contents overlap, or lead back to themselves: they were not looked at again";
        context.report(&inner, Diagnostic::new(rules::ARCHIVE_BOMB, message));
        return Ok(());
    }
    match scan(&inner, kind, context) {
        Err(Error::Format(fault) | Error::Unsupported(fault)) => context.report(&inner, *fault),
        scanned => scanned?,
    }
    look_at_text(&inner, context)
}

/// Examines a member with the name of a configuration, a template or a program like a file in a folder of weights.
fn look_at_text(inner: &ByteSpan<'_>, context: &mut FileContext<'_>) -> Result<()> {
    let Some(most) = repository::looks_at(inner.name) else { return Ok(()) };
    if inner.bytes.len() > most {
        let message = format!("{} bytes are too many to look for code in them", inner.bytes.len());
        context.report(inner, Diagnostic::new(rules::REPOSITORY_TOO_LONG, message));
        return Ok(());
    }
    let bytes = inner.bytes.first(most as usize)?;
    repository::check_member(inner.name, &bytes, &mut |finding| context.report(inner, finding));
    Ok(())
}

/// What bytes are that should not be where they are, if it is something that a loader or a system would take.
pub(crate) fn loadable(bytes: &dyn RandomRead, name: &str) -> Result<Option<Kind>> {
    let first = bytes.first(PICKLE_BYTES)?;
    let kind = Kind::of(first.get(..SNIFF_BYTES).unwrap_or(&first), bytes.len(), name);
    Ok(match kind {
        Kind::Numpy | Kind::Hdf5 | Kind::Executable => Some(kind),
        // LZMA's first bytes are no magic.
        kind if kind.is_pickle() || kind.is_archive() || (kind.is_compressed() && kind != Kind::Lzma) => Some(kind),
        Kind::Empty | Kind::Zeros | Kind::Media => None,
        _ => pickle::may_be_pickle(&first, bytes.len(), name).then_some(Kind::Pickle),
    })
}

/// Examines the bytes after the end of something in a file: there should be none, or zeros as on tapes. Bytes of its `own` kind are the rest of it.
/// Where the end is uncertain, bytes that no loader takes are no finding.
pub(crate) fn look_behind(
    piece: &ByteSpan<'_>,
    at: u64,
    (end, own, is_certain): (&str, Kind, bool),
    context: &mut FileContext<'_>,
) -> Result<()> {
    let rest = ByteSlice::new(piece.bytes, at, u64::MAX);
    if rest.is_empty() || is_zero(&rest, context)? {
        return Ok(());
    }
    let what = format!("the bytes after the {end}");
    if let Some(kind) = loadable(&rest, &what)?.filter(|kind| *kind != own) {
        let message = format!("{what} are {}", kind.with_article());
        context.report(piece, Diagnostic::new(rules::ARCHIVE_HIDDEN, message).offset(at));
        return scan_inside(piece, &rest, &what, context);
    }
    if is_certain {
        let message = format!("{} bytes follow the end of the {end}", rest.len());
        context.report(piece, Diagnostic::new(rules::ARCHIVE_STRAY, message).offset(at));
    }
    Ok(())
}

/// Whether all bytes are zero, as alignment has them.
pub(crate) fn is_zero(bytes: &dyn RandomRead, context: &FileContext<'_>) -> Result<bool> {
    let mut at = 0;
    while at < bytes.len() {
        context.check_cancelled()?;
        let window = bytes.part(at, WINDOW)?;
        if window.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += window.len() as u64;
    }
    Ok(true)
}

/// Whether a member of this name would be written outside the folder into which an archive is unpacked.
pub(crate) fn leads_out(name: &str) -> bool {
    let is_drive = matches!(name.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic());
    name.starts_with(['/', '\\']) || is_drive || name.contains('\0') || name.split(['/', '\\']).any(|part| part == "..")
}

/// What is wrong with a link in an archive: it may lead to its other members.
pub(crate) fn check_link(piece: &ByteSpan<'_>, name: &str, target: &str, context: &mut FileContext<'_>) {
    let mut depth = name.split('/').filter(|part| !part.is_empty() && *part != ".").count().saturating_sub(1);
    let mut out = target.starts_with(['/', '\\']);
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if depth == 0 => out = true,
            ".." => depth -= 1,
            _ => depth += 1,
        }
    }
    if out {
        let message = format!("the member '{}' is a link to '{}', outside the archive", escape(name), escape(target));
        context.report(piece, Diagnostic::new(rules::ARCHIVE_LINK, message));
    }
}
