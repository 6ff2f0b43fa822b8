//! Decoding without vector instructions of any one processor: the oracle of every faster path.
//!
//! A decoder turns one block into an array of f32; [`each_block`] is the one loop around all of them. The order of the operations
//! is ggml's and gguf-py's, each rounded to f32 and none fused, so that the results are theirs bit for bit.

use super::{DecodeStep, Encoding, STEP, iq, k, simple, ternary};

/// Decodes whole blocks. The lengths were checked; of longer slices the rest is left alone.
pub(super) fn decode(encoding: Encoding, blocks: &[u8], out: &mut [DecodeStep]) {
    match encoding {
        Encoding::Q4_0 => each_block(simple::q4_0, blocks, out),
        Encoding::Q4_1 => each_block(simple::q4_1, blocks, out),
        Encoding::Q5_0 => each_block(simple::q5_0, blocks, out),
        Encoding::Q5_1 => each_block(simple::q5_1, blocks, out),
        Encoding::Q8_0 => each_block(simple::q8_0, blocks, out),
        Encoding::Q8_1 => each_block(simple::q8_1, blocks, out),
        Encoding::Q2_K => each_block(k::q2_k, blocks, out),
        Encoding::Q3_K => each_block(k::q3_k, blocks, out),
        Encoding::Q4_K => each_block(k::q4_k, blocks, out),
        Encoding::Q5_K => each_block(k::q5_k, blocks, out),
        Encoding::Q6_K => each_block(k::q6_k, blocks, out),
        Encoding::Q8_K => each_block(k::q8_k, blocks, out),
        Encoding::IQ2_XXS => each_block(iq::iq2_xxs, blocks, out),
        Encoding::IQ2_XS => each_block(iq::iq2_xs, blocks, out),
        Encoding::IQ3_XXS => each_block(iq::iq3_xxs, blocks, out),
        Encoding::IQ1_S => each_block(iq::iq1_s, blocks, out),
        Encoding::IQ4_NL => each_block(iq::iq4_nl, blocks, out),
        Encoding::IQ3_S => each_block(iq::iq3_s, blocks, out),
        Encoding::IQ2_S => each_block(iq::iq2_s, blocks, out),
        Encoding::IQ4_XS => each_block(iq::iq4_xs, blocks, out),
        Encoding::IQ1_M => each_block(iq::iq1_m, blocks, out),
        Encoding::TQ1_0 => each_block(ternary::tq1_0, blocks, out),
        Encoding::TQ2_0 => each_block(ternary::tq2_0, blocks, out),
        Encoding::MXFP4 => each_block(simple::mxfp4, blocks, out),
        Encoding::NVFP4 => each_block(simple::nvfp4, blocks, out),
        Encoding::Q1_0 => each_block(simple::q1_0, blocks, out),
        Encoding::Q2_0 => each_block(simple::q2_0, blocks, out),
    }
}

/// Runs a decoder over every block.
fn each_block<const BYTES: usize, const ELEMENTS: usize>(
    decode: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
    blocks: &[u8],
    out: &mut [DecodeStep],
) {
    let mut values = [0.0; ELEMENTS];
    for (block, out) in blocks.as_chunks::<BYTES>().0.iter().zip(out.chunks_exact_mut(ELEMENTS / STEP)) {
        decode(block, &mut values);
        for (out, value) in out.as_flattened_mut().as_chunks_mut::<4>().0.iter_mut().zip(&values) {
            *out = value.to_ne_bytes();
        }
    }
}
