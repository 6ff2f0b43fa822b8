//! What x86-64 has beside [`lanes`](super::lanes): decoders to f16 and bf16 that look elements up, and matrices of words that change places in registers.

#![allow(unsafe_code)] // the instructions of a level
#![allow(clippy::inline_always)] // or each operation on lanes is a call

pub(super) mod looked_up;
pub(super) mod transpose;

use super::{Encoding, STEP, Step, decode};
use crate::cast::{VALUES, from_f32};
use crate::dtype::DType;
use crate::simd::Aligned;
use crate::simd::Level;
use crate::simd::x86::{fence, with_default_rounding};

/// Decodes blocks to f16 or bf16, if the level, which is available, has a kernel for that. After calls with `stream` a fence is needed.
pub(super) fn decode_narrow(
    level: Level,
    encoding: Encoding,
    blocks: &[u8],
    to: DType,
    out: &mut [u8],
    stream: bool,
) -> bool {
    let Some(kernel) = looked_up::kernel(level, encoding, to, stream && looked_up::may_stream(out)) else {
        return false;
    };
    let at_once = VALUES / encoding.elements_per_block();
    let (bytes_in, bytes_out) = (encoding.bytes_per_block(), encoding.elements_per_block() * to.bits() / 8);
    for (blocks, out) in blocks.chunks(at_once * bytes_in).zip(out.chunks_mut(at_once * bytes_out)) {
        // SAFETY: the level is available, as the caller checked; the kernel streams only if the output is at a multiple of 16, and with it each
        // part, of `VALUES` elements.
        let regular = with_default_rounding(|| unsafe { kernel(blocks, out.as_chunks_mut().0) });
        if !regular {
            decode_by_f32(level, encoding, blocks, to, out, stream);
        }
    }
    true
}

/// The same for at most [`VALUES`] elements by way of f32, by what rounds every value right.
#[cold]
fn decode_by_f32(level: Level, encoding: Encoding, blocks: &[u8], to: DType, out: &mut [u8], stream: bool) {
    let mut values: Aligned<[Step; VALUES / STEP]> = Aligned([[0; 4 * STEP]; _]);
    let values = &mut values.0[..out.len() / (to.bits() / 8) / STEP];
    decode(level, encoding, blocks, values);
    if stream {
        fence(); // what was streamed to the same place is there before
    }
    from_f32(level, values.as_flattened(), to, out, stream);
}
