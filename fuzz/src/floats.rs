//! Compares the elements that a decoder wrote with those of its definition.

use half::{bf16, f16};
use max_weights::dtype::DType;

/// What decoders write.
pub(super) const FLOATS: [DType; 3] = [DType::Float32, DType::BFloat16, DType::Float16];

/// Panics unless these are the bits of a value in a dtype; of NaNs, the bits may be any.
pub(super) fn check_element(bytes: &[u8], expected: f32, dtype: DType, place: impl std::fmt::Debug) {
    let (same, is_nan) = match (dtype, bytes) {
        (DType::Float32, &[a, b, c, d]) => {
            let value = f32::from_le_bytes([a, b, c, d]);
            (value.to_bits() == expected.to_bits(), value.is_nan())
        }
        (DType::BFloat16, &[a, b]) => {
            let value = bf16::from_le_bytes([a, b]);
            (value.to_bits() == bf16::from_f32(expected).to_bits(), value.is_nan())
        }
        (_, &[a, b]) => {
            let value = f16::from_le_bytes([a, b]);
            (value.to_bits() == f16::from_f32(expected).to_bits(), value.is_nan())
        }
        _ => (false, false),
    };
    assert!(same || (expected.is_nan() && is_nan), "expected {expected} at {place:?} of {dtype}, not {bytes:?}");
}
