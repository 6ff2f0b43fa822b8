//! The rule table of docs/dtypes.md, each rule with an independent oracle: Rust's `as`, the `half` crate, or a search for the nearest value.

use crate::cast_support::{Noise, covering, f32_boundaries, f64_boundaries, integer_boundaries, real_dtypes};
use half::{bf16, f16};
use max_weights_kernels::Error;
use max_weights_kernels::cast::{CastOptions, cast, cast_by_oracle, is_supported};
use max_weights_kernels::dtype::DType;

const SATURATE: CastOptions = CastOptions { saturate: true, stream: false };

/// The cast of whole slices, by the oracle.
fn oracle(from: DType, to: DType, src: &[u8], options: CastOptions) -> Vec<u8> {
    let mut dst = vec![0; src.len() * 8 / from.bits() * to.bits() / 8];
    cast_by_oracle(from, to, src, &mut dst, options).expect("a pair");
    dst
}

/// The code that one f32 becomes.
fn narrowed(to: DType, value: f32, options: CastOptions) -> u8 {
    oracle(DType::Float32, to, &value.to_le_bytes(), options)[0]
}

/// The f32 that one code is.
fn widened(from: DType, code: u8) -> f32 {
    let bytes = oracle(from, DType::Float32, &[code], CastOptions::default());
    f32::from_le_bytes(bytes.try_into().expect("one f32"))
}

#[test]
fn f16_and_bf16_equal_the_half_crate() {
    let values = f32_boundaries();
    let src: Vec<u8> = values.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let halves = oracle(DType::Float32, DType::Float16, &src, CastOptions::default());
    let brains = oracle(DType::Float32, DType::BFloat16, &src, CastOptions::default());
    let codes = halves.as_chunks::<2>().0.iter().zip(brains.as_chunks::<2>().0);
    for (bits, (half, brain)) in values.into_iter().zip(codes) {
        let value = f32::from_bits(bits);
        let (half, brain) = (f16::from_le_bytes(*half), bf16::from_le_bytes(*brain));
        assert_eq!(half.to_bits(), f16::from_f32_const(value).to_bits(), "{bits:#x}");
        assert_eq!(brain.to_bits(), bf16::from_f32(value).to_bits(), "{bits:#x}");
    }
    for code in 0..=u16::MAX {
        let wide = oracle(DType::Float16, DType::Float32, &code.to_le_bytes(), CastOptions::default());
        assert_eq!(wide, f16::from_bits(code).to_f32_const().to_bits().to_le_bytes(), "{code:#x}");
    }
}

#[test]
fn integers_equal_rusts_as() {
    let words = integer_boundaries();
    let src: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let to_i8 = oracle(DType::Int64, DType::Int8, &src, CastOptions::default());
    let to_f32 = oracle(DType::Int64, DType::Float32, &src, CastOptions::default());
    let unsigned = oracle(DType::UInt64, DType::Float64, &src, CastOptions::default());
    for (i, word) in words.iter().enumerate() {
        assert_eq!(to_i8[i], *word as u8);
        assert_eq!(to_f32[4 * i..][..4], (*word as i64 as f32).to_le_bytes(), "{word:#x}");
        assert_eq!(unsigned[8 * i..][..8], (*word as f64).to_le_bytes(), "{word:#x}");
    }
}

#[test]
fn floats_to_integers_equal_rusts_as() {
    let values = f64_boundaries();
    let src: Vec<u8> = values.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let signed = oracle(DType::Float64, DType::Int32, &src, CastOptions::default());
    let unsigned = oracle(DType::Float64, DType::UInt64, &src, CastOptions::default());
    let narrow = oracle(DType::Float64, DType::Float32, &src, CastOptions::default());
    for (i, bits) in values.iter().enumerate() {
        let value = f64::from_bits(*bits);
        assert_eq!(signed[4 * i..][..4], (value as i32).to_le_bytes(), "{value}");
        assert_eq!(unsigned[8 * i..][..8], (value as u64).to_le_bytes(), "{value}");
        if !value.is_nan() {
            assert_eq!(narrow[4 * i..][..4], (value as f32).to_le_bytes(), "{value}");
        }
    }
}

/// The nearest of all values, ties to the even code, found by comparing with every midpoint in f64, where these are exact.
#[test]
fn f64_is_rounded_once_to_the_nearest_value_of_each_small_type() {
    let small = [
        DType::Float8E4M3Fn,
        DType::Float8E4M3Fnuz,
        DType::Float8E5M2,
        DType::Float8E5M2Fnuz,
        DType::Float16,
        DType::BFloat16,
    ];
    let values = f64_boundaries();
    let src: Vec<u8> = values.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    for to in small {
        let codes = covering(to);
        let decoded = oracle(to, DType::Float64, &codes, CastOptions::default());
        let decoded: Vec<f64> = decoded.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
        // Codes of positive values count upwards from zero.
        let finite = decoded.iter().position(|value| !value.is_finite()).unwrap_or(decoded.len() / 2);
        let positive = &decoded[..finite.min(decoded.len() / 2)];
        let midpoints: Vec<f64> = positive.windows(2).map(|pair| f64::midpoint(pair[0], pair[1])).collect();
        let largest = positive[positive.len() - 1];
        let overflow = largest + (largest - positive[positive.len() - 2]) / 2.0;
        let bytes = to.bits() / 8;
        let actual = oracle(DType::Float64, to, &src, CastOptions::default());
        for (bits, code) in values.iter().zip(actual.chunks_exact(bytes)) {
            let value = f64::from_bits(*bits);
            let magnitude = value.abs();
            if value.is_nan() || magnitude >= overflow {
                continue; // the ends of the range have their own tests
            }
            let below = midpoints.partition_point(|midpoint| *midpoint < magnitude);
            let tie = midpoints.get(below).is_some_and(|midpoint| midpoint.to_bits() == magnitude.to_bits());
            let expected = if tie && below % 2 == 1 { below + 1 } else { below };
            let code = code.iter().rev().fold(0, |code, byte| code << 8 | usize::from(*byte));
            assert_eq!(code & (codes.len() / bytes / 2 - 1), expected, "{to}: {value:e}");
        }
    }
}

#[test]
fn overflow_gives_infinity_where_there_is_one_else_nan_else_the_largest_value() {
    let cases = [
        (DType::Float8E4M3Fn, 464.0, 0x7e, 464.5, 0x7f, 0x7e),
        (DType::Float8E4M3Fnuz, 247.9, 0x7f, 248.0, 0x80, 0x7f),
        (DType::Float8E5M2, 61439.0, 0x7b, 61440.0, 0x7c, 0x7b),
        (DType::Float8E5M2Fnuz, 61439.0, 0x7f, 61440.0, 0x80, 0x7f),
        (DType::Float8E8M0Fnu, 2.5e38, 0xfe, 2.6e38, 0xff, 0xfe),
    ];
    for (to, fits, fits_code, too_large, code, saturated) in cases {
        assert_eq!(narrowed(to, fits, CastOptions::default()), fits_code, "{to}");
        for value in [too_large, f32::MAX, f32::INFINITY] {
            assert_eq!(narrowed(to, value, CastOptions::default()), code, "{to} {value}");
            assert_eq!(narrowed(to, value, SATURATE), saturated, "{to} {value}");
        }
    }
    // f4 and f6 have neither, and always take the largest value: here 6 and -6 in one byte.
    let both: Vec<u8> = [f32::INFINITY, -100.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(oracle(DType::Float32, DType::Float4E2M1Fn, &both, CastOptions::default()), [0xf7]);
}

#[test]
fn saturating_sixteen_bits_keeps_infinity_and_limits_finite_values() {
    let src: Vec<u8> =
        [f32::INFINITY, 1e39_f64 as f32, 3.4e38, -3.4e38].iter().flat_map(|value| value.to_le_bytes()).collect();
    let codes = |to, options| -> Vec<u16> {
        oracle(DType::Float32, to, &src, options)
            .as_chunks::<2>()
            .0
            .iter()
            .map(|code| u16::from_le_bytes(*code))
            .collect()
    };
    assert_eq!(codes(DType::Float16, CastOptions::default()), [0x7c00, 0x7c00, 0x7c00, 0xfc00]);
    assert_eq!(codes(DType::Float16, SATURATE), [0x7c00, 0x7c00, 0x7bff, 0xfbff]);
    assert_eq!(codes(DType::BFloat16, CastOptions::default()), [0x7f80, 0x7f80, 0x7f80, 0xff80]);
    assert_eq!(codes(DType::BFloat16, SATURATE), [0x7f80, 0x7f80, 0x7f7f, 0xff7f]);
}

#[test]
fn a_nan_stays_a_quiet_nan_with_its_sign_and_the_payload_that_fits() {
    let signalling = f32::from_bits(0xff80_0001 | 0x0020_0000);
    assert_eq!(narrowed(DType::Float8E5M2, signalling, CastOptions::default()), 0xff);
    assert_eq!(narrowed(DType::Float8E4M3Fn, signalling, CastOptions::default()), 0xff);
    assert_eq!(narrowed(DType::Float8E4M3Fn, signalling, SATURATE), 0xff);
    assert_eq!(narrowed(DType::Float8E4M3Fnuz, signalling, CastOptions::default()), 0x80);
    assert_eq!(widened(DType::Float8E5M2, 0xfd).to_bits(), 0xffe0_0000);
    assert_eq!(widened(DType::Float8E4M3Fn, 0xff).to_bits(), 0xffc0_0000);
    assert_eq!(widened(DType::Float8E5M2Fnuz, 0x80).to_bits(), 0x7fc0_0000);
    let half = oracle(DType::Float32, DType::Float16, &signalling.to_le_bytes(), CastOptions::default());
    assert_eq!(half, 0xff00u16.to_le_bytes());
    let double = oracle(DType::Float32, DType::Float64, &signalling.to_le_bytes(), CastOptions::default());
    assert_eq!(double, 0xfffc_0000_2000_0000u64.to_le_bytes());
}

#[test]
fn signed_zeros_and_denormals_are_kept() {
    assert_eq!(narrowed(DType::Float8E4M3Fn, -0.0, CastOptions::default()), 0x80);
    assert_eq!(narrowed(DType::Float8E4M3Fn, 2f32.powi(-9), CastOptions::default()), 0x01);
    assert_eq!(narrowed(DType::Float8E4M3Fn, -2f32.powi(-10), CastOptions::default()), 0x80);
    assert_eq!(narrowed(DType::Float8E4M3Fnuz, -0.0, CastOptions::default()), 0x00);
    let denormal = f32::from_bits(0x0001_0000);
    let brain = oracle(DType::Float32, DType::BFloat16, &denormal.to_le_bytes(), CastOptions::default());
    assert_eq!(brain, 1u16.to_le_bytes());
}

#[test]
fn powers_of_two_follow_ml_dtypes() {
    let cases = [(0.0, 0xff), (-1.0, 0xff), (1.0, 0x7f), (1.49, 0x7f), (1.5, 0x80), (3.0, 0x81), (1e-45, 0x00)];
    for (value, code) in cases {
        assert_eq!(narrowed(DType::Float8E8M0Fnu, value, CastOptions::default()), code, "{value}");
    }
    assert_eq!(narrowed(DType::Float8E8M0Fnu, 5.9e-39, CastOptions::default()), 0x01);
    assert_eq!(widened(DType::Float8E8M0Fnu, 0).to_bits(), 0x0040_0000);
}

#[test]
fn packed_types_begin_at_the_lowest_bits() {
    let codes = oracle(DType::Float4E2M1Fn, DType::Float32, &[0x21], CastOptions::default());
    assert_eq!(codes, [0.5f32.to_le_bytes(), 1f32.to_le_bytes()].concat());
    // Four elements of six bits: the first in the low bits of the first byte, the last in the high bits of the third.
    let values: Vec<u8> = [1f32, 0.0, 0.0, -1.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let packed = oracle(DType::Float32, DType::Float6E3M2Fn, &values, CastOptions::default());
    assert_eq!(packed, [0x0c, 0x00, 0x2c << 2]);
    assert_eq!(oracle(DType::Float6E3M2Fn, DType::Float32, &packed, CastOptions::default()), values);
}

#[test]
fn any_nonzero_byte_of_a_bool_is_true() {
    assert_eq!(oracle(DType::Bool, DType::Int32, &[7], CastOptions::default()), 1i32.to_le_bytes());
    let truths: Vec<u8> = [f32::NAN, 0.1, -0.0, 0.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(oracle(DType::Float32, DType::Bool, &truths, CastOptions::default()), [1, 1, 0, 0]);
}

#[test]
fn complex_numbers_convert_only_to_themselves() {
    assert!(is_supported(DType::Complex64, DType::Complex64));
    let src: Vec<u8> = Noise(5).flat_map(u64::to_le_bytes).take(24).collect();
    let mut dst = vec![0; 24];
    cast(DType::Complex64, DType::Complex64, &src, &mut dst, CastOptions::default()).expect("a copy");
    assert_eq!(dst, src);
    for other in real_dtypes() {
        assert!(!is_supported(DType::Complex64, other) && !is_supported(other, DType::Complex64));
        let error = cast(DType::Complex64, other, &[], &mut [], CastOptions::default()).expect_err("unsupported");
        assert!(matches!(error, Error::CastPair(_)), "{error}");
    }
}

#[test]
fn lengths_that_do_not_fit_are_errors() {
    let wrong = [
        (DType::Float32, DType::Float16, 8, 5, "not a whole number"),
        (DType::Float32, DType::Float16, 8, 6, "2 elements of float32 (8 bytes) into room for 3 of float16"),
        (DType::Float6E2M3Fn, DType::UInt8, 4, 4, "not a whole number"),
        (DType::Float4E2M1Fn, DType::UInt8, 2, 2, "4 elements of float4_e2m1fn"),
        (DType::UInt8, DType::UInt8, 3, 4, "3 elements"),
    ];
    for (from, to, src, dst, words) in wrong {
        let error = cast(from, to, &vec![0; src], &mut vec![0; dst], CastOptions::default()).expect_err("lengths");
        assert!(error.to_string().contains(words), "{error}");
    }
}
