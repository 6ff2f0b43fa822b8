//! The scalar decoder, which every faster path must equal.

use super::codes::unpack;
use super::plan::Columns;
use super::tile::TileRow;

/// Columns whose codes are on the stack at a time.
const SEGMENT: usize = 512;

/// Decodes the columns of a row from `start` on, a multiple of eight.
pub(super) fn decode(row: &TileRow<'_>, start: usize, values: &mut [[u8; 4]]) {
    let mut codes = [0; SEGMENT];
    for (start, values) in (start..).step_by(SEGMENT).zip(values.chunks_mut(SEGMENT)) {
        let codes = &mut codes[..values.len()];
        unpack(row.codes, row.form, row.bits, start - row.first, codes);
        match row.columns {
            Columns::Consecutive(size) => {
                for (group, run) in runs(*size, start, codes.len()) {
                    let (scale, zero) = (row.scales[group], row.zeros[group]);
                    for (code, value) in codes[run.clone()].iter().zip(&mut values[run]) {
                        *value = element(*code, zero, scale).to_le_bytes();
                    }
                }
            }
            Columns::Indexed(groups) => {
                for ((code, value), group) in codes.iter().zip(values).zip(&groups[start..]) {
                    let group = *group as usize;
                    *value = element(*code, row.zeros[group], row.scales[group]).to_le_bytes();
                }
            }
        }
    }
}

/// The groups of some columns from `start` on, each with the columns that it has among them.
#[inline]
pub(in crate::quant) fn runs(
    size: usize,
    start: usize,
    columns: usize,
) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let mut group = start / size;
    let mut run = 0..columns.min(size - start % size);
    std::iter::from_fn(move || {
        let this = (!run.is_empty()).then(|| (group, run.clone()))?;
        group += 1;
        run = run.end..columns.min(run.end.saturating_add(size));
        Some(this)
    })
}

/// The value of a code. A NaN is spelled out, because Rust leaves its bits open: that of the scale, or the one that x86 makes of infinity times zero.
#[inline]
fn element(code: u8, zero: u8, scale: f32) -> f32 {
    const INVALID: f32 = f32::from_bits(0xffc0_0000);
    let product = f32::from(i16::from(code) - i16::from(zero)) * scale;
    let nan = if scale.is_nan() { scale } else { INVALID };
    if product.is_nan() { nan } else { product }
}
