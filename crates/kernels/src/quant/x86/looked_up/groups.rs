//! Nibbles of groups to f16 and bf16: the element of each code is computed once for a group, and those of thirty-two codes are looked up.

use super::{Elements32, may_stream};
use crate::dtype::DType;
use crate::quant::groups::{Columns, TileRow, runs};
use crate::simd::x86::{
    Avx2, Avx512, Bytes16, Bytes32, HalfBf16, HalfF16, HalfFloat, Tables, has_bf16, with_default_rounding,
};
use crate::simd::{Level, are_regular};

/// Columns of a step.
const STEP: usize = 32;

/// # Safety
/// The processor must have the instructions of the level that the kernel was picked for; if it streams, the output must be at a multiple of 16.
type GroupLookupKernel = unsafe fn(&TileRow<'_>, usize, usize, &mut [Elements32]);

/// Whether [`decode`] makes f16 or bf16 of `columns` columns of a row from `start` on: only whole steps, in groups of whole steps.
pub(in crate::quant) fn suits(level: Level, row: &TileRow<'_>, start: usize, columns: usize, to: DType) -> bool {
    let Columns::Consecutive(size) = row.columns else { return false };
    let whole = [start, *size, columns].iter().all(|count| count.is_multiple_of(STEP));
    columns > 0
        && row.is_dense(4)
        && whole
        && kernel::<false>(level, to).is_some()
        && (to == DType::Float16 || are_regular(&row.scales[start / size..=(start + columns - 1) / size]))
}

/// Decodes columns that [`suits`] accepts, from `start` on. After calls with `stream` a fence is needed.
pub(in crate::quant) fn decode(level: Level, row: &TileRow<'_>, start: usize, to: DType, out: &mut [u8], stream: bool) {
    let kernel = if stream && may_stream(out) { kernel::<true>(level, to) } else { kernel::<false>(level, to) };
    let (Columns::Consecutive(size), Some(kernel)) = (row.columns, kernel) else { return };
    // SAFETY: the level is available, as the caller checked, and the kernel streams only to a multiple of 16.
    with_default_rounding(|| unsafe { kernel(row, *size, start, out.as_chunks_mut().0) });
}

fn kernel<const STREAM: bool>(level: Level, to: DType) -> Option<GroupLookupKernel> {
    match (level, to) {
        (Level::Avx2, DType::Float16) => Some(decode_avx2::<HalfF16, STREAM>),
        (Level::Avx512, DType::Float16) => Some(decode_avx512::<HalfF16, STREAM>),
        (Level::Avx512, DType::BFloat16) if has_bf16() => Some(decode_avx512_bf16::<HalfBf16, STREAM>),
        (Level::Avx2 | Level::Avx512, DType::BFloat16) => Some(decode_avx2::<HalfBf16, STREAM>),
        _ => None,
    }
}

macro_rules! at_level {
    ($features:literal, $lanes:ty: $name:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<O: HalfFloat, const STREAM: bool>(
            row: &TileRow<'_>,
            size: usize,
            start: usize,
            out: &mut [Elements32],
        ) {
            // SAFETY: the contract of `GroupLookupKernel`, and the instructions are enabled here.
            unsafe { decode_columns::<$lanes, O, STREAM>(row, size, start, out) }
        }
    };
}
at_level!("avx2,f16c", Avx2: decode_avx2);
at_level!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl", Avx512: decode_avx512);
at_level!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16", Avx512: decode_avx512_bf16);

/// # Safety
/// As for [`HalfFloat`]; the output is at a multiple of 16 if `STREAM`.
#[inline(always)]
unsafe fn decode_columns<V: Tables, O: HalfFloat, const STREAM: bool>(
    row: &TileRow<'_>,
    size: usize,
    start: usize,
    out: &mut [Elements32],
) {
    static CODES: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    let (packed, _) = row.codes[(start - row.first) / 2..].as_chunks::<{ STEP / 2 }>();
    for (group, run) in runs(size, start, out.len() * STEP) {
        let steps = run.start / STEP..run.end / STEP;
        // SAFETY: the caller has enabled the instructions. Sixteen codes are read from an array of sixteen. An element of `out` has room for
        // thirty-two elements of two bytes, at a multiple of 16 if `STREAM`.
        unsafe {
            let differences = V::load_32(CODES.as_ptr().cast()).sub(V::splat(u32::from(row.zeros[group])));
            let table = O::table(differences.to_f32().mul_f32(V::splat(row.scales[group].to_bits())));
            for (packed, out) in packed[steps.clone()].iter().zip(&mut out[steps]) {
                let codes = Bytes32::nibbles_in_turns(Bytes16::load(packed));
                V::look_up::<STREAM>(table, codes, out.as_mut_ptr());
            }
        }
    }
}
