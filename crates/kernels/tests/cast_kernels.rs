//! Every level of instructions gives the oracle's bits: for every pair of dtypes, every length and every alignment.

use crate::cast_support::{Noise, assert_levels_equal_oracle, covering, real_dtypes};
use max_weights_kernels::cast::{CastOptions, cast_at, cast_by_oracle, elements_per_group};
use max_weights_kernels::dtype::DType;
use max_weights_kernels::simd::Level;

const BOTH: [CastOptions; 2] =
    [CastOptions { saturate: false, stream: false }, CastOptions { saturate: true, stream: false }];

fn assert_from(from: DType) {
    let src = covering(from);
    for to in real_dtypes() {
        for options in BOTH {
            assert_levels_equal_oracle(from, to, &src, options);
        }
    }
}

#[test]
fn every_code_of_the_narrow_types_equals_the_oracle() {
    for from in real_dtypes().filter(|dtype| dtype.bits() <= 8) {
        assert_from(from);
    }
}

#[test]
fn every_code_of_the_sixteen_bit_types_equals_the_oracle() {
    for from in real_dtypes().filter(|dtype| dtype.bits() == 16) {
        assert_from(from);
    }
}

#[test]
fn boundaries_of_float32_equal_the_oracle() {
    assert_from(DType::Float32);
}

#[test]
fn boundaries_of_float64_equal_the_oracle() {
    assert_from(DType::Float64);
}

#[test]
fn boundaries_of_wide_integers_equal_the_oracle() {
    for from in [DType::Int32, DType::UInt32, DType::Int64, DType::UInt64] {
        assert_from(from);
    }
}

/// Every length up to several steps of the widest kernel, at shifting addresses; nothing outside the destination is touched.
#[test]
fn every_length_and_alignment_equals_the_oracle() {
    const FENCE: u8 = 0xee;
    let noise: Vec<u8> = Noise(1).flat_map(u64::to_le_bytes).take(2048).collect();
    for from in real_dtypes() {
        for to in real_dtypes() {
            let group = elements_per_group(from).max(elements_per_group(to));
            for elements in (0..=130).step_by(group) {
                let (src_bytes, dst_bytes) = (elements * from.bits() / 8, elements * to.bits() / 8);
                let shift = elements * 7 % 64;
                let src = &noise[shift..shift + src_bytes];
                let mut expected = vec![0; dst_bytes];
                cast_by_oracle(from, to, src, &mut expected, CastOptions::default()).expect("a pair");
                for level in Level::available() {
                    let start = 1 + elements * 5 % 64;
                    let mut buffer = vec![FENCE; start + dst_bytes + 64];
                    let dst = &mut buffer[start..start + dst_bytes];
                    cast_at(level, from, to, src, dst, CastOptions::default()).expect("a pair");
                    assert_eq!(dst, expected, "{from} -> {to}, {elements} elements, level {level}");
                    let outside = buffer[..start].iter().chain(&buffer[start + dst_bytes..]);
                    assert!(outside.into_iter().all(|byte| *byte == FENCE), "{from} -> {to} wrote outside");
                }
            }
        }
    }
}

/// Streamed stores use other instructions, after a head that reaches their alignment.
#[test]
fn streamed_outputs_equal_the_oracle() {
    const STREAMED: CastOptions = CastOptions { saturate: false, stream: true };
    const ELEMENTS: usize = (1 << 20) + 37;
    let noise: Vec<u8> = Noise(2).flat_map(u64::to_le_bytes).take(ELEMENTS * 4).collect();
    let pairs = [
        (DType::Float8E4M3Fn, DType::BFloat16),
        (DType::Float8E5M2, DType::Float32),
        (DType::BFloat16, DType::Float32),
        (DType::Float32, DType::Float16),
        (DType::Float32, DType::BFloat16),
        (DType::Float32, DType::Float8E4M3Fn),
    ];
    for (from, to) in pairs {
        let (from_bytes, to_bytes) = (from.bits() / 8, to.bits() / 8);
        let src = &noise[..ELEMENTS * from_bytes];
        let mut expected = vec![0; ELEMENTS * to_bytes];
        cast_at(Level::Scalar, from, to, src, &mut expected, CastOptions::default()).expect("a pair");
        for level in Level::available() {
            // One address that an element's size divides, and one that it does not.
            for start in [to_bytes, 1] {
                let mut buffer = vec![0; start + expected.len()];
                cast_at(level, from, to, src, &mut buffer[start..], STREAMED).expect("a pair");
                assert!(buffer[start..] == expected, "{from} -> {to} at level {level}");
            }
        }
    }
}

/// Noise has subnormal numbers and NaNs in every run of steps, which are converted again; here they have separate runs.
#[test]
fn every_bfloat16_and_its_neighbours_and_what_lies_halfway_are_rounded_to_even() {
    let floats = (0..=u16::MAX).flat_map(|upper| {
        let upper = u32::from(upper) << 16;
        [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|lower| upper | lower)
    });
    let src: Vec<u8> = floats.flat_map(u32::to_ne_bytes).collect();
    let mut expected = vec![0; src.len() / 2];
    cast_by_oracle(DType::Float32, DType::BFloat16, &src, &mut expected, CastOptions::default()).expect("a pair");
    for level in Level::available() {
        for stream in [false, true] {
            let mut found = vec![0; expected.len()];
            let options = CastOptions { saturate: false, stream };
            cast_at(level, DType::Float32, DType::BFloat16, &src, &mut found, options).expect("a pair");
            let differ = found.chunks(2).zip(expected.chunks(2)).position(|(found, expected)| found != expected);
            let float = differ.map(|at| format!("{:02x?}", &src[4 * at..][..4]));
            assert_eq!(float, None, "bytes of a float32 that is rounded otherwise at level {level}");
        }
    }
}
