//! Codes with a lookup table: every level gives the bits of the scalar code, which gives those of the definition; inconsistent sizes are errors.

use half::{bf16, f16};
use max_weights_kernels::dtype::DType;
use max_weights_kernels::quant::{After, Codebook, dequantize_codes_at};
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

fn table(bits: u32) -> Vec<f32> {
    (0..1 << bits).map(|code| (code as f32 - 7.0) / 11.0).collect()
}

/// Scales of every kind: ordinary, zero, negative, infinite, denormal.
fn scales(count: usize) -> Vec<f32> {
    let kinds = [1.5, 0.0, -2.25, f32::INFINITY, 1e-40, 3e38, 0.1];
    (0..count).map(|i| kinds[i % kinds.len()]).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn code(packed: &[u8], bits: u32, i: usize) -> usize {
    match (bits, i % 2) {
        (8, _) => packed[i].into(),
        (_, 0) => (packed[i / 2] >> 4).into(),
        _ => (packed[i / 2] & 15).into(),
    }
}

/// The bits of a value in a dtype; those of NaNs are not compared.
fn rounded(value: f32, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::Float32 => value.to_le_bytes().to_vec(),
        DType::Float16 => f16::from_f32(value).to_le_bytes().to_vec(),
        _ => bf16::from_f32(value).to_le_bytes().to_vec(),
    }
}

#[test]
fn every_level_gives_the_elements_of_the_definition() {
    let afters = [After::Nothing, After::Times(1.0 / 127.0), After::Plus(0.3)];
    for (bits, block, elements) in
        [(4, 64, 64 * 9), (4, 32, 1001), (4, 4096, 9000), (4, 2, 77), (4, 10, 95), (8, 256, 3000), (8, 7, 100)]
    {
        let packed = noise(block as u64, elements * bits as usize / 8 + usize::from(bits == 4) * elements % 2);
        let packed = &packed[..(elements * bits as usize).div_ceil(8)];
        let (values, of_blocks) = (table(bits), scales(elements.div_ceil(block)));
        let scales = bytes(&of_blocks);
        for after in afters {
            let codes = Codebook { bits, packed, elements, values: &values, scales: &scales, block, after };
            let expected = (0..elements).map(|i| {
                let product = values[code(packed, bits, i)] * of_blocks[i / block];
                match after {
                    After::Nothing => product,
                    After::Times(factor) => product * factor,
                    After::Plus(offset) => product + offset,
                }
            });
            let expected: Vec<f32> = expected.collect();
            for dtype in [DType::Float32, DType::BFloat16, DType::Float16] {
                let width = dtype.bits() / 8;
                for level in Level::available() {
                    for (stream, middle) in [(false, 0), (true, elements / 3 / 2 * 2)] {
                        let mut out = vec![0; elements * width];
                        let (first, rest) = out.split_at_mut(middle * width);
                        dequantize_codes_at(level, &codes, 0..middle, first, dtype, stream).unwrap();
                        dequantize_codes_at(level, &codes, middle..elements, rest, dtype, stream).unwrap();
                        for (i, (found, expected)) in out.chunks(width).zip(&expected).enumerate() {
                            assert!(
                                expected.is_nan() || found == rounded(*expected, dtype),
                                "{i} of {bits} bits in blocks of {block}, {after:?} -> {dtype}, {level}, {stream}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_scale_that_is_nan_and_an_infinite_one_of_zero_give_nan() {
    let (values, packed) = ([0.0; 16], [0x10; 32]);
    for scale in [f32::NAN, f32::INFINITY] {
        let scales = bytes(&[scale]);
        let after = After::Nothing;
        let codes =
            Codebook { bits: 4, packed: &packed, elements: 64, values: &values, scales: &scales, block: 64, after };
        for level in Level::available() {
            let mut out = [0; 256];
            dequantize_codes_at(level, &codes, 0..64, &mut out, DType::Float32, false).unwrap();
            assert!(out.as_chunks().0.iter().all(|value| f32::from_le_bytes(*value).is_nan()), "{level}");
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_errors_and_leave_the_output_alone() {
    let (values, packed, scales) = (table(4), noise(1, 64), bytes(&scales(2)));
    let right = Codebook {
        bits: 4,
        packed: &packed,
        elements: 128,
        values: &values,
        scales: &scales,
        block: 64,
        after: After::Nothing,
    };
    let infinite = [f32::INFINITY; 16];
    let cases: [(Codebook<'_>, std::ops::Range<usize>, &str); 13] = [
        (Codebook { bits: 5, ..right }, 0..128, "5 bits are none of 4 or 8"),
        (Codebook { bits: 8, ..right }, 0..128, "have 256 values, not 16"),
        (Codebook { values: &values[..15], ..right }, 0..128, "have 16 values, not 15"),
        (Codebook { values: &infinite, ..right }, 0..128, "not finite"),
        (Codebook { after: After::Times(f32::NAN), ..right }, 0..128, "not finite"),
        (Codebook { block: 0, ..right }, 0..128, "a block of 0 codes"),
        (Codebook { block: 63, ..right }, 0..128, "a block of 63 codes"),
        (Codebook { packed: &packed[..63], ..right }, 0..128, "should have 64 bytes, and have 63"),
        (Codebook { scales: &scales[..7], ..right }, 0..128, "should have 8 bytes, and have 7"),
        (Codebook { elements: usize::MAX, ..right }, 0..128, "and have 64 bytes"),
        (Codebook { elements: usize::MAX, block: 2, ..right }, 0..128, "and have 64 bytes"),
        (right, 0..130, "elements 0..130 of 128"),
        (right, 1..128, "elements 1..128 of 128"),
    ];
    for (codes, range, message) in cases {
        let mut out = [7; 512];
        let error = dequantize_codes_at(Level::Scalar, &codes, range, &mut out, DType::Float32, false).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!(out, [7; 512]);
    }
    let mut short = [0; 511];
    let error = dequantize_codes_at(Level::Scalar, &right, 0..128, &mut short, DType::Float32, false).unwrap_err();
    assert!(error.to_string().contains("should have 512 bytes, and have 511"), "{error}");
    let error = dequantize_codes_at(Level::Scalar, &right, 0..128, &mut [0; 128], DType::Int8, false).unwrap_err();
    assert!(error.to_string().contains("not to int8"), "{error}");
}
