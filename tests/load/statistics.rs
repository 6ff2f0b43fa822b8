//! Statistics of tensors: what a plain loop over all values would give, for every dtype and encoding, however the values lie in the file.

#![allow(clippy::float_cmp)] // what is exact is compared exactly

use crate::gguf_files;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use max_weights::cast::{CastOptions, cast_by_oracle, elements_per_group};
use max_weights::check::{ExactNumber, MAX_BINS, Statistics, statistics};
use max_weights::checkpoint::{Checkpoint, OpenOptions};
use max_weights::dtype::DType;
use max_weights::error::{Error, Result};
use max_weights::quant::{self, Encoding};
use max_weights::workers::uninterrupted;
use proptest::prelude::*;

use crate::source_support::Trial;
use crate::statistics_support::{Naive, Torch, gguf, noise, opened, safetensors};

fn of(checkpoint: &Checkpoint, name: &str, bins: usize) -> Result<Statistics> {
    statistics(checkpoint, checkpoint.catalog().require(name)?, bins, &AtomicU64::new(0), &uninterrupted)
}

/// Of float64 values.
fn of_f64(values: &[f64], bins: usize) -> Statistics {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    of(&opened(safetensors("F64", &[values.len()], &bytes, 0)), "t", bins).unwrap()
}

fn counts(found: &Statistics) -> Vec<u64> {
    found.bins.iter().map(|bin| bin.count).collect()
}

fn integers(found: &Statistics) -> (i128, i128) {
    match (found.minimum, found.maximum) {
        (Some(ExactNumber::Integer(low)), Some(ExactNumber::Integer(high))) => (low, high),
        other => panic!("{other:?}"),
    }
}

/// Some values of a dtype as float64, by the oracle of the casts; the magnitudes of complex ones, and the bytes of bools.
fn values(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let f64s = |bytes: &[u8]| bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
    match dtype {
        DType::Float64 => f64s(bytes),
        DType::Complex64 => {
            let parts: Vec<f64> = values(DType::Float32, bytes);
            let infinite = |pair: &[f64]| pair.iter().any(|part| part.is_infinite());
            let length = |pair: &[f64]| (pair[0] * pair[0] + pair[1] * pair[1]).sqrt();
            let magnitude = |pair: &[f64]| if infinite(pair) { f64::INFINITY } else { length(pair) };
            parts.chunks(2).map(magnitude).collect()
        }
        DType::Bool => bytes.iter().copied().map(f64::from).collect(),
        _ => {
            let mut made = vec![0; bytes.len() * 8 / dtype.bits() * 8];
            cast_by_oracle(dtype, DType::Float64, bytes, &mut made, CastOptions::default()).unwrap();
            f64s(&made)
        }
    }
}

#[test]
fn every_dtype_has_the_statistics_of_a_plain_loop_wherever_the_file_has_it() {
    for dtype in DType::all() {
        for (count, pad) in [(4, 0), (5000, 0), (5000, 1), (70_004, 3)] {
            let count = count / elements_per_group(dtype) * elements_per_group(dtype);
            let bytes = noise(count * dtype.bits() / 8);
            let checkpoint = opened(safetensors(dtype.safetensors_name(), &[count], &bytes, pad));
            let integers = matches!(dtype.name().split(char::is_numeric).next(), Some("int" | "uint" | "bool"));
            let naive = Naive::of(&values(dtype, &bytes));
            for bins in [0, 12] {
                let found = of(&checkpoint, "t", bins).unwrap();
                naive.assert_equals(&found, bins, &format!("{dtype}, {count}"));
                assert_eq!(matches!(found.minimum, Some(ExactNumber::Integer(_))), integers, "{dtype}");
            }
        }
    }
}

#[test]
fn packed_blocks_have_the_statistics_of_what_they_decode_to() {
    for encoding in Encoding::all() {
        for blocks in [1, 66_000 / encoding.elements_per_block()] {
            let bytes = noise(blocks * encoding.bytes_per_block());
            let elements = blocks * encoding.elements_per_block();
            let mut decoded = vec![0; elements * 4];
            quant::dequantize(encoding, &bytes, DType::Float32, &mut decoded, false).unwrap();
            let checkpoint = opened(gguf(encoding, elements, &bytes, false));
            let found = of(&checkpoint, "t", 9).unwrap();
            Naive::of(&values(DType::Float32, &decoded)).assert_equals(&found, 9, encoding.name());
            let mut swapped = bytes.clone();
            quant::swap_bytes(encoding, &mut swapped);
            let swapped = of(&opened(gguf(encoding, elements, &swapped, true)), "t", 9).unwrap();
            assert_eq!(format!("{swapped:?}"), format!("{found:?}"), "big-endian {encoding}");
        }
    }
}

#[test]
fn known_values_have_known_statistics() {
    let found = of_f64(&[1.0, 2.0, 3.0, 4.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 5e-324], 2);
    assert_eq!((found.count, found.finite()), (10, 7));
    assert_eq!((found.zeros, found.subnormals, found.nans, found.infinities), (2, 1, 1, 2));
    assert_eq!((found.minimum, found.maximum), (Some(ExactNumber::Float(0.0)), Some(ExactNumber::Float(4.0))));
    assert_eq!(found.mean, Some(10.0 / 7.0));
    assert!((found.deviation.unwrap() - (30.0f64 / 7.0 - 100.0 / 49.0).sqrt()).abs() < 1e-15);
    assert_eq!(counts(&found), [4, 3]);
    assert_eq!((found.bins[0].high, found.bins[1].low), (ExactNumber::Float(2.0), ExactNumber::Float(2.0)));
}

#[test]
fn the_extremes_of_float64_do_not_overflow() {
    let found = of_f64(&[f64::MAX, -f64::MAX, f64::MAX, -f64::MAX], 4);
    assert_eq!((found.mean, found.deviation), (Some(0.0), Some(f64::MAX)));
    assert_eq!(counts(&found), [2, 0, 0, 2]);
    let found = of_f64(&[f64::MAX, f64::MAX / 2.0], 1);
    assert_eq!((found.mean, found.deviation), (Some(f64::MAX * 0.75), Some(f64::MAX / 4.0)));
    let found = of_f64(&[5e-324, 0.0, 1e-323, 5e-324], 2);
    assert_eq!((found.mean, found.subnormals), (Some(5e-324), 3));
    assert_eq!(counts(&found), [1, 3]);
    let small = of_f64(&[3e-200, 1e-200], 0);
    assert!((small.deviation.unwrap() / 1e-200 - 1.0).abs() < 1e-14, "{small:?}");
}

#[test]
fn the_deviation_of_large_neighbours_is_not_lost() {
    let values: Vec<f64> = (0..100_000).map(|i| 1e9 + f64::from(i % 2)).collect();
    let found = of_f64(&values, 0);
    assert_eq!((found.mean, found.deviation), (Some(1e9 + 0.5), Some(0.5)));
}

#[test]
fn integers_of_64_bits_are_exact() {
    let bytes: Vec<u8> = [u64::MAX, u64::MAX - 2, u64::MAX].iter().flat_map(|value| value.to_le_bytes()).collect();
    let found = of(&opened(safetensors("U64", &[3], &bytes, 0)), "t", 12).unwrap();
    assert_eq!(integers(&found), (i128::from(u64::MAX) - 2, i128::from(u64::MAX)));
    assert_eq!(counts(&found), [1, 0, 2]);
    assert_eq!(found.bins[2].low, ExactNumber::Integer(i128::from(u64::MAX)));
    let bytes: Vec<u8> = [i64::MIN, 0, i64::MAX, i64::MAX].iter().flat_map(|value| value.to_le_bytes()).collect();
    let found = of(&opened(safetensors("I64", &[4], &bytes, 0)), "t", 3).unwrap();
    assert_eq!(integers(&found), (i64::MIN.into(), i64::MAX.into()));
    assert_eq!((found.zeros, counts(&found)), (1, vec![1, 1, 2]));
    let found = of(&opened(safetensors("I64", &[3], &bytes[16..].repeat(2)[..24], 0)), "t", 3).unwrap();
    assert_eq!((found.bins[0].low, counts(&found)), (ExactNumber::Integer(i64::MAX.into()), vec![3]));
}

#[test]
fn narrow_integers_have_one_bin_each() {
    for (dtype, step) in [("I8", 1), ("U16", 2), ("I32", 4), ("U64", 8)] {
        let bytes: Vec<u8> = (0..24u64).flat_map(|value| value.to_le_bytes()[..step].to_vec()).collect();
        let found = of(&opened(safetensors(dtype, &[24], &bytes, 0)), "t", 5).unwrap();
        assert_eq!(counts(&found), [1; 24], "{dtype}");
        assert!(found.bins.iter().zip(0..).all(|(bin, i)| bin.low == ExactNumber::Integer(i) && bin.high == bin.low));
        let wider = [bytes, 24u64.to_le_bytes()[..step].to_vec()].concat();
        let found = of(&opened(safetensors(dtype, &[25], &wider, 0)), "t", 5).unwrap();
        assert_eq!(counts(&found), [5; 5], "{dtype}");
    }
}

#[test]
fn bools_count_as_the_bytes_that_they_are() {
    let found = of(&opened(safetensors("BOOL", &[5], &[0, 1, 1, 7, 0], 0)), "t", 12).unwrap();
    assert_eq!((integers(&found), found.zeros), ((0, 7), 2));
    assert_eq!(counts(&found), [2, 2, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn an_empty_tensor_has_no_values() {
    for dtype in ["F32", "BF16", "I64", "F4"] {
        let found = of(&opened(safetensors(dtype, &[0], &[], 0)), "t", 12).unwrap();
        assert_eq!(found, Statistics::default(), "{dtype}");
    }
    let none = Torch { shape: &[3, 0], strides: &[0, 1], ..Torch::floats(&[1.0]) };
    assert_eq!(of(&opened(none.file()), "t", 12).unwrap(), Statistics::default());
}

#[test]
fn a_tensor_without_finite_values_has_counts_alone() {
    for (dtype, nan, infinity) in
        [("F32", vec![0, 0, 192, 127], vec![0, 0, 128, 255]), ("F16", vec![1, 124], vec![0, 252])]
    {
        let bytes = [nan.repeat(70_000), infinity.repeat(5)].concat();
        let found = of(&opened(safetensors(dtype, &[70_005], &bytes, 0)), "t", 12).unwrap();
        assert_eq!((found.count, found.nans, found.infinities, found.finite()), (70_005, 70_000, 5, 0));
        assert_eq!((found.minimum, found.maximum, found.mean, found.deviation), (None, None, None, None));
        assert!(found.bins.is_empty());
    }
}

#[test]
fn a_constant_has_one_bin_and_no_deviation() {
    for (dtype, bytes) in
        [("F64", 0.1f64.to_le_bytes().to_vec()), ("BF16", vec![0x80, 0x3f]), ("F32", vec![0, 0, 0, 0x80])]
    {
        let found = of(&opened(safetensors(dtype, &[99_999], &bytes.repeat(99_999), 0)), "t", 12).unwrap();
        assert_eq!((counts(&found), found.deviation), (vec![99_999], Some(0.0)));
        assert_eq!(found.mean, found.minimum.map(ExactNumber::to_f64));
    }
}

#[test]
fn a_file_of_a_kilobyte_with_a_tensor_of_petabytes_is_counted_at_once() {
    let expanded =
        Torch { shape: &[1 << 30, 4, 1 << 20], strides: &[0, 1, 0], ..Torch::floats(&[1.0, 0.0, f32::NAN, 3.0]) };
    let found = of(&opened(expanded.file()), "t", 2).unwrap();
    assert_eq!((found.count, found.zeros, found.nans), (1 << 52, 1 << 50, 1 << 50));
    assert_eq!((found.mean, counts(&found)), (Some(4.0 / 3.0), vec![2 << 50, 1 << 50]));
}

#[test]
fn of_elements_that_overlap_the_first_million_is_counted() {
    let windows = Torch { shape: &[1 << 30, 1 << 30], strides: &[0, 0], ..Torch::floats(&[2.0]) };
    assert_eq!(of(&opened(windows.file()), "t", 2).unwrap().count, 1 << 60);
    let values: Vec<f32> = (0u16..4096).map(f32::from).collect();
    let windows = Torch { shape: &[2049, 1024, 1025], strides: &[1, 1, 1], ..Torch::floats(&values) };
    let found = of(&opened(windows.file()), "t", 2).unwrap();
    assert_eq!(found.count, 1023 * 1025, "of the first dimension one, of the second as many as fit");
    assert_eq!((found.minimum, found.maximum), (Some(ExactNumber::Float(0.0)), Some(ExactNumber::Float(2046.0))));
    // Fewer than a million, all of them.
    let windows = Torch { shape: &[1000, 7], strides: &[2, 1], ..Torch::floats(&values) };
    let found = of(&opened(windows.file()), "t", 0).unwrap();
    assert_eq!((found.count, found.maximum), (7000, Some(ExactNumber::Float(2004.0))));
}

#[test]
fn strides_and_compression_and_byte_order_change_nothing() {
    let values: Vec<f32> = (0..40_000u16).map(|i| f32::from(i.wrapping_mul(40_503)) - 1e4).collect();
    let whole =
        of(&opened(Torch { shape: &[40_000], strides: &[1], ..Torch::floats(&values) }.file()), "t", 7).unwrap();
    assert_eq!(whole.count, 40_000);
    for (deflated, big_endian) in [(false, false), (true, false), (false, true), (true, true)] {
        let of = |shape: &[u64], strides: &[u64], offset| {
            let torch = Torch { shape, strides, offset, deflated, big_endian, ..Torch::floats(&values) };
            of(&opened(torch.file()), "t", 7).unwrap()
        };
        assert_eq!(of(&[40, 1000], &[1000, 1], 0), whole);
        assert_eq!(of(&[1000, 40], &[1, 1000], 0), whole);
        let expected = |places: &mut dyn Iterator<Item = usize>| {
            Naive::of(&places.map(|place| f64::from(values[place])).collect::<Vec<_>>())
        };
        let found = of(&[30, 20, 10], &[1000, 3, 90], 17);
        let mut places = (0..6000).map(|i| 17 + i / 200 * 1000 + i / 10 % 20 * 3 + i % 10 * 90);
        expected(&mut places).assert_equals(&found, 7, "strided");
        expected(&mut (5..40_000).step_by(16_000)).assert_equals(&of(&[3], &[16_000], 5), 7, "far apart");
        expected(&mut std::iter::once(39_999)).assert_equals(&of(&[], &[], 39_999), 7, "a scalar");
        expected(&mut (100..39_000)).assert_equals(&of(&[38_900], &[1], 100), 7, "a part");
    }
}

proptest! {
    #[test]
    fn every_element_of_any_strides_is_counted_as_often_as_it_stands_in_the_tensor(
        axes in proptest::collection::vec((0u64..6, 0u64..40), 0..5),
        offset in 0u64..50,
        deflated in proptest::bool::ANY,
    ) {
        let values: Vec<f32> = (0u16..900).map(|i| f32::from(i.wrapping_mul(40_503))).collect();
        let (shape, strides): (Vec<u64>, Vec<u64>) = axes.iter().copied().unzip();
        let torch = Torch { shape: &shape, strides: &strides, offset, deflated, ..Torch::floats(&values) };
        let places = axes.iter().fold(vec![offset], |places, (dim, stride)| {
            places.iter().flat_map(|place| (0..*dim).map(move |step| place + step * stride)).collect()
        });
        let naive = Naive::of(&places.iter().map(|place| f64::from(values[*place as usize])).collect::<Vec<_>>());
        naive.assert_equals(&of(&opened(torch.file()), "t", 5).unwrap(), 5, "strided");
    }
}

#[test]
#[cfg_attr(windows, ignore = "a file that is mapped is not cut off there")]
fn a_file_that_is_truncated_meanwhile_is_an_error_that_names_the_tensor() {
    for (dtype, bytes) in [("F32", 4), ("BF16", 2)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, safetensors(dtype, &[1 << 20], &noise(bytes << 20), 0).1).unwrap();
        let checkpoint = max_weights::open(&path).unwrap();
        assert!(of(&checkpoint, "t", 3).is_ok());
        checkpoint.get("t").unwrap(); // mapped
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        // In the middle of the work, or before it.
        let cut = || file.set_len(1 << 19).map_err(|error| Error::Argument(error.to_string()));
        for begun in [true, false] {
            let requested = || if begun { cut() } else { Ok(()) };
            let failed = statistics(&checkpoint, 1, 3, &AtomicU64::new(0), &requested);
            if begun && failed.is_ok() {
                cut().unwrap(); // it was done before it was asked
                continue;
            }
            let failed = failed.expect_err("the file is shorter");
            assert!(matches!(failed, Error::FileChanged(_)), "{failed}");
            let message = failed.to_string();
            assert!(message.contains("model.safetensors: tensor 't'") && message.contains("truncated"), "{message}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_that_names_the_tensor() {
    let (name, bytes) = safetensors("F32", &[1 << 19], &noise(2 << 20), 0);
    let whole = Arc::new(Trial::of(name, &bytes));
    let number = Checkpoint::open_sources(vec![whole.clone()], &OpenOptions::default()).unwrap();
    let number = number.catalog().require("t").unwrap();
    for later in [0, 3, 9] {
        let broken = Arc::new(Trial::of(name, &bytes).fails_at(whole.counts().parts + later));
        let broken = Checkpoint::open_sources(vec![broken], &OpenOptions::default()).unwrap();
        let failed =
            statistics(&broken, number, 4, &AtomicU64::new(0), &uninterrupted).expect_err("the disk is broken");
        let message = failed.to_string();
        assert!(message.contains("of 't'") && message.contains("the disk is broken"), "{message}");
    }
}

#[test]
fn a_compressed_tensor_that_is_damaged_is_an_error() {
    let values: Vec<f32> = (0u16..9000).map(|i| f32::from(i / 7)).collect();
    let torch = Torch { shape: &[9000], strides: &[1], deflated: true, ..Torch::floats(&values) };
    let (name, bytes) = torch.file();
    // The checksum is in the local header and in the directory, and nowhere else.
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let checksum = max_weights::format::torch_zip::crc32(&data).to_le_bytes();
    let mut damaged = bytes.clone();
    for at in (0..bytes.len() - 4).filter(|at| bytes[*at..*at + 4] == checksum) {
        damaged[at] ^= 1;
    }
    assert_ne!(damaged, bytes);
    let failed = of(&opened((name, damaged)), "t", 4).expect_err("another checksum");
    assert_eq!(failed.diagnostic().unwrap().rule.id, "torch-zip.crc", "{failed}");
    assert!(failed.to_string().starts_with("model.pt: tensor 't': "), "{failed}");
    assert!(of(&opened((name, bytes)), "t", 4).is_ok());
}

#[test]
fn the_result_is_the_same_however_many_threads_there_are() {
    let torch: Vec<f32> = (0..600_000).map(|i| (i as f32).sin() * 1e-3).collect();
    let files = [
        safetensors("F32", &[300_001], &noise(4 * 300_001), 2),
        safetensors("F64", &[200_000], &noise(8 * 200_000), 0),
        safetensors("BF16", &[700_000], &noise(2 * 700_000), 0),
        safetensors("I64", &[200_000], &noise(8 * 200_000), 0),
        gguf(Encoding::Q8_0, 32 * 33_000, &noise(34 * 33_000), false),
        Torch { shape: &[700, 400], strides: &[800, 2], ..Torch::floats(&torch) }.file(),
    ];
    for file in files {
        let checkpoint = opened(file);
        let mut all = [1, 2, 3, 7].map(|threads| {
            max_weights::workers::set_threads(std::num::NonZero::new(threads));
            format!("{:?}", of(&checkpoint, "t", 31).unwrap())
        });
        max_weights::workers::set_threads(None);
        let first = std::mem::take(&mut all[0]);
        assert!(all[1..].iter().all(|other| *other == first), "{first}\n{}", all[1]);
    }
}

#[test]
fn long_work_is_counted_and_can_be_interrupted() {
    let file = || safetensors("F32", &[1 << 19], &noise(2 << 20), 0);
    let checkpoint = opened(file());
    let (number, done) = (checkpoint.catalog().require("t").unwrap(), AtomicU64::new(0));
    for bins in [0, 4] {
        done.store(0, Ordering::Relaxed);
        statistics(&checkpoint, number, bins, &done, &uninterrupted).unwrap();
        assert_eq!(done.load(Ordering::Relaxed), 2 << 20);
    }
    let (name, bytes) = file();
    let slow = Arc::new(Trial::of(name, &bytes).delayed(Duration::from_millis(50)));
    let slow = Checkpoint::open_sources(vec![slow], &OpenOptions::default()).unwrap();
    let stop = || Err(Error::Interrupted);
    assert!(matches!(statistics(&slow, number, 4, &done, &stop), Err(Error::Interrupted)));
    assert!(done.load(Ordering::Relaxed) < 4 << 20, "it was not done again");
}

#[test]
fn what_has_no_values_here_and_too_many_bins_are_errors() {
    let checkpoint = opened(safetensors("F32", &[1], &[0; 4], 0));
    let failed = of(&checkpoint, "t", MAX_BINS + 1).expect_err("too many").to_string();
    assert!(failed.contains("65536"), "{failed}");
    assert!(of(&checkpoint, "t", MAX_BINS).is_ok());
    let unknown = opened(gguf_files::unknown());
    let failed = of(&unknown, "t", 1).expect_err("unknown");
    assert_eq!(failed.diagnostic().unwrap().rule.id, "tensor.unknown-type");
    assert!(failed.to_string().contains("tensor 't'"), "{failed}");
}
