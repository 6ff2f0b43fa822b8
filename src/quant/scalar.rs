//! Decoding without vector instructions of any one processor: the oracle of every faster path.
//!
//! A decoder turns one block into an array of f32; [`each_block`] is the one loop around all of them. The order of the operations
//! is ggml's and gguf-py's, each rounded to f32 and none fused, so that the results are theirs bit for bit.

use half::f16;
use half::slice::HalfFloatSliceExt as _;

use super::Encoding;
use super::{iq, k, simple, ternary};

/// What is written for each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    F32,
    F16,
    BF16,
}

/// Decodes whole blocks into elements of the target type. The lengths were checked; of longer slices the rest is left alone.
pub(super) fn dequantize(encoding: Encoding, blocks: &[u8], target: Target, out: &mut [u8]) {
    match encoding {
        Encoding::Q4_0 => each_block(simple::q4_0, blocks, target, out),
        Encoding::Q4_1 => each_block(simple::q4_1, blocks, target, out),
        Encoding::Q5_0 => each_block(simple::q5_0, blocks, target, out),
        Encoding::Q5_1 => each_block(simple::q5_1, blocks, target, out),
        Encoding::Q8_0 => each_block(simple::q8_0, blocks, target, out),
        Encoding::Q8_1 => each_block(simple::q8_1, blocks, target, out),
        Encoding::Q2_K => each_block(k::q2_k, blocks, target, out),
        Encoding::Q3_K => each_block(k::q3_k, blocks, target, out),
        Encoding::Q4_K => each_block(k::q4_k, blocks, target, out),
        Encoding::Q5_K => each_block(k::q5_k, blocks, target, out),
        Encoding::Q6_K => each_block(k::q6_k, blocks, target, out),
        Encoding::Q8_K => each_block(k::q8_k, blocks, target, out),
        Encoding::IQ2_XXS => each_block(iq::iq2_xxs, blocks, target, out),
        Encoding::IQ2_XS => each_block(iq::iq2_xs, blocks, target, out),
        Encoding::IQ3_XXS => each_block(iq::iq3_xxs, blocks, target, out),
        Encoding::IQ1_S => each_block(iq::iq1_s, blocks, target, out),
        Encoding::IQ4_NL => each_block(iq::iq4_nl, blocks, target, out),
        Encoding::IQ3_S => each_block(iq::iq3_s, blocks, target, out),
        Encoding::IQ2_S => each_block(iq::iq2_s, blocks, target, out),
        Encoding::IQ4_XS => each_block(iq::iq4_xs, blocks, target, out),
        Encoding::IQ1_M => each_block(iq::iq1_m, blocks, target, out),
        Encoding::TQ1_0 => each_block(ternary::tq1_0, blocks, target, out),
        Encoding::TQ2_0 => each_block(ternary::tq2_0, blocks, target, out),
        Encoding::MXFP4 => each_block(simple::mxfp4, blocks, target, out),
        Encoding::NVFP4 => each_block(simple::nvfp4, blocks, target, out),
        Encoding::Q1_0 => each_block(simple::q1_0, blocks, target, out),
        Encoding::Q2_0 => each_block(simple::q2_0, blocks, target, out),
    }
}

/// Runs a decoder over every block.
fn each_block<const BYTES: usize, const ELEMENTS: usize>(
    decode: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
    blocks: &[u8],
    target: Target,
    out: &mut [u8],
) {
    let (blocks, _) = blocks.as_chunks::<BYTES>();
    let mut values = [0.0; ELEMENTS];
    match target {
        Target::F32 => {
            let (out, _) = out.as_chunks_mut::<4>();
            for (block, out) in blocks.iter().zip(out.as_chunks_mut::<ELEMENTS>().0) {
                decode(block, &mut values);
                for (out, value) in out.iter_mut().zip(&values) {
                    *out = value.to_ne_bytes();
                }
            }
        }
        Target::F16 => {
            let (out, _) = out.as_chunks_mut::<2>();
            let mut rounded = [f16::ZERO; ELEMENTS];
            for (block, out) in blocks.iter().zip(out.as_chunks_mut::<ELEMENTS>().0) {
                decode(block, &mut values);
                rounded.convert_from_f32_slice(&values);
                for (out, value) in out.iter_mut().zip(&rounded) {
                    *out = value.to_ne_bytes();
                }
            }
        }
        Target::BF16 => {
            let (out, _) = out.as_chunks_mut::<2>();
            for (block, out) in blocks.iter().zip(out.as_chunks_mut::<ELEMENTS>().0) {
                decode(block, &mut values);
                for (out, value) in out.iter_mut().zip(&values) {
                    *out = bf16_bits(*value).to_ne_bytes();
                }
            }
        }
    }
}

/// The bf16 nearest to a value, ties to even; a NaN keeps its sign and upper payload and becomes quiet. Without branches, so that it
/// compiles to vector code.
#[inline]
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    (if value.is_nan() { quiet } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use super::bf16_bits;

    #[test]
    fn every_upper_half_and_each_kind_of_lower_half_rounds_as_the_reference_does() {
        for upper in 0..=u16::MAX {
            for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(upper) << 16 | lower);
                assert_eq!(bf16_bits(value), half::bf16::from_f32(value).to_bits(), "{upper:#06x}{lower:04x}");
            }
        }
    }
}
