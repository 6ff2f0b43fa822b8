//! Statistics take memory that does not grow with the tensor. By itself, so that nothing else takes memory meanwhile.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

mod gguf_files;
mod statistics_support;
mod zip_files;

use std::io::Write;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use max_weights::check::statistics;
use max_weights::workers::{set_threads, uninterrupted};

use statistics_support::Torch;

const SIZE: usize = 40 << 20;
/// A sanitizer keeps what was freed for a while, and room around everything.
const MAX: usize = 12 << 20;
const MAX_WATCHED: usize = 24 << 20;

/// The most memory that this process has had.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the peak");
    line.trim().strip_suffix("kB").unwrap().trim().parse::<usize>().unwrap() << 10
}

fn takes_little_memory(path: &Path, bins: usize, count: u64) {
    let checkpoint = max_weights::open(path).unwrap();
    // Forgets the peak so far.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak();
    let found = statistics(&checkpoint, 0, bins, &AtomicU64::new(0), &uninterrupted).unwrap();
    assert_eq!(found.count, count, "{}", path.display());
    let grown = peak() - before;
    let most = if std::env::var_os("ASAN_OPTIONS").is_some() { MAX_WATCHED } else { MAX };
    assert!(grown < most, "{} takes {grown} bytes", path.display());
}

#[test]
fn the_memory_does_not_grow_with_the_tensor_however_it_lies_in_the_file() {
    set_threads(NonZero::new(2));
    let folder = tempfile::tempdir().unwrap();
    for (dtype, item, bins) in [("BF16", 2, 50), ("F64", 8, 50)] {
        let path = folder.path().join(format!("{dtype}.safetensors"));
        let header = format!(r#"{{"t":{{"dtype":"{dtype}","shape":[{}],"data_offsets":[0,{SIZE}]}}}}"#, SIZE / item);
        let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        file.write_all(header.as_bytes()).unwrap();
        file.set_len((8 + header.len() + SIZE) as u64).unwrap(); // zeros that take no room on the disk
        takes_little_memory(&path, bins, (SIZE / item) as u64);
    }
    let count = SIZE / 4;
    for deflated in [false, true] {
        let path = folder.path().join(format!("deflated-{deflated}.pt"));
        let values = vec![0.25; count];
        let shape = [count as u64 / 2 / 1024, 1024];
        let torch = Torch { shape: &shape, strides: &[2048, 2], deflated, ..Torch::floats(&values) };
        std::fs::write(&path, torch.file().1).unwrap();
        drop(values);
        takes_little_memory(&path, 0, count as u64 / 2);
    }
}
