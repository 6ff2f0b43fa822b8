//! Elements of sixteen bits, such as those of a lookup table.

#![allow(unsafe_code)] // built on `Lanes`

use super::{Tables, WideTables};

/// A format of sixteen bits, and how a table of its elements is computed.
///
/// # Safety
/// As for `Lanes`; for [`HalfBf16`] and AVX-512 the instructions of AVX-512 BF16, too.
pub(crate) trait HalfFloat {
    unsafe fn table<V: Tables>(values: V) -> V::Table;
    unsafe fn wide_table<V: WideTables>(low: V, high: V) -> V::Table;
}

/// IEEE f16.
pub(crate) struct HalfF16;
/// bf16, for values that are neither NaN nor denormal in f32.
pub(crate) struct HalfBf16;

macro_rules! half_floats {
    ($($half:ident: $table:ident, $wide_table:ident;)*) => {$(
        impl HalfFloat for $half {
            #[inline(always)]
            unsafe fn table<V: Tables>(values: V) -> V::Table {
                // SAFETY: the contract of `Lanes` for this method is that of `HalfFloat`, which the caller keeps.
                unsafe { values.$table() }
            }

            #[inline(always)]
            unsafe fn wide_table<V: WideTables>(low: V, high: V) -> V::Table {
                // SAFETY: the contract of `WideTables` for this method is that of `HalfFloat`, which the caller keeps.
                unsafe { V::$wide_table(low, high) }
            }
        }
    )*};
}
half_floats! {
    HalfF16: f16_table, wide_f16_table;
    HalfBf16: bf16_table, wide_bf16_table;
}
