//! NumPy's scalars, arrays and dtypes, as plain values.

/// A NumPy dtype of a fixed size: a kind, as in `dtype.str`, the bytes of an element, and their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NumpyDType {
    /// `b` bool, `i` `u` integers, `f` `c` floats, `S` bytes, `U` text, `O` objects, `V` anything.
    pub kind: u8,
    /// Bytes of an element.
    pub bytes: u32,
    /// Whether the most significant byte comes first.
    pub big_endian: bool,
}
