//! Sixteen bytes in one register, in which packed integers are unpacked before they become [`Lanes`](super::Lanes). The instructions are the same at
//! both levels.
//!
//! Both halves of the register hold all sixteen bytes, because AVX2 shuffles bytes within halves only. A shuffle makes lanes of eight bytes in half
//! the time of the instruction that extends them.

#![allow(unsafe_code)] // vector intrinsics

use std::arch::x86_64::*;

/// Sixteen bytes, the first in the lowest lane.
///
/// # Safety
/// Every method may only be called in a function that enables AVX2, on a processor that has it.
#[derive(Clone, Copy)]
pub(crate) struct Bytes16(pub(super) __m256i);

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident ($($argument:ident $(: $type:ty)?),*) => $value:expr;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub(crate) unsafe fn $name($($argument $(: $type)?),*) -> Self {
            // SAFETY: only registers and referents of references are accessed; the instructions are enabled by the contract of the type.
            Self(unsafe { $value })
        }
    )*};
}

impl Bytes16 {
    methods! {
        load(bytes: &[u8; 16]) => _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast()));
        /// The same byte in each lane.
        splat(byte: u8) => _mm256_set1_epi8(byte.cast_signed());
        /// Eight bytes in the lower lanes and eight in the upper ones.
        from_halves(low: u64, high: u64) => _mm256_broadcastsi128_si256(_mm_set_epi64x(high.cast_signed(), low.cast_signed()));
        /// -1 in each lane whose bit is set, for the low or the high sixteen bits of a word, with the lowest of them in the first lane; 0 in the
        /// others.
        mask_of_bits(word: u32, half: usize) => {
            let each = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
            let (first, second) = (0x0202_0202_0202_0202 * half as i64, 0x0101_0101_0101_0101);
            let byte_of_lane = _mm256_broadcastsi128_si256(_mm_set_epi64x(first + second, first));
            let bits = _mm256_shuffle_epi8(_mm256_set1_epi32(word.cast_signed()), byte_of_lane);
            _mm256_cmpeq_epi8(_mm256_and_si256(bits, each), each)
        };
        and(self, other: Self) => _mm256_and_si256(self.0, other.0);
        or(self, other: Self) => _mm256_or_si256(self.0, other.0);
        add(self, other: Self) => _mm256_add_epi8(self.0, other.0);
        sub(self, other: Self) => _mm256_sub_epi8(self.0, other.0);
        /// `width` bits of each lane, from bit `shift` on.
        bits(self, shift: u32, width: u32) => {
            let shifted = _mm256_srl_epi16(self.0, _mm_cvtsi32_si128(shift.cast_signed()));
            _mm256_and_si256(shifted, _mm256_set1_epi8((1 << width) - 1))
        };
        /// Each lane, less than 16, moved up by `shift` bits, at most 4.
        shl(self, shift: u32) => _mm256_sll_epi16(self.0, _mm_cvtsi32_si128(shift.cast_signed()));
        /// -1 where the unsigned lane is at least `least`, else 0.
        at_least(self, least: u8) => _mm256_cmpeq_epi8(_mm256_max_epu8(self.0, _mm256_set1_epi8(least.cast_signed())), self.0);
        /// The byte of a table at each lane, which must be less than 16.
        lookup(self, table: &[i8; 16]) => _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), self.0);
        /// The first eight bytes of two registers, taking turns.
        interleave_low(self, other: Self) => _mm256_unpacklo_epi8(self.0, other.0);
        /// The last eight bytes of two registers, taking turns.
        interleave_high(self, other: Self) => _mm256_unpackhi_epi8(self.0, other.0);
        /// The first four pairs of bytes of two registers, taking turns.
        interleave_low_pairs(self, other: Self) => _mm256_unpacklo_epi16(self.0, other.0);
        /// The last four pairs of bytes of two registers, taking turns.
        interleave_high_pairs(self, other: Self) => _mm256_unpackhi_epi16(self.0, other.0);
        /// Lanes with their signs flipped where the mask is -1.
        negated_where(self, mask: Self) => _mm256_sub_epi8(_mm256_xor_si256(self.0, mask.0), mask.0);
    }
}

/// Thirty-two bytes, the first in the lowest lane: codes for a lookup.
///
/// # Safety
/// As for [`Bytes16`].
#[derive(Clone, Copy)]
pub(crate) struct Bytes32(pub(super) __m256i);

impl Bytes32 {
    methods! {
        load(bytes: &[u8; 32]) => _mm256_loadu_si256(bytes.as_ptr().cast());
        /// The low nibbles of sixteen bytes, then the high ones.
        nibbles(packed: Bytes16) => {
            let shifted = _mm256_srlv_epi64(packed.0, _mm256_setr_epi64x(0, 0, 4, 4));
            _mm256_and_si256(shifted, _mm256_set1_epi8(15))
        };
        /// The low nibble of each byte and then its high one.
        nibbles_in_turns(packed: Bytes16) => {
            let words = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(packed.0));
            _mm256_and_si256(_mm256_or_si256(words, _mm256_slli_epi16::<4>(words)), _mm256_set1_epi8(15))
        };
        /// 16 in each lane whose bit is set, of the bits of a word, the lowest of them in the first lane; 0 in the others.
        fifth_bits(word: u32) => {
            let each = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
            let byte_of_lane = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            let bits = _mm256_shuffle_epi8(_mm256_set1_epi32(word.cast_signed()), byte_of_lane);
            _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bits, each), each), _mm256_set1_epi8(16))
        };
        /// Sixteen bytes, and sixteen others.
        joined(low: Bytes16, high: Bytes16) => _mm256_blend_epi32::<0b1111_0000>(low.0, high.0);
        or(self, other: Self) => _mm256_or_si256(self.0, other.0);
        /// `width` bits of each lane, from bit `shift` on.
        bits(self, shift: u32, width: u32) => {
            let shifted = _mm256_srl_epi16(self.0, _mm_cvtsi32_si128(shift.cast_signed()));
            _mm256_and_si256(shifted, _mm256_set1_epi8((1 << width) - 1))
        };
        /// Each lane, less than 16, moved up by `shift` bits, at most 4.
        shl(self, shift: u32) => _mm256_sll_epi16(self.0, _mm_cvtsi32_si128(shift.cast_signed()));
    }
}

/// The value of an f16, the low bits of a number; a NaN becomes quiet.
///
/// # Safety
/// As for [`Bytes16`], with F16C.
#[inline(always)]
pub(crate) unsafe fn f16_to_f32(bits: u64) -> f32 {
    // SAFETY: only registers are accessed; the caller has enabled AVX2 and F16C.
    unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi64_si128(bits.cast_signed()))) }
}
