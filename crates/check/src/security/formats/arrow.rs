//! Files of Arrow: Feather, IPC and Parquet. Only the types of their columns are looked at: of a type that Python defines, old versions of pyarrow
//! unpickle the description as soon as they read the schema.

use max_weights::rules;
use max_weights::{Diagnostic, Result};

use super::unpickled::Unpickled;
use crate::bytes::RandomRead;
use crate::context::{ByteSpan, FileContext};
use crate::kind::Kind;
use crate::security::base64;

/// The name of the type whose description is a pickle.
const PICKLED: &[u8] = b"arrow.py_extension_type";
/// The key under which Parquet keeps the schema of Arrow, in Base64.
const SCHEMA: &[u8] = b"ARROW:schema";
/// Bytes that are searched at a time, and by how many the parts overlap.
const WINDOW: usize = 1 << 20;
const OVERLAP: usize = 64 << 10;
/// The longest schema that is read.
const MAX_SCHEMA: usize = 64 << 20;
/// Bytes between the key of a schema and its value, at most: the number of the field, and the length.
const BEFORE_VALUE: usize = 8;

/// Looks at the types of the columns.
pub(crate) fn scan(piece: &ByteSpan<'_>, kind: Kind, context: &mut FileContext<'_>) -> Result<()> {
    types(piece, context)?;
    if kind == Kind::Parquet {
        schemas(piece, context)?;
    }
    if piece.member.is_none() {
        context.file.note.get_or_insert_with(|| "of its contents, only the types of the columns are looked at".into());
    }
    Ok(())
}

/// Looks for the type that is pickled, in all of these bytes: each message of a schema counts for some reader.
fn types(piece: &ByteSpan<'_>, context: &mut FileContext<'_>) -> Result<()> {
    let Some(at) = find(piece.bytes, PICKLED, 0, context)? else { return Ok(()) };
    let message = "a column is of a type that Python defines: versions of pyarrow before 14.0.1 unpickle it when they read the schema";
    context.report(piece, Diagnostic::new(rules::ARROW_PICKLE, message).offset(at));
    let mut unpickled = Unpickled::default();
    let mut at = 0;
    while at < piece.bytes.len() {
        context.check_cancelled()?;
        let window = piece.bytes.part(at, WINDOW + OVERLAP)?;
        for place in 0..window.len().min(WINDOW) {
            if let Some(len) = window.get(place..).and_then(text) {
                let start = at + place as u64;
                unpickled.value(piece, &format!("text at {start}"), (start + 4, len), context)?;
            }
        }
        at += WINDOW as u64;
    }
    unpickled.anywhere(piece, context)
}

/// The length of the text that begins here: its length, its bytes, of which the last ends a pickle, and a zero.
fn text(bytes: &[u8]) -> Option<u64> {
    let (len, bytes) = bytes.split_first_chunk()?;
    let len = u32::from_le_bytes(*len);
    let end = bytes.get((len as usize).checked_sub(1)?..)?;
    end.starts_with(b".\0").then_some(len.into())
}

/// Looks at the schemas that are kept in Base64.
fn schemas(piece: &ByteSpan<'_>, context: &mut FileContext<'_>) -> Result<()> {
    let mut from = 0;
    while let Some(at) = find(piece.bytes, SCHEMA, from, context)? {
        from = at + SCHEMA.len() as u64;
        let name = format!("schema at {at}");
        let way = piece.way_to(&name);
        // Where the value begins is not followed; four characters are three bytes.
        for start in BEFORE_VALUE..BEFORE_VALUE + 4 {
            let text = piece.bytes.part(from + start as u64, MAX_SCHEMA)?;
            let end = text.iter().position(|byte| base64::digit(*byte).is_none()).unwrap_or(text.len());
            let schema = base64::decoded(text.get(..end).unwrap_or_default());
            if !context.unpack(schema.len() as u64) {
                let message = "it has more schemas than are examined";
                context.report(piece, Diagnostic::new(rules::CODE_INCOMPLETE, message).offset(at));
                return Ok(());
            }
            types(&ByteSpan { depth: piece.depth, ..piece.inside(&schema, &name, &way) }, context)?;
        }
    }
    Ok(())
}

/// The first position of some bytes from `from` on.
fn find(bytes: &dyn RandomRead, requested: &[u8], from: u64, context: &FileContext<'_>) -> Result<Option<u64>> {
    let mut at = from;
    while at < bytes.len() {
        context.check_cancelled()?;
        let window = bytes.part(at, WINDOW + OVERLAP)?;
        if let Some(place) = memchr::memmem::find(&window, requested) {
            return Ok(Some(at + place as u64));
        }
        at += WINDOW as u64;
    }
    Ok(None)
}
