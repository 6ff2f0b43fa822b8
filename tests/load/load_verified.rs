//! Digests that are compared while tensors are loaded: no byte is read twice, and nothing of a tensor that differs is given.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use max_weights::checkpoint::{Checkpoint, OpenOptions};
use max_weights::load::{LoadOptions, LoadStream, StreamOptions, digests};
use max_weights::workers::uninterrupted;

use crate::source_support::Trial;

/// A file of two tensors of half a megabyte.
fn file() -> Vec<u8> {
    const SIZE: usize = 1 << 19;
    let header = format!(
        r#"{{"a":{{"dtype":"U8","shape":[{SIZE}],"data_offsets":[0,{SIZE}]}},"b":{{"dtype":"F32","shape":[{}],"data_offsets":[{SIZE},{}]}}}}"#,
        SIZE / 4,
        2 * SIZE
    );
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    let data: Vec<u8> = (0..2 * SIZE).map(|at| (at * 7 / 5) as u8).collect();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

#[test]
fn a_stream_compares_digests_as_it_reads_and_reads_no_byte_twice() {
    let source = Arc::new(Trial::of("model.safetensors", &file()));
    let checkpoint = Arc::new(Checkpoint::open_sources(vec![source.clone()], &OpenOptions::default()).unwrap());
    let numbers = vec![0, 1];
    let mut digests = digests(&checkpoint, &numbers, None, &AtomicU64::new(0), &uninterrupted).unwrap();
    let open = |digests: &[String]| {
        let load = LoadOptions { whole: true, ..LoadOptions::default() };
        let options = StreamOptions { load, digests: Some(digests.to_vec()), ..StreamOptions::default() };
        let catalog = checkpoint.catalog().clone();
        let requests = numbers.iter().map(|number| catalog.recipe(*number, None).unwrap()).collect();
        LoadStream::new(checkpoint.clone(), catalog, numbers.clone(), requests, options).unwrap()
    };
    let before = source.counts().bytes;
    let (stream, mut sizes) = (open(&digests), Vec::new());
    while let Some((_, tensor)) = stream.next(&uninterrupted).unwrap() {
        sizes.push(tensor.size());
    }
    assert_eq!(sizes, [1 << 19, 1 << 19]);
    assert_eq!(source.counts().bytes - before, 1 << 20);
    digests.swap(0, 1);
    let error = open(&digests).next(&uninterrupted).expect_err("another digest").to_string();
    assert!(error.contains("its digest is sha256:"), "{error}");
}
