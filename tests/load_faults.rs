//! Loads and streams through sources that go wrong: each ends with the right error, or with the right bytes; nothing is left behind, and the
//! next one works.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking
#![cfg(target_os = "linux")] // what is left behind is counted in /proc

#[path = "source_support/difficult.rs"]
mod difficult;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use difficult::{Difficult, Difficulty};
use max_weights::buffer::Buffer;
use max_weights::checkpoint::{Backend, Checkpoint, OpenOptions};
use max_weights::dtype::DType;
use max_weights::error::{Error, Result};
use max_weights::load::{LoadOptions, LoadPlan, LoadStream, Recipe, StreamOptions, TensorMemory, TensorRequest};
use max_weights::memory::release_memory;
use max_weights::source::LocalFile;
use max_weights::workers::{Interrupt, uninterrupted};

/// What the allocator may keep: less than one of the large tensors.
const LEFT: u64 = 2 << 20;
const LARGE: usize = 3 << 20;

/// One test at a time, so that leaks can be counted, with a separate file: float32 tensors, large and small, and bytes between.
struct Trial {
    path: PathBuf,
    bytes: Vec<u8>,
    before: Left,
    _folder: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// Descriptors, mappings of the file, threads that load, and bytes of memory.
#[derive(Debug)]
struct Left {
    descriptors: usize,
    mappings: usize,
    threads: usize,
    memory: u64,
}

impl Trial {
    fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut entries, mut data): (Vec<String>, Vec<u8>) = (Vec::new(), Vec::new());
        for (number, len) in [LARGE, 8, 400, LARGE, 4, LARGE, LARGE, 40].into_iter().enumerate() {
            let start = data.len();
            data.extend((0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761 + number as u32).to_be_bytes()[0]));
            let (end, elements) = (data.len(), len / 4);
            entries
                .push(format!(r#""t{number}":{{"dtype":"F32","shape":[{elements}],"data_offsets":[{start},{end}]}}"#));
            entries.push(format!(r#""pad{number}":{{"dtype":"U8","shape":[3],"data_offsets":[{end},{}]}}"#, end + 3));
            data.extend([7, 8, 9]);
        }
        let header = format!("{{{}}}", entries.join(","));
        let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
        std::fs::write(&path, &bytes).unwrap();
        let before = Left::now(&path);
        let mut trial = Self { path, bytes, before, _folder: folder, _alone: alone };
        trial.load_and_stream(); // what the first load makes for all that follow does not count
        trial.before = Left::now(&trial.path);
        trial
    }

    fn source(&self, difficulty: Difficulty) -> Arc<Difficult> {
        Difficult::new(LocalFile::open(&self.path).unwrap(), difficulty)
    }

    /// Shortens the file to half.
    fn cut(&self) -> Box<dyn Fn() + Send + Sync> {
        let (path, half) = (self.path.clone(), self.bytes.len() as u64 / 2);
        Box::new(move || std::fs::File::options().write(true).open(&path).unwrap().set_len(half).unwrap())
    }

    /// Checks that the file can be loaded and streamed, and that neither this nor the test before leaks.
    #[track_caller]
    fn check_next(&self) {
        std::fs::write(&self.path, &self.bytes).unwrap();
        self.load_and_stream();
        let after = Left::now(&self.path);
        assert_eq!(after.descriptors, self.before.descriptors, "{after:?}");
        assert_eq!((after.mappings, after.threads), (0, 0), "{after:?}");
        // Under emulation (tools/platforms.py), the translated instructions count as memory of the process, too.
        let emulated = std::env::var_os("MAX_WEIGHTS_EMULATED").is_some();
        assert!(emulated || after.memory < self.before.memory + LEFT, "{:?}, {after:?}", self.before);
    }

    #[track_caller]
    fn load_and_stream(&self) {
        let source = self.source(Difficulty::default());
        for dtype in [None, Some(DType::Float64)] {
            let checkpoint = open(&source);
            let expected = expected(&checkpoint, dtype);
            for backend in [Backend::Map, Backend::Read] {
                assert!(load(&checkpoint, backend, dtype, &uninterrupted).unwrap() == expected);
            }
            assert!(stream(&checkpoint, dtype, false).unwrap() == expected);
        }
    }
}

impl Left {
    fn now(path: &Path) -> Self {
        let entries =
            |folder: &str| std::fs::read_dir(folder).unwrap().filter_map(Result::ok).map(|entry| entry.path());
        let ours = |task: &PathBuf| {
            let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
            ["max_weights-loa", "max_weights-str"].iter().any(|ours| name.starts_with(ours)) // as long as names are
        };
        // A thread that has answered is there for a moment more.
        let patience = Instant::now();
        while entries("/proc/self/task").any(|task| ours(&task)) && patience.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        release_memory();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        Self {
            descriptors: entries("/proc/self/fd").count(),
            mappings: maps.matches(path.to_str().unwrap()).count(),
            threads: entries("/proc/self/task").filter(|task| ours(task)).count(),
            memory: anonymous.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10,
        }
    }
}

fn open(source: &Arc<Difficult>) -> Arc<Checkpoint> {
    Arc::new(Checkpoint::open_sources(vec![source.clone()], &OpenOptions::default()).unwrap())
}

fn requests(checkpoint: &Checkpoint, dtype: Option<DType>) -> Vec<TensorRequest> {
    let catalog = checkpoint.catalog();
    let floats = |number| dtype.filter(|_| catalog.table().name(number).starts_with('t'));
    (0..catalog.table().len()).map(|number| catalog.tensor_request(number, floats(number)).unwrap()).collect()
}

/// A number for the bytes of a tensor, which would take memory themselves.
fn digest(tensor: &Buffer) -> u64 {
    let (words, rest) = tensor.bytes().unwrap().as_chunks::<8>();
    let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = words.iter().fold(tensor.size() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    rest.iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte)))
}

/// What each tensor should be, taken one by one.
fn expected(checkpoint: &Checkpoint, dtype: Option<DType>) -> Vec<u64> {
    let one = |number: usize| {
        let tensor = checkpoint.tensor(number).unwrap();
        let dtype = dtype.filter(|_| tensor.dtype() == DType::Float32).unwrap_or(tensor.dtype());
        digest(&tensor.astype(dtype, false, &uninterrupted).unwrap())
    };
    (0..checkpoint.catalog().table().len()).map(one).collect()
}

fn load(checkpoint: &Checkpoint, backend: Backend, dtype: Option<DType>, interrupt: Interrupt<'_>) -> Result<Vec<u64>> {
    let options = LoadOptions { backend, threads: std::num::NonZero::new(3), ..LoadOptions::default() };
    let memory = if backend == Backend::Map { TensorMemory::Views } else { TensorMemory::Own };
    let layout = LoadPlan::new(checkpoint, requests(checkpoint, dtype), memory, &[], &options)?;
    let (loaded, _) = layout.run(checkpoint, Vec::new(), &AtomicU64::new(0), interrupt)?;
    Ok(loaded.iter().map(digest).collect())
}

fn open_stream(checkpoint: &Arc<Checkpoint>, dtype: Option<DType>) -> LoadStream {
    let (requests, catalog) = (requests(checkpoint, dtype), checkpoint.catalog().clone());
    let numbers = (0..requests.len()).collect();
    let options = StreamOptions { budget: Some(64 << 20), ..StreamOptions::default() };
    let requests = requests.into_iter().map(Recipe::from).collect();
    LoadStream::new(checkpoint.clone(), catalog, numbers, requests, options).unwrap()
}

fn stream(checkpoint: &Arc<Checkpoint>, dtype: Option<DType>, slowly: bool) -> Result<Vec<u64>> {
    let (stream, mut found) = (open_stream(checkpoint, dtype), Vec::new());
    while let Some((position, tensor)) = stream.next(&uninterrupted)? {
        assert_eq!(position, found.len());
        found.push(digest(&tensor));
        if slowly {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    stream.close();
    Ok(found)
}

#[test]
fn reads_that_give_a_byte_or_half_of_what_is_missing_give_the_same_bytes() {
    let trial = Trial::new();
    for dtype in [None, Some(DType::Float64)] {
        let source = trial.source(Difficulty { in_pieces: true, ..Difficulty::default() });
        let checkpoint = open(&source);
        let expected = expected(&checkpoint, dtype);
        source.turn(true);
        for backend in [Backend::Map, Backend::Read, Backend::Direct] {
            assert!(load(&checkpoint, backend, dtype, &uninterrupted).unwrap() == expected, "{backend:?}");
        }
        assert!(stream(&checkpoint, dtype, true).unwrap() == expected);
        assert!(source.batches() > 2);
    }
    trial.check_next();
}

#[test]
fn a_byte_that_cannot_be_read_ends_a_load_and_a_stream_wherever_it_is() {
    let trial = Trial::new();
    let len = trial.bytes.len() as u64;
    for byte in [2000, LARGE as u64, len / 2, len - 4 * LARGE as u64 / 3, len - 1] {
        for dtype in [None, Some(DType::Float64)] {
            let source = trial.source(Difficulty { broken_byte: Some(byte), ..Difficulty::default() });
            let checkpoint = open(&source);
            let expected = expected(&checkpoint, dtype);
            source.turn(true);
            let table = checkpoint.catalog().table();
            let broken = table.iter().position(|info| (info.span.start()..info.span.end()).contains(&byte)).unwrap();
            for backend in [Backend::Read, Backend::Direct] {
                let failed = load(&checkpoint, backend, dtype, &uninterrupted).expect_err("a broken disk");
                let message = failed.to_string();
                assert!(message.contains("the disk is broken") && message.contains("model.safetensors"), "{message}");
            }
            let (stream, mut given) = (open_stream(&checkpoint, dtype), 0);
            let failed = loop {
                match stream.next(&uninterrupted) {
                    Ok(next) => {
                        let (position, tensor) = next.expect("the broken one is not the end");
                        assert_eq!(digest(&tensor), expected[position], "{position}");
                        given += 1;
                    }
                    Err(error) => break error.to_string(),
                }
            };
            assert!(given <= broken, "{given} of {broken}");
            assert!(failed.contains("the disk is broken") && failed.contains(" of 't"), "{failed}");
            assert!(stream.next(&uninterrupted).unwrap().is_none(), "an error ends it");
            drop(stream);
            source.turn(false);
            assert!(load(&checkpoint, Backend::Read, dtype, &uninterrupted).unwrap() == expected);
        }
    }
    trial.check_next();
}

#[test]
fn a_slow_source_begins_nothing_more_once_it_was_said_to_stop() {
    const THREADS: usize = 3;
    let trial = Trial::new();
    let source = trial.source(Difficulty { delay: Duration::from_millis(20), ..Difficulty::default() });
    let checkpoint = open(&source);
    source.turn(true);
    let begun = Instant::now();
    let at_stop = Cell::new(usize::MAX);
    let interrupt = || {
        if begun.elapsed() < Duration::from_millis(40) {
            return Ok(());
        }
        at_stop.set(at_stop.get().min(source.batches()));
        Err(Error::Interrupted)
    };
    let failed = load(&checkpoint, Backend::Read, Some(DType::Float64), &interrupt);
    assert!(matches!(failed, Err(Error::Interrupted)));
    assert!(source.batches() <= at_stop.get() + 2 * THREADS, "{} after {}", source.batches(), at_stop.get());
    drop((source, checkpoint));
    trial.check_next();
}

#[test]
fn whoever_waits_for_a_slow_stream_can_leave_it_and_it_ends_by_itself() {
    const READ: Duration = Duration::from_secs(1);
    let trial = Trial::new();
    let source = trial.source(Difficulty { delay: READ, ..Difficulty::default() });
    let checkpoint = open(&source);
    source.turn(true);
    let stream = open_stream(&checkpoint, Some(DType::Float64));
    let begun = Instant::now();
    assert!(matches!(stream.next(&|| Err(Error::Interrupted)), Err(Error::Interrupted)));
    stream.close();
    assert!(begun.elapsed() < READ, "a read that nothing can end was waited for");
    assert!(stream.next(&uninterrupted).unwrap().is_none());
    drop(stream);
    source.turn(false);
    drop(checkpoint);
    while Arc::strong_count(&source) > 1 {
        std::thread::sleep(Duration::from_millis(10)); // until its thread has read what it had begun
    }
    std::thread::sleep(Duration::from_millis(50));
    drop(source);
    trial.check_next();
}

#[test]
fn a_file_that_becomes_shorter_while_it_is_read_is_an_error_in_every_way() {
    let trial = Trial::new();
    for dtype in [None, Some(DType::Float64)] {
        for backend in [Backend::Read, Backend::Map, Backend::Direct] {
            let mapped = backend == Backend::Map && dtype.is_none();
            std::fs::write(&trial.path, &trial.bytes).unwrap();
            let source = trial.source(if mapped {
                Difficulty { after_check: Some(trial.cut()), ..Difficulty::default() }
            } else {
                Difficulty { before_batch: Some((0, trial.cut())), ..Difficulty::default() }
            });
            let checkpoint = open(&source);
            source.turn(true);
            let failed = load(&checkpoint, backend, dtype, &uninterrupted).expect_err("it was cut");
            assert!(matches!(failed, Error::FileChanged(_)), "{backend:?}: {failed}");
            assert!(failed.to_string().contains("model.safetensors"), "{failed}");
            source.turn(false);
            let again = load(&checkpoint, backend, dtype, &uninterrupted);
            assert!(matches!(again, Err(Error::FileChanged(_))), "it stays another file than the one that was opened");
        }
        std::fs::write(&trial.path, &trial.bytes).unwrap();
        let source = trial.source(Difficulty { before_batch: Some((0, trial.cut())), ..Difficulty::default() });
        let checkpoint = open(&source);
        source.turn(true);
        let failed = stream(&checkpoint, dtype, false).expect_err("it was cut").to_string();
        assert!(failed.contains("model.safetensors") && failed.contains("'t"), "{failed}");
    }
    trial.check_next();
}
