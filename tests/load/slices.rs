//! Slices of tensors that are read: what NumPy would give, and no more bytes of the file than lie in short gaps between the elements.

use std::sync::Arc;

use max_weights::buffer::{Buffer, IndexPart};
use max_weights::checkpoint::{Checkpoint, OpenOptions};
use max_weights::error::Result;
use max_weights::workers::uninterrupted;
use proptest::prelude::*;

use crate::source_support::Trial;

const ALL: IndexPart = IndexPart::Slice { start: None, stop: None, step: 1 };

fn range(start: i64, stop: i64) -> IndexPart {
    IndexPart::Slice { start: Some(start), stop: Some(stop), step: 1 }
}

fn every(step: i64) -> IndexPart {
    IndexPart::Slice { start: None, stop: None, step }
}

/// A file of one tensor of 16-bit integers that count up.
fn open(shape: &[u64]) -> (Arc<Trial>, Checkpoint) {
    let count: u64 = shape.iter().product();
    let header = format!(r#"{{"t":{{"dtype":"U16","shape":{shape:?},"data_offsets":[0,{}]}}}}"#, 2 * count);
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    let data = (0..count).flat_map(|number| (number as u16).to_le_bytes());
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data.collect::<Vec<u8>>()].concat();
    let source = Arc::new(Trial::of("model.safetensors", &bytes));
    let checkpoint = Checkpoint::open_sources(vec![source.clone()], &OpenOptions::default()).unwrap();
    (source, checkpoint)
}

/// The part, and how many bytes were read for it.
fn part(shape: &[u64], expression: &[IndexPart]) -> Result<(Buffer, usize)> {
    let (source, checkpoint) = open(shape);
    let before = source.counts().bytes;
    let part = checkpoint.part(0, expression)?;
    let read = source.counts().bytes - before;
    let expected = checkpoint.tensor(0)?.index(expression)?.copy(&uninterrupted)?;
    assert_eq!(part.shape(), expected.shape());
    assert_eq!(part.copy(&uninterrupted)?.bytes(), expected.bytes());
    Ok((part, read))
}

#[test]
fn no_more_is_read_than_lies_in_short_gaps() {
    let (rows, columns) = (128u64, 16_384u64); // of 32 KiB
    let (row, useful) = (2 * columns as usize, |part: &Buffer| part.size());
    for (expression, most) in [
        (vec![range(100, 120)], 20 * row + 63), // whole rows, from the start of a cache line on
        (vec![ALL, range(512, 1024)], 128 * 1024),
        (vec![range(20, 120), range(-512, -1)], 100 * 2 * 511),
        (vec![every(-8)], 16 * row),
        (vec![every(-8), IndexPart::At(7)], 16 * 2),
        (vec![IndexPart::At(3), IndexPart::At(5)], 2 + 63),
        (vec![IndexPart::At(-1), every(16_000), IndexPart::NewAxis], 2 * 2),
        (vec![range(9, 9)], 0),
        (vec![every(-1)], 128 * row),
        (vec![ALL, every(2)], 128 * row),
        (vec![ALL, every(-9)], 128 * row),
    ] {
        let (part, read) = part(&[rows, columns], &expression).unwrap();
        assert!(useful(&part) <= read && read <= most, "{expression:?}: {read} bytes, {}", useful(&part));
    }
    // Rows of 2 KiB: what lies between the parts of two costs less than another request.
    let (part, read) = part(&[4096, 1024], &[ALL, range(0, 16)]).unwrap();
    assert_eq!(useful(&part), 4096 * 32);
    assert!(read <= 4095 * 2048 + 32, "{read}");
}

#[test]
fn a_slice_of_a_source_that_fails_or_was_cut_is_an_error() {
    let (source, checkpoint) = open(&[128, 16_384]);
    let opened = source.counts().parts;
    drop(checkpoint);
    let header = r#"{"t":{"dtype":"U16","shape":[128,16384],"data_offsets":[0,4194304]}}     "#;
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; 1 << 22]].concat();
    let open = |trial: Trial| Checkpoint::open_sources(vec![Arc::new(trial)], &OpenOptions::default()).unwrap();
    let broken = open(Trial::of("model.safetensors", &bytes).fails_at(opened + 100));
    let failed = broken.part(0, &[ALL, range(0, 8)]).expect_err("the disk is broken").to_string();
    assert!(failed.contains("the disk is broken") && failed.contains("model.safetensors"), "{failed}");
    let short = open(Trial::of("model.safetensors", &bytes).ends_at(1 << 20));
    assert!(short.part(0, &[range(0, 8), range(0, 8)]).is_ok());
    assert!(short.part(0, &[ALL, range(0, 8)]).is_err());
}

/// One index of an axis of any size, sensible or not.
fn index() -> impl Strategy<Value = IndexPart> {
    let bound = || proptest::option::of(-12i64..12);
    prop_oneof![
        2 => (-9i64..9).prop_map(IndexPart::At),
        4 => (bound(), bound(), prop_oneof![-5i64..0, 1i64..6]).prop_map(|(start, stop, step)| IndexPart::Slice { start, stop, step }),
        1 => Just(IndexPart::NewAxis),
        1 => Just(IndexPart::Ellipsis),
    ]
}

proptest! {
    #[test]
    fn slices_are_those_of_the_tensor_in_memory_and_nothing_is_read_twice(
        shape in proptest::collection::vec(0u64..9, 0..5),
        wide in 1u64..3000,
        expression in proptest::collection::vec(index(), 0..6),
    ) {
        let shape: Vec<u64> = shape.iter().copied().chain([wide]).collect();
        let (source, checkpoint) = open(&shape);
        let before = source.counts().bytes;
        match (checkpoint.part(0, &expression), checkpoint.tensor(0).unwrap().index(&expression)) {
            (Ok(part), Ok(expected)) => {
                let size: u64 = shape.iter().product::<u64>() * 2;
                // What `tensor` read comes on top.
                prop_assert!((source.counts().bytes - before) as u64 <= 2 * size + 63);
                prop_assert_eq!(part.shape(), expected.shape());
                let (part, expected) = (part.copy(&uninterrupted).unwrap(), expected.copy(&uninterrupted).unwrap());
                prop_assert_eq!(part.bytes(), expected.bytes());
            }
            (Err(ours), Err(expected)) => prop_assert_eq!(ours.to_string(), expected.to_string()),
            (ours, expected) => prop_assert!(false, "{ours:?} and not {expected:?}"),
        }
    }
}
