//! Configurations of Keras among other bytes: in HDF5 files, and in graphs of TensorFlow.

use std::io::Read as _;

use max_weights::rules;
use max_weights::{Diagnostic, Result};
use serde_json::Value;

use super::keras;
use crate::bytes::RandomRead;
use crate::context::{ByteSpan, FileContext};
use crate::json::{self, Document};
use crate::security::archive::StreamReader;

/// By how many bytes parts that are searched have to overlap.
pub(super) const OVERLAP: usize = 8 << 10;
/// Maximum bytes read of texts that begin like a configuration and are none.
const MAX_IN_VAIN: u64 = 256 << 20;

/// Whether an object in JSON begins here, with a key.
fn opens_object(bytes: &[u8]) -> bool {
    bytes.get(1..).unwrap_or_default().trim_ascii_start().first() == Some(&b'"')
}

/// The text there, up to a byte that no text has.
fn text_at(bytes: &dyn RandomRead, at: u64) -> Result<Vec<u8>> {
    let mut text = bytes.part(at, keras::MAX_CONFIG)?;
    let end = text.iter().position(|byte| *byte < b' ' && !byte.is_ascii_whitespace());
    text.truncate(end.unwrap_or(text.len()));
    Ok(text)
}

/// The configurations of Keras in a file.
pub(super) struct Configurations {
    /// Where the last one ends.
    after: u64,
    pub(super) found: u64,
    /// Bytes that may be read in vain.
    left: u64,
}

impl Configurations {
    pub(super) fn new() -> Self {
        Self { after: 0, found: 0, left: MAX_IN_VAIN }
    }

    /// Reads those that begin in the first `len` bytes of a part of the file, which begins at `at`.
    pub(super) fn search(
        &mut self,
        piece: &ByteSpan<'_>,
        at: u64,
        part: &[u8],
        len: usize,
        context: &mut FileContext<'_>,
    ) -> Result<()> {
        for place in memchr::memchr_iter(b'{', part).take_while(|place| *place < len) {
            let (here, start) = (at + place as u64, part.get(place..).unwrap_or_default());
            if here >= self.after && opens_object(start) {
                context.check_cancelled()?;
                self.look(piece, here, start, context)?;
            }
        }
        Ok(())
    }

    /// Reads the object at `at`, where `window` begins. One that is a configuration is to be whole.
    fn look(&mut self, piece: &ByteSpan<'_>, at: u64, window: &[u8], context: &mut FileContext<'_>) -> Result<()> {
        if self.left == 0 {
            return Ok(());
        }
        let is_config = keras::is_config(window);
        let mut rest = window;
        let (mut value, mut read) = (first_value(&mut rest), (window.len() - rest.len()) as u64);
        if value.is_none() && rest.is_empty() {
            let mut reader = StreamReader::new(piece.bytes, at);
            value = first_value((&mut reader).take(keras::MAX_CONFIG as u64));
            read = read.saturating_add(reader.position().saturating_sub(at));
        }
        if value.is_none() && is_config {
            // Python writes numbers that JSON does not have.
            let text = text_at(piece.bytes, at)?;
            self.left = self.left.saturating_sub(text.len() as u64);
            value = json::read(&text).ok().map(|value| (value, 0));
        }
        self.found += u64::from(is_config);
        let Some((value, len)) = value else {
            self.left = self.left.saturating_sub(read);
            for (is_declared, message) in [
                (is_config, "a Keras configuration breaks off or is damaged: what it names was not looked at"),
                (self.left == 0, "too much looks like a Keras configuration: from here on, no more were looked for"),
            ] {
                if is_declared {
                    context.report(piece, Diagnostic::new(rules::KERAS_CONFIG, message).offset(at));
                }
            }
            return Ok(());
        };
        self.after = at + len;
        keras::walk(piece, &value, 0, context)
    }
}

/// The value with which a string in JSON begins, and its length.
fn first_value(text: impl std::io::Read) -> Option<(Value, u64)> {
    let mut values = serde_json::Deserializer::from_reader(text).into_iter::<Document>();
    let Document { value, .. } = values.next()?.ok()?;
    Some((value, values.byte_offset() as u64))
}
