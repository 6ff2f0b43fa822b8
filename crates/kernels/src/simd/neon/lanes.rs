//! Sixteen lanes in four registers of NEON.

#![allow(unsafe_code)] // vector intrinsics, and conversions that have none on stable Rust

use std::arch::aarch64::*;
use std::arch::asm;

use super::Bytes16;
use crate::simd::lanes::{Lanes, QUIET, methods};

/// With the instructions for bf16 that ARMv8.6 has, and many processors before it, if `BF16`.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const BF16: bool>([uint32x4_t; 4]);

/// Applies an operation to each register.
macro_rules! each {
    ($value:expr, |$register:ident| $e:expr) => {{
        let [a, b, c, d] = $value.0;
        let of = |$register: uint32x4_t| -> uint32x4_t { $e };
        Self([of(a), of(b), of(c), of(d)])
    }};
}

macro_rules! lanes {
    ($($op:ident($a:ident, $b:ident) => $e:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $op(self, other: Self) -> Self {
            // SAFETY: only registers are accessed; NEON is part of AArch64.
            let of = |$a: uint32x4_t, $b: uint32x4_t| -> uint32x4_t { unsafe { $e } };
            let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
            Self([of(a, e), of(b, f), of(c, g), of(d, h)])
        }
    )*};
}

impl<const BF16: bool> Lanes for Neon<BF16> {
    type Mask = Self;
    const NAN_OF_NUMBERS_IS_NEGATIVE: bool = false;

    methods! {
        splat(value: u32) -> Self => Self([vdupq_n_u32(value); 4]);
        halves(first: u32, second: u32) -> Self => {
            let (first, second) = (vdupq_n_u32(first), vdupq_n_u32(second));
            Self([first, first, second, second])
        };
        from_bytes(bytes: Bytes16) -> Self => Self::from_words(vmovl_u8(vget_low_u8(bytes.0)), vmovl_high_u8(bytes.0));
        from_signed_bytes(bytes: Bytes16) -> Self => {
            let [low, high] = signed_words(bytes.0);
            let [low, high] = [low, high].map(|words| [vmovl_s16(vget_low_s16(words)), vmovl_high_s16(words)]);
            Self([low[0], low[1], high[0], high[1]].map(|lanes| vreinterpretq_u32_s32(lanes)))
        };
        load_32(src: *const u8) -> Self => Self([0, 16, 32, 48].map(|at| vreinterpretq_u32_u8(vld1q_u8(src.add(at)))));
        load_16(src: *const u8) -> Self => {
            let [low, high] = [0, 16].map(|at| vreinterpretq_u16_u8(vld1q_u8(src.add(at))));
            Self::from_words(low, high)
        };
        load_8(src: *const u8) -> Self => Self::from_bytes(Bytes16(vld1q_u8(src)));
        load_8_signed(src: *const u8) -> Self => Self::from_signed_bytes(Bytes16(vld1q_u8(src)));
        lookup_4(src: *const u8, values: &[f32; 16]) -> Self => {
            let bytes = vld1_u8(src);
            let nibbles = vzip1q_u8(
                vcombine_u8(vand_u8(bytes, vdup_n_u8(15)), vdup_n_u8(0)),
                vcombine_u8(vshr_n_u8::<4>(bytes), vdup_n_u8(0)),
            );
            let table = vld1q_u8_x4(values.as_ptr().cast());
            // The four bytes of each value follow each other.
            let (first, byte) = (vshlq_n_u8::<2>(nibbles), vreinterpretq_u8_u32(vdupq_n_u32(0x0302_0100)));
            let lane = vreinterpretq_u8_u32(vmovl_u16(vcreate_u16(0x0303_0202_0101_0000)));
            let lane = vorrq_u8(lane, vreinterpretq_u8_u32(vshlq_n_u32::<16>(vreinterpretq_u32_u8(lane))));
            Self([0, 4, 8, 12].map(|at| {
                let places = vqtbl1q_u8(first, vaddq_u8(lane, vdupq_n_u8(at)));
                vreinterpretq_u32_u8(vqtbl4q_u8(table, vorrq_u8(places, byte)))
            }))
        };
        load_f16(src: *const u8) -> Self => {
            let [low, high] = [0, 16].map(|at| vreinterpretq_u16_u8(vld1q_u8(src.add(at))));
            Self::from_f16(low, high)
        };
        load_8_as_f16<const ZERO_BIT: bool, const NAN: u8>(src: *const u8) -> Self => {
            let [low, high] = signed_words(vld1q_u8(src)).map(|words| {
                let words = vreinterpretq_u16_s16(words);
                let words = if ZERO_BIT {
                    // The sign, extended, fills the top two bits.
                    vandq_u16(vshlq_n_u16::<7>(words), vdupq_n_u16(0xbfff))
                } else {
                    vshlq_n_u16::<8>(words)
                };
                // The word of the code, and the bits that turn it into the quiet NaN without a payload.
                let (compared, code) = match NAN {
                    0 => return words,
                    0x7f => (vandq_u16(words, vdupq_n_u16(0x7fff)), 0x3f80),
                    _ => (words, 0x8000),
                };
                let nan = vceqq_u16(compared, vdupq_n_u16(code));
                veorq_u16(words, vandq_u16(nan, vdupq_n_u16(code ^ 0x7e00)))
            });
            Self::from_f16(low, high)
        };
        load_f64<const SATURATE: bool>(src: *const u8) -> Self => Self([0, 32, 64, 96].map(|at| {
            let [low, high] = [at, at + 16].map(|at| pair_from_f64::<SATURATE>(src.add(at)));
            vreinterpretq_u32_f32(vcvt_high_f32_f64(vcvt_f32_f64(low), high))
        }));
        store_f64<const STREAM: bool>(self, dst: *mut u8) => {
            for (index, lanes) in self.0.into_iter().enumerate() {
                let lanes = vreinterpretq_f32_u32(lanes);
                let (low, high) = (vcvt_f64_f32(vget_low_f32(lanes)), vcvt_high_f64_f32(lanes));
                vst1q_u8(dst.add(32 * index), vreinterpretq_u8_f64(low));
                vst1q_u8(dst.add(32 * index + 16), vreinterpretq_u8_f64(high));
            }
        };
        store_32<const STREAM: bool>(self, dst: *mut u8) => {
            for (index, lanes) in self.0.into_iter().enumerate() {
                vst1q_u8(dst.add(16 * index), vreinterpretq_u8_u32(lanes));
            }
        };
        store_16<const STREAM: bool>(self, dst: *mut u8) => {
            for (index, words) in self.words().into_iter().enumerate() {
                vst1q_u8(dst.add(16 * index), vreinterpretq_u8_u16(words));
            }
        };
        store_8<const STREAM: bool>(self, dst: *mut u8) => {
            let [low, high] = self.words().map(|words| vreinterpretq_u8_u16(words));
            vst1q_u8(dst, vuzp1q_u8(low, high));
        };
        store_upper_16<const STREAM: bool>(self, dst: *mut u8) => {
            let [a, b, c, d] = self.0.map(|lanes| vreinterpretq_u16_u32(lanes));
            vst1q_u8(dst, vreinterpretq_u8_u16(vuzp2q_u16(a, b)));
            vst1q_u8(dst.add(16), vreinterpretq_u8_u16(vuzp2q_u16(c, d)));
        };
        store_bf16<const STREAM: bool>(self, dst: *mut u8) => {
            let [a, b, c, d] = self.0;
            let halves = if BF16 { [bf16_of(a, b), bf16_of(c, d)] } else { [rounded_to_bf16(a, b), rounded_to_bf16(c, d)] };
            vst1q_u8(dst, vreinterpretq_u8_u16(halves[0]));
            vst1q_u8(dst.add(16), vreinterpretq_u8_u16(halves[1]));
        };
        store_f16<const STREAM: bool>(self, dst: *mut u8) => {
            let [a, b, c, d] = self.0;
            vst1q_u8(dst, vreinterpretq_u8_u16(f16_of(a, b)));
            vst1q_u8(dst.add(16), vreinterpretq_u8_u16(f16_of(c, d)));
        };
    }

    lanes! {
        and(a, b) => vandq_u32(a, b);
        or(a, b) => vorrq_u32(a, b);
        add(a, b) => vaddq_u32(a, b);
        sub(a, b) => vsubq_u32(a, b);
        min(a, b) => vminq_u32(a, b);
        add_f32(a, b) => vreinterpretq_u32_f32(vaddq_f32(vreinterpretq_f32_u32(a), vreinterpretq_f32_u32(b)));
        sub_f32(a, b) => vreinterpretq_u32_f32(vsubq_f32(vreinterpretq_f32_u32(a), vreinterpretq_f32_u32(b)));
        mul_f32(a, b) => vreinterpretq_u32_f32(vmulq_f32(vreinterpretq_f32_u32(a), vreinterpretq_f32_u32(b)));
        greater(a, b) => vcgtq_s32(vreinterpretq_s32_u32(a), vreinterpretq_s32_u32(b));
        equal(a, b) => vceqq_u32(a, b);
    }
    methods! {
        // The intrinsic for a constant needs a signed one, which an unsigned const generic cannot provide; for a constant register the compiler
        // emits the same.
        shl<const BITS: u32>(self) -> Self => each!(self, |lanes| vshlq_u32(lanes, vdupq_n_s32(BITS as i32)));
        shr<const BITS: u32>(self) -> Self => each!(self, |lanes| vshlq_u32(lanes, vdupq_n_s32(-(BITS as i32))));
        to_f32(self) -> Self =>
            each!(self, |lanes| vreinterpretq_u32_f32(vcvtq_f32_s32(vreinterpretq_s32_u32(lanes))));
        quieted(self) -> Self => each!(self, |lanes| quieted(lanes));
        is_nan(self) -> Self => each!(self, |lanes| {
            let lanes = vreinterpretq_f32_u32(lanes);
            vmvnq_u32(vceqq_f32(lanes, lanes))
        });
        replace(self, mask: Self, other: Self) -> Self => {
            let of = |i: usize| vbslq_u32(mask.0[i], other.0[i], self.0[i]);
            Self([of(0), of(1), of(2), of(3)])
        };
    }
}

impl<const BF16: bool> Neon<BF16> {
    /// Words, extended with zeros.
    #[inline(always)]
    unsafe fn from_words(low: uint16x8_t, high: uint16x8_t) -> Self {
        // SAFETY: only registers are accessed; NEON is part of AArch64.
        unsafe {
            Self([
                vmovl_u16(vget_low_u16(low)),
                vmovl_high_u16(low),
                vmovl_u16(vget_low_u16(high)),
                vmovl_high_u16(high),
            ])
        }
    }

    /// Sixteen f16 as f32.
    #[inline(always)]
    unsafe fn from_f16(low: uint16x8_t, high: uint16x8_t) -> Self {
        // SAFETY: only registers are accessed; NEON is part of AArch64.
        unsafe {
            let (first, second) = (f32_of(low), f32_of(high));
            Self([first[0], first[1], second[0], second[1]])
        }
    }

    /// The low words of the lanes, in order.
    #[inline(always)]
    unsafe fn words(self) -> [uint16x8_t; 2] {
        let [a, b, c, d] = self.0;
        // SAFETY: only registers are accessed; NEON is part of AArch64.
        unsafe {
            let [a, b, c, d] = [a, b, c, d].map(|lanes| vreinterpretq_u16_u32(lanes));
            [vuzp1q_u16(a, b), vuzp1q_u16(c, d)]
        }
    }
}

/// Bytes as words, extended with their signs.
#[inline(always)]
unsafe fn signed_words(bytes: uint8x16_t) -> [int16x8_t; 2] {
    // SAFETY: only registers are accessed; NEON is part of AArch64.
    unsafe {
        let bytes = vreinterpretq_s8_u8(bytes);
        [vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)]
    }
}

/// The greater of a value and itself, which is quiet where it is NaN. Of an intrinsic the compiler would leave nothing.
#[inline(always)]
unsafe fn quieted(lanes: uint32x4_t) -> uint32x4_t {
    let quiet: uint32x4_t;
    // SAFETY: only registers are accessed, and the instruction is part of AArch64. Status flags may change, as the options allow.
    unsafe {
        asm!("fmax {quiet:v}.4s, {lanes:v}.4s, {lanes:v}.4s",
            lanes = in(vreg) lanes, quiet = lateout(vreg) quiet, options(pure, nomem, nostack));
    }
    quiet
}

/// Eight f16 as f32. The intrinsics for it need a type that stable Rust does not have.
#[inline(always)]
unsafe fn f32_of(halves: uint16x8_t) -> [uint32x4_t; 2] {
    let (low, high): (uint32x4_t, uint32x4_t);
    // SAFETY: only registers are accessed, and the instructions are part of AArch64. Status flags may change, as the options allow.
    unsafe {
        asm!("fcvtl {low:v}.4s, {halves:v}.4h", "fcvtl2 {high:v}.4s, {halves:v}.8h",
            halves = in(vreg) halves, low = out(vreg) low, high = lateout(vreg) high, options(pure, nomem, nostack));
    }
    [low, high]
}

/// Eight f32 as f16, rounded to nearest even.
#[inline(always)]
unsafe fn f16_of(low: uint32x4_t, high: uint32x4_t) -> uint16x8_t {
    let halves: uint16x8_t;
    // SAFETY: only registers are accessed, and the instructions are part of AArch64. Status flags may change, as the options allow.
    unsafe {
        asm!("fcvtn {halves:v}.4h, {low:v}.4s", "fcvtn2 {halves:v}.8h, {high:v}.4s",
            low = in(vreg) low, high = in(vreg) high, halves = out(vreg) halves, options(pure, nomem, nostack));
    }
    halves
}

/// Eight f32 as bf16, rounded to nearest even.
///
/// # Safety
/// The processor has the instructions for bf16.
#[inline(always)]
unsafe fn bf16_of(low: uint32x4_t, high: uint32x4_t) -> uint16x8_t {
    let halves: uint16x8_t;
    // SAFETY: only registers are accessed, and the caller has checked for bf16. Status flags may change, as the options allow.
    unsafe {
        asm!(".arch_extension bf16", "bfcvtn {halves:v}.4h, {low:v}.4s", "bfcvtn2 {halves:v}.8h, {high:v}.4s",
            low = in(vreg) low, high = in(vreg) high, halves = out(vreg) halves, options(pure, nomem, nostack));
    }
    halves
}

/// Rounds to bf16 with instructions that every processor has.
#[inline(always)]
unsafe fn rounded_to_bf16(low: uint32x4_t, high: uint32x4_t) -> uint16x8_t {
    // SAFETY: only registers are accessed; NEON is part of AArch64.
    let rounded = |lanes: uint32x4_t| unsafe {
        // Half a step, minus one unless the last digit is odd, carries into the upper word.
        let odd = vandq_u32(vshrq_n_u32::<16>(lanes), vdupq_n_u32(1));
        let rounded = vaddq_u32(vaddq_u32(lanes, vdupq_n_u32(0x7fff)), odd);
        let value = vreinterpretq_f32_u32(lanes);
        vbslq_u32(vceqq_f32(value, value), rounded, vorrq_u32(lanes, vdupq_n_u32(QUIET)))
    };
    // SAFETY: only registers are accessed; NEON is part of AArch64.
    unsafe { vshrn_high_n_u32::<16>(vshrn_n_u32::<16>(rounded(low)), rounded(high)) }
}

/// Two f64, prepared for rounding to f32.
#[inline(always)]
unsafe fn pair_from_f64<const SATURATE: bool>(src: *const u8) -> float64x2_t {
    // SAFETY: called by `load_f64` only, for 16 bytes that it may read; NEON is part of AArch64.
    unsafe {
        let value = vreinterpretq_f64_u8(vld1q_u8(src));
        if !SATURATE {
            return value;
        }
        let largest = vdupq_n_f64(f64::from(f32::MAX));
        let beyond = vandq_u64(vcagtq_f64(value, largest), vcaltq_f64(value, vdupq_n_f64(f64::INFINITY)));
        let limited = vbslq_f64(vdupq_n_u64(1 << 63), value, largest);
        vbslq_f64(beyond, limited, value)
    }
}
