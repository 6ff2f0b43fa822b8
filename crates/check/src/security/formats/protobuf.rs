//! The wire format of protobuf, a field after the other: what is long is left where it is.

use max_weights::Result;

use crate::bytes::RandomRead;

/// Bytes that are read at a time.
const WINDOW: usize = 16 << 10;
/// The bytes of the longest number.
const MAX_NUMBER: usize = 10;

/// A field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProtobufField {
    /// A number, or the bits of one.
    Number(u64),
    /// Bytes, a string or a message: from where to where they reach.
    Bytes(u64, u64),
}

/// The fields of a message.
pub(super) struct ProtobufFields<'a> {
    bytes: &'a dyn RandomRead,
    at: u64,
    end: u64,
    window: Vec<u8>,
    window_at: u64,
}

/// What is not a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidMessage {
    /// Where it breaks.
    pub(super) at: u64,
}

impl<'a> ProtobufFields<'a> {
    pub(super) fn new(bytes: &'a dyn RandomRead, start: u64, end: u64) -> Self {
        Self { bytes, at: start, end: end.min(bytes.len()), window: Vec::new(), window_at: 0 }
    }

    /// The next field and its number; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<std::result::Result<(u64, ProtobufField), InvalidMessage>>> {
        if self.at >= self.end {
            return Ok(None);
        }
        let broken = InvalidMessage { at: self.at };
        Ok(Some(self.field()?.ok_or(broken)))
    }

    /// The next number of a packed list; `None` at the end, or where there is none.
    pub(super) fn next_number(&mut self) -> Result<Option<u64>> {
        self.number()
    }

    fn field(&mut self) -> Result<Option<(u64, ProtobufField)>> {
        let Some(tag) = self.number()? else { return Ok(None) };
        let value = match tag & 7 {
            0 => self.number()?.map(ProtobufField::Number),
            1 => self.skip(8).map(|_| ProtobufField::Number(0)),
            2 => match self.number()? {
                Some(len) => self.skip(len).map(|start| ProtobufField::Bytes(start, self.at)),
                None => None,
            },
            5 => self.skip(4).map(|_| ProtobufField::Number(0)),
            _ => None,
        };
        Ok(value.filter(|_| tag >> 3 > 0).map(|value| (tag >> 3, value)))
    }

    /// Skips `len` bytes, all of which must exist; returns where they begin.
    fn skip(&mut self, len: u64) -> Option<u64> {
        let start = self.at;
        self.at = start.checked_add(len).filter(|end| *end <= self.end)?;
        Some(start)
    }

    fn number(&mut self) -> Result<Option<u64>> {
        let mut value = 0;
        for shift in (0..MAX_NUMBER).map(|place| place * 7) {
            let Some(byte) = self.byte()? else { return Ok(None) };
            value |= u64::from(byte & 0x7f).checked_shl(shift as u32).unwrap_or(0);
            if byte < 0x80 {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn byte(&mut self) -> Result<Option<u8>> {
        if self.at >= self.end {
            return Ok(None);
        }
        let in_window =
            |at: u64| at.checked_sub(self.window_at).and_then(|place| self.window.get(place as usize)).copied();
        let mut byte = in_window(self.at);
        if byte.is_none() {
            self.window = self.bytes.part(self.at, WINDOW)?;
            self.window_at = self.at;
            byte = self.window.as_slice().first().copied();
        }
        self.at += 1;
        Ok(byte)
    }
}
