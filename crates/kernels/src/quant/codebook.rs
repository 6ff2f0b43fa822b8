//! Codes of four or eight bits that index a table of values, with a scale for each block of elements, as bitsandbytes writes them.
//!
//! An element is `values[code] * scale`, rounded to f32, and perhaps multiplied by a factor or added to an offset, rounded again; the result is
//! rounded once to a narrower type. Blocks are consecutive elements, regardless of the rows of the tensor.

use std::ops::Range;

use crate::cast::{self, Lines, VALUES};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::quant::after::After;
use crate::simd::Level;

/// Codes with their table and the scales of their blocks.
#[derive(Debug, Clone, Copy)]
pub struct Codebook<'a> {
    /// Bits of a code: 4 or 8.
    pub bits: u32,
    /// The codes; of four bits, the high half of a byte comes first.
    pub packed: &'a [u8],
    /// The number of codes: with four bits, the last half byte may be unused.
    pub elements: usize,
    /// The value of each code, 16 or 256 of them, all finite.
    pub values: &'a [f32],
    /// A scale for each block, as f32.
    pub scales: &'a [u8],
    /// Elements of a block; an even number for codes of four bits. The last block may be ragged.
    pub block: usize,
    /// The step after the product.
    pub after: After,
}

/// Decodes some elements into `out`, elements of `dtype` (float32, float16 or bfloat16), which has room for these alone: so that several threads can
/// each do a part. A part of codes of four bits begins at an even element. With `stream` it is written past the caches: for an output that is
/// too large for them.
pub fn dequantize_codes(
    codes: &Codebook<'_>,
    elements: Range<usize>,
    out: &mut [u8],
    dtype: DType,
    stream: bool,
) -> Result<()> {
    dequantize_codes_at(Level::chosen()?, codes, elements, out, dtype, stream)
}

/// [`dequantize_codes`] with the instructions of a level, which must be available.
pub fn dequantize_codes_at(
    level: Level,
    codes: &Codebook<'_>,
    elements: Range<usize>,
    out: &mut [u8],
    dtype: DType,
    stream: bool,
) -> Result<()> {
    level.require()?;
    super::require_float("codes", dtype)?;
    check(codes, &elements, out.len(), dtype)?;
    let mut lines = Lines::new(level, dtype, out, stream);
    for start in elements.clone().step_by(VALUES) {
        let count = VALUES.min(elements.end - start);
        let buffer = lines.reserve(count);
        match <&[f32; 16]>::try_from(codes.values) {
            Ok(values) => four_bits(level, codes, values, start, buffer),
            Err(_) => eight_bits(codes, start, buffer),
        }
        lines.push(count);
    }
    lines.finish();
    if stream {
        cast::fence();
    }
    Ok(())
}

/// An error unless all sizes fit together.
fn check(codes: &Codebook<'_>, range: &Range<usize>, out: usize, dtype: DType) -> Result<()> {
    let argument = |message: String| Err(Error::Argument(message));
    let &Codebook { bits, elements, block, .. } = codes;
    let (values, per_byte) = match bits {
        4 => (16, 2),
        8 => (256, 1),
        _ => return argument(format!("codes of {bits} bits are none of 4 or 8")),
    };
    if codes.values.len() != values {
        return argument(format!("codes of {bits} bits have {values} values, not {}", codes.values.len()));
    }
    let constant = match codes.after {
        After::Nothing => 0.0,
        After::Times(constant) | After::Plus(constant) => constant,
    };
    if let Some(value) = codes.values.iter().chain([&constant]).find(|value| !value.is_finite()) {
        return argument(format!("the value {value} of a code, or what follows it, is not finite"));
    }
    if block == 0 || !block.is_multiple_of(per_byte) {
        return argument(format!("a block of {block} codes of {bits} bits does not end on a byte, or is empty"));
    }
    if range.start > range.end || range.end > elements || !range.start.is_multiple_of(per_byte) {
        return argument(format!("elements {}..{} of {elements} codes of {bits} bits", range.start, range.end));
    }
    let sizes = [
        ("codes", codes.packed.len(), Some(elements.div_ceil(per_byte))),
        ("scales", codes.scales.len(), elements.div_ceil(block).checked_mul(4)),
        ("output", out, range.len().checked_mul(dtype.bits() / 8)),
    ];
    for (what, actual, expected) in sizes {
        if expected != Some(actual) {
            let expected = expected.map_or_else(|| "too many bytes to count".into(), |n| format!("{n} bytes"));
            return argument(format!(
                "the {what} of {elements} elements of {bits} bits in blocks of {block} should have {expected}, and have {actual} bytes"
            ));
        }
    }
    Ok(())
}

/// The scale of a block, a NaN quiet.
fn scale(codes: &Codebook<'_>, block: usize) -> f32 {
    let (scales, _) = codes.scales.as_chunks::<4>();
    let scale = f32::from_le_bytes(scales[block]);
    if scale.is_nan() { f32::from_bits(scale.to_bits() | 0x0040_0000) } else { scale }
}

fn four_bits(level: Level, codes: &Codebook<'_>, values: &[f32; 16], start: usize, out: &mut [[u8; 4]]) {
    // The low half first, in the order of the lookup in registers.
    let mut swapped = [0; VALUES / 2];
    let packed = &codes.packed[start / 2..][..out.len().div_ceil(2)];
    for (swapped, packed) in swapped.iter_mut().zip(packed) {
        *swapped = packed.rotate_left(4);
    }
    for (block, run) in super::groups::runs(codes.block, start, out.len()) {
        let (packed, scale) = (&swapped[run.start / 2..run.end.div_ceil(2)], scale(codes, block));
        let out = &mut out[run];
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        let done = super::lanes::codebook::look_up(level, packed, values, scale, codes.after, out);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let done = {
            let _ = level;
            0
        };
        for (code, value) in (done..).zip(&mut out[done..]) {
            let code = packed[code / 2] >> (4 * (code % 2)) & 15;
            *value = element(values[usize::from(code)], scale, codes.after).to_le_bytes();
        }
    }
}

fn eight_bits(codes: &Codebook<'_>, start: usize, out: &mut [[u8; 4]]) {
    let packed = &codes.packed[start..][..out.len()];
    for (block, run) in super::groups::runs(codes.block, start, out.len()) {
        let scale = scale(codes, block);
        for (code, value) in packed[run.clone()].iter().zip(&mut out[run]) {
            *value = element(codes.values[usize::from(*code)], scale, codes.after).to_le_bytes();
        }
    }
}

/// The value of a code. A NaN is spelled out, because Rust leaves its bits open: that of the scale, or the one that x86 makes of infinity times zero.
#[inline]
fn element(value: f32, scale: f32, after: After) -> f32 {
    const INVALID: f32 = f32::from_bits(0xffc0_0000);
    let product = value * scale;
    if product.is_nan() {
        return if scale.is_nan() { scale } else { INVALID };
    }
    match after {
        After::Nothing => product,
        After::Plus(offset) => product + offset,
        // An infinity times zero.
        After::Times(factor) if factor == 0.0 && product.is_infinite() => INVALID,
        After::Times(factor) => product * factor,
    }
}
