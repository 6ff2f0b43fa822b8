//! Regions: ranges of the axes of a tensor are loaded as if they were taken from the whole, and no more of the file is read than is needed.

#![allow(clippy::single_range_in_vec_init)] // ranges of an axis

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use max_weights::buffer::Buffer;
use max_weights::checkpoint::{Checkpoint, OpenOptions};
use max_weights::dtype::DType;
use max_weights::error::Result;
use max_weights::load::{LoadOptions, LoadPlan, Region, TensorMemory};
use max_weights::workers::uninterrupted;
use proptest::prelude::*;

use crate::source_support::Trial;

/// A file of one tensor of 16-bit integers that count up.
fn file(shape: &[u64], dtype: &str) -> Vec<u8> {
    let count: u64 = shape.iter().product();
    let header = format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[0,{}]}}}}"#, 2 * count);
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    let data = (0..count).flat_map(|number| (number as u16).to_le_bytes());
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data.collect::<Vec<u8>>()].concat()
}

/// What is loaded of the tensor, and how many bytes were read for it.
fn load(bytes: &[u8], to: Option<DType>, region: &Region) -> Result<(Buffer, usize)> {
    let source = Arc::new(Trial::of("model.safetensors", bytes));
    let checkpoint = Checkpoint::open_sources(vec![source.clone()], &OpenOptions::default())?;
    let before = source.counts().bytes;
    let requests = checkpoint.catalog().cut(checkpoint.catalog().tensor_request(0, to)?, 0, region)?;
    let layout = LoadPlan::new(&checkpoint, vec![requests], TensorMemory::Own, &[], &LoadOptions::default())?;
    let (loaded, _) = layout.run(&checkpoint, Vec::new(), &AtomicU64::new(0), &uninterrupted)?;
    Ok((loaded[0].clone(), source.counts().bytes - before))
}

/// The numbers of the ranges, joined along their axes.
fn expected(shape: &[u64], ranges: &[Vec<Range<u64>>]) -> Vec<u16> {
    let all = shape.iter().zip(ranges).fold(vec![0], |numbers, (size, ranges)| {
        let positions = || ranges.iter().cloned().flatten();
        numbers.iter().flat_map(|number: &u64| positions().map(move |position| number * size + position)).collect()
    });
    all.into_iter().map(|number| number as u16).collect()
}

proptest! {
    #[test]
    fn ranges_of_any_axes_are_what_they_are_of_the_whole(
        axes in prop::collection::vec((0u64..7, prop::option::of(prop::collection::vec((0u64..7, 0u64..7), 0..4))), 1..5),
        cast: bool,
    ) {
        let shape: Vec<u64> = axes.iter().map(|(size, _)| *size).collect();
        let (mut region, mut all) = (Region::new(), Vec::new());
        for (axis, (size, edges)) in axes.into_iter().enumerate() {
            let ranges = |edges: Vec<(u64, u64)>| -> Vec<Range<u64>> {
                edges.into_iter().map(|(a, b)| a.min(b).min(size)..a.max(b).min(size)).collect()
            };
            if let Some(edges) = edges.clone() {
                region.insert(0, (axis, ranges(edges)));
            }
            all.push(edges.map_or_else(|| vec![0..size], ranges));
        }
        prop_assume!(!region.is_empty());
        let (to, dtype) = if cast { (Some(DType::Float32), "F16") } else { (None, "I16") };
        let (loaded, _) = load(&file(&shape, dtype), to, &region).unwrap();
        let size = |ranges: &Vec<Range<u64>>| ranges.iter().map(|range| range.end - range.start).sum::<u64>() as i64;
        prop_assert_eq!(loaded.shape(), &all.iter().map(size).collect::<Vec<_>>()[..]);
        prop_assert!(loaded.is_contiguous() && loaded.is_aligned());
        let numbers = expected(&shape, &all);
        let bytes: Vec<u8> = if cast {
            numbers.iter().flat_map(|&bits| half::f16::from_bits(bits).to_f32().to_le_bytes()).collect()
        } else {
            numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
        };
        prop_assert_eq!(loaded.bytes().unwrap(), &bytes[..]);
    }
}

#[test]
fn of_rows_no_byte_more_is_read_than_is_wanted() {
    let bytes = file(&[64, 1024], "I16");
    for ranges in [vec![8..16], vec![0..2, 60..64]] {
        let rows: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let (loaded, read) = load(&bytes, None, &vec![(0, ranges)]).unwrap();
        assert_eq!((loaded.shape(), read as u64), (&[rows as i64, 1024][..], rows * 2048));
    }
}

#[test]
fn of_columns_no_more_is_read_than_the_tensor_and_of_far_ones_what_is_wanted() {
    let near = load(&file(&[64, 1024], "I16"), None, &vec![(1, vec![128..256])]).unwrap().1;
    assert!(near <= 64 * 2048, "{near}");
    // Experts of which each has rows: the gap between them exceeds the gap that one read spans.
    let far = load(&file(&[4, 64, 1024], "I16"), None, &vec![(1, vec![8..16])]).unwrap().1;
    assert_eq!(far, 4 * 8 * 2048);
    let corner = vec![(0, vec![1..3]), (1, vec![8..16]), (2, vec![0..512])];
    assert_eq!(load(&file(&[4, 64, 1024], "I16"), None, &corner).unwrap().1, 2 * (7 * 2048 + 1024));
}

#[test]
fn a_cut_that_does_not_fit_names_the_tensor_and_reads_nothing() {
    let failed = load(&file(&[4, 6], "I16"), None, &vec![(1, vec![2..7])]).expect_err("too far").to_string();
    assert_eq!(failed, "'t': a tensor of the shape [4, 6] has no elements 2..7 on axis 1");
    let failed = load(&file(&[4, 6], "I16"), None, &vec![(2, vec![0..1])]).expect_err("no axis").to_string();
    assert_eq!(failed, "'t': a tensor of the shape [4, 6] has no axis 2 to be cut along");
    // Not even all of it, whose bytes could be counted: elements of no known size have no ranges.
    let failed = load(&file(&[4, 6], "F3_A"), None, &vec![(0, vec![0..4])]).expect_err("unknown").to_string();
    assert_eq!(failed, "'t': elements of the type 'F3_A' cannot be cut: their size is unknown");
}
