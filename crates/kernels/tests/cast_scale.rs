//! Dequantization by block scales equals the product computed element by element, at every level and for ragged blocks.

use crate::cast_support::Noise;
use max_weights_kernels::cast::{BlockScaled, CastOptions, cast_by_oracle, scale_block_rows, scale_block_rows_at};
use max_weights_kernels::dtype::DType;
use max_weights_kernels::simd::Level;

/// The definition: each element and its scale as f32, multiplied, rounded by the oracle.
fn by_definition(matrix: &BlockScaled<'_>, out_dtype: DType, options: CastOptions) -> Vec<u8> {
    let floats = |dtype: DType, bytes: &[u8]| -> Vec<f32> {
        let mut out = vec![0; bytes.len() * 8 / dtype.bits() * 4];
        cast_by_oracle(dtype, DType::Float32, bytes, &mut out, CastOptions::default()).expect("a pair");
        out.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    let data = floats(matrix.dtype, matrix.data);
    let scales = floats(matrix.scales_dtype, matrix.scales);
    let blocks = matrix.cols.div_ceil(matrix.block.1);
    let products: Vec<u8> = data
        .iter()
        .enumerate()
        .flat_map(|(i, value)| {
            let (row, col) = (i / matrix.cols, i % matrix.cols);
            let product = value * scales[row / matrix.block.0 * blocks + col / matrix.block.1];
            product.to_le_bytes()
        })
        .collect();
    let mut out = vec![0; data.len() * out_dtype.bits() / 8];
    cast_by_oracle(DType::Float32, out_dtype, &products, &mut out, options).expect("a pair");
    out
}

/// Codes that are not NaN and not infinite, whose bits are the subject of another test.
fn finite_codes(dtype: DType, bytes: usize) -> Vec<u8> {
    let ordinary = |byte: &u8| match dtype {
        DType::Float8E4M3Fn => byte & 0x7f != 0x7f,
        DType::Float8E5M2 => byte & 0x7f < 0x7c,
        DType::Float8E4M3Fnuz | DType::Float8E5M2Fnuz => *byte != 0x80,
        _ => true,
    };
    let noise = Noise(dtype as u64).flat_map(u64::to_le_bytes);
    if matches!(dtype, DType::BFloat16 | DType::Float16 | DType::Float32) {
        let width = dtype.bits() / 8;
        let values: Vec<u8> = (0..bytes / width).flat_map(|i| ((i % 97) as f32 - 48.5).to_le_bytes()).collect();
        let mut out = vec![0; bytes];
        cast_by_oracle(DType::Float32, dtype, &values, &mut out, CastOptions::default()).expect("a pair");
        return out;
    }
    noise.filter(ordinary).take(bytes).collect()
}

fn scale_codes(dtype: DType, count: usize) -> Vec<u8> {
    let values: Vec<u8> = (0..count).flat_map(|i| (0.37 * (1 + i % 11) as f32).to_le_bytes()).collect();
    let mut out = vec![0; count * dtype.bits() / 8];
    cast_by_oracle(DType::Float32, dtype, &values, &mut out, CastOptions::default()).expect("a pair");
    out
}

#[test]
fn every_level_equals_the_definition() {
    let data_dtypes = [
        DType::Float8E4M3Fn,
        DType::Float8E5M2,
        DType::Float8E4M3Fnuz,
        DType::Float8E5M2Fnuz,
        DType::Float4E2M1Fn,
        DType::Float6E2M3Fn,
        DType::Int8,
        DType::UInt8,
        DType::BFloat16,
        DType::Float16,
        DType::Float32,
        DType::Int16,
    ];
    let scales_dtypes = [DType::Float32, DType::Float8E8M0Fnu, DType::Float8E4M3Fn, DType::BFloat16];
    // Ragged last blocks in both directions, blocks larger than the matrix, one scale in all, and a scale for each element of a row.
    let shapes = [
        (20, 324, (8, 128)),
        (9, 256, (16, 64)),
        (3, 96, (1, 32)),
        (5, 48, (1, 16)),
        (3, 128, (1, 16)),
        (5, 160, (2, 64)),
        (4, 68, (4, 68)),
        (4, 36, (2, 1000)),
        (12, 100, (8, 100)),
        (2, 8, (1, 2)),
        (1, 4, (1, 4)),
    ];
    for dtype in data_dtypes {
        for scales_dtype in scales_dtypes {
            for (rows, cols, block) in shapes {
                let data = finite_codes(dtype, rows * cols * dtype.bits() / 8);
                let scales = scale_codes(scales_dtype, rows.div_ceil(block.0) * cols.div_ceil(block.1));
                let matrix = BlockScaled { data: &data, dtype, scales: &scales, scales_dtype, rows, cols, block };
                for out_dtype in [DType::BFloat16, DType::Float16, DType::Float32, DType::Float8E4M3Fn, DType::Float64]
                {
                    assert_equals_definition(&matrix, out_dtype);
                }
            }
        }
    }
}

fn assert_equals_definition(matrix: &BlockScaled<'_>, out_dtype: DType) {
    for saturate in [false, true] {
        let expected = by_definition(matrix, out_dtype, CastOptions { saturate, ..CastOptions::default() });
        for level in Level::available() {
            // Streaming depends on where the output begins: in the middle of a cache line, at one, between two words.
            for (stream, place) in [(false, 16), (true, 0), (true, 16), (true, 1)] {
                let options = CastOptions { saturate, stream };
                let mut memory = vec![0; expected.len() + 128];
                let line = memory.as_ptr().align_offset(64);
                let actual = &mut memory[line + place..][..expected.len()];
                scale_block_rows_at(level, matrix, 0..matrix.rows, actual, out_dtype, options).expect("a matrix");
                let BlockScaled { dtype, scales_dtype, rows, cols, block, .. } = matrix;
                assert!(
                    actual == expected,
                    "{dtype} x {scales_dtype} -> {out_dtype}, {rows} x {cols} in {block:?}, level {level}, {options:?} at {place}"
                );
            }
        }
    }
}

#[test]
fn rows_done_apart_equal_the_whole() {
    let (rows, cols) = (37, 192);
    let data = finite_codes(DType::Float8E4M3Fn, rows * cols);
    let scales = scale_codes(DType::Float32, rows.div_ceil(16) * cols.div_ceil(128));
    let matrix = BlockScaled {
        data: &data,
        dtype: DType::Float8E4M3Fn,
        scales: &scales,
        scales_dtype: DType::Float32,
        rows,
        cols,
        block: (16, 128),
    };
    let mut whole = vec![0; rows * cols * 2];
    scale_block_rows(&matrix, 0..matrix.rows, &mut whole, DType::BFloat16, CastOptions::default()).expect("a matrix");
    assert_eq!(whole, by_definition(&matrix, DType::BFloat16, CastOptions::default()));
    for level in Level::available() {
        let mut parts = vec![0; whole.len()];
        for (start, end) in [(0, 5), (5, 16), (16, 17), (17, 37), (37, 37)] {
            let part = &mut parts[start * cols * 2..end * cols * 2];
            scale_block_rows_at(level, &matrix, start..end, part, DType::BFloat16, CastOptions::default())
                .expect("rows of the matrix");
        }
        assert_eq!(parts, whole, "level {level}");
    }
}

/// Four-bit floats times every scale of eight bits, except NaN: the products include zeros, denormal numbers, and overflow.
#[test]
fn every_product_of_two_small_floats_equals_the_definition() {
    for scales_dtype in [DType::Float8E8M0Fnu, DType::Float8E4M3Fn, DType::Float8E5M2] {
        let finite = |code: &u8| match scales_dtype {
            DType::Float8E5M2 => code & 0x7f < 0x7c,
            DType::Float8E4M3Fn => code & 0x7f < 0x7f,
            _ => *code < 0xff,
        };
        // Twice, so that their number is even.
        let scales: Vec<u8> = (0..=u8::MAX).filter(finite).collect::<Vec<_>>().repeat(2);
        for block in [16, 32, 64, 96] {
            // One row, and a row for each two of the scales: a whole row is looked up, or none of it.
            let cols = scales.len() * block;
            let codes: Vec<u8> = (0..cols / 2).map(|i| (i as u8).wrapping_mul(0x9d)).collect();
            for (rows, cols) in [(1, cols), (scales.len() / 2, 2 * block)] {
                let (data, dtype, scales) = (&codes[..], DType::Float4E2M1Fn, &scales[..]);
                let matrix = BlockScaled { data, dtype, scales, scales_dtype, rows, cols, block: (1, block) };
                for out_dtype in [DType::BFloat16, DType::Float16, DType::Float32] {
                    assert_equals_definition(&matrix, out_dtype);
                }
            }
        }
    }
}

/// All 256 codes with NaN, infinite and zero scales: every level makes the same bits.
#[test]
fn nans_and_infinities_have_the_same_bits_at_every_level() {
    let data: Vec<u8> = (0..=u8::MAX).collect();
    for bits in [0x7f80_0001u32, 0xffc0_1234, 0x7f80_0000, 0x0000_0000, 0x8000_0000, 0x0000_0001] {
        for dtype in [DType::Float8E4M3Fn, DType::Float8E5M2, DType::Float8E5M2Fnuz, DType::Float4E2M1Fn] {
            let cols = data.len() * 8 / dtype.bits();
            for (rows, repeated) in [(1, data.clone()), (8, data.repeat(8))] {
                let scale = bits.to_le_bytes();
                let (data, scales, scales_dtype) = (&repeated[..], &scale[..], DType::Float32);
                let matrix = BlockScaled { data, dtype, scales, scales_dtype, rows, cols, block: (8, cols) };
                for out_dtype in [DType::BFloat16, DType::Float16, DType::Float32] {
                    let results: Vec<Vec<u8>> = Level::available()
                        .map(|level| {
                            let mut out = vec![0; rows * cols * out_dtype.bits() / 8];
                            let options = CastOptions::default();
                            scale_block_rows_at(level, &matrix, 0..rows, &mut out, out_dtype, options).expect("rows");
                            out
                        })
                        .collect();
                    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{dtype} x {bits:#x} -> {out_dtype}");
                }
            }
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_errors() {
    let data = [0u8; 64];
    let scales = [0u8; 8];
    let right = BlockScaled {
        data: &data,
        dtype: DType::Float8E4M3Fn,
        scales: &scales,
        scales_dtype: DType::Float32,
        rows: 4,
        cols: 16,
        block: (2, 16),
    };
    let attempt = |matrix: BlockScaled<'_>, bytes: usize| {
        scale_block_rows(&matrix, 0..matrix.rows, &mut vec![0; bytes], DType::BFloat16, CastOptions::default())
            .map_err(|e| e.to_string())
    };
    assert_eq!(attempt(right, 128), Ok(()));
    let wrong = [
        (right, 126, "output"),
        (BlockScaled { rows: 5, ..right }, 160, "data"),
        (BlockScaled { block: (1, 16), ..right }, 128, "scales"),
        (BlockScaled { block: (0, 16), ..right }, 128, "empty"),
        (BlockScaled { rows: usize::MAX, ..right }, 128, "too many bytes"),
        (BlockScaled { cols: usize::MAX, ..right }, 128, "too many bytes"),
        (BlockScaled { dtype: DType::Float64, ..right }, 128, "float64"),
        (BlockScaled { scales_dtype: DType::Int32, ..right }, 128, "scales of int32"),
        (BlockScaled { scales_dtype: DType::Float4E2M1Fn, ..right }, 128, "scales of float4_e2m1fn"),
        (BlockScaled { dtype: DType::Float4E2M1Fn, cols: 15, ..right }, 128, "does not end on a byte"),
    ];
    for (matrix, bytes, words) in wrong {
        let message = attempt(matrix, bytes).expect_err(words);
        assert!(message.contains(words), "{message}");
    }
    let (start, end) = (3, 2);
    let mut out = [];
    let reversed =
        scale_block_rows_at(Level::Scalar, &right, start..end, &mut out, DType::BFloat16, CastOptions::default());
    assert!(reversed.is_err());
}
