//! Rows of eight-bit floats times the scale of their block, with AVX-512 VBMI: a block has 256 results, which are looked up.
//!
//! Half of them are enough, because the sign of a product is that of its element where the scale is positive, and the other where it is
//! negative. So the results for the positive codes of a block lie in four registers, the low bytes and the high ones.

#![allow(unsafe_code)] // vector intrinsics and raw pointers into slices

use std::arch::x86_64::*;

use super::byte_table::{load, store};
use super::narrow::planes;
use crate::dtype::DType;

/// Codes without a sign.
pub(super) const CODES: usize = 128;
const STEP: usize = 64;

/// The results for the positive codes: 128 low bytes, 128 high ones, each register in one cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct SignedTable([u8; 2 * CODES]);

/// True if the products of an element and its negative differ in nothing but the sign. Not so where a NaN or a zero has no sign, and where the
/// product is a NaN that neither factor was.
pub(super) fn is_symmetric(dtype: DType, scale: f32) -> bool {
    matches!(dtype, DType::Float8E4M3Fn | DType::Float8E5M2) && scale.is_finite() && scale != 0.0
}

impl SignedTable {
    /// From the results in order, two bytes each.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub(super) fn new(words: &[u8; 2 * CODES]) -> Self {
        let mut table = Self([0; 2 * CODES]);
        let (registers, _) = words.as_chunks::<64>();
        for (half, pair) in registers.chunks_exact(2).enumerate() {
            // SAFETY: the instructions are enabled here; two times 64 bytes are written, at 0 and 128 or at 64 and 192 of 256.
            unsafe {
                let (high, low) = planes(load(&pair[0]), load(&pair[1]));
                let to = table.0.as_mut_ptr().add(half * 64);
                _mm512_storeu_si512(to.cast(), low);
                _mm512_storeu_si512(to.add(CODES).cast(), high);
            }
        }
        table
    }

    fn one(&self, code: u8) -> [u8; 2] {
        let index = usize::from(code & 0x7f);
        [self.0[index], self.0[CODES + index] ^ (code & 0x80)]
    }
}

/// Rows of `cols` bytes, in blocks of `block` columns with a table each. With `stream`, a fence is needed afterwards.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) fn rows(tables: &[SignedTable], (block, cols): (usize, usize), src: &[u8], dst: &mut [u8], stream: bool) {
    // Whole blocks of whole steps, and whole rows of them, keep the alignment that the destination begins with.
    let whole = block.is_multiple_of(STEP) && cols.is_multiple_of(STEP);
    let streams = stream && whole && dst.as_ptr().addr().is_multiple_of(64);
    for (src, dst) in src.chunks_exact(cols).zip(dst.chunks_exact_mut(2 * cols)) {
        let blocks = src.chunks(block).zip(dst.chunks_mut(2 * block));
        for (table, (src, dst)) in tables.iter().zip(blocks) {
            // SAFETY: it is streamed where the destination, and so each block of it, is aligned to 64; the instructions are enabled here.
            unsafe {
                if streams {
                    block_of_row::<true>(table, src, dst);
                } else {
                    block_of_row::<false>(table, src, dst);
                }
            }
        }
    }
}

/// # Safety
/// `dst` must be aligned to 64 if `STREAM`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn block_of_row<const STREAM: bool>(table: &SignedTable, src: &[u8], dst: &mut [u8]) {
    let (registers, _) = table.0.as_chunks::<64>();
    let (low, high) = ((load(&registers[0]), load(&registers[1])), (load(&registers[2]), load(&registers[3])));
    // The unpacking below works on quarters of a register, and takes the lower half of each first.
    let order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    let sign = _mm512_set1_epi8(i8::MIN);
    let (steps, rest) = src.as_chunks::<STEP>();
    let (to_steps, to_rest) = dst.as_chunks_mut::<{ 2 * STEP }>();
    for (codes, to) in steps.iter().zip(to_steps.iter_mut()) {
        let codes = _mm512_permutexvar_epi64(order, load(codes));
        // The lookup takes seven bits of an index, which leaves the sign out.
        let low = _mm512_permutex2var_epi8(low.0, codes, low.1);
        let high = _mm512_permutex2var_epi8(high.0, codes, high.1);
        // high ^ (codes & sign)
        let high = _mm512_ternarylogic_epi32::<0x78>(high, codes, sign);
        // SAFETY: 128 bytes are written to an array of 128; the caller has aligned it where `STREAM` asks for it.
        unsafe {
            store::<STREAM>(to.as_mut_ptr(), _mm512_unpacklo_epi8(low, high));
            store::<STREAM>(to.as_mut_ptr().add(64), _mm512_unpackhi_epi8(low, high));
        }
    }
    for (code, to) in rest.iter().zip(to_rest.as_chunks_mut::<2>().0) {
        *to = table.one(*code);
    }
}
