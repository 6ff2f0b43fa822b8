//! Some rows at a time: their scales as f32, their zero points as bytes, and the codes of some of their columns as strings of bits.

use std::ops::Range;

use super::codes::{code, mask, unpack};
use super::plan::{CodeForm, Columns, MatrixPlan};
use super::{CodeLayout, Groups};
use crate::cast::{CastOptions, convert};
use crate::dtype::DType;
#[cfg(target_arch = "x86_64")]
use crate::quant::x86::transpose;
use crate::simd::Level;

/// Rows of a tile. If the packed matrix stores them as columns, this is also the number of words that are read at a time from one of its lines. They
/// should fill some cache lines, because the next words are far away.
pub(super) fn rows(layout: CodeLayout) -> usize {
    match layout {
        CodeLayout::Rows => 1,
        CodeLayout::Gptq => ROWS,
        CodeLayout::Awq => AWQ_ROWS,
    }
}

/// Rows of a tile of GPTQ.
const ROWS: usize = 128;
/// Rows of a tile of AWQ.
const AWQ_ROWS: usize = 256;
/// Words of a line of the cache.
const LINES: usize = 16;

/// Padding words between the strings of two rows, so that they do not compete for the same cache sets.
const ROW_PADDING: usize = 16;

/// A row to decode.
pub(in crate::quant) struct TileRow<'a> {
    pub(in crate::quant) codes: &'a [u8],
    /// The column of the first code.
    pub(in crate::quant) first: usize,
    pub(in crate::quant) form: CodeForm,
    pub(in crate::quant) bits: usize,
    /// Of each group. A NaN is quiet.
    pub(in crate::quant) scales: &'a [f32],
    pub(in crate::quant) zeros: &'a [u8],
    pub(in crate::quant) columns: &'a Columns,
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl TileRow<'_> {
    /// True for contiguous codes of `bits` bits.
    pub(in crate::quant) fn is_dense(&self, bits: usize) -> bool {
        self.bits == bits && self.form == CodeForm::Dense
    }
}

/// The memory of a tile, reused for the next one.
pub(super) struct Tile {
    level: Level,
    rows: Range<usize>,
    first_column: usize,
    /// The codes of the rows, if they are not in the matrix so, and how far apart they are.
    words: Vec<[u8; 4]>,
    stride: usize,
    scales: Vec<f32>,
    zeros: Vec<u8>,
}

impl Tile {
    /// One that is filled by the instructions of a level, which must be available.
    pub(super) fn new(level: Level) -> Self {
        let (words, scales, zeros) = Default::default();
        Self { level, rows: 0..0, first_column: 0, words, stride: 0, scales, zeros }
    }

    /// Makes the tile that of these rows.
    pub(super) fn begin(&mut self, plan: &MatrixPlan<'_>, rows: Range<usize>) {
        self.fill_scales(plan, rows.clone());
        self.fill_zeros(plan, rows.clone());
        self.rows = rows;
    }

    /// Takes the codes of these columns, which begin at a multiple of 32.
    pub(super) fn fill(&mut self, plan: &MatrixPlan<'_>, columns: Range<usize>) {
        self.stride = (columns.len() * plan.bits).div_ceil(32) + ROW_PADDING;
        self.first_column = columns.start;
        match plan.groups.layout {
            CodeLayout::Rows => {}
            CodeLayout::Gptq => self.transpose_words(plan, columns),
            CodeLayout::Awq => self.transpose_nibbles(plan, columns),
        }
    }

    /// The `index`th row of the tile.
    pub(super) fn row<'a>(&'a self, plan: &'a MatrixPlan<'_>, index: usize) -> TileRow<'a> {
        let (scales, zeros) = self.groups_of(index, plan.groups.groups);
        let of_tile = |index: usize| self.words[index * self.stride..][..self.stride - ROW_PADDING].as_flattened();
        let (codes, first) = match plan.groups.layout {
            CodeLayout::Rows => {
                let row = (self.rows.start + index) * plan.row_words * 4;
                (&plan.groups.packed[row..][..plan.row_words * 4], 0)
            }
            CodeLayout::Gptq => (of_tile(index), self.first_column),
            CodeLayout::Awq => (of_tile(self.rows.start % 8 + index), self.first_column),
        };
        TileRow { codes, first, form: plan.form, bits: plan.bits, scales, zeros, columns: &plan.columns }
    }

    /// The scales and the zero points of the groups of the `index`th row.
    pub(super) fn groups_of(&self, index: usize, groups: usize) -> (&[f32], &[u8]) {
        (&self.scales[index * groups..][..groups], &self.zeros[index * groups..][..groups])
    }

    fn fill_scales(&mut self, plan: &MatrixPlan<'_>, rows: Range<usize>) {
        let &Groups { layout, scales, scales_dtype, groups, rows: all, .. } = &plan.groups;
        let width = scales_dtype.bits() / 8;
        self.scales.clear();
        self.scales.resize(rows.len() * groups, 0.0);
        if layout == CodeLayout::Rows {
            for (row, to) in rows.zip(self.scales.chunks_exact_mut(groups.max(1))) {
                let row = row.min(plan.scale_rows - 1);
                read_scales(self.level, &scales[row * groups * width..][..groups * width], scales_dtype, to.iter_mut());
            }
            return;
        }
        for group in 0..groups {
            let from = &scales[(group * all + rows.start) * width..][..rows.len() * width];
            read_scales(self.level, from, scales_dtype, self.scales[group..].iter_mut().step_by(groups));
        }
    }

    fn fill_zeros(&mut self, plan: &MatrixPlan<'_>, rows: Range<usize>) {
        let &Groups { layout, zero_points, zero_point_offset, groups, .. } = &plan.groups;
        self.zeros.clear();
        self.zeros.resize(rows.len() * groups, 1 << (plan.bits - 1));
        let Some(points) = zero_points else { return };
        let read = |stored: u8| stored.wrapping_add(zero_point_offset as u8) & mask(plan.bits);
        if layout == CodeLayout::Rows {
            let (words, _) = points.as_chunks::<4>();
            for (row, zeros) in rows.zip(self.zeros.chunks_exact_mut(groups.max(1))) {
                let row = row.min(plan.scale_rows - 1);
                for (group, zero) in zeros.iter_mut().enumerate() {
                    *zero = read(code(words, (group, groups), plan.form, plan.bits, row));
                }
            }
            return;
        }
        // A string of bits for each group; eight codes are unpacked at a time.
        let first = rows.start / 8 * 8;
        let last = if layout == CodeLayout::Awq { rows.end.next_multiple_of(8) } else { rows.end };
        let mut codes = vec![0; last - first];
        for (group, string) in points.chunks_exact((points.len() / groups.max(1)).max(1)).enumerate() {
            unpack(string, plan.form, plan.bits, first, &mut codes);
            for (row, zero) in rows.clone().zip(self.zeros[group..].iter_mut().step_by(groups)) {
                let place = if layout == CodeLayout::Awq { row / 8 * 8 + AWQ_PLACE[row % 8] } else { row };
                *zero = read(codes[place - first]);
            }
        }
    }

    /// Columns of words become rows.
    fn transpose_words(&mut self, plan: &MatrixPlan<'_>, columns: Range<usize>) {
        let (all, rows, stride) = (plan.groups.rows, self.rows.clone(), self.stride);
        self.words.resize(rows.len() * stride, [0; 4]);
        let (packed, _) = plan.groups.packed.as_chunks::<4>();
        let lines = &packed[columns.start * plan.bits / 32 * all..][..(stride - ROW_PADDING) * all];
        #[cfg(target_arch = "x86_64")]
        if transpose::words(self.level, (&lines[rows.start..], all), rows.len(), (&mut self.words, stride)) {
            return;
        }
        // Some lines at a time, and from a copy: often all of them would compete for the same cache sets.
        let mut block = [[[0; 4]; ROWS]; LINES];
        for (first, lines) in (0..).step_by(LINES).zip(lines.chunks(LINES * all)) {
            for (copy, line) in block.iter_mut().zip(lines.chunks_exact(all)) {
                copy[..rows.len()].copy_from_slice(&line[rows.clone()]);
            }
            for (row, to) in self.words.chunks_exact_mut(stride).take(rows.len()).enumerate() {
                for (to, copy) in to[first..stride - ROW_PADDING].iter_mut().zip(&block) {
                    *to = copy[row];
                }
            }
        }
    }

    /// Eight words of a column, each with eight of its rows, become a word of eight columns for each row.
    fn transpose_nibbles(&mut self, plan: &MatrixPlan<'_>, columns: Range<usize>) {
        let (across, stride) = (plan.groups.rows / 8, self.stride);
        let words = self.rows.start / 8..self.rows.end.div_ceil(8);
        self.words.resize(words.len() * 8 * stride, [0; 4]);
        let (packed, _) = plan.groups.packed.as_chunks::<4>();
        let lines = &packed[columns.start * across..columns.end * across];
        #[cfg(target_arch = "x86_64")]
        {
            let (lines, rows) = ((&lines[words.start..], across), (&mut self.words[..], stride));
            if transpose::nibbles(self.level, lines, words.len(), AWQ_PLACE, rows) {
                return;
            }
        }
        // Some words of each row at a time, together, before they go to their places, which are far apart.
        let mut strings = [[[0; 4]; LINES]; AWQ_ROWS];
        for (first, lines) in (0..).step_by(LINES).zip(lines.chunks(LINES * 8 * across)) {
            for (word, lines) in lines.chunks(8 * across).enumerate() {
                for (index, some) in (0..).step_by(LANES).zip(words.clone().step_by(LANES)) {
                    let lanes = LANES.min(words.end - some);
                    let mut block = [[0; LANES]; 8];
                    for (block, line) in block.iter_mut().zip(lines.chunks_exact(across)) {
                        for (lane, word) in block.iter_mut().zip(&line[some..some + lanes]) {
                            *lane = u32::from_le_bytes(*word);
                        }
                    }
                    transpose_8(&mut block);
                    for (row, place) in AWQ_PLACE.into_iter().enumerate() {
                        let rows = strings[index * 8 + row..].iter_mut().step_by(8);
                        for (string, lane) in rows.zip(&block[place][..lanes]) {
                            string[word] = lane.to_le_bytes();
                        }
                    }
                }
            }
            let count = lines.len().div_ceil(8 * across);
            for (to, string) in self.words.chunks_exact_mut(stride).zip(&strings) {
                to[first..first + count].copy_from_slice(&string[..count]);
            }
        }
    }
}

/// The nibble of a word in which AWQ keeps each of eight outputs.
const AWQ_PLACE: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Words of a line that are transposed at the same time.
const LANES: usize = 8;

/// In each lane, nibble `i` of word `j` becomes nibble `j` of word `i`: blocks of 4 x 4 nibbles change places, then of 2 x 2, then single ones.
fn transpose_8(block: &mut [[u32; LANES]; 8]) {
    for (distance, mask) in [(4, 0x0000_ffff), (2, 0x00ff_00ff), (1, 0x0f0f_0f0f_u32)] {
        let shift = 4 * distance;
        for i in (0..8).filter(|i| i & distance == 0) {
            let (low, high) = (block[i], block[i + distance]);
            block[i] = std::array::from_fn(|lane| (low[lane] & mask) | (high[lane] & mask) << shift);
            block[i + distance] = std::array::from_fn(|lane| (low[lane] >> shift & mask) | (high[lane] & !mask));
        }
    }
}

/// Scales as f32, NaNs quiet.
fn read_scales<'a>(level: Level, bytes: &[u8], dtype: DType, mut to: impl Iterator<Item = &'a mut f32>) {
    let quieted = |value: f32| if value.is_nan() { f32::from_bits(value.to_bits() | 0x0040_0000) } else { value };
    let mut values = [[0; 4]; ROWS];
    let width = dtype.bits() / 8;
    for bytes in bytes.chunks(ROWS * width) {
        let values = &mut values[..bytes.len() / width];
        convert(level, dtype, DType::Float32, bytes, values.as_flattened_mut(), CastOptions::default());
        for (value, to) in values.iter().zip(&mut to) {
            *to = quieted(f32::from_le_bytes(*value));
        }
    }
}
