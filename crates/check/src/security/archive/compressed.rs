//! Compressed files: one stream or several, one behind the other, and what follows them.

use max_weights::format::SNIFF_BYTES;
use max_weights::rules;
use max_weights::source::Spooled;
use max_weights::text::escape;
use max_weights::{Diagnostic, Result};

use super::unpack::{Packing, StreamReader, UnpackEnd, unpack};
use super::{WINDOW, look_behind, may_go_deeper, scan_inside};
use crate::bytes::RandomRead;
use crate::context::{ByteSpan, FileContext};
use crate::kind::{Kind, is_certain_lzma, is_skippable};
use crate::report::Depth;

/// Suffixes of compressed files, in addition to those of their contents.
const SUFFIXES: [&str; 12] =
    [".gz", ".gzip", ".bz2", ".xz", ".lzma", ".zst", ".zstd", ".lz4", ".zlib", ".z", ".tgz", ".txz"];
/// What joblib before 0.10 wrote before its zlib stream: a mark, and a length in 19 hexadecimal digits and spaces.
const OLD_JOBLIB_BYTES: u64 = 21;

fn is_old_joblib(first: &[u8]) -> bool {
    first == b"ZF"
}

fn packing(kind: Kind) -> Option<Packing> {
    Some(match kind {
        Kind::Gzip => Packing::Gzip,
        Kind::Bzip2 => Packing::Bzip2,
        Kind::Xz => Packing::Xz,
        Kind::Zstd => Packing::Zstd,
        Kind::Lz4 => Packing::Lz4,
        Kind::Zlib => Packing::Zlib,
        Kind::Lzma => Packing::Lzma,
        _ => return None,
    })
}

/// Unpacks a compressed file, and looks into what was in it.
pub(crate) fn scan(piece: &ByteSpan<'_>, kind: Kind, context: &mut FileContext<'_>) -> Result<()> {
    let Some(mut packing) = packing(kind) else { return Ok(()) };
    let mut kind = kind;
    if !may_go_deeper(piece, true, context) {
        return Ok(());
    }
    let bytes = piece.bytes;
    let start = if is_old_joblib(&bytes.first(2)?) { OLD_JOBLIB_BYTES } else { 0 };
    // A few bytes are a weak sign: where nothing comes of it that anybody loads, it is something else.
    let is_weak = kind == Kind::Lzma && !is_certain_lzma(&bytes.first(5)?);
    let mut reader = StreamReader::new(bytes, start).at_pace(context.pace());
    let mut spooled = context.spooled();
    loop {
        let start = reader.position();
        let excluded = skippable(&reader, packing)?;
        if let Some(len) = excluded {
            reader.seek(start.saturating_add(len).min(bytes.len()));
        } else {
            // Both decoders skip frames before the first stream.
            if packing == Packing::Zstd && Kind::of(&reader.peek(4)?, u64::MAX, "") == Kind::Lz4 {
                (kind, packing) = (Kind::Lz4, Packing::Lz4);
            }
            let end = unpack(packing, &mut reader, bytes.len() - start, context, |bytes| spooled.push(bytes))?;
            match end {
                // Two bytes are a weak sign: nothing could be unpacked, and it is something else.
                UnpackEnd::Damaged(_) if spooled.is_empty() && kind == Kind::Zlib => {
                    return other(piece, context);
                }
                UnpackEnd::Damaged(_) | UnpackEnd::TooMuch if is_weak && loads_nothing(&spooled)? => {
                    return other(piece, context);
                }
                UnpackEnd::Damaged(why) => {
                    let message = format!(
                        "the {kind} stream ends or breaks off after {} unpacked bytes: {}",
                        spooled.len(),
                        escape(&why)
                    );
                    context.report(piece, Diagnostic::new(rules::ARCHIVE_DAMAGED, message).offset(start));
                    break;
                }
                UnpackEnd::TooMuch => {
                    let message =
                        format!("{} bytes of {kind} would unpack to more than {}", bytes.len(), spooled.len());
                    context.report(piece, Diagnostic::new(rules::ARCHIVE_BOMB, message).offset(start));
                    break;
                }
                UnpackEnd::Whole => {}
            }
        }
        let at = reader.position();
        // As readers of gzip and xz do, for all of them: zeros between two streams are left out.
        let next = at.saturating_add(zeros(bytes, at, context)?);
        if next >= bytes.len() {
            break;
        }
        reader.seek(next);
        let goes_on = next > start && (excluded.is_some() || same(&reader.peek(SNIFF_BYTES)?, kind));
        if !goes_on && is_weak && loads_nothing(&spooled)? {
            return other(piece, context);
        }
        if !goes_on {
            look_behind(piece, at, ("compressed data", Kind::Unknown, true), context)?;
            break;
        }
    }
    if is_weak && spooled.is_empty() {
        return other(piece, context);
    }
    context.file.members += 1;
    inside(piece, &spooled, kind, context)?;
    context.looked(Depth::Structure);
    Ok(())
}

/// Whether another stream of the kind follows.
fn same(next: &[u8], kind: Kind) -> bool {
    Kind::of(next, u64::MAX, "") == kind || (is_skippable(next) && matches!(kind, Kind::Zstd | Kind::Lz4))
}

/// How many zeros there are from here on.
fn zeros(bytes: &dyn RandomRead, start: u64, context: &FileContext<'_>) -> Result<u64> {
    let mut at = start;
    while at < bytes.len() {
        context.check_cancelled()?;
        let window = bytes.part(at, WINDOW)?;
        let zeros = window.iter().take_while(|byte| **byte == 0).count();
        at += zeros as u64;
        if zeros < window.len() {
            break;
        }
    }
    Ok(at - start)
}

/// Whether no loader takes the unpacked data.
fn loads_nothing(unpacked: &Spooled) -> Result<bool> {
    Ok(super::loadable(unpacked, "")?.is_none())
}

/// The length of a stream that is left out.
fn skippable(reader: &StreamReader<'_>, packing: Packing) -> Result<Option<u64>> {
    if !matches!(packing, Packing::Zstd | Packing::Lz4) {
        return Ok(None);
    }
    let first = reader.peek(8)?;
    let len = first.get(4..).and_then(|rest| rest.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes));
    Ok(len.filter(|_| is_skippable(&first)).map(|len| 8 + u64::from(len)))
}

fn inside(piece: &ByteSpan<'_>, unpacked: &Spooled, kind: Kind, context: &mut FileContext<'_>) -> Result<()> {
    let lower = piece.name.to_ascii_lowercase();
    let suffix = SUFFIXES.iter().find(|suffix| lower.ends_with(**suffix)).map_or(0, |suffix| suffix.len());
    let name = piece.name.get(..piece.name.len() - suffix).unwrap_or(piece.name);
    let name = name.rsplit('/').next().unwrap_or(name);
    let first = unpacked.first(SNIFF_BYTES)?;
    let inner = Kind::of(&first, unpacked.len(), name);
    if piece.member.is_none() {
        context.file.kind = format!("{inner} ({kind})");
    }
    if unpacked.is_empty() {
        return Ok(());
    }
    scan_inside(piece, unpacked, if name.is_empty() { "unpacked" } else { name }, context)
}

/// A file that only began like a compressed one.
fn other(piece: &ByteSpan<'_>, context: &mut FileContext<'_>) -> Result<()> {
    if piece.member.is_none() {
        context.file.kind = Kind::Unknown.name().into();
    }
    crate::security::scan(piece, Kind::Unknown, context)
}
