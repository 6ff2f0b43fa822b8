//! Plans: tensors that are taken together are what each is alone, in the order that was asked for, and share what they share in the file.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use max_weights::buffer::Buffer;
use max_weights::checkpoint::{Backend, Checkpoint, OpenOptions};
use max_weights::dtype::DType;
use max_weights::error::{Error, Result};
use max_weights::load::{LoadOptions, LoadPlan, TensorMemory};
use max_weights::workers::uninterrupted;

use crate::source_support::Trial;

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
    assert_eq!(source.counts().batches, before.batches + 1, "neighbours come with one request");
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

/// Loads copies of all tensors, in the stored dtype or as bf16.
fn load_all(checkpoint: &Checkpoint, dtype: Option<DType>, done: &AtomicU64) -> Result<Vec<Buffer>> {
    let requests =
        (0..checkpoint.catalog().table().len()).map(|number| checkpoint.catalog().tensor_request(number, dtype));
    let plan =
        LoadPlan::new(checkpoint, requests.collect::<Result<_>>()?, TensorMemory::Own, &[], &LoadOptions::default())?;
    plan.run(checkpoint, Vec::new(), done, &uninterrupted).map(|(loaded, _)| loaded)
}

#[test]
fn a_load_reads_every_byte_once_and_joins_neighbours() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(file(&folder)).unwrap();
    for dtype in [None, Some(DType::BFloat16)] {
        let source = Arc::new(Trial::of("model.safetensors", &bytes));
        let checkpoint = Checkpoint::open_sources(vec![source.clone()], &OpenOptions::default()).unwrap();
        let (before, done) = (source.counts(), AtomicU64::new(0));
        let loaded = load_all(&checkpoint, dtype, &done).unwrap();
        let after = source.counts();
        let size: u64 = (0..loaded.len()).map(|number| checkpoint.catalog().table().get(number).bytes()).sum();
        assert_eq!((after.bytes - before.bytes) as u64, size);
        assert_eq!(done.into_inner(), size);
        // The bytes between the floats stay bytes, and are a separate job if the floats are converted.
        assert!(after.batches - before.batches <= if dtype.is_none() { 1 } else { 2 * COUNT }, "{after:?}");
        for (number, tensor) in loaded.iter().enumerate() {
            let alone = checkpoint.tensor(number).unwrap();
            let dtype = dtype.unwrap_or(alone.dtype());
            assert_eq!(tensor.bytes(), alone.astype(dtype, false, &uninterrupted).unwrap().bytes());
        }
    }
}

#[test]
fn a_load_ends_with_the_first_error_and_the_next_one_works() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(file(&folder)).unwrap();
    let opened = Trial::of("model.safetensors", &bytes);
    let parts = {
        let source = Arc::new(opened);
        Checkpoint::open_sources(vec![source.clone()], &OpenOptions::default()).unwrap();
        source.counts().parts
    };
    let done = AtomicU64::new(0);
    let source = Arc::new(Trial::of("model.safetensors", &bytes).fails_at(parts + 3));
    let checkpoint = Checkpoint::open_sources(vec![source], &OpenOptions::default()).unwrap();
    let failed = load_all(&checkpoint, None, &done).expect_err("the disk is broken").to_string();
    assert!(failed.contains("the disk is broken") && failed.contains("model.safetensors"), "{failed}");
    assert_eq!(load_all(&checkpoint, None, &done).unwrap().len(), 2 * COUNT);
    let header = br#"{"t":{"dtype":"U8","shape":[100000],"data_offsets":[0,100000]}} "#;
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_slice(), &vec![1; 100_000]].concat();
    let source = Arc::new(Trial::of("model.safetensors", &bytes).ends_at(50_000));
    let checkpoint = Checkpoint::open_sources(vec![source], &OpenOptions::default()).unwrap();
    assert!(matches!(load_all(&checkpoint, None, &done), Err(Error::FileChanged(_))));
}

#[test]
fn a_load_that_is_interrupted_ends() {
    let folder = tempfile::tempdir().unwrap();
    let source = Trial::of("model.safetensors", &std::fs::read(file(&folder)).unwrap());
    let checkpoint = Checkpoint::open_sources(vec![Arc::new(source)], &OpenOptions::default()).unwrap();
    let requests = vec![checkpoint.catalog().tensor_request(0, None).unwrap()];
    let plan = LoadPlan::new(&checkpoint, requests, TensorMemory::Own, &[], &LoadOptions::default()).unwrap();
    let failed = plan.run(&checkpoint, Vec::new(), &AtomicU64::new(0), &|| Err(Error::Interrupted));
    assert!(matches!(failed, Err(Error::Interrupted)));
}
