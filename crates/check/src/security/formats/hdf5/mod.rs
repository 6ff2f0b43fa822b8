//! HDF5 files, as older Keras, PyTables and pandas write them. They are searched for contents that a loader would act on: the configuration of a
//! model, links to other files, and pickles. The search does not follow objects, so unreferenced parts are searched as well.

mod values;

use max_weights::rules;
use max_weights::text::escape;
use max_weights::{Diagnostic, Result};

use super::configurations::{self, Configurations};
use super::unpickled::Unpickled;
use crate::bytes::RandomRead;
use crate::context::{ByteSpan, FileContext};
use crate::options::Level;
use crate::report::Depth;

/// Bytes that are searched at a time, and by how many the parts overlap.
const WINDOW: usize = 1 << 20;
const OVERLAP: usize = configurations::OVERLAP;
/// The header of a heap in which groups with many links keep them: its signature, and its version.
const HEAP: &[u8] = b"FRHP\0";
/// The longest name of a link or a file.
const MAX_NAME: usize = 4096;

/// Searches an HDF5 file.
pub(crate) fn scan(piece: &ByteSpan<'_>, context: &mut FileContext<'_>) -> Result<()> {
    let bytes = piece.bytes;
    let mut at = 0;
    let mut configs = Configurations::new();
    let mut unpickled = Unpickled::default();
    while at < bytes.len() {
        context.check_cancelled()?;
        let window = bytes.part(at, WINDOW + OVERLAP)?;
        configs.search(piece, at, &window, WINDOW, context)?;
        let mut report = |rule, place: usize, message: String| {
            context.report(piece, Diagnostic::new(rule, message).offset(at + place as u64));
        };
        for place in memchr::memchr_iter(0x40, &window).filter(|place| *place < WINDOW) {
            if let Some(file) = external_link(&window, place) {
                let message = format!("a link leads to an object of another file, '{}'", escape(&file));
                report(rules::HDF5_EXTERNAL, place, message);
            }
        }
        let find = |mark: &'static [u8]| memchr::memmem::find_iter(&window, mark).filter(|place| *place < WINDOW);
        for place in find(b"\x01\0\0\0") {
            if let Some(file) = external_storage(bytes, window.get(place..).unwrap_or_default())? {
                let message = format!("the values of a dataset are in another file, '{}'", escape(&file));
                report(rules::HDF5_EXTERNAL, place, message);
            }
        }
        for place in find(b"\x04\x03") {
            if let Some(file) = virtual_source(bytes, window.get(place + 2..).unwrap_or_default())? {
                let message = format!("the values of a virtual dataset are in another file, '{}'", escape(&file));
                report(rules::HDF5_EXTERNAL, place, message);
            }
        }
        // The length of the description of the heap's compression.
        let is_compressed =
            |place: &usize| window.get(place + HEAP.len() + 2..).is_some_and(|rest| !rest.starts_with(&[0, 0]));
        for place in find(HEAP).filter(is_compressed) {
            let message = "the names in a group are compressed: whether its links lead to other files is unknown";
            report(rules::ARCHIVE_UNSUPPORTED, place, message.into());
        }
        for place in 0..window.len().min(WINDOW) {
            if let Some(attribute) = window.get(place..).and_then(values::attribute) {
                let extent = (at + place as u64 + attribute.at, attribute.len);
                unpickled.value(piece, &format!("attribute '{}'", attribute.name), extent, context)?;
            }
        }
        for place in memchr::memmem::find_iter(&window, values::HEAP).filter(|place| *place < WINDOW) {
            values::heap(piece, at + place as u64, &mut unpickled, context)?;
        }
        at += WINDOW as u64;
    }
    unpickled.anywhere(piece, context)?;
    if piece.member.is_none() && configs.found > 0 {
        context.file.kind = "Keras (HDF5)".into();
    }
    context.looked(Depth::Structure);
    if piece.member.is_none() && context.options.level >= Level::Content {
        context.file.note.get_or_insert_with(|| "the values of its datasets are not looked at".into());
    }
    Ok(())
}

/// The number of eight bytes there; 0 where there are fewer.
fn number(from: &[u8], at: usize) -> u64 {
    from.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |number| u64::from_le_bytes(*number))
}

/// The file of an external link, whose type is at `at`: a version, flags, the type, and then the name and where it leads.
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

/// The first other file of a virtual dataset, whose list is referenced here by a heap and a number in it.
fn virtual_source(bytes: &dyn RandomRead, layout: &[u8]) -> Result<Option<String>> {
    let (heap, requested) = (number(layout, 0), number(layout, 8) & 0xffff_ffff);
    if requested == 0 || heap == 0 || heap.saturating_add(16) > bytes.len() || bytes.part(heap, 4)? != b"GCOL" {
        return Ok(None);
    }
    let block = bytes.part(heap, 16 * MAX_NAME)?;
    let mut at = 16usize;
    // An object: its number, how often it is used, its length, its bytes up to a multiple of eight.
    while let Some(object) = block.get(at..).filter(|rest| rest.len() > 16) {
        let (index, len) = (number(object, 0) & 0xffff, number(object, 8).min(block.len() as u64) as usize);
        if index == requested {
            // A version, a count, and then the names of the files and of their datasets.
            let names = object.get(16..16 + len).and_then(|data| data.get(9..)).unwrap_or_default();
            let name = names.get(..memchr::memchr(0, names).unwrap_or(0)).unwrap_or_default();
            let is_text = std::str::from_utf8(name).is_ok_and(|name| !name.contains(char::is_control));
            let name = String::from_utf8_lossy(name).into_owned();
            return Ok(Some(name).filter(|name| is_text && !name.is_empty() && name != "."));
        }
        at = at.saturating_add(16).saturating_add(len.next_multiple_of(8));
        if index == 0 {
            break;
        }
    }
    Ok(None)
}

/// The first file of a list of external files: a version, the allocated and the used entries, and the heap with their names.
fn external_storage(bytes: &dyn RandomRead, message: &[u8]) -> Result<Option<String>> {
    let counts = number(message, 4);
    let (capacity, used, heap) = (counts & 0xffff, counts >> 16 & 0xffff, number(message, 8));
    if used == 0 || used > capacity || heap == 0 || heap.saturating_add(32) > bytes.len() {
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
