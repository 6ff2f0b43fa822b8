//! The vector operations that the algorithms are written in: sixteen lanes of 32 bits, whatever registers they take.

#![allow(unsafe_code)] // declares what the registers of each level implement

use super::Bytes16;

/// The bit of an f32 that makes a NaN quiet.
pub(crate) const QUIET: u32 = 0x0040_0000;

/// Sixteen lanes of 32 bits, each an integer or the bits of an f32.
///
/// # Safety
/// Every method may only be called in a function that enables the instructions of the implementor, on a processor that has them. Methods with a
/// pointer access as many bytes there as sixteen elements of the width in their name take. No alignment is needed, except that `STREAM` needs the
/// address to be a multiple of the bytes stored or of 64, whichever is less.
pub(crate) trait Lanes: Copy {
    /// One truth per lane.
    type Mask: Copy;
    /// Whether the NaN that the processor makes of numbers, as of infinity times zero, is negative.
    const NAN_OF_NUMBERS_IS_NEGATIVE: bool;

    unsafe fn splat(value: u32) -> Self;
    /// One value in the first eight lanes, another in the others.
    unsafe fn halves(first: u32, second: u32) -> Self;
    /// Bytes, extended with zeros.
    unsafe fn from_bytes(bytes: Bytes16) -> Self;
    /// Bytes, extended with their signs.
    unsafe fn from_signed_bytes(bytes: Bytes16) -> Self;
    unsafe fn load_32(src: *const u8) -> Self;
    /// Sixteen words, extended with zeros.
    unsafe fn load_16(src: *const u8) -> Self;
    /// Sixteen bytes, extended with zeros.
    unsafe fn load_8(src: *const u8) -> Self;
    /// Sixteen bytes, extended with their signs.
    unsafe fn load_8_signed(src: *const u8) -> Self;
    /// The values of sixteen packed nibbles, the low one of each byte first.
    unsafe fn lookup_4(src: *const u8, values: &[f32; 16]) -> Self;
    /// Sixteen f16 as f32; NaNs become quiet.
    unsafe fn load_f16(src: *const u8) -> Self;

    /// Sixteen numbers of one byte as f32. The sign is the top bit, and the other bits are the next bits of an f16, after one zero bit if
    /// `ZERO_BIT`: e4m3 is one bit of exponent short of f16. The code `NAN` is NaN: 0x7f with either sign, 0x80 alone, or 0 for none but those of
    /// f16.
    unsafe fn load_8_as_f16<const ZERO_BIT: bool, const NAN: u8>(src: *const u8) -> Self;
    /// Sixteen f64 rounded to f32, to nearest even; NaNs become quiet, their payload truncated. `SATURATE` brings finite values that are
    /// too large back to the largest f32.
    unsafe fn load_f64<const SATURATE: bool>(src: *const u8) -> Self;

    /// f32 as f64; NaNs become quiet.
    unsafe fn store_f64<const STREAM: bool>(self, dst: *mut u8);
    unsafe fn store_32<const STREAM: bool>(self, dst: *mut u8);
    /// The low words; the high ones must be zero.
    unsafe fn store_16<const STREAM: bool>(self, dst: *mut u8);
    /// The low bytes; the others must be zero.
    unsafe fn store_8<const STREAM: bool>(self, dst: *mut u8);
    /// The upper words.
    #[inline(always)]
    unsafe fn store_upper_16<const STREAM: bool>(self, dst: *mut u8) {
        // SAFETY: the contract of the trait is passed on; the upper words are zero after the shift.
        unsafe { self.shr::<16>().store_16::<STREAM>(dst) }
    }
    /// f32 rounded to f16, to nearest even; NaNs become quiet, their payload truncated.
    unsafe fn store_f16<const STREAM: bool>(self, dst: *mut u8);

    /// [`Self::store_32`], streamed to any multiple of 16.
    #[inline(always)]
    unsafe fn put_32<const STREAM: bool>(self, dst: *mut u8) {
        // SAFETY: the contract of the trait is passed on, to levels that stream to any address.
        unsafe { self.store_32::<STREAM>(dst) }
    }
    /// [`Self::store_f16`] likewise.
    #[inline(always)]
    unsafe fn put_f16<const STREAM: bool>(self, dst: *mut u8) {
        // SAFETY: the contract of the trait is passed on, to levels that stream to any address.
        unsafe { self.store_f16::<STREAM>(dst) }
    }
    /// [`Self::store_bf16`] likewise, for values that are neither NaN nor denormal. AVX-512 needs AVX-512 BF16 for it.
    #[inline(always)]
    unsafe fn put_bf16<const STREAM: bool>(self, dst: *mut u8) {
        // SAFETY: the contract of the trait is passed on, to levels that stream to any address.
        unsafe { self.store_bf16::<STREAM>(dst) }
    }

    unsafe fn and(self, other: Self) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn shl<const BITS: u32>(self) -> Self;
    unsafe fn shr<const BITS: u32>(self) -> Self;
    /// The lesser of unsigned lanes.
    unsafe fn min(self, other: Self) -> Self;
    unsafe fn add_f32(self, other: Self) -> Self;
    unsafe fn sub_f32(self, other: Self) -> Self;
    unsafe fn mul_f32(self, other: Self) -> Self;
    /// Signed integers as f32.
    unsafe fn to_f32(self) -> Self;

    /// f32 rounded to bf16, to nearest even; NaNs become quiet, their payload truncated.
    #[inline(always)]
    unsafe fn store_bf16<const STREAM: bool>(self, dst: *mut u8) {
        // SAFETY: the contract of the trait is passed on.
        unsafe {
            let odd = self.shr::<16>().and(Self::splat(1));
            let rounded = self.add(odd.add(Self::splat(0x7fff)));
            let rounded = rounded.replace(self.is_nan(), self.or(Self::splat(QUIET)));
            rounded.store_upper_16::<STREAM>(dst);
        }
    }

    /// f32 with quiet NaNs.
    #[inline(always)]
    unsafe fn quieted(self) -> Self {
        // SAFETY: the contract of the trait is passed on.
        unsafe { self.replace(self.is_nan(), self.or(Self::splat(QUIET))) }
    }

    /// True for lanes that are NaN.
    unsafe fn is_nan(self) -> Self::Mask;
    /// `self > other`, as signed integers.
    unsafe fn greater(self, other: Self) -> Self::Mask;
    unsafe fn equal(self, other: Self) -> Self::Mask;
    /// `other` where the mask is true, else `self`.
    unsafe fn replace(self, mask: Self::Mask, other: Self) -> Self;
}

/// Whether no product of these scales and a number that is zero, or at least 1/2 and less than 256, is NaN or denormal: then
/// [`Lanes::put_bf16`] rounds all of them right.
pub(crate) fn are_regular(scales: &[f32]) -> bool {
    const MIN: f32 = f32::from_bits((127 - 100) << 23);
    const MAX: f32 = f32::from_bits((127 + 100) << 23);
    // Without a branch, so that it becomes vectors.
    scales.iter().fold(true, |regular, scale| regular & ((*scale == 0.0) | ((MIN..MAX).contains(&scale.abs()))))
}

/// Methods of an implementor. They share one safety argument, which is here.
macro_rules! methods {
    ($($name:ident $(<$(const $constant:ident: $kind:ty),+>)? ($($argument:ident $(: $type:ty)?),*) $(-> $result:ty)? => $value:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name $(<$(const $constant: $kind),+>)? ($($argument $(: $type)?),*) $(-> $result)? {
            // SAFETY: by the contract of `Lanes` the instructions are enabled. At a pointer are as many bytes as sixteen elements of the width
            // in the method's name take, aligned as `STREAM` needs it, and the method reads or writes no others.
            unsafe { $value }
        }
    )*};
}
pub(in crate::simd) use methods;
