//! Plans: tensors that are taken together are what each is alone, in the order that was asked for, and share what they share in the file.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

mod source_support;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use max_weights::checkpoint::{Backend, Checkpoint, OpenOptions};
use max_weights::error::{Error, Result};

use source_support::Trial;

const COUNT: usize = 40;

/// f32 tensors of 1 to `COUNT` elements, every second one of them off its alignment.
fn file(folder: &tempfile::TempDir) -> PathBuf {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for number in 0..COUNT {
        let start = data.len();
        data.extend((0..4 * (number + 1)).map(|i| (i * 7 + number) as u8));
        let end = data.len();
        entries
            .push(format!(r#""t{number}":{{"dtype":"F32","shape":[{}],"data_offsets":[{start},{end}]}}"#, number + 1));
        let pad = if number % 2 == 0 { 1 } else { 3 };
        entries.push(format!(r#""pad{number}":{{"dtype":"U8","shape":[{pad}],"data_offsets":[{end},{}]}}"#, end + pad));
        data.resize(end + pad, 0);
    }
    let header = format!("{{{}}}", entries.join(","));
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()).unwrap();
    path
}

static STOP: AtomicBool = AtomicBool::new(false);

fn stop() -> Result<()> {
    if STOP.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
}

#[test]
fn tensors_taken_together_are_what_each_is_alone_in_the_order_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    for backend in [Backend::Map, Backend::Read] {
        let checkpoint =
            Checkpoint::open(std::slice::from_ref(&path), &OpenOptions::default().backend(backend)).unwrap();
        let numbers: Vec<u32> = (0..checkpoint.catalog().table().len() as u32).rev().collect();
        let together = checkpoint.tensors(&numbers).unwrap();
        assert_eq!(together.len(), 2 * COUNT);
        for (number, tensor) in numbers.iter().zip(&together) {
            let alone = checkpoint.tensor(*number as usize).unwrap();
            assert_eq!((tensor.bytes(), tensor.shape()), (alone.bytes(), alone.shape()));
            let placement = checkpoint.catalog().placement(*number as usize).unwrap();
            let mapped = backend == Backend::Map && placement.is_mappable();
            assert_eq!((tensor.storage().is_mapped(), alone.storage().is_mapped()), (mapped, mapped));
            assert!(tensor.is_aligned());
        }
    }
}

#[test]
fn a_tensor_that_a_plan_has_twice_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let source = Arc::new(Trial::of("model.safetensors", &std::fs::read(file(&folder)).unwrap()));
    let checkpoint = Checkpoint::open_sources(vec![source.clone()], &OpenOptions::default()).unwrap();
    let number = checkpoint.catalog().require("t7").unwrap() as u32;
    let before = source.counts();
    let taken = checkpoint.tensors(&[number, 0, number]).unwrap();
    assert_eq!(source.counts().batches, before.batches + 2);
    assert_eq!(taken[0].as_ptr(), taken[2].as_ptr());
    assert_ne!(taken[0].as_ptr(), checkpoint.tensor(number as usize).unwrap().as_ptr());
}

#[test]
fn a_plan_ends_when_it_is_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = OpenOptions::default();
    options.format.interrupt = stop;
    let checkpoint = Checkpoint::open(&[file(&folder)], &options).unwrap();
    assert_eq!(checkpoint.tensors(&[1, 2, 3]).unwrap().len(), 3);
    STOP.store(true, Ordering::Relaxed);
    assert!(matches!(checkpoint.tensors(&[1, 2, 3]), Err(Error::Interrupted)));
}
