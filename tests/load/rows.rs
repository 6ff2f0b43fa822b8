//! Rows of tables by their numbers: those that indexing the whole tensor gives, and no more bytes of the file than they need.

use std::sync::Arc;

use max_weights::buffer::Buffer;
use max_weights::checkpoint::{Checkpoint, OpenOptions};
use max_weights::dtype::DType;
use max_weights::error::Result;
use max_weights::load::{NegativeIds, RowIds, RowTable, TableShard};
use max_weights::memory::Block;
use max_weights::workers::uninterrupted;
use proptest::prelude::*;

use crate::source_support::Trial;

const ROW: u64 = 24;

/// A file of tensors of 16-bit integers, with these numbers of rows of 24 elements.
fn open(sizes: &[u64]) -> (Arc<Trial>, Checkpoint) {
    let (mut entries, mut end) = (Vec::new(), 0);
    for (number, rows) in sizes.iter().enumerate() {
        let start = end;
        end += rows * ROW * 2;
        entries.push(format!(r#""t{number}":{{"dtype":"U16","shape":[{rows},{ROW}],"data_offsets":[{start},{end}]}}"#));
    }
    let header = format!("{{{}}}", entries.join(","));
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    let data = (0..end / 2).flat_map(|number| (number as u16).to_le_bytes());
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data.collect::<Vec<u8>>()].concat();
    let source = Arc::new(Trial::of("model.safetensors", &bytes));
    let checkpoint = Checkpoint::open_sources(vec![source.clone()], &OpenOptions::default()).unwrap();
    (source, checkpoint)
}

fn table(checkpoint: &Checkpoint, cache: u64) -> Result<RowTable> {
    let shards: Vec<TableShard> =
        (0..checkpoint.catalog().table().len()).map(|number| TableShard { number, scaling: None }).collect();
    RowTable::new(checkpoint, &shards, None, cache, &uninterrupted)
}

fn ids(table: &RowTable, ids: &[i64]) -> Result<RowIds> {
    let mut block = Block::any(ids.len() * 8)?;
    for (out, id) in block.as_mut_slice().chunks_exact_mut(8).zip(ids) {
        out.copy_from_slice(&id.to_ne_bytes());
    }
    let ids = Buffer::contiguous_at(block.freeze(), 0, DType::Int64, &[ids.len() as i64])?;
    RowIds::new(&ids, ("t", table.rows()), NegativeIds::FromTheEnd, &uninterrupted)
}

/// The first element of each row, and the bytes that were read.
fn taken(source: &Trial, checkpoint: &Checkpoint, table: &RowTable, rows: &[i64]) -> Result<(Vec<f32>, usize)> {
    let before = source.counts().bytes;
    let taken = table.take(checkpoint, &ids(table, rows)?, DType::Float32, None, &uninterrupted)?;
    assert_eq!(taken.shape(), [rows.len() as i64, ROW as i64]);
    let bytes = taken.bytes().unwrap_or_default();
    let firsts = bytes.as_chunks::<{ 4 * ROW as usize }>().0.iter();
    let firsts = firsts.map(|row| f32::from_ne_bytes([row[0], row[1], row[2], row[3]]));
    Ok((firsts.collect(), source.counts().bytes - before))
}

proptest! {
    #[test]
    fn rows_are_those_of_the_joined_tensors(
        sizes in prop::collection::vec(0..60_u64, 1..5),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        cache in prop::sample::select(vec![0_u64, 300, 1 << 20]),
    ) {
        let (source, checkpoint) = open(&sizes);
        let table = table(&checkpoint, cache).unwrap();
        let all = table.rows() as i64;
        prop_assert_eq!(all as u64, sizes.iter().sum::<u64>());
        let rows: Vec<i64> = if all == 0 { Vec::new() } else {
            picks.iter().map(|pick| pick.index(2 * all as usize) as i64 - all).collect()
        };
        for _ in 0..2 {
            let (found, _) = taken(&source, &checkpoint, &table, &rows).unwrap();
            let expected = rows.iter().map(|row| (row.rem_euclid(all.max(1)) * ROW as i64) as f32);
            prop_assert_eq!(found, expected.collect::<Vec<f32>>());
        }
    }
}

#[test]
fn no_more_is_read_than_the_rows_and_the_cache_is_not_read_again() {
    let (source, checkpoint) = open(&[1000]);
    let uncached = table(&checkpoint, 0).unwrap();
    let (_, read) = taken(&source, &checkpoint, &uncached, &[3, 900, 3, 3, 500]).unwrap();
    assert_eq!(read, 3 * 48);
    let cached = table(&checkpoint, 1 << 20).unwrap();
    assert_eq!(taken(&source, &checkpoint, &cached, &[3, 900, 500]).unwrap().1, 3 * 48);
    assert_eq!(taken(&source, &checkpoint, &cached, &[900, 3, 501]).unwrap().1, 48);
    let counts = cached.counts().unwrap();
    assert_eq!((counts.hits, counts.misses, counts.rows), (2, 4, 4));
    cached.fetch(&checkpoint, &ids(&cached, &[1, 2, 3]).unwrap(), &uninterrupted).unwrap();
    assert_eq!(taken(&source, &checkpoint, &cached, &[1, 2, 3]).unwrap().1, 0);
}

#[test]
fn tensors_of_other_rows_and_scalars_make_no_table() {
    let (_, checkpoint) = open(&[4]);
    let none = RowTable::new(&checkpoint, &[], None, 0, &uninterrupted).unwrap_err();
    assert_eq!(none.to_string(), "a table has no tensors");
    let stop = || Err(max_weights::Error::Interrupted);
    let small = table(&checkpoint, 0).unwrap();
    let ids = ids(&small, &[1]).unwrap();
    assert!(matches!(small.take(&checkpoint, &ids, DType::UInt16, None, &stop), Err(max_weights::Error::Interrupted)));
}
