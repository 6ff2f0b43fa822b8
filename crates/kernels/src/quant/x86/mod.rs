//! What x86-64 has in addition to [`lanes`](super::lanes): decoders to f16 and bf16 by lookup, and transposition of matrices of words in registers.

#![allow(unsafe_code)] // the instructions of a level
#![allow(clippy::inline_always)] // or each operation on lanes is a call

pub(super) mod looked_up;
pub(super) mod transpose;

use super::{Encoding, lanes};
use crate::dtype::DType;
use crate::simd::{Level, with_default_rounding};

/// [`lanes::decode`], or by looking elements up, where that is faster.
pub(super) fn decode(level: Level, encoding: Encoding, blocks: &[u8], to: DType, out: &mut [u8], stream: bool) -> bool {
    match looked_up::kernel(level, encoding, to, stream && looked_up::may_stream(out)) {
        // SAFETY: the level is available, as the caller checked, and a streamed output is at a multiple of 16.
        Some(kernel) => with_default_rounding(|| unsafe { kernel(blocks, out) }),
        None => lanes::decode(level, encoding, blocks, to, out, stream),
    }
}
