//! What differs between two checkpoints, each case on files of a few bytes.
#![allow(clippy::expect_used, clippy::panic, clippy::float_cmp)] // a test fails by panicking, and asks for exact numbers

use std::sync::atomic::{AtomicU64, Ordering};

use max_weights::{Checkpoint, Error, uninterrupted};
use max_weights_check::difference::{
    Difference, DifferenceOptions, DifferingTensor, OneSidedTensor, Pattern, RenamedTensors, ValueDifference, compare,
};

use crate::comparison_files::{gguf, open, saved};

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn bf16s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect()
}

fn floats(name: &str, values: &[f32]) -> Checkpoint {
    saved(&[(name, "F32", &[values.len()], f32s(values))], "")
}

fn differ(a: &Checkpoint, b: &Checkpoint, options: &DifferenceOptions) -> Difference {
    compare(a, b, options, &AtomicU64::new(0), &uninterrupted).expect("compared")
}

fn tolerant(rtol: f64, atol: f64) -> DifferenceOptions {
    DifferenceOptions { rtol, atol, ..DifferenceOptions::default() }
}

fn exact() -> DifferenceOptions {
    DifferenceOptions { exact: true, ..DifferenceOptions::default() }
}

/// The values of the one tensor that differs.
#[track_caller]
fn values(found: &Difference) -> &ValueDifference {
    let [DifferingTensor { values: Some(values), .. }] = &*found.changed else { panic!("{found:?}") };
    values
}

#[test]
fn the_same_tensors_in_another_order_do_not_differ() {
    let (x, y) = (("x", "F32", &[2][..], f32s(&[1.0, f32::NAN])), ("y", "I64", &[0][..], Vec::new()));
    let (a, b) = (saved(&[x.clone(), y.clone()], ""), saved(&[y, x], ""));
    let found = differ(&a, &b, &exact());
    assert!(found.is_none(), "{found:?}");
    assert_eq!((found.same, found.close, found.a.tensors, found.a.bytes), (2, 0, 2, 8));
}

#[test]
fn the_largest_difference_has_its_place_and_the_first_of_equal_ones_counts() {
    let a = saved(&[("w", "F32", &[2, 3], f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))], "");
    let b = saved(&[("w", "F32", &[2, 3], f32s(&[1.0, 2.5, 3.0, 4.0, 4.0, 7.0]))], "");
    let found = differ(&a, &b, &DifferenceOptions::default());
    let values = values(&found);
    assert_eq!((values.elements, values.differing, values.largest), (6, 3, 1.0));
    assert_eq!((values.index.as_deref(), values.at), (Some(&[1, 1][..]), Some((5.0, 4.0))));
    assert_eq!(values.relative, 0.25);
    let dot: f64 = [1.0, 5.0, 9.0, 16.0, 20.0, 42.0].iter().sum();
    let cosine = dot / (91f64.sqrt() * (1.0 + 6.25 + 9.0 + 16.0 + 16.0 + 49.0f64).sqrt());
    assert!((values.cosine.expect("a cosine") - cosine).abs() < 1e-15);
}

#[test]
fn tensors_are_sorted_by_their_largest_difference_after_those_of_other_shapes() {
    let of = |name, value| (name, "F32", &[1][..], f32s(&[value]));
    let shape = |dims: &'static [usize]| ("shape", "F32", dims, f32s(&[0.0, 0.0]));
    let a = saved(&[of("a", 1.0), of("b", 1.0), of("nan", f32::NAN), of("same", 1.0), shape(&[2])], "");
    let b = saved(&[of("a", 1.5), of("b", 3.0), of("nan", 1.0), of("same", 1.0), shape(&[2, 1])], "");
    let found = differ(&a, &b, &DifferenceOptions::default());
    let names: Vec<&str> = found.changed.iter().map(|changed| changed.name.as_str()).collect();
    assert_eq!(names, ["nan", "shape", "b", "a"]);
    assert_eq!((found.same, found.changed[0].values.as_ref().expect("values").nans), (1, 1));
    assert_eq!(found.changed[1].shape, Some((vec![2], vec![2, 1])));
}

#[test]
fn nan_is_equal_to_nan_in_its_place_and_zeros_of_both_signs_are_one_number_but_not_one_byte() {
    let quiet = f32::from_bits(0x7fc0_0001);
    let (a, b) = (floats("w", &[f32::NAN, 0.0, 1.0]), floats("w", &[quiet, -0.0, 1.0]));
    let found = differ(&a, &b, &DifferenceOptions::default());
    assert!(found.is_none() && found.close == 1, "{found:?}");
    let found = differ(&a, &b, &exact());
    assert_eq!((values(&found).differing, values(&found).largest, &values(&found).index), (2, 0.0, &None));
    let moved = differ(&floats("w", &[f32::NAN, 1.0]), &floats("w", &[1.0, f32::NAN]), &tolerant(1.0, 1.0));
    assert_eq!((values(&moved).nans, values(&moved).differing), (2, 2));
}

#[test]
fn one_bit_in_the_last_place_differs() {
    let next = f32::from_bits(1f32.to_bits() + 1);
    let found = differ(&floats("w", &[1.0]), &floats("w", &[next]), &DifferenceOptions::default());
    assert_eq!((values(&found).differing, values(&found).largest), (1, f64::from(f32::EPSILON)));
    assert!(found.changed[0].dtype.is_none() && !values(&found).rounded);
}

#[test]
fn the_same_values_in_another_dtype_are_told_from_rounded_and_from_other_ones() {
    let single = |values: &[f32]| saved(&[("w", "F32", &[2], f32s(values))], "");
    let half = saved(&[("w", "BF16", &[2], bf16s(&[1.5, -2.0]))], "");
    for (values_of_a, differing, rounded) in
        [([1.5, -2.0], 0, false), ([1.501, -2.0], 1, true), ([1.6, -2.0], 1, false)]
    {
        let found = differ(&single(&values_of_a), &half, &DifferenceOptions::default());
        assert_eq!(found.changed[0].dtype, Some(("float32".into(), "bfloat16".into())));
        assert_eq!((values(&found).differing, values(&found).rounded), (differing, rounded), "{values_of_a:?}");
        let back = differ(&half, &single(&values_of_a), &DifferenceOptions::default());
        assert_eq!((values(&back).differing, values(&back).rounded), (differing, rounded), "{values_of_a:?}");
    }
    let whatever = DifferenceOptions { dtypes: false, ..tolerant(0.0, 0.002) };
    let found = differ(&single(&[1.501, -2.0]), &half, &whatever);
    assert!(found.is_none() && found.close == 1, "{found:?}");
}

#[test]
fn tolerances_are_those_of_allclose() {
    let cases: [(f32, f32, f64, f64, bool); 8] = [
        (1.0, 2.0, 0.5, 0.0, true),
        (2.0, 1.0, 0.5, 0.0, false), // relative to the second
        (2.0, 1.0, 0.5, 0.5, true),
        (0.0, 0.25, 0.0, 0.25, true),
        (f32::INFINITY, f32::INFINITY, 0.0, 0.0, true),
        (f32::INFINITY, f32::NEG_INFINITY, 1.0, 1.0, false),
        (1.0, f32::INFINITY, 1.0, 1.0, false),
        (f32::NAN, 1.0, 1.0, 1.0, false),
    ];
    for (x, y, rtol, atol, same) in cases {
        let found = differ(&floats("w", &[x]), &floats("w", &[y]), &tolerant(rtol, atol));
        assert_eq!(found.is_none(), same, "{x} {y} {rtol} {atol}");
    }
}

#[test]
fn an_option_that_means_nothing_is_refused() {
    let a = floats("w", &[1.0]);
    let pattern = |text| DifferenceOptions {
        a: RenamedTensors { patterns: vec![Pattern::parse(text).expect("a pattern")], ..RenamedTensors::default() },
        ..DifferenceOptions::default()
    };
    for (options, says) in [
        (tolerant(-1.0, 0.0), "not negative"),
        (tolerant(0.0, f64::NAN), "not negative"),
        (DifferenceOptions { exact: true, ..tolerant(0.0, 1.0) }, "no tolerances"),
        (pattern("x=y"), "'x=y' renames no tensor"),
    ] {
        let error = compare(&a, &a, &options, &AtomicU64::new(0), &uninterrupted).expect_err("refused");
        assert!(matches!(error, Error::Argument(_)) && error.to_string().contains(says), "{error}");
    }
}

#[test]
fn integers_of_64_bits_are_exact() {
    let ints = |values: [i64; 2]| {
        saved(&[("w", "I64", &[2], values.iter().flat_map(|value| value.to_le_bytes()).collect())], "")
    };
    let (big, next) = (ints([1 << 60, -5]), ints([(1 << 60) + 1, -5]));
    let found = differ(&big, &next, &DifferenceOptions::default());
    assert_eq!((values(&found).differing, values(&found).largest), (1, 1.0));
    let found = differ(&ints([i64::MIN, 0]), &ints([i64::MAX, 0]), &DifferenceOptions::default());
    assert_eq!(values(&found).largest, u64::MAX as f64);
    let unsigned = saved(&[("w", "U64", &[1], u64::MAX.to_le_bytes().to_vec())], "");
    let signed = saved(&[("w", "I64", &[1], (-1i64).to_le_bytes().to_vec())], "");
    assert_eq!(values(&differ(&unsigned, &signed, &DifferenceOptions::default())).largest, u64::MAX as f64 + 1.0);
}

#[test]
fn bools_differ_by_their_bytes_and_complex_numbers_by_their_distance() {
    let bools = |bytes: &[u8]| saved(&[("w", "BOOL", &[bytes.len()], bytes.to_vec())], "");
    let found = differ(&bools(&[0, 1, 1]), &bools(&[0, 1, 2]), &DifferenceOptions::default());
    assert_eq!((values(&found).differing, values(&found).largest), (1, 1.0));
    let complex = |values: &[f32]| saved(&[("w", "C64", &[values.len() / 2], f32s(values))], "");
    let found = differ(&complex(&[1.0, 1.0, 0.0, 0.0]), &complex(&[4.0, 5.0, 0.0, 0.0]), &DifferenceOptions::default());
    let first = values(&found).at.map(|at| at.0);
    assert_eq!((values(&found).differing, values(&found).largest, first), (1, 5.0, Some(2f64.sqrt())));
    assert!(differ(&complex(&[f32::NAN, 1.0]), &complex(&[1.0, f32::NAN]), &DifferenceOptions::default()).is_none());
    let infinite = differ(&complex(&[f32::INFINITY, 1.0]), &complex(&[1.0, 1.0]), &tolerant(1.0, 1.0));
    assert_eq!((values(&infinite).differing, values(&infinite).largest), (1, f64::INFINITY));
    let found = differ(&complex(&[1.0, 0.0]), &floats("w", &[1.0]), &DifferenceOptions::default());
    assert_eq!(found.not_compared[0].1, "the values of complex64 and float32 are not compared");
}

#[test]
fn values_of_less_than_a_byte_are_compared_as_numbers() {
    let packed = |bytes: &[u8]| saved(&[("w", "F4", &[bytes.len() * 2], bytes.to_vec())], "");
    // 0x2 is 1, 0x3 is 1.5, 0x7 is 6; the low half of a byte is the first element.
    let found = differ(&packed(&[0x22, 0x72]), &packed(&[0x22, 0x32]), &DifferenceOptions::default());
    assert_eq!((values(&found).differing, values(&found).largest), (1, 4.5));
    assert_eq!(values(&found).index.as_deref(), Some(&[3][..]));
}

#[test]
fn packed_blocks_are_compared_by_what_they_decode_to() {
    let ramp: Vec<u8> = (0..32).collect();
    let q8 = gguf(8, 32, &[&[0x00, 0x38][..], &ramp].concat()); // a scale of 0.5 as float16
    let decoded: Vec<f32> = (0..32u8).map(|value| f32::from(value) / 2.0).collect();
    let mut other = decoded.clone();
    other[31] += 0.25;
    for (plain, differing) in [(&decoded, 0), (&other, 1)] {
        let found = differ(&q8, &floats("w", plain), &DifferenceOptions::default());
        assert_eq!(found.changed[0].dtype, Some(("Q8_0".into(), "float32".into())));
        assert_eq!((values(&found).differing, values(&found).largest), (differing, 0.25 * differing as f64));
        assert!(found.metadata.is_empty() && found.metadata_note.is_some());
    }
    let doubles = decoded.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect();
    let found = differ(&q8, &saved(&[("w", "F64", &[32], doubles)], ""), &DifferenceOptions::default());
    assert_eq!(values(&found).differing, 0);
    // Half the scale and twice the numbers: other bytes for the same values.
    let even: Vec<u8> = (0..32).map(|value| value * 2).collect();
    let twice = gguf(8, 32, &[&[0x00, 0x34][..], &even].concat());
    assert_eq!(differ(&q8, &twice, &DifferenceOptions::default()).close, 1);
    let found = differ(&q8, &twice, &exact());
    assert_eq!((values(&found).differing, values(&found).largest), (32, 0.0));
}

#[test]
fn a_tensor_of_the_same_content_under_another_name_was_renamed() {
    let norm = |name| (name, "F32", &[2][..], f32s(&[1.0, 1.0]));
    let other = |name, value| (name, "F32", &[2][..], f32s(&[value, 1.0]));
    let empty = |name| (name, "F32", &[0][..], Vec::new());
    let a = [norm("model.0.norm"), norm("model.1.norm"), other("model.0.w", 3.0), other("x", 4.0), empty("e")];
    let b = [norm("h.1.norm"), norm("h.0.norm"), other("h.0.w", 3.0), other("y", 5.0), empty("f")];
    let (a, b) = (saved(&a, ""), saved(&b, ""));
    let found = differ(&a, &b, &DifferenceOptions::default());
    let pairs: Vec<(&str, &str)> = found.renamed.iter().map(|pair| (&*pair.a.name, &*pair.b)).collect();
    assert_eq!(pairs, [("model.0.norm", "h.0.norm"), ("model.0.w", "h.0.w"), ("model.1.norm", "h.1.norm")]);
    let names = |list: &[OneSidedTensor]| list.iter().map(|of| of.name.clone()).collect::<Vec<_>>();
    assert_eq!(
        (names(&found.removed), names(&found.added)),
        (vec!["e".into(), "x".into()], vec!["f".into(), "y".into()])
    );
    let headers = differ(&a, &b, &DifferenceOptions { values: false, ..DifferenceOptions::default() });
    assert_eq!((headers.renamed.len(), headers.removed.len(), headers.added.len()), (0, 5, 5));

    let pattern = Pattern::parse("model.*=h.*").expect("a pattern");
    let names = RenamedTensors { patterns: vec![pattern], exact: [("x".to_owned(), "y".to_owned())].into() };
    let found = differ(&a, &b, &DifferenceOptions { a: names, ..DifferenceOptions::default() });
    assert_eq!((found.same, found.changed.len(), values(&found).largest), (3, 1, 1.0));
}

#[test]
fn metadata_differs_by_key() {
    let a = saved(&[], "\"format\":\"pt\",\"gone\":\"x\",\"same\":\"1\"");
    let b = saved(&[], "\"format\":\"np\",\"new\":\"y\",\"same\":\"1\"");
    let found = differ(&a, &b, &DifferenceOptions::default());
    let changes: Vec<_> = found.metadata.iter().map(|of| (&*of.key, of.a.as_deref(), of.b.as_deref())).collect();
    assert_eq!(changes, [("format", Some("pt"), Some("np")), ("gone", Some("x"), None), ("new", None, Some("y"))]);
    assert!(differ(&a, &b, &DifferenceOptions { metadata: false, ..DifferenceOptions::default() }).is_none());
}

#[test]
fn long_metadata_is_shown_from_where_it_differs() {
    let of = |end: &str| saved(&[], &format!("\"key\":\"{}{end}\"", "x".repeat(500)));
    let found = differ(&of("abc"), &of("ab"), &DifferenceOptions::default());
    let [change] = &*found.metadata else { panic!("{found:?}") };
    assert_eq!((change.a.as_deref(), change.b.as_deref()), (Some("…c"), Some("…")));
}

#[test]
fn of_an_exact_comparison_elements_of_half_a_byte_and_blocks_that_differ_count() {
    let of = |zero: u8| saved(&[("w", "F4", &[4], vec![zero, 1])], "");
    assert_eq!(values(&differ(&of(0x00), &of(0x80), &exact())).differing, 2);
    assert!(differ(&of(0x00), &of(0x80), &DifferenceOptions::default()).is_none());
    // Of Q8_0 with a scale of zero all values are zero: one of two blocks has other bytes.
    let blocks = |byte: u8| gguf(8, 64, &[vec![0, 0], vec![byte; 32], vec![0, 0], vec![7; 32]].concat());
    assert_eq!(values(&differ(&blocks(1), &blocks(2), &exact())).differing, 32);
    assert_eq!(differ(&blocks(1), &blocks(2), &DifferenceOptions::default()).close, 1);
}

#[test]
fn pieces_meet_at_their_ends_and_the_result_does_not_depend_on_the_threads() {
    let count = (1 << 19) + 5;
    let ramp: Vec<f32> = (0..count).map(|number| (number % 1013) as f32 / 7.0).collect();
    let mut other = ramp.clone();
    for at in [0, (1 << 18) - 1, 1 << 18, count - 1] {
        other[at] += 1.0 + at as f32;
    }
    let (a, b) = (floats("w", &ramp), floats("w", &other));
    let done = AtomicU64::new(0);
    let first = compare(&a, &b, &DifferenceOptions::default(), &done, &uninterrupted).expect("compared");
    assert_eq!(done.load(Ordering::Relaxed), 2 * 4 * count as u64);
    assert_eq!((values(&first).differing, values(&first).index.as_deref()), (4, Some(&[count as u64 - 1][..])));
    for threads in [1, 3, 8] {
        max_weights::workers::set_threads(std::num::NonZero::new(threads));
        assert_eq!(differ(&a, &b, &DifferenceOptions::default()), first, "{threads} threads");
    }
    max_weights::workers::set_threads(None);
}

#[test]
fn a_comparison_ends_when_it_is_interrupted() {
    let values = vec![1.0; 1 << 20];
    let (a, b) = (floats("w", &values), floats("w", &values));
    let stop = || Err(Error::Interrupted);
    let outcome = compare(&a, &b, &DifferenceOptions::default(), &AtomicU64::new(0), &stop);
    assert!(matches!(outcome, Err(Error::Interrupted)));
}

#[test]
fn a_file_that_was_cut_meanwhile_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.safetensors");
    let header = br#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &1f32.to_le_bytes()].concat();
    std::fs::write(&path, bytes).expect("written");
    let (a, other) = (open(&path), floats("w", &[1.0]));
    std::fs::OpenOptions::new().write(true).open(&path).expect("there").set_len(10).expect("cut");
    let error =
        compare(&a, &other, &DifferenceOptions::default(), &AtomicU64::new(0), &uninterrupted).expect_err("changed");
    assert!(error.to_string().contains("a.safetensors"), "{error}");
}

#[test]
fn values_of_a_type_that_is_not_known_are_compared_as_bytes() {
    let of = |bytes: &[u8], dtype| saved(&[("w", dtype, &[3], bytes.to_vec())], "");
    assert!(differ(&of(b"abcdef", "F9"), &of(b"abcdef", "F9"), &DifferenceOptions::default()).is_none());
    let found = differ(&of(b"abcdef", "F9"), &of(b"abXdeX", "F9"), &DifferenceOptions::default());
    let values = values(&found);
    assert_eq!((values.elements, values.differing, values.cosine, &values.index), (6, 2, None, &None));
    let found = differ(&of(b"abcdef", "F9"), &of(b"abcdef", "F8"), &DifferenceOptions::default());
    assert_eq!(found.not_compared[0].1, "the values of F9 and F8 are not compared");
    let found = differ(&of(b"abcdef", "F9"), &of(b"abc", "F9"), &DifferenceOptions::default());
    assert_eq!(found.not_compared[0].1, "its bytes do not fit its shape");
}
