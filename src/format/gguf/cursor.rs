//! Reads the fields of a header of which only the first bytes may have been read. There are three cases: the field is there, it lies further on in
//! the file, or the file is too short for it.

use super::types::{NumberForm, ValueType};
use crate::budget::{Short, saturating_usize};
use crate::error::Diagnostic;
use crate::rules::{self, Rule};

/// Why reading stopped.
pub(super) enum CursorStop {
    /// The available bytes end too early; this many from the start of the file are needed.
    NeedMore(u64),
    /// A rule is broken.
    Diagnostic(Box<Diagnostic>),
}

impl From<Diagnostic> for CursorStop {
    fn from(fault: Diagnostic) -> Self {
        Self::Diagnostic(fault.into())
    }
}

impl From<Box<Diagnostic>> for CursorStop {
    fn from(fault: Box<Diagnostic>) -> Self {
        Self::Diagnostic(fault)
    }
}

impl From<Short> for CursorStop {
    fn from(short: Short) -> Self {
        Self::Diagnostic(short.into())
    }
}

impl CursorStop {
    /// Adds to a fault what only the caller knows.
    pub(super) fn explain(mut self, explain: impl FnOnce(&mut Diagnostic)) -> Self {
        if let Self::Diagnostic(fault) = &mut self {
            explain(fault);
        }
        self
    }
}

pub(super) type CursorStep<T> = Result<T, CursorStop>;

/// A place in a header.
#[derive(Debug, Clone)]
pub(super) struct HeaderCursor<'a> {
    /// The available bytes, at most as many as the header may have.
    bytes: &'a [u8],
    at: usize,
    pub(super) form: NumberForm,
    file_len: u64,
    /// The most bytes that a header may have.
    most: u64,
}

impl<'a> HeaderCursor<'a> {
    /// The start of a file of `file_len` bytes, of which `bytes` are the first.
    pub(super) fn new(bytes: &'a [u8], form: NumberForm, file_len: u64, most: u64) -> Self {
        let end = usize::try_from(file_len.min(most)).unwrap_or(usize::MAX).min(bytes.len());
        Self { bytes: bytes.get(..end).unwrap_or_default(), at: 0, form, file_len, most }
    }

    /// Byte `at` of a header that was read before.
    pub(super) fn within(bytes: &'a [u8], at: usize, form: NumberForm) -> Self {
        let len = bytes.len() as u64;
        Self { bytes, at, form, file_len: len, most: len }
    }

    /// Another position in the same header.
    pub(super) fn at(mut self, position: usize) -> Self {
        self.at = position;
        self
    }

    /// All available bytes, from the start of the file.
    pub(super) const fn header(&self) -> &'a [u8] {
        self.bytes
    }

    /// The offset in the file.
    pub(super) const fn position(&self) -> usize {
        self.at
    }

    /// Bytes of the file from here on.
    pub(super) const fn left(&self) -> u64 {
        self.file_len.saturating_sub(self.at as u64)
    }

    /// The available bytes from here on.
    pub(super) const fn at_hand(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// The next `len` bytes. `what` and `rule` name them if the file is too short for them.
    pub(super) fn take(&mut self, len: u64, what: &str, rule: &'static Rule) -> CursorStep<&'a [u8]> {
        self.take_before(len, 0, what, rule)
    }

    /// As [`HeaderCursor::take`], where at least `later` bytes must follow.
    fn take_before(&mut self, len: u64, later: u64, what: &str, rule: &'static Rule) -> CursorStep<&'a [u8]> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        if let Some(end) = end
            && let Some(taken) = self.bytes.get(self.at..end)
        {
            self.at = end;
            return Ok(taken);
        }
        Err(self.missing(len, later, what, rule))
    }

    #[cold]
    fn missing(&self, len: u64, later: u64, what: &str, rule: &'static Rule) -> CursorStop {
        let at = self.at as u64;
        let end = at.checked_add(len).and_then(|end| end.checked_add(later));
        match end {
            Some(end) if end <= self.file_len.min(self.most) => CursorStop::NeedMore(end),
            Some(end) if end <= self.file_len => self.too_long(end).into(),
            _ => {
                let then = if later > 0 { format!(", with at least {later} bytes after it,") } else { String::new() };
                let cause =
                    format!("{what} of {len} bytes{then} does not fit into the {} bytes left in the file", self.left());
                Diagnostic::new(rule, cause).offset(at).into()
            }
        }
    }

    fn too_long(&self, end: u64) -> Diagnostic {
        let cause = format!("the header extends to byte {end} at least; at most {} are read", self.most);
        Diagnostic::new(rules::GGUF_HEADER_TOO_LONG, cause).offset(self.at as u64)
    }

    fn array<const N: usize>(&mut self) -> CursorStep<[u8; N]> {
        let taken = self.take(N as u64, "a field", rules::GGUF_TRUNCATED)?;
        let mut array = [0; N];
        array.copy_from_slice(taken);
        if self.form.big_endian {
            array.reverse();
        }
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> CursorStep<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> CursorStep<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> CursorStep<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> CursorStep<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A count, a length or a dimension.
    pub(super) fn length(&mut self) -> CursorStep<u64> {
        if self.form.narrow { self.u32().map(u64::from) } else { self.u64() }
    }

    /// A string: its length and its bytes, which are not validated.
    pub(super) fn string(&mut self, what: &str) -> CursorStep<&'a [u8]> {
        let at = self.at;
        let len = self.length()?;
        self.take(len, what, rules::GGUF_STRING_LENGTH).inspect_err(|_| self.at = at)
    }

    /// Skips `count` strings. Tokenizers have a quarter of a million of them, so the byte order is checked only once.
    pub(super) fn skip_strings(&mut self, count: u64) -> CursorStep<()> {
        let NumberForm { big_endian, narrow } = self.form;
        let done = match (narrow, big_endian) {
            (false, false) => self.skip_at_hand(count, u64::from_le_bytes),
            (false, true) => self.skip_at_hand(count, u64::from_be_bytes),
            (true, false) => self.skip_at_hand(count, |bytes| u32::from_le_bytes(bytes).into()),
            (true, true) => self.skip_at_hand(count, |bytes| u32::from_be_bytes(bytes).into()),
        };
        if done == count {
            return Ok(());
        }
        // The string that is not available, and the minimum that follows it.
        let width = self.form.length_bytes();
        let later = (count - done - 1).saturating_mul(width);
        let Ok(len) = self.length() else {
            return Err(self.missing(width, later, "the length of a string", rules::GGUF_ARRAY_LENGTH));
        };
        self.take_before(len, later, "a string in an array", rules::GGUF_STRING_LENGTH).map(drop)
    }

    /// Skips strings until one is not available, and returns how many were skipped.
    fn skip_at_hand<const N: usize>(&mut self, count: u64, length: impl Fn([u8; N]) -> u64) -> u64 {
        let mut rest = self.bytes.get(self.at..).unwrap_or_default();
        let mut done = 0;
        while done < count
            && let Some((len, text)) = rest.split_first_chunk()
            && let Some(next) = text.get(saturating_usize(length(*len))..)
        {
            rest = next;
            done += 1;
        }
        self.at = self.bytes.len() - rest.len();
        done
    }

    /// The type of a value.
    pub(super) fn value_type(&mut self) -> CursorStep<ValueType> {
        let at = self.at as u64;
        let id = self.u32()?;
        ValueType::from_id(id).ok_or_else(|| {
            let cause = format!("a value has type {id}; the format has the types 0 to 12");
            Diagnostic::new(rules::GGUF_VALUE_TYPE, cause).offset(at).into()
        })
    }

    /// An array's element type and count, if its elements fit into the rest of the file.
    pub(super) fn array_start(&mut self) -> CursorStep<(ValueType, u64)> {
        let at = self.at as u64;
        let element = self.value_type()?;
        let count = self.length()?;
        let least = element.least_bytes(self.form);
        match count.checked_mul(least) {
            Some(bytes) if bytes <= self.left() => Ok((element, count)),
            _ => {
                let cause = format!(
                    "an array of {count} values of type {element} takes at least {least} bytes each, but the file has {} left",
                    self.left()
                );
                Err(Diagnostic::new(rules::GGUF_ARRAY_LENGTH, cause).offset(at).into())
            }
        }
    }
}
