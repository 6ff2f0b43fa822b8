//! Packed integers with separate scales: every level gives the bits of the scalar code, for all widths, groups and tails. The scalar code is
//! compared with the definition in `fuzz/src/groups.rs` and in tests/python/quantized/test_quantized_groups.py.

use max_weights_kernels::dtype::DType;
use max_weights_kernels::quant::{CodeLayout, Groups, dequantize_group_rows_at};
use max_weights_kernels::simd::Level;

/// The bytes of a generator, the same in each run.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// A matrix of noise in one of the layouts. Random scales are of every kind: denormal, infinite, NaN.
struct Made {
    packed: Vec<u8>,
    scales: Vec<u8>,
    zero_points: Vec<u8>,
    index: Vec<u8>,
}

impl Made {
    fn new(layout: CodeLayout, bits: usize, (rows, cols): (usize, usize), groups: usize, padded: bool) -> Self {
        let words = |codes: usize| if padded { codes.div_ceil(32 / bits) } else { (codes * bits).div_ceil(32) };
        let (packed, zeros) = match layout {
            CodeLayout::Rows => (rows * words(cols), words(rows) * groups),
            CodeLayout::Gptq => (words(cols) * rows, groups * words(rows)),
            CodeLayout::Awq => (cols * rows / 8, groups * rows / 8),
        };
        Self {
            packed: noise(1, packed * 4),
            scales: noise(2, rows * groups * 4),
            zero_points: noise(3, zeros * 4),
            index: (0..cols).flat_map(|col| ((col * 7 % groups) as i32).to_le_bytes()).collect(),
        }
    }
}

fn assert_levels_agree(groups: &Groups<'_>) {
    for dtype in [DType::Float32, DType::BFloat16, DType::Float16] {
        let row_bytes = groups.cols * dtype.bits() / 8;
        let decode = |level: Level, stream: bool, parts: &[usize]| {
            let mut out = vec![0; groups.rows * row_bytes];
            for part in parts.windows(2) {
                let rows = part[0]..part[1];
                let out = &mut out[rows.start * row_bytes..rows.end * row_bytes];
                dequantize_group_rows_at(level, groups, rows, out, dtype, stream).expect("parts that fit");
            }
            out
        };
        let expected = decode(Level::Scalar, false, &[0, groups.rows]);
        let middle = groups.rows / 3;
        for level in Level::available() {
            for (stream, parts) in [(false, &[0, groups.rows][..]), (true, &[0, middle, middle + 1, groups.rows])] {
                let found = decode(level, stream, parts);
                assert!(
                    found == expected,
                    "{:?}, {} bits, {} x {}, groups of {}, index {}, zero points {}, {} -> {dtype}, level {level}, \
                         stream {stream}, {parts:?}",
                    groups.layout,
                    groups.bits,
                    groups.rows,
                    groups.cols,
                    groups.group_size,
                    groups.group_index.is_some(),
                    groups.zero_points.is_some(),
                    groups.scales_dtype,
                );
            }
        }
    }
}

/// Rows, columns of a row and of a group: whole steps, ragged last groups, groups shorter than a step, odd ones, rows longer than a segment, rows that
/// are more than a tile.
const SHAPES: [((usize, usize), usize); 9] = [
    ((40, 256), 32),
    ((40, 96), 128),
    ((8, 37), 5),
    ((8, 300), 34),
    ((3 * 8, 100), 16),
    ((8, 1), 1),
    ((16, 2100), 128),
    ((8, 2080), 64),
    ((384, 320), 64),
];

fn all_of(layout: CodeLayout, bits: usize, padded: bool) {
    for (shape, group_size) in SHAPES {
        let ((rows, cols), count) = (shape, shape.1.div_ceil(group_size));
        let made = Made::new(layout, bits, shape, count, padded);
        for (choice, scales_dtype) in
            [DType::Float32, DType::BFloat16, DType::Float16, DType::BFloat16].into_iter().enumerate()
        {
            let (with_zeros, with_index) = (choice & 1 == 1, choice & 2 == 2);
            assert_levels_agree(&Groups {
                layout,
                bits: bits as u32,
                rows,
                cols,
                packed: &made.packed,
                scales: &made.scales[..rows * count * scales_dtype.bits() / 8],
                scales_dtype,
                zero_points: with_zeros.then_some(&made.zero_points[..]),
                zero_point_offset: u32::from(layout == CodeLayout::Gptq && with_index),
                groups: count,
                group_size,
                group_index: with_index.then_some(&made.index[..]),
            });
        }
    }
}

#[test]
fn every_level_decodes_rows_of_each_width_alike() {
    for bits in 2..=8 {
        all_of(CodeLayout::Rows, bits, false);
    }
}

#[test]
fn every_level_decodes_rows_of_whole_codes_in_a_word_alike() {
    for bits in [3, 5, 6, 7] {
        all_of(CodeLayout::Rows, bits, true);
    }
}

#[test]
fn every_level_decodes_the_columns_of_gptq_and_awq_alike() {
    for bits in [2, 3, 4, 8] {
        all_of(CodeLayout::Gptq, bits, false);
    }
    all_of(CodeLayout::Awq, 4, false);
}
