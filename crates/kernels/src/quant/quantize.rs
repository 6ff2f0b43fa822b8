//! Floats into blocks: the encodings that need no search (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0), byte for byte as gguf-py writes them.
//!
//! NaN, infinities and scales too small to invert are treated as by gguf-py, too. Integers that do not fit wrap, as in NumPy on x86-64, and a value
//! without an integer becomes 0.

use half::f16;

use super::Encoding;
use crate::error::{Error, Result};

/// Encodes `values` into whole blocks.
pub fn quantize(encoding: Encoding, values: &[f32], out: &mut [u8]) -> Result<()> {
    let encode = match encoding {
        Encoding::Q4_0 => |values: &[f32], out: &mut [u8]| each_block(q4_0, values, out),
        Encoding::Q4_1 => |values: &[f32], out: &mut [u8]| each_block(q4_1, values, out),
        Encoding::Q5_0 => |values: &[f32], out: &mut [u8]| each_block(q5_0, values, out),
        Encoding::Q5_1 => |values: &[f32], out: &mut [u8]| each_block(q5_1, values, out),
        Encoding::Q8_0 => |values: &[f32], out: &mut [u8]| each_block(q8_0, values, out),
        _ => {
            let cause = format!("{encoding} blocks can be decoded, but not encoded");
            return Err(Error::QuantizationEncode(cause));
        }
    };
    let (per_block, bytes) = (encoding.elements_per_block(), encoding.bytes_per_block());
    if !values.len().is_multiple_of(per_block) {
        return Err(Error::Argument(format!(
            "{} elements are not whole blocks of {encoding}, which hold {per_block} elements each",
            values.len()
        )));
    }
    let needed = (values.len() / per_block).checked_mul(bytes);
    if needed != Some(out.len()) {
        return Err(Error::Argument(format!(
            "{} elements take {} blocks of {encoding} of {bytes} bytes each; the output has {} bytes, which is not their size",
            values.len(),
            values.len() / per_block,
            out.len()
        )));
    }
    encode(values, out);
    Ok(())
}

fn each_block<const BYTES: usize>(encode: impl Fn(&[f32; 32]) -> [u8; BYTES], values: &[f32], out: &mut [u8]) {
    let (values, _) = values.as_chunks::<32>();
    let (blocks, _) = out.as_chunks_mut::<BYTES>();
    for (values, block) in values.iter().zip(blocks) {
        *block = encode(values);
    }
}

/// The reciprocal of a scale; 0 for a scale of 0.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The f16 nearest to `value`, as stored. A NaN keeps its sign and the upper bits of its payload.
fn stored(value: f32) -> [u8; 2] {
    f16::from_f32_const(value).to_le_bytes()
}

/// `value` truncated, its lowest eight bits: 0 where it does not fit 32 bits or is NaN.
fn wrapped(value: f32) -> u8 {
    const LIMIT: f32 = 2_147_483_648.0;
    if value < LIMIT { value as i32 as u8 } else { 0 }
}

/// The value of the largest magnitude: the first of several, or the first NaN.
fn extreme(values: &[f32; 32]) -> f32 {
    let mut found = values[0];
    for value in values {
        if !found.is_nan() && (value.is_nan() || value.abs() > found.abs()) {
            found = *value;
        }
    }
    found
}

/// The least and the greatest value, or NaN where there is one. Of zeros of both signs the last counts, as in NumPy.
fn extent(values: &[f32; 32]) -> (f32, f32) {
    let (mut least, mut greatest) = (values[0], values[0]);
    for &value in values {
        if value.is_nan() {
            return (value, value);
        }
        if value <= least {
            least = value;
        }
        if value >= greatest {
            greatest = value;
        }
    }
    (least, greatest)
}

/// Sixteen bytes of nibbles: the first half of the elements in the low ones.
fn nibbles(quants: [u8; 32]) -> [u8; 16] {
    std::array::from_fn(|i| quants[i] & 15 | quants[16 + i] << 4)
}

/// The fifth bits, in element order.
fn fifth_bits(quants: [u8; 32]) -> [u8; 4] {
    let word = quants.iter().rev().fold(0_u32, |word, quant| word << 1 | u32::from(quant >> 4 & 1));
    word.to_le_bytes()
}

/// Writes the fields of a block in sequence.
fn joined<const BYTES: usize>(fields: &[&[u8]]) -> [u8; BYTES] {
    let mut block = [0; BYTES];
    for (byte, field) in block.iter_mut().zip(fields.iter().copied().flatten()) {
        *byte = *field;
    }
    block
}

/// Integers of `2 * zero` levels around `zero`; the extreme value gets the lowest level, whatever its sign.
fn symmetric(values: &[f32; 32], zero: u8) -> (f32, [u8; 32]) {
    let scale = extreme(values) / -f32::from(zero);
    let inverse = inverse(scale);
    (scale, values.map(|value| wrapped(value * inverse + (f32::from(zero) + 0.5)).min(2 * zero - 1)))
}

/// Integers of `0..=top` levels from the least value to the greatest.
fn ranged(values: &[f32; 32], top: u8) -> (f32, f32, [u8; 32]) {
    let (least, greatest) = extent(values);
    let scale = (greatest - least) / f32::from(top);
    let inverse = inverse(scale);
    (scale, least, values.map(|value| wrapped((value - least) * inverse + 0.5).min(top)))
}

fn q4_0(values: &[f32; 32]) -> [u8; 18] {
    let (scale, quants) = symmetric(values, 8);
    joined(&[&stored(scale), &nibbles(quants)])
}

fn q4_1(values: &[f32; 32]) -> [u8; 20] {
    let (scale, least, quants) = ranged(values, 15);
    joined(&[&stored(scale), &stored(least), &nibbles(quants)])
}

fn q5_0(values: &[f32; 32]) -> [u8; 22] {
    let (scale, quants) = symmetric(values, 16);
    joined(&[&stored(scale), &fifth_bits(quants), &nibbles(quants)])
}

fn q5_1(values: &[f32; 32]) -> [u8; 24] {
    let (scale, least, quants) = ranged(values, 31);
    joined(&[&stored(scale), &stored(least), &fifth_bits(quants), &nibbles(quants)])
}

/// Signed bytes, rounded half away from zero.
fn q8_0(values: &[f32; 32]) -> [u8; 34] {
    let scale = extreme(values).abs() / 127.0;
    let inverse = inverse(scale);
    let quants = values.map(|value| {
        let value = value * inverse;
        let magnitude = value.abs();
        // At most 127, except for scales that cannot be inverted, whose integers are 0.
        let whole = if magnitude < 256.0 { f32::from(magnitude as u8) } else { f32::NAN };
        let up = if magnitude - whole >= 0.5 { 1.0 } else { 0.0 };
        wrapped((whole + up).copysign(value))
    });
    joined(&[&stored(scale), &quants])
}
