//! GGUF files made by hand, field by field, so that every field can lie.

#![allow(dead_code)] // each test uses its part
#![allow(clippy::expect_used)] // a test fails by panicking

/// A file as far as it was written.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) bytes: Vec<u8>,
    pub(crate) version: u32,
    pub(crate) big_endian: bool,
}

pub(crate) const U8: u32 = 0;
pub(crate) const I32: u32 = 5;
pub(crate) const U16: u32 = 2;
pub(crate) const U32: u32 = 4;
pub(crate) const F32: u32 = 6;
pub(crate) const BOOL: u32 = 7;
pub(crate) const STRING: u32 = 8;
pub(crate) const ARRAY: u32 = 9;
pub(crate) const U64: u32 = 10;

impl Made {
    /// A file of version 3 that claims `tensors` tensors and `keys` keys.
    pub(crate) fn new(tensors: u64, keys: u64) -> Self {
        Self::of(3, false, tensors, keys)
    }

    pub(crate) fn of(version: u32, big_endian: bool, tensors: u64, keys: u64) -> Self {
        Self { bytes: b"GGUF".to_vec(), version, big_endian }.u32(version).length(tensors).length(keys)
    }

    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// A number of `N` bytes, given in little-endian order.
    pub(crate) fn number<const N: usize>(self, mut bytes: [u8; N]) -> Self {
        if self.big_endian {
            bytes.reverse();
        }
        self.raw(&bytes)
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.number(value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.number(value.to_le_bytes())
    }

    /// A count, a length or a dimension: 32 bits in version 1.
    pub(crate) fn length(self, value: u64) -> Self {
        if self.version == 1 { self.u32(u32::try_from(value).expect("32 bits")) } else { self.u64(value) }
    }

    pub(crate) fn string(self, text: impl AsRef<[u8]>) -> Self {
        let text = text.as_ref();
        self.length(text.len() as u64).raw(text)
    }

    /// A key and the type of its value, which must follow.
    pub(crate) fn key(self, key: impl AsRef<[u8]>, value_type: u32) -> Self {
        self.string(key).u32(value_type)
    }

    /// The start of an array value, of which the elements must follow.
    pub(crate) fn array(self, element: u32, count: u64) -> Self {
        self.u32(element).length(count)
    }

    /// The record of a tensor; `dims` has the fastest dimension first.
    pub(crate) fn tensor(self, name: impl AsRef<[u8]>, dims: &[u64], type_id: u32, offset: u64) -> Self {
        let start = self.string(name).u32(dims.len() as u32);
        dims.iter().fold(start, |made, dim| made.length(*dim)).u32(type_id).u64(offset)
    }

    /// Zeros up to a multiple of `alignment`.
    pub(crate) fn pad(mut self, alignment: usize) -> Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(alignment), 0);
        self
    }

    pub(crate) fn data(mut self, len: usize) -> Self {
        self.bytes.resize(self.bytes.len() + len, 7);
        self
    }
}

/// A file of one tensor `t` of an unknown type.
pub(crate) fn unknown() -> (&'static str, Vec<u8>) {
    ("model.gguf", Made::new(1, 0).tensor("t", &[32], 200, 0).pad(32).data(32).bytes)
}
