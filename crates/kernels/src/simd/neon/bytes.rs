//! Sixteen bytes in one register of NEON, in which packed integers are unpacked before they become lanes.

#![allow(unsafe_code)] // vector intrinsics

use std::arch::aarch64::*;
use std::arch::asm;

/// Sixteen bytes, the first in the lowest lane.
///
/// # Safety
/// None of the methods asks for anything, as NEON is part of AArch64: they are unsafe because those of other processors are.
#[derive(Clone, Copy)]
pub(crate) struct Bytes16(pub(super) uint8x16_t);

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident ($($argument:ident $(: $type:ty)?),*) => $value:expr;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub(crate) unsafe fn $name($($argument $(: $type)?),*) -> Self {
            // SAFETY: only registers and referents of references are accessed; NEON is part of AArch64.
            Self(unsafe { $value })
        }
    )*};
}

impl Bytes16 {
    methods! {
        load(bytes: &[u8; 16]) => vld1q_u8(bytes.as_ptr());
        /// The same byte in each lane.
        splat(byte: u8) => vdupq_n_u8(byte);
        /// Eight bytes in the lower lanes and eight in the upper ones.
        from_halves(low: u64, high: u64) => vcombine_u8(vcreate_u8(low), vcreate_u8(high));
        /// -1 in each lane whose bit is set, for the low or the high sixteen bits of a word, with the lowest of them in the first lane; 0 in the
        /// others.
        mask_of_bits(word: u32, half: usize) => {
            let [low, high] = ((word >> (16 * half)) as u16).to_le_bytes();
            let each = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            vtstq_u8(vcombine_u8(vdup_n_u8(low), vdup_n_u8(high)), each)
        };
        or(self, other: Self) => vorrq_u8(self.0, other.0);
        and(self, other: Self) => vandq_u8(self.0, other.0);
        add(self, other: Self) => vaddq_u8(self.0, other.0);
        sub(self, other: Self) => vsubq_u8(self.0, other.0);
        /// `width` bits of each lane, from bit `shift` on.
        bits(self, shift: u32, width: u32) => {
            let shifted = vshlq_u8(self.0, vdupq_n_s8(-(shift as i8)));
            vandq_u8(shifted, vdupq_n_u8((1 << width) - 1))
        };
        /// Each lane, less than 16, moved up by `shift` bits, at most 4.
        shl(self, shift: u32) => vshlq_u8(self.0, vdupq_n_s8(shift as i8));
        /// -1 where the unsigned lane is at least `least`, else 0.
        at_least(self, least: u8) => vcgeq_u8(self.0, vdupq_n_u8(least));
        /// The byte of a table at each lane, which must be less than 16.
        lookup(self, table: &[i8; 16]) => vqtbl1q_u8(vreinterpretq_u8_s8(vld1q_s8(table.as_ptr())), self.0);
        /// The first eight bytes of two registers, taking turns.
        interleave_low(self, other: Self) => vzip1q_u8(self.0, other.0);
        /// The last eight bytes of two registers, taking turns.
        interleave_high(self, other: Self) => vzip2q_u8(self.0, other.0);
        /// The first four pairs of bytes of two registers, taking turns.
        interleave_low_pairs(self, other: Self) =>
            vreinterpretq_u8_u16(vzip1q_u16(vreinterpretq_u16_u8(self.0), vreinterpretq_u16_u8(other.0)));
        /// The last four pairs of bytes of two registers, taking turns.
        interleave_high_pairs(self, other: Self) =>
            vreinterpretq_u8_u16(vzip2q_u16(vreinterpretq_u16_u8(self.0), vreinterpretq_u16_u8(other.0)));
        /// Lanes with their signs flipped where the mask is -1.
        negated_where(self, mask: Self) => vsubq_u8(veorq_u8(self.0, mask.0), mask.0);
    }
}

/// The value of an f16, the low bits of a number; a NaN becomes quiet.
///
/// # Safety
/// Asks for nothing, as [`Bytes16`].
#[inline(always)]
pub(crate) unsafe fn f16_to_f32(bits: u64) -> f32 {
    let value: f32;
    // SAFETY: only registers are accessed, and the instruction is part of AArch64. Status flags may change, as the options allow.
    unsafe {
        asm!("fcvt {value:s}, {bits:h}", bits = in(vreg) bits as i16, value = out(vreg) value, options(pure, nomem, nostack));
    }
    value
}
