//! One pass over a tensor: the same statistics as of it alone, the same digest as in every file, and its rows.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::statistics_support::{Torch, gguf, noise, opened, safetensors};
use max_weights::cast::elements_per_group;
use max_weights::check::{EqualRows, PassRequest, PassResult, TensorPass, statistics};
use max_weights::checkpoint::Checkpoint;
use max_weights::dtype::DType;
use max_weights::error::Error;
use max_weights::load::digests;
use max_weights::quant::{self, Encoding};
use max_weights::workers::uninterrupted;

const ALL: PassRequest = PassRequest { hash: true, values: true, rows: true };

fn over(pass: &mut TensorPass, checkpoint: &Checkpoint) -> PassResult {
    let number = checkpoint.catalog().require("t").unwrap();
    let counted = AtomicU64::new(0);
    let progress = |bytes: u64| {
        counted.fetch_add(bytes, Ordering::Relaxed);
    };
    let found = pass.over(checkpoint, number, ALL, &progress, &uninterrupted).unwrap();
    if found.sha256.is_some() {
        assert_eq!(counted.into_inner(), checkpoint.catalog().table().get(number).bytes());
    }
    found
}

fn hexadecimal(sha256: Option<[u8; 32]>) -> String {
    sha256.unwrap().iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// The pass finds what the statistics of the tensor are that all cores make, with their histogram, and the digest of its elements.
fn agrees(pass: &mut TensorPass, checkpoint: &Checkpoint, what: &str) -> PassResult {
    let number = checkpoint.catalog().require("t").unwrap();
    let found = over(pass, checkpoint);
    let alone = statistics(checkpoint, number, pass.bins, &AtomicU64::new(0), &uninterrupted).unwrap();
    assert_eq!(format!("{:?}", found.statistics.as_ref().unwrap()), format!("{alone:?}"), "{what}");
    let digest = &digests(checkpoint, &[number], None, &AtomicU64::new(0), &uninterrupted).unwrap()[0];
    assert_eq!(&hexadecimal(found.sha256), digest, "{what}");
    found
}

#[test]
fn every_dtype_and_encoding_has_the_statistics_and_the_digest_that_it_has_alone() {
    let mut pass = TensorPass::default();
    pass.bins = 24;
    for dtype in DType::all() {
        for count in [4, 5000, 400_008] {
            let count = count / elements_per_group(dtype) * elements_per_group(dtype);
            let bytes = noise(count * dtype.bits() / 8);
            let checkpoint = opened(safetensors(dtype.safetensors_name(), &[count], &bytes, 1));
            agrees(&mut pass, &checkpoint, &format!("{dtype}, {count}"));
        }
    }
    for encoding in Encoding::all() {
        let blocks = 300;
        let mut bytes = noise(blocks * encoding.bytes_per_block());
        let elements = blocks * encoding.elements_per_block();
        let little = agrees(&mut pass, &opened(gguf(encoding, elements, &bytes, false)), encoding.name());
        quant::swap_bytes(encoding, &mut bytes);
        let big = agrees(&mut pass, &opened(gguf(encoding, elements, &bytes, true)), encoding.name());
        assert_eq!(little.sha256, big.sha256, "{encoding}: of the order of this machine");
    }
}

#[test]
fn a_tensor_has_the_same_digest_however_it_lies_in_a_file() {
    let mut pass = TensorPass::default();
    let values: Vec<f32> = (0..60_000u16).map(f32::from).collect();
    let in_order: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let plain = over(&mut pass, &opened(safetensors("F32", &[200, 300], &in_order, 0)));
    let mut transposed = vec![0.0; 60_000];
    for (at, value) in values.iter().enumerate() {
        transposed[at % 300 * 200 + at / 300] = *value;
    }
    for (values, strides) in [(&values, [300, 1]), (&transposed, [1, 200])] {
        for (deflated, big_endian) in [(false, false), (true, false), (false, true), (true, true)] {
            let torch = Torch { shape: &[200, 300], strides: &strides, deflated, big_endian, ..Torch::floats(values) };
            let found = over(&mut pass, &opened(torch.file()));
            assert_eq!(found.sha256, plain.sha256, "{strides:?} {deflated} {big_endian}");
            let (found, plain) = (found.statistics.unwrap(), plain.statistics.as_ref().unwrap());
            assert_eq!((found.count, found.minimum, found.maximum), (plain.count, plain.minimum, plain.maximum));
        }
    }
    // Repeated elements count each time.
    let repeated = Torch { shape: &[3, 4], strides: &[0, 1], ..Torch::floats(&[0.0, 1.0, 2.0, 3.0]) };
    let written: Vec<u8> = [0.0f32, 1.0, 2.0, 3.0].repeat(3).iter().flat_map(|value| value.to_le_bytes()).collect();
    let (repeated, written) =
        (over(&mut pass, &opened(repeated.file())), over(&mut pass, &opened(safetensors("F32", &[3, 4], &written, 0))));
    assert_eq!((repeated.sha256, repeated.rows), (written.sha256, written.rows));
}

#[test]
fn a_tensor_of_petabytes_in_a_small_file_has_statistics_and_no_digest() {
    let torch = Torch { shape: &[1 << 30, 4, 1 << 20], strides: &[0, 1, 0], ..Torch::floats(&[1.0, 0.0, 2.0, 3.0]) };
    let found = over(&mut TensorPass::default(), &opened(torch.file()));
    assert_eq!((found.sha256, found.statistics.unwrap().zeros), (None, 1 << 50));
}

#[test]
fn rows_of_one_number_are_counted() {
    let rows = |shape: &[usize], values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        over(&mut TensorPass::default(), &opened(safetensors("F32", shape, &bytes, 0))).rows
    };
    let mut values: Vec<f32> = (0..6u16 * 16).map(f32::from).collect();
    values[32..64].fill(0.0);
    values[80..].fill(7.0);
    assert_eq!(rows(&[6, 16], &values), EqualRows { count: 6, zero: 2, constant: 1, first_zero: Some(2) });
    // The last dimension is a row from 16 elements on; otherwise all but the first is.
    assert_eq!(rows(&[2, 3, 16], &values).count, 6);
    assert_eq!(rows(&[6, 4, 4], &values), EqualRows { count: 6, zero: 2, constant: 1, first_zero: Some(2) });
    assert_eq!(rows(&[96], &values), EqualRows::default());
    assert_eq!(rows(&[96, 1], &values), EqualRows::default());
    // A row may lie in several parts.
    let mut long: Vec<f32> = (0..3 * 200_000u32).map(|number| number as f32).collect();
    long[200_000..400_000].fill(0.0);
    assert_eq!(rows(&[3, 200_000], &long), EqualRows { count: 3, zero: 1, constant: 0, first_zero: Some(1) });
    long[399_999] = 1.0;
    assert_eq!(rows(&[3, 200_000], &long), EqualRows { count: 3, ..EqualRows::default() });
}

#[test]
fn bools_and_the_ends_of_eight_bits_are_counted() {
    let of = |dtype: &str, bytes: &[u8]| {
        over(&mut TensorPass::default(), &opened(safetensors(dtype, &[bytes.len()], bytes, 0)))
    };
    assert_eq!(of("BOOL", &[0, 1, 2, 255, 1]).odd_bools, 2);
    assert_eq!(of("U8", &[0, 1, 2, 255, 1]).odd_bools, 0);
    assert_eq!(of("F8_E4M3", &[0x7e, 0xfe, 0x7d, 0x7f, 0]).saturated, 2); // 448, -448, 416, NaN
    assert_eq!(of("F8_E5M2", &[0x7b, 0xfb, 0x7c, 0]).saturated, 2); // 57344, -57344, infinite
}

#[test]
fn only_what_is_wanted_is_made_and_an_interrupt_ends_it() {
    let checkpoint = opened(safetensors("F32", &[1000], &noise(4000), 0));
    let number = checkpoint.catalog().require("t").unwrap();
    let pass = |requests, interrupt| TensorPass::default().over(&checkpoint, number, requests, &|_| (), interrupt);
    let hash = pass(PassRequest { values: false, ..ALL }, &uninterrupted).unwrap();
    assert!(hash.sha256.is_some() && hash.statistics.is_none());
    let values = pass(PassRequest { hash: false, ..ALL }, &uninterrupted).unwrap();
    assert!(values.sha256.is_none() && values.statistics.is_some());
    assert!(matches!(pass(ALL, &|| Err(Error::Interrupted)), Err(Error::Interrupted)));
}
