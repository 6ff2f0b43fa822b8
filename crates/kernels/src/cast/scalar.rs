//! The oracle: converts each element through [`FloatValue`], by the rules of the docs page "dtypes".
//!
//! It serves the pairs that are unusual for models, and every other way of converting is tested against it.

use crate::cast::small_float::{FloatFormat, FloatValue};
use crate::dtype::DType;

/// An element of any real dtype. Integers stay apart, because an integer wraps where a float saturates.
#[derive(Debug, Clone, Copy)]
enum RealValue {
    Integer(i128),
    Float(FloatValue),
}

/// Converts `src`, elements of `from`, into `dst`. The caller has checked that both hold the same number of elements and that
/// neither dtype is complex.
pub(super) fn convert(from: DType, to: DType, src: &[u8], dst: &mut [u8], saturate: bool) {
    let elements = src.len() * 8 / from.bits();
    for index in 0..elements {
        let value = read(from, code(from.bits(), src, index));
        put(to.bits(), dst, index, write(to, value, saturate));
    }
}

/// The bits of element `index`. Types of less than a byte are packed from the lowest bit up: element `i` begins at bit `i * bits`
/// of the little-endian number that the bytes are.
fn code(bits: usize, bytes: &[u8], index: usize) -> u64 {
    let start = index * bits;
    let mut word = [0; 8];
    let covered = &bytes[start / 8..(start + bits).div_ceil(8)];
    word[..covered.len()].copy_from_slice(covered);
    let word = u64::from_le_bytes(word) >> (start % 8);
    if bits == 64 { word } else { word & ((1 << bits) - 1) }
}

/// Sets the bits of element `index`.
fn put(bits: usize, bytes: &mut [u8], index: usize, code: u64) {
    let start = index * bits;
    let covered = &mut bytes[start / 8..(start + bits).div_ceil(8)];
    if bits.is_multiple_of(8) {
        covered.copy_from_slice(&code.to_le_bytes()[..bits / 8]);
    } else {
        let mask = ((1u16 << bits) - 1) << (start % 8);
        let code = (code as u16) << (start % 8);
        for (byte, (mask, code)) in covered.iter_mut().zip(mask.to_le_bytes().into_iter().zip(code.to_le_bytes())) {
            *byte = (*byte & !mask) | code;
        }
    }
}

fn read(dtype: DType, code: u64) -> RealValue {
    if let Some(format) = FloatFormat::of(dtype) {
        return RealValue::Float(format.decode(code));
    }
    RealValue::Integer(match dtype {
        DType::Bool => i128::from(code != 0),
        DType::Int8 => i128::from(code as i8),
        DType::Int16 => i128::from(code as i16),
        DType::Int32 => i128::from(code as i32),
        DType::Int64 => i128::from(code as i64),
        _ => i128::from(code),
    })
}

fn write(dtype: DType, value: RealValue, saturate: bool) -> u64 {
    if let Some(format) = FloatFormat::of(dtype) {
        let number = match value {
            RealValue::Integer(value) => FloatValue::from_integer(value),
            RealValue::Float(number) => number,
        };
        return format.encode(number, saturate);
    }
    match (dtype, value) {
        (DType::Bool, RealValue::Integer(value)) => u64::from(value != 0),
        (DType::Bool, RealValue::Float(number)) => u64::from(number.to_bool()),
        // Two's complement: `put` keeps the low bits.
        (_, RealValue::Integer(value)) => value as u64,
        (_, RealValue::Float(number)) => {
            let bits = dtype.bits() as u32;
            let (low, high) = match dtype {
                DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => {
                    (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
                }
                _ => (0, (1i128 << bits) - 1),
            };
            number.to_integer(low, high) as u64
        }
    }
}
