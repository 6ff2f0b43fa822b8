//! The values of the metadata: 12 kinds of scalars, and arrays of any of them.

use std::fmt;
use std::ops::Range;

use super::cursor::{CursorStep, HeaderCursor};
use super::types::{NumberForm, ValueType};
use crate::budget::saturating_usize;
use crate::error::Diagnostic;
use crate::rules;

/// How deeply arrays may be nested. Real files do not nest them even twice.
pub const MAX_ARRAY_DEPTH: usize = 16;

/// Walks over a value. Strings are stepped over by their lengths, numbers by arithmetic.
pub(super) fn skip(cursor: &mut HeaderCursor<'_>, value_type: ValueType) -> CursorStep<()> {
    match value_type {
        ValueType::String => cursor.string("a string").map(drop),
        ValueType::Array => skip_array(cursor, 1),
        scalar => cursor.take(scalar.least_bytes(cursor.form), "a value", rules::GGUF_TRUNCATED).map(drop),
    }
}

fn skip_array(cursor: &mut HeaderCursor<'_>, depth: usize) -> CursorStep<()> {
    let (element, count) = cursor.array_start()?;
    skip_elements(cursor, element, count, depth)
}

fn skip_elements(cursor: &mut HeaderCursor<'_>, element: ValueType, count: u64, depth: usize) -> CursorStep<()> {
    match element {
        ValueType::String => cursor.skip_strings(count),
        ValueType::Array if depth >= MAX_ARRAY_DEPTH => {
            let cause = format!("arrays are nested more than {MAX_ARRAY_DEPTH} deep");
            Err(Diagnostic::new(rules::GGUF_ARRAY_DEPTH, cause).offset(cursor.position() as u64).into())
        }
        ValueType::Array => (0..count).try_for_each(|_| skip_array(cursor, depth + 1)),
        scalar => {
            let bytes = count.saturating_mul(scalar.least_bytes(cursor.form));
            cursor.take(bytes, "an array", rules::GGUF_ARRAY_LENGTH).map(drop)
        }
    }
}

/// A value of the metadata. Long ones are borrowed from the header.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // the names are the documentation
pub enum GgufValue<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(&'a str),
    /// A string that is not UTF-8. The format forbids it, but tokenizers have it.
    Bytes(&'a [u8]),
    Array(GgufArray<'a>),
}

impl<'a> GgufValue<'a> {
    /// The value as text; of an array, what `elements` makes of it.
    pub fn text_with(&self, elements: impl FnOnce(&GgufArray<'a>) -> String) -> String {
        match self {
            Self::U8(value) => value.to_string(),
            Self::I8(value) => value.to_string(),
            Self::U16(value) => value.to_string(),
            Self::I16(value) => value.to_string(),
            Self::U32(value) => value.to_string(),
            Self::I32(value) => value.to_string(),
            Self::U64(value) => value.to_string(),
            Self::I64(value) => value.to_string(),
            Self::F32(value) => value.to_string(),
            Self::F64(value) => value.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::String(text) => (*text).to_owned(),
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Array(array) => elements(array),
        }
    }

    /// The number, if this is a non-negative integer of any width.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::U64(value) => Some(value),
            Self::I8(value) => value.try_into().ok(),
            Self::I16(value) => value.try_into().ok(),
            Self::I32(value) => value.try_into().ok(),
            Self::I64(value) => value.try_into().ok(),
            _ => None,
        }
    }

    /// Its type.
    pub const fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F32(_) => ValueType::F32,
            Self::F64(_) => ValueType::F64,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) | Self::Bytes(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
        }
    }

    /// The text, if this is a string of UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        if let Self::String(text) = *self { Some(text) } else { None }
    }

    /// Decodes the value at the cursor. With `end`, the end of the value, an array is not scanned to find it.
    pub(super) fn decode(cursor: &mut HeaderCursor<'a>, value_type: ValueType, end: Option<usize>) -> CursorStep<Self> {
        Ok(match value_type {
            ValueType::U8 => Self::U8(cursor.u8()?),
            ValueType::I8 => Self::I8(cursor.u8()?.cast_signed()),
            ValueType::U16 => Self::U16(cursor.u16()?),
            ValueType::I16 => Self::I16(cursor.u16()?.cast_signed()),
            ValueType::U32 => Self::U32(cursor.u32()?),
            ValueType::I32 => Self::I32(cursor.u32()?.cast_signed()),
            ValueType::U64 => Self::U64(cursor.u64()?),
            ValueType::I64 => Self::I64(cursor.u64()?.cast_signed()),
            ValueType::F32 => Self::F32(f32::from_bits(cursor.u32()?)),
            ValueType::F64 => Self::F64(f64::from_bits(cursor.u64()?)),
            ValueType::Bool => Self::Bool(cursor.u8()? != 0),
            ValueType::String => {
                let bytes = cursor.string("a string")?;
                std::str::from_utf8(bytes).map_or(Self::Bytes(bytes), Self::String)
            }
            ValueType::Array => {
                let (element, count) = cursor.array_start()?;
                let start = cursor.position();
                let end = match end {
                    Some(end) => end,
                    None => skip_elements(cursor, element, count, 1).map(|()| cursor.position())?,
                };
                let (header, form) = (cursor.header(), cursor.form);
                Self::Array(GgufArray { header, start, end, element, count: saturating_usize(count), form })
            }
        })
    }
}

/// An array of the metadata: a range of the header, decoded on demand.
#[derive(Clone, Copy, PartialEq)]
pub struct GgufArray<'a> {
    header: &'a [u8],
    start: usize,
    end: usize,
    element: ValueType,
    count: usize,
    form: NumberForm,
}

impl<'a> GgufArray<'a> {
    /// The type of the elements.
    pub const fn element(&self) -> ValueType {
        self.element
    }

    /// The number of elements.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// True for an array of no elements.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Where the elements are in the header, and so in the file.
    pub const fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// The bytes of the elements in the file: without alignment, in the byte order of [`GgufArray::is_big_endian`]. Numbers are contiguous, so these
    /// bytes are an array of [`ValueType::dtype`]; strings and arrays have their lengths between them.
    pub fn bytes(&self) -> &'a [u8] {
        self.header.get(self.range()).unwrap_or_default()
    }

    /// True if the most significant byte of a number comes first.
    pub const fn is_big_endian(&self) -> bool {
        self.form.big_endian
    }

    /// The elements, each decoded when it is reached.
    pub fn iter(&self) -> ArrayElements<'a> {
        let header = self.header.get(..self.end).unwrap_or_default();
        ArrayElements {
            cursor: HeaderCursor::within(header, self.start, self.form),
            element: self.element,
            left: self.count,
        }
    }
}

impl<'a> IntoIterator for &GgufArray<'a> {
    type Item = GgufValue<'a>;
    type IntoIter = ArrayElements<'a>;

    fn into_iter(self) -> ArrayElements<'a> {
        self.iter()
    }
}

impl fmt::Debug for GgufArray<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.element, self.count)
    }
}

/// The elements of an [`GgufArray`].
#[derive(Debug, Clone)]
pub struct ArrayElements<'a> {
    cursor: HeaderCursor<'a>,
    element: ValueType,
    left: usize,
}

impl<'a> Iterator for ArrayElements<'a> {
    type Item = GgufValue<'a>;

    fn next(&mut self) -> Option<GgufValue<'a>> {
        self.left = self.left.checked_sub(1)?;
        GgufValue::decode(&mut self.cursor, self.element, None).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for ArrayElements<'_> {}
