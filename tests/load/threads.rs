//! Many threads take, copy, cast and dequantize tensors of one checkpoint at once, and release memory in between. All results match the
//! file. `make sanitize` runs this under ThreadSanitizer, which sees races that no comparison does.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

use max_weights::buffer::{Buffer, IndexPart, dequantize};
use max_weights::cast::{CastOptions, cast_by_oracle};
use max_weights::checkpoint::{Backend, Checkpoint, OpenOptions};
use max_weights::dtype::DType;
use max_weights::memory::release_memory;
use max_weights::quant::{self, Encoding};
use max_weights::source::{LocalFile, Source};
use max_weights::workers::{WORKERS, uninterrupted};

const THREADS: usize = 6;
const ROUNDS: usize = 3;
/// Elements of each tensor: from one of a few bytes to one whose conversion takes several parts.
const SIZES: [usize; 6] = [1, 3, 1000, 17_000, 340_000, 1_190_000];

struct File {
    _folder: tempfile::TempDir,
    path: PathBuf,
    expected: Vec<Expected>,
}

/// The bytes of a tensor, and its elements as bf16, and as f32 of Q8_0 blocks where they are whole blocks.
type Expected = (Vec<u8>, Vec<u8>, Option<Vec<u8>>);

fn content(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u8 ^ number as u8).collect()
}

/// A file of f16 tensors, each of which begins one byte off its alignment if `shifted`, so that it cannot be mapped.
fn file(shifted: bool) -> File {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    if shifted {
        entries.push("\"shift\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}".to_owned());
        data.push(0);
    }
    let mut expected = Vec::new();
    for (number, elements) in SIZES.into_iter().enumerate() {
        let bytes = content(number, 2 * elements);
        let (start, end) = (data.len(), data.len() + bytes.len());
        entries.push(format!(
            "\"t{number}\":{{\"dtype\":\"F16\",\"shape\":[{elements}],\"data_offsets\":[{start},{end}]}}"
        ));
        data.extend_from_slice(&bytes);
        let mut narrow = vec![0; bytes.len()];
        cast_by_oracle(DType::Float16, DType::BFloat16, &bytes, &mut narrow, CastOptions::default()).unwrap();
        let blocks = quant::elements(Encoding::Q8_0, bytes.len()).ok().map(|count| {
            let mut values = vec![0; 4 * count];
            quant::dequantize(Encoding::Q8_0, &bytes, DType::Float32, &mut values, false).unwrap();
            values
        });
        expected.push((bytes, narrow, blocks));
    }
    let header = format!("{{{}}}", entries.join(","));
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()).unwrap();
    File { _folder: folder, path, expected }
}

fn open(path: &Path, backend: Backend) -> Checkpoint {
    Checkpoint::open(&[path.to_path_buf()], &OpenOptions::default().backend(backend)).unwrap()
}

/// Runs `work` on all threads, which begin together, for each of their rounds.
fn together(work: impl Fn(usize, usize) + Sync) {
    let (begin, work) = (&Barrier::new(THREADS), &work);
    thread::scope(|scope| {
        let start = |worker| {
            scope.spawn(move || {
                begin.wait();
                (0..ROUNDS).for_each(|round| work(worker, round));
            })
        };
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        // ThreadSanitizer sees this end of a thread, and not that of the scope.
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

fn check(buffer: &Buffer, (bytes, narrow, blocks): &Expected) {
    assert!(buffer.bytes() == Some(bytes), "taken");
    assert!(buffer.copy(&uninterrupted).unwrap().bytes() == Some(bytes), "copied");
    assert!(buffer.astype(DType::BFloat16, false, &uninterrupted).unwrap().bytes() == Some(narrow), "cast");
    let backwards =
        buffer.index(&[IndexPart::Slice { start: None, stop: None, step: -1 }]).unwrap().copy(&uninterrupted).unwrap();
    let turned = backwards.bytes().unwrap().chunks(2).rev().flatten();
    assert!(turned.eq(bytes), "backwards");
    if let Some(values) = blocks {
        let raw = buffer.view(DType::UInt8, None).unwrap();
        let shape = [values.len() as i64 / 4];
        let found = dequantize(&raw, Encoding::Q8_0, DType::Float32, &shape, None, &uninterrupted).unwrap();
        assert!(found.bytes() == Some(values), "dequantized");
    }
}

#[test]
fn tensors_of_one_checkpoint_are_taken_copied_and_cast_by_many_threads() {
    for (shifted, backend) in [(false, Backend::Map), (false, Backend::Read), (true, Backend::Map)] {
        let file = file(shifted);
        let checkpoint = open(&file.path, backend);
        together(|worker, round| {
            // Neighbours work on the same tensor in the same round, and each of them on another in the next.
            let number = (worker / 2 + round) % SIZES.len();
            let weight = checkpoint.catalog().require(&format!("t{number}")).unwrap();
            check(&checkpoint.tensor(weight).unwrap(), &file.expected[number]);
            if worker == 0 {
                release_memory();
            }
        });
    }
}

#[test]
fn a_tensor_that_is_mapped_is_one_memory_for_all_threads() {
    let file = file(false);
    let checkpoint = open(&file.path, Backend::Map);
    let weight = checkpoint.catalog().require("t4").unwrap();
    let held = checkpoint.tensor(weight).unwrap();
    together(|_, _| assert_eq!(checkpoint.tensor(weight).unwrap().as_ptr(), held.as_ptr()));
}

#[test]
fn threads_that_map_a_file_at_the_same_time_get_one_mapping() {
    let made = file(false);
    for _ in 0..20 {
        let file = LocalFile::open(&made.path).unwrap();
        let addresses = Mutex::new(HashSet::new());
        together(|_, _| {
            let address = file.mapping().unwrap().as_ptr() as usize;
            addresses.lock().unwrap().insert(address);
        });
        assert_eq!(addresses.into_inner().unwrap().len(), 1);
    }
}

#[test]
fn every_part_of_work_from_many_threads_is_done_once() {
    let done = AtomicUsize::new(0);
    together(|_, _| {
        WORKERS
            .each((0..64).collect(), &uninterrupted, |part: usize, _| {
                done.fetch_add(part, Ordering::Relaxed);
                Ok(())
            })
            .unwrap();
    });
    assert_eq!(done.into_inner(), THREADS * ROUNDS * (64 * 63 / 2));
}

#[test]
fn checkpoints_are_opened_and_dropped_while_others_read() {
    let file = file(false);
    let kept = open(&file.path, Backend::Map);
    together(|worker, round| {
        let number = (worker + round) % 4;
        let (own, backend) = (worker % 2 == 0, if round % 2 == 0 { Backend::Map } else { Backend::Read });
        let opened = own.then(|| open(&file.path, backend));
        let weight = kept.catalog().require(&format!("t{number}")).unwrap();
        let buffer = opened.as_ref().unwrap_or(&kept).tensor(weight).unwrap();
        drop(opened);
        check(&buffer, &file.expected[number]);
    });
}
