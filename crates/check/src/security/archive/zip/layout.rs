//! What lies before, between and behind the members of a zip archive.

use max_weights::rules;
use max_weights::{Diagnostic, Result};

use super::{Zip, part};
use crate::bytes::RandomRead;
use crate::context::{ByteSpan, FileContext};
use crate::kind::{Kind, has_suffix};
use crate::security::archive::{is_zero, loadable, scan_as};

/// The lengths of the record of sizes that may follow the bytes of a member.
const DESCRIPTORS: [u64; 4] = [12, 16, 20, 24];
/// Parts with something in them that belong to no member and are looked at one by one; a file with more was made to exhaust its reader.
const MAX_PARTS: usize = 1_000;

/// Looks at all bytes that belong to no member.
pub(super) fn look_between(piece: &ByteSpan<'_>, zip: &Zip<'_>, context: &mut FileContext<'_>) -> Result<()> {
    let len = piece.bytes.len();
    let mut regions = zip.regions.clone();
    for (at, after) in &zip.ends {
        // The records of zip64 are between the directory and the plain end.
        regions.push((at.saturating_sub(records_before(piece, *at)?), (*after).min(len)));
    }
    regions.sort_unstable();
    let first = regions.first().map_or(0, |(start, _)| *start);
    let (mut at, mut parts, mut overlaps) = (0, 0, 0u64);
    let last = regions.iter().map(|(_, end)| *end).max().unwrap_or(0);
    let mut before: Option<(u64, u64)> = None;
    for region in regions {
        let (start, end) = region;
        if start > at {
            let place = if at == 0 && start == first { ZipPlace::Before } else { ZipPlace::Between };
            if parts < MAX_PARTS {
                parts += usize::from(look(piece, (at, start), place, context)?);
            } else if parts == MAX_PARTS {
                parts += 1;
                let message = format!("only the first {MAX_PARTS} pieces that belong to no member were looked at");
                context.report(piece, Diagnostic::new(rules::ARCHIVE_MANY, message).offset(at));
            }
        } else if start < at
            && before != Some(region)
            && !zip.ends.iter().any(|(place, _)| start <= *place && at > *place)
        {
            overlaps += 1;
            if overlaps == 1 {
                let message =
                    format!("a member begins at byte {start}, {} bytes before the end of the previous one", at - start);
                context.report(piece, Diagnostic::new(rules::ARCHIVE_OVERLAP, message).offset(start));
            }
        }
        (at, before) = (at.max(end), Some(region));
    }
    // Without members and an end, this is the whole file, which was reported as damaged.
    if last > 0 && last < len {
        look(piece, (last, len), ZipPlace::Behind, context)?;
    }
    for (start, after) in &zip.ends {
        let comment = part(piece, start + 22, *after);
        if comment.is_empty() {
            continue;
        }
        let message = format!("the archive has a comment of {} bytes", comment.len());
        context.report(piece, Diagnostic::new(rules::ARCHIVE_COMMENT, message).offset(start + 22));
        hidden(piece, &comment, start + 22, "the comment of the archive", context)?;
    }
    Ok(())
}

/// The bytes of the records of zip64 before an end record.
fn records_before(piece: &ByteSpan<'_>, at: u64) -> Result<u64> {
    let Some(locator) = at.checked_sub(20) else { return Ok(0) };
    if piece.bytes.part(locator, 4)? != b"PK\x06\x07" {
        return Ok(0);
    }
    let large = locator.checked_sub(56);
    let is_present =
        large.map(|large| piece.bytes.part(large, 4)).transpose()?.is_some_and(|first| first == b"PK\x06\x06");
    Ok(if is_present { 76 } else { 20 })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ZipPlace {
    Before,
    Between,
    Behind,
}

/// Looks at a part of the archive that is not a member; tells whether there is anything in it.
fn look(
    piece: &ByteSpan<'_>,
    (mut start, end): (u64, u64),
    place: ZipPlace,
    context: &mut FileContext<'_>,
) -> Result<bool> {
    context.check_cancelled()?;
    if place == ZipPlace::Between {
        start += descriptor(piece, start, end)?;
    }
    let stray = part(piece, start, end);
    if stray.is_empty() || is_zero(&stray, context)? {
        return Ok(false);
    }
    let what = match place {
        ZipPlace::Before => "the bytes before the first member",
        ZipPlace::Between => "the bytes between two members",
        ZipPlace::Behind => "the bytes after the end of the archive",
    };
    if hidden(piece, &stray, start, what, context)? {
        return Ok(true);
    }
    let count = stray.len();
    // The zip of metadata of a TensorFlow Lite model follows the model.
    let is_model = || -> Result<bool> { Ok(has_suffix(piece.name, "tflite") && piece.bytes.part(4, 4)? == b"TFL3") };
    if place == ZipPlace::Before {
        if is_model()? {
            return Ok(false);
        }
        let message = format!("there are {count} bytes before the first member of the archive");
        context.report(piece, Diagnostic::new(rules::ARCHIVE_PREFIX, message).offset(start));
    } else {
        let message = format!("{count} bytes from byte {start} on belong to no member of the archive");
        context.report(piece, Diagnostic::new(rules::ARCHIVE_STRAY, message).offset(start));
    }
    Ok(true)
}

/// The length of the record of sizes that fills the beginning of this gap, or all of it.
fn descriptor(piece: &ByteSpan<'_>, start: u64, end: u64) -> Result<u64> {
    let gap = end - start;
    let is_marked = piece.bytes.part(start, 4)? == b"PK\x07\x08";
    let fits = |len: &u64| if is_marked { matches!(len, 16 | 24) } else { matches!(len, 12 | 20) };
    Ok(DESCRIPTORS.into_iter().filter(fits).find(|len| *len == gap).unwrap_or(if is_marked { gap.min(16) } else { 0 }))
}

/// Scans what belongs to no member if it is something that can be loaded or run; tells whether it is.
fn hidden(
    piece: &ByteSpan<'_>,
    stray: &dyn RandomRead,
    start: u64,
    what: &str,
    context: &mut FileContext<'_>,
) -> Result<bool> {
    let Some(kind) = loadable(stray, what)? else { return Ok(false) };
    // A program before an archive unpacks it, and a script runs it.
    let unpacks_itself = kind == Kind::Executable && start == 0;
    if !unpacks_itself {
        let message = format!("{what} are {}, which no directory lists", kind.with_article());
        context.report(piece, Diagnostic::new(rules::ARCHIVE_HIDDEN, message).offset(start));
    }
    scan_as(piece, stray, (what, kind), context)?;
    Ok(!unpacks_itself)
}
