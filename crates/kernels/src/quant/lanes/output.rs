//! The outputs of decoders: f32, or f16 and bf16 without a second pass over the values.

use super::Lanes;

/// A type of elements, sixteen of which are written at a time.
pub(in crate::quant) trait OutputElement {
    /// Sixteen elements in memory.
    type Step;
    /// Whether only values that are neither NaN nor denormal are rounded correctly, for which AVX-512 needs AVX-512 BF16.
    const IS_BF16: bool = false;
    /// Whole steps.
    fn steps(out: &mut [u8]) -> &mut [Self::Step];
    /// Writes f32 values.
    ///
    /// # Safety
    /// As for [`Lanes`]; an output that is streamed to must be at a multiple of 16.
    unsafe fn put<V: Lanes>(values: V, step: &mut Self::Step);
}

macro_rules! outputs {
    ($($(#[$doc:meta])* $name:ident: $bytes:literal bytes, $put:ident $(, $is_bf16:literal)?;)*) => {$(
        $(#[$doc])*
        pub(in crate::quant) struct $name<const STREAM: bool>;

        impl<const STREAM: bool> OutputElement for $name<STREAM> {
            type Step = [u8; $bytes];
            $(const IS_BF16: bool = $is_bf16;)?

            #[inline(always)]
            fn steps(out: &mut [u8]) -> &mut [Self::Step] {
                out.as_chunks_mut().0
            }

            #[inline(always)]
            unsafe fn put<V: Lanes>(values: V, step: &mut Self::Step) {
                // SAFETY: a step has room for sixteen elements, at a multiple of 16 if `STREAM`; the caller has enabled the instructions.
                unsafe { values.$put::<STREAM>(step.as_mut_ptr()) }
            }
        }
    )*};
}
outputs! {
    /// f32, unchanged.
    F32: 64 bytes, put_32;
    /// f16, rounded.
    F16: 32 bytes, put_f16;
    /// bf16, rounded.
    Bf16: 32 bytes, put_bf16, true;
}

/// Whether the f16 of a block at these bytes are neither infinite nor NaN. All elements are then whole multiples of 2^-30 or zero, as the smallest f16
/// is 2^-24, and less than 2^40.
#[inline(always)]
pub(in crate::quant) fn are_finite<const N: usize, const BYTES: usize>(
    block: &[u8; BYTES],
    places: [usize; N],
) -> bool {
    places.iter().all(|place| block[place + 1] & 0x7c < 0x7c)
}
