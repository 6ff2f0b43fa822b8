//! HDF5 files, as older Keras writes them. They are searched for what a loader would act on: the configuration of a model, and links to other files.
//! Objects in them are not followed: a part that no object leads to is looked at as well.

use max_weights::Result;
use max_weights::rules;
use max_weights::text::shown;
use serde_json::Value;

use super::keras;
use crate::bytes::Bytes;
use crate::context::{Context, Piece};
use crate::finding::Finding;
use crate::report::Depth;

/// Bytes that are searched at a time, and by how many the parts overlap.
const WINDOW: usize = 1 << 20;
const OVERLAP: usize = 8 << 10;
/// What a configuration of Keras begins with.
const STARTS: [&[u8]; 4] = [b"{\"class_name\"", b"{\"module\"", b"{\"name\": \"", b"{\"config\""];
/// The longest name of a link or a file.
const MAX_NAME: usize = 4096;
/// So many configurations are read in one file.
const MAX_CONFIGS: usize = 1_000;

/// Searches an HDF5 file.
pub(crate) fn scan(piece: &Piece<'_>, context: &mut Context<'_>) -> Result<()> {
    let bytes = piece.bytes;
    let (mut at, mut after_config, mut configs) = (0, 0, 0);
    while at < bytes.len() {
        context.go_on()?;
        let window = bytes.part(at, WINDOW + OVERLAP)?;
        for place in memchr::memmem::find_iter(&window, b"{\"") {
            let here = at + place as u64;
            let start = window.get(place..).unwrap_or_default();
            let begins = place < WINDOW && here >= after_config && STARTS.iter().any(|word| start.starts_with(word));
            if begins && keras::is_config(start) && configs < MAX_CONFIGS {
                configs += 1;
                after_config = config(piece, here, context)?;
            }
        }
        for place in memchr::memchr_iter(0x40, &window) {
            if let Some(file) = external_link(&window, place).filter(|_| place < WINDOW) {
                let message = format!("a link leads to an object of another file, '{}'", shown(&file));
                context.report(piece, Finding::new(rules::HDF5_EXTERNAL, message).offset(at + place as u64));
            }
        }
        for place in memchr::memmem::find_iter(&window, b"\x01\0\0\0") {
            if place < WINDOW
                && let Some(file) = external_storage(bytes, window.get(place..).unwrap_or_default())?
            {
                let message = format!("the values of a dataset stand in another file, '{}'", shown(&file));
                context.report(piece, Finding::new(rules::HDF5_EXTERNAL, message).offset(at + place as u64));
            }
        }
        at += WINDOW as u64;
    }
    if piece.member.is_none() && configs > 0 {
        context.file.kind = "Keras (HDF5)".into();
    }
    context.looked(Depth::Structure);
    Ok(())
}

/// Reads a configuration; tells where it ends.
fn config(piece: &Piece<'_>, at: u64, context: &mut Context<'_>) -> Result<u64> {
    let text = piece.bytes.part(at, keras::MAX_CONFIG)?;
    let mut values = serde_json::Deserializer::from_slice(&text).into_iter::<Value>();
    if let Some(Ok(value)) = values.next() {
        keras::walk(piece, &value, 0, context)?;
    } else {
        let message = "a configuration of Keras breaks off or is damaged: what it names was not looked at";
        context.report(piece, Finding::new(rules::KERAS_CONFIG, message).offset(at));
    }
    Ok(at + values.byte_offset() as u64)
}

/// The file of an external link, whose type stands at `at`: a version, flags, the type, and then the name and where it leads.
fn external_link(window: &[u8], at: usize) -> Option<String> {
    let [1, flags] = *window.get(at.checked_sub(2)?..at)? else { return None };
    if flags & 0x08 == 0 || flags & 0xe0 != 0 {
        return None;
    }
    let mut rest = window.get(at + 1..)?;
    // The order of creation, and the character set.
    rest = rest.get(if flags & 4 == 0 { 0 } else { 8 } + usize::from(flags & 0x10 != 0)..)?;
    let width = 1usize << (flags & 3);
    let len = rest.get(..width)?.iter().rev().fold(0usize, |len, byte| len << 8 | usize::from(*byte));
    if len == 0 || len > MAX_NAME {
        return None;
    }
    let name = rest.get(width..width + len)?;
    let [low, high, 0, info @ ..] = rest.get(width + len..)? else { return None };
    let info = info.get(..usize::from(u16::from_le_bytes([*low, *high])).checked_sub(1)?)?;
    let (file, path) = info.split_at_checked(memchr::memchr(0, info)?)?;
    let path = path.get(1..)?.strip_suffix(b"\0")?;
    let is_text =
        |text: &[u8]| !text.is_empty() && std::str::from_utf8(text).is_ok_and(|text| !text.contains(char::is_control));
    (is_text(name) && is_text(file) && is_text(path)).then(|| String::from_utf8_lossy(file).into_owned())
}

/// The first file of a list of external files: a version, how many there is room for and how many there are, and where their names stand.
fn external_storage(bytes: &dyn Bytes, message: &[u8]) -> Result<Option<String>> {
    let number = |from: &[u8], at: usize| {
        from.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |number| u64::from_le_bytes(*number))
    };
    let counts = number(message, 4);
    let (room, used, heap) = (counts & 0xffff, counts >> 16 & 0xffff, number(message, 8));
    if used == 0 || used > room || heap == 0 || heap.saturating_add(32) > bytes.len() {
        return Ok(None);
    }
    let header = bytes.part(heap, 32)?;
    if !header.starts_with(b"HEAP\0") {
        return Ok(None);
    }
    let name = number(&header, 24).saturating_add(number(message, 16));
    let name = bytes.part(name, MAX_NAME)?;
    let end = memchr::memchr(0, &name).unwrap_or(name.len());
    Ok(Some(String::from_utf8_lossy(name.get(..end).unwrap_or_default()).into_owned()).filter(|name| !name.is_empty()))
}
