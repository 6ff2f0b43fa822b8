//! Files of two formats at once, and what hides in files of weights that hold no code by their format.

use std::fmt;

use max_weights::rules;
use max_weights::{Catalog, Diagnostic, Result};
use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};

use super::tflite;
use crate::bytes::{ByteSlice, RandomRead};
use crate::context::{ByteSpan, FileContext};
use crate::json::{Document, MAX_DUPLICATES};
use crate::kind::{Kind, has_suffix};
use crate::report::Depth;
use crate::security::archive::{loadable, scan_inside, zip};
use crate::security::{PICKLE_BYTES, base64, pickle};
use crate::words;

/// The longest header of safetensors that is read here: the limit of the format.
const MAX_HEADER: u64 = 100_000_000;
/// Suffixes of formats that are zip archives.
const ZIPS: &str = "keras skops npz zip mar pt2 whl";
/// Tensors of bytes, and holes, whose beginnings are looked at; a file with more of them has a checkpoint's own checks.
const MAX_LOOKED_AT: usize = 10_000;
/// So much of a tensor is tried as a pickle, where its beginning may be one.
const TENSOR_BYTES: usize = 1 << 20;
/// Tensors of GGUF begin at multiples of this or of less, but for files that say otherwise.
const GGUF_ALIGNMENT: u64 = 32;
/// Fewer bytes, decoded from a string, are no pickle that calls anything.
const MIN_PICKLE: usize = 16;
/// Words in metadata that indicate code: no key or value of a trainer has them.
const CODE: &str = "
    __import__( os.system( os.popen( subprocess. eval( exec( pty.spawn( runpy. __globals__ __subclasses__ __builtins__ __reduce__ <script
    pickle.loads(";

/// Whether a file that begins like something else ends like a zip archive, so that some programs take it for that. This is a finding.
pub(crate) fn is_zip_too(piece: &ByteSpan<'_>, kind: Kind, context: &mut FileContext<'_>) -> Result<bool> {
    let by_name = has_suffix(piece.name, ZIPS);
    let exactly = match kind {
        Kind::Zip | Kind::Empty => return Ok(false),
        // Who opens a file of this name looks for the end of an archive, wherever that is.
        _ if by_name => false,
        // What these have inside is looked at, and may be a zip archive that ends near their end.
        kind if kind.is_archive() || kind.is_compressed() => return Ok(false),
        Kind::LfsPointer => return Ok(false),
        Kind::Safetensors | Kind::Gguf | Kind::Unknown => false,
        // These may hold any bytes, and more of the same format follows.
        _ => true,
    };
    if !zip::ends_in_zip(piece.bytes, exactly)? {
        return Ok(false);
    }
    // The labels and vocabularies of a TensorFlow Lite model are in an archive after the model, as its format specifies.
    let has_metadata = kind == Kind::TfLite && has_suffix(piece.name, "tflite");
    if has_metadata {
        tflite::scan(piece, context)?;
    }
    // A self-extracting program, or one of Python's zip applications: the archive reports what precedes it.
    if !has_metadata && !matches!(kind, Kind::Executable | Kind::Script | Kind::Unknown | Kind::Text | Kind::Python) {
        let message = format!(
            "this is {} when read from the front, and a zip archive when read from the end",
            kind.with_article()
        );
        context.report(piece, Diagnostic::new(rules::CONTAINER_POLYGLOT, message).offset(0));
    }
    if matches!(kind, Kind::Safetensors | Kind::Gguf) {
        check(piece, kind, context)?;
    }
    Ok(true)
}

/// Searches a file of weights for hidden contents.
pub(crate) fn check(piece: &ByteSpan<'_>, kind: Kind, context: &mut FileContext<'_>) -> Result<()> {
    if kind == Kind::Safetensors {
        safetensors(piece, context)?;
    }
    context.looked(Depth::Structure);
    Ok(())
}

/// Metadata, tensors of bytes, holes and the end of a safetensors file. That the header is as it should be is for others to say.
fn safetensors(piece: &ByteSpan<'_>, context: &mut FileContext<'_>) -> Result<()> {
    let bytes = piece.bytes;
    let len = bytes.first(8)?.first_chunk().map_or(0, |len| u64::from_le_bytes(*len));
    if len > MAX_HEADER.min(bytes.len().saturating_sub(8)) {
        return Ok(());
    }
    let header = bytes.part(8, len as usize)?;
    let data = 8 + len;
    let mut found = HeaderContents::default();
    // A header that breaks is for others to say; what came before it counts.
    let read = serde_json::Deserializer::from_slice(&header).deserialize_map(&mut found);
    if found.is_cut && read.err().is_none_or(|error| error.is_data()) {
        let message =
            "the metadata has more values, or more keys twice, than any program writes: not all were looked at";
        context.report(piece, Diagnostic::new(rules::CONTAINER_METADATA, message).offset(8));
    }
    metadata(piece, &found.metadata, context)?;
    let mut spans = found.spans;
    context.check_cancelled()?;
    spans.sort_unstable();
    let of_bytes = spans.iter().filter(|(_, _, is_bytes)| *is_bytes).take(MAX_LOOKED_AT);
    bytes
        .expect(&of_bytes.map(|(start, ..)| (data.saturating_add(*start), PICKLE_BYTES as u64)).collect::<Vec<_>>())?;
    let (mut at, mut looked) = (0, 0);
    for (start, end, is_bytes) in spans {
        let hole = (start > at).then_some((at, start));
        let parts = hole.map(|hole| (hole, false)).into_iter().chain(is_bytes.then_some(((start, end), true)));
        for ((from, to), is_tensor) in parts {
            looked += 1;
            if looked <= MAX_LOOKED_AT {
                hidden(piece, data.saturating_add(from), data.saturating_add(to), is_tensor, context)?;
            }
        }
        at = at.max(end);
    }
    hidden(piece, data.saturating_add(at), bytes.len(), false, context)
}

/// What lies between and behind the tensors of a GGUF file, which are aligned with zeros.
pub(crate) fn other_values(piece: &ByteSpan<'_>, catalog: &Catalog, context: &mut FileContext<'_>) -> Result<()> {
    let mut spans: Vec<(u64, u64)> = catalog.table().iter().map(|info| (info.span.start(), info.span.end())).collect();
    spans.sort_unstable();
    let Some(mut at) = spans.first().map(|(start, _)| *start) else { return Ok(()) };
    let mut looked = 0;
    for (start, end) in spans.into_iter().chain([(piece.bytes.len(), 0)]) {
        let is_hole = start > at.next_multiple_of(GGUF_ALIGNMENT) || start == piece.bytes.len() && start > at;
        if is_hole && looked < MAX_LOOKED_AT {
            looked += 1;
            let padding = piece.bytes.part(at, GGUF_ALIGNMENT as usize)?;
            let zeros = padding.iter().take_while(|byte| **byte == 0).count();
            hidden(piece, at.saturating_add(zeros as u64), start, false, context)?;
        }
        at = at.max(end);
    }
    Ok(())
}

/// What is looked at of a header.
#[derive(Default)]
struct HeaderContents {
    spans: Vec<(u64, u64, bool)>,
    /// Keys and texts of the metadata; what is not text is for others to say.
    metadata: Vec<(String, String)>,
    /// Whether it has more than is looked at.
    is_cut: bool,
}

#[derive(serde::Deserialize)]
struct HeaderTensor<'a> {
    #[serde(borrow)]
    dtype: std::borrow::Cow<'a, str>,
    data_offsets: (u64, u64),
}

impl<'de> Visitor<'de> for &mut HeaderContents {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the header of a safetensors file")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> std::result::Result<(), M::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                self.is_cut = true;
                let Document { value, duplicates } = map.next_value()?;
                self.is_cut = duplicates.len() >= MAX_DUPLICATES;
                let all =
                    value.as_object().into_iter().flatten().chain(duplicates.iter().map(|(key, value)| (key, value)));
                self.metadata.extend(all.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))));
            } else {
                let tensor: HeaderTensor<'_> = map.next_value()?;
                let (start, end) = tensor.data_offsets;
                self.spans.push((start, end, matches!(&*tensor.dtype, "U8" | "I8" | "BOOL")));
            }
        }
        Ok(())
    }
}

/// A pickle or an archive at the beginning of bytes that should be none. Those of a tensor may begin like a pickle without a magic by chance,
/// one in 200 of weights of four bits: there it has to import something.
fn hidden(piece: &ByteSpan<'_>, start: u64, end: u64, is_tensor: bool, context: &mut FileContext<'_>) -> Result<()> {
    context.check_cancelled()?;
    let part = ByteSlice::new(piece.bytes, start, end.saturating_sub(start));
    let first = part.first(PICKLE_BYTES)?;
    let imports = || -> Result<bool> {
        let more = part.first(TENSOR_BYTES)?;
        Ok(pickle::is_pickle_that_imports(&more))
    };
    let may_be = pickle::may_be_pickle(&first, part.len(), "");
    let is_pickle = is_binary_pickle(&first) || may_be && (!is_tensor || imports()?);
    let kind = if is_pickle { Some(Kind::Pickle) } else { loadable(&part, "")?.filter(|kind| is_certain(*kind)) };
    let Some(kind) = kind else { return Ok(()) };
    let message = format!("{} is where only numbers should be", kind.with_article());
    context.report(piece, Diagnostic::new(rules::CONTAINER_PICKLE, message).offset(start));
    scan_inside(piece, &part, &format!("bytes {start} to {end}"), context)
}

/// Whether these are the first bytes of a pickle of protocol 2 or later. Its magic is two bytes, with which numbers may begin by chance: names
/// have to follow.
fn is_binary_pickle(first: &[u8]) -> bool {
    const NAME: usize = 5;
    const NAMES: usize = 8;
    /// Instructions that continue a pickle: a frame, a string, a container, a number, a name.
    const NEXT: &[u8] = b"\x95\x8cX}](cNKMJV)U\x88\x89G";
    if !matches!(first, [0x80, 2..=5, next, ..] if NEXT.contains(next)) {
        return false;
    }
    let start = first.get(..128).unwrap_or(first);
    let names = start.split(|byte| !matches!(byte, b'\n' | 0x20..0x7f)).filter(|name| name.len() >= NAME);
    names.map(<[u8]>::len).sum::<usize>() >= NAMES
}

/// Kinds with a magic that is long enough to be no number by chance.
fn is_certain(kind: Kind) -> bool {
    matches!(kind, Kind::Zip | Kind::SevenZip | Kind::TorchLegacy | Kind::Numpy | Kind::Hdf5 | Kind::Xz)
}

/// Code in the keys and values of the metadata.
fn metadata(piece: &ByteSpan<'_>, pairs: &[(String, String)], context: &mut FileContext<'_>) -> Result<()> {
    for (key, text) in pairs {
        context.check_cancelled()?;
        pickle_in_text(piece, key, text, context)?;
        if let Some(code) = words::each(CODE).find(|code| text.contains(code)) {
            let key = max_weights::text::escape(key);
            let at = text.find(code).unwrap_or(0);
            let around: String = text.get(at..).unwrap_or_default().chars().take(120).collect();
            let message = format!("the value of '{key}' in the metadata holds code: {code}…");
            context.report(
                piece,
                Diagnostic::new(rules::CONTAINER_METADATA, message)
                    .offset(8)
                    .evidence(max_weights::text::escape(&around)),
            );
        }
    }
    Ok(())
}

/// A pickle that is written as a string, in base64.
fn pickle_in_text(piece: &ByteSpan<'_>, key: &str, text: &str, context: &mut FileContext<'_>) -> Result<()> {
    // Words with other signs between them spell anything.
    let end = text.bytes().position(|byte| !byte.is_ascii_whitespace() && base64::digit(byte).is_none());
    let bytes = base64::decoded(text.as_bytes().get(..end.unwrap_or(text.len())).unwrap_or_default());
    let first = bytes.get(..PICKLE_BYTES).unwrap_or(&bytes);
    // What a text of words spells has no names in it.
    if bytes.len() < MIN_PICKLE || !is_binary_pickle(first) && !pickle::may_be_pickle(first, bytes.len() as u64, "") {
        return Ok(());
    }
    let message = format!("the value of '{}' in the metadata is a pickle in base64", max_weights::text::escape(key));
    context.report(piece, Diagnostic::new(rules::CONTAINER_METADATA, message).offset(8));
    scan_inside(piece, &bytes, "metadata", context)
}
