//! Kernels of x86-64 that are better than [`lanes`](super::lanes) for some pairs. These are tables of bytes (`byte_table`, AVX-512), also with block
//! scales (`signed_table`, `fp4`), and conversions to narrow types (`narrow`, `bf16`).

#![allow(clippy::inline_always)] // the algorithms must be compiled inside the function that enables their instructions, or each operation is a call
#![allow(clippy::wildcard_imports)] // of intrinsics, whose names say where they come from

mod bf16;
mod byte_table;
mod fp4;
mod narrow;
mod signed_table;

use signed_table::{SignedTable, is_symmetric};

use super::lanes::drive::CastKernel;
use crate::cast::{CastOptions, table};
use crate::dtype::DType;
use crate::simd::Level;

pub(super) use fp4::kernel as scale_kernel;

/// The kernel of a pair, if there is one at this level.
pub(super) fn kernel(level: Level, from: DType, to: DType, saturate: bool) -> Option<CastKernel> {
    let narrow = if level == Level::Avx512 { narrow::kernel(from, to, saturate) } else { None };
    narrow.or_else(|| match (from, to, saturate) {
        (DType::Float32, DType::BFloat16, false) => bf16::kernel(level),
        _ => None,
    })
}

/// Bytes by a table, if the level has such tables, and the pair allows it.
pub(super) fn convert_bytes(
    level: Level,
    from: DType,
    to: DType,
    src: &[u8],
    dst: &mut [u8],
    options: CastOptions,
) -> bool {
    if level != Level::Avx512 || from.bits() != 8 || !matches!(to.bits(), 8 | 16) {
        return false;
    }
    let Some(table) = table::table(from, to, options) else { return false };
    // SAFETY: the level AVX-512 is available, so its instructions are.
    #[allow(unsafe_code)]
    unsafe {
        if let Some(table) = table.first_chunk::<256>().filter(|_| to.bits() == 8) {
            byte_table::bytes_to_bytes(table, src, dst);
            return true;
        }
        if let Some(table) = table.first_chunk::<512>().filter(|_| to.bits() == 16) {
            byte_table::bytes_to_words(table, src, dst, options.stream);
            return true;
        }
    }
    false
}

/// The tables that make a scaled row of a byte row, one for each scale.
#[derive(Default)]
pub(super) struct ScaleTables(Vec<SignedTable>);

impl ScaleTables {
    /// The tables, in the memory of those `before`, if this level looks bytes up and the pair converts bytes to words in a way that allows it. If
    /// possible, `scaled` writes the words of some bytes times a scale.
    pub(super) fn new(
        level: Level,
        from: DType,
        to: DType,
        scales: &[f32],
        before: Self,
        scaled: impl Fn(&f32, &[u8], &mut [u8]) -> bool,
    ) -> Option<Self> {
        let symmetric = |scale: &f32| is_symmetric(from, *scale);
        if level != Level::Avx512 || to.bits() != 16 || !scales.iter().all(symmetric) {
            return None;
        }
        let codes: [u8; signed_table::CODES] = std::array::from_fn(|code| code as u8);
        let mut tables = before.0;
        tables.clear();
        let mut words = [0; 2 * signed_table::CODES];
        for scale in scales {
            if !scaled(scale, &codes, &mut words) {
                return None;
            }
            // SAFETY: the level AVX-512 is available, so its instructions are.
            #[allow(unsafe_code)]
            tables.push(unsafe { SignedTable::new(&words) });
        }
        Some(Self(tables))
    }

    /// Rows of `cols` elements, in blocks of `block` columns. With `stream`, `fence` is needed afterwards.
    pub(super) fn rows(&self, (block, cols): (usize, usize), src: &[u8], dst: &mut [u8], stream: bool) {
        // SAFETY: the tables were made at the level AVX-512, so its instructions are available.
        #[allow(unsafe_code)]
        unsafe {
            signed_table::rows(&self.0, (block, cols), src, dst, stream);
        }
    }
}
