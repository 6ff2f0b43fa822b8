//! Values that PyTables unpickles when it reads an HDF5 file: string attributes, and variable-length objects, which are in heaps. Both are
//! recognised by their fields; the objects that refer to them are not followed.

use max_weights::Result;
use max_weights::text::escape;

use super::number;
use crate::bytes::RandomRead;
use crate::context::{ByteSpan, FileContext};
use crate::security::formats::unpickled::Unpickled;

/// The start of a global heap: its signature, its version and three zeros.
pub(super) const HEAP: &[u8] = b"GCOL\x01\0\0\0";
/// The longest name of an attribute.
const MAX_NAME: usize = 1 << 10;
/// The longest description of a type, and of a shape.
const MAX_DESCRIPTION: usize = 512;
/// Bytes of a heap that are read at once. A larger one has one object, as the library makes heaps of 4 KiB for small ones.
const BLOCK: usize = 1 << 20;
/// The header of an object in a heap: its number, how often it is used, four zeros, and its length.
const OBJECT: usize = 16;

/// The classes of types that hold the bytes of a pickle: strings, and opaque bytes.
const STRING: u8 = 3;
const OPAQUE: u8 = 5;

/// An attribute: its name, and the offset of its value from its first byte.
pub(super) struct Attribute {
    pub(super) name: String,
    pub(super) at: u64,
    pub(super) len: u64,
}

/// The attribute that begins here, if one does: a version, flags, the lengths of the three parts that follow, and then the value.
pub(super) fn attribute(bytes: &[u8]) -> Option<Attribute> {
    let [version @ 1..=3, 0..=3, rest @ ..] = bytes else { return None };
    let (lengths, mut rest) = rest.split_first_chunk::<6>()?;
    let [name, class, shape] = [0, 2, 4].map(|at| usize::from(lengths[at]) | usize::from(lengths[at + 1]) << 8);
    if !(2..=MAX_NAME).contains(&name)
        || !(8..=MAX_DESCRIPTION).contains(&class)
        || !(4..=MAX_DESCRIPTION).contains(&shape)
    {
        return None;
    }
    if *version == 3 {
        // The character set of the name.
        rest = rest.strip_prefix(&[0]).or_else(|| rest.strip_prefix(&[1]))?;
    }
    // The parts of the first version end at a multiple of eight.
    let padded = |len: usize| if *version == 1 { len.next_multiple_of(8) } else { len };
    let mut part = |len: usize| {
        let (part, behind) = rest.split_at_checked(padded(len))?;
        rest = behind;
        part.get(..len)
    };
    let (name, class, shape) = (part(name)?, part(class)?, part(shape)?);
    let name = name.get(..memchr::memchr(0, name)?).and_then(|name| std::str::from_utf8(name).ok())?;
    if name.is_empty() || name.contains(char::is_control) || !matches!(class.first()? & 0xf, STRING | OPAQUE) {
        return None;
    }
    let size = u64::from(u32::from_le_bytes(*class.get(4..)?.first_chunk()?));
    let len = size.checked_mul(elements(shape)?)?;
    Some(Attribute { name: escape(name), at: (bytes.len() - rest.len()) as u64, len })
}

/// How many elements a shape has: a version, the number of its dimensions, flags, five bytes or a type, and then eight bytes each.
fn elements(shape: &[u8]) -> Option<u64> {
    let [version @ 1..=2, rank, ..] = shape else { return None };
    let dims = shape.get(if *version == 1 { 8 } else { 4 }..)?;
    (0..usize::from(*rank))
        .try_fold(1u64, |count, dim| count.checked_mul(u64::from_le_bytes(*dims.get(8 * dim..)?.first_chunk()?)))
}

/// Looks at the objects of the global heap at `heap`.
pub(super) fn heap(
    piece: &ByteSpan<'_>,
    heap: u64,
    unpickled: &mut Unpickled,
    context: &mut FileContext<'_>,
) -> Result<()> {
    let bytes: &dyn RandomRead = piece.bytes;
    let end = heap.saturating_add(number(&bytes.part(heap, OBJECT)?, 8)).min(bytes.len());
    let block = bytes.part(heap, (end - heap).min(BLOCK as u64) as usize)?;
    let mut at = OBJECT;
    while let Some(header) = block.get(at..).filter(|rest| rest.len() >= OBJECT) {
        let (index, len) = (number(header, 0) & 0xffff, number(header, 8));
        if index == 0 {
            break;
        }
        let start = heap + (at + OBJECT) as u64;
        unpickled.value(
            piece,
            &format!("object {index} of the heap at {heap}"),
            (start, len.min(end.saturating_sub(start))),
            context,
        )?;
        let Some(next) = usize::try_from(len).ok().and_then(|len| len.checked_next_multiple_of(8)) else { break };
        at = at.saturating_add(OBJECT).saturating_add(next);
    }
    Ok(())
}
