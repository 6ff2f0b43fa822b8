//! The allocations of opening a GGUF file, counted: in proportion to its header, for any size of the file.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

use std::path::PathBuf;

use max_weights::checkpoint::{Backend, Checkpoint, OpenOptions};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// A real file, which `make test` fetches.
fn real(name: &str) -> PathBuf {
    let given = std::env::var_os("MAX_WEIGHTS_MODELS").map(PathBuf::from);
    let path = given.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".models")).join(name);
    assert!(path.exists(), "{}: `make test` fetches the real models (tools/get_models.py DIR)", path.display());
    path
}

// The counters belong to the process, so there is one test in this file.
#[test]
fn opening_a_real_file_allocates_at_most_twice_its_header() {
    let path = real("smollm2-135m.Q4_1.gguf");
    for backend in [Backend::Map, Backend::Read] {
        ALLOCATOR.reset_peak_usage();
        let before = ALLOCATOR.current_usage();
        let options = OpenOptions::default().backend(backend);
        let checkpoint = Checkpoint::open(std::slice::from_ref(&path), &options).expect("a valid file");
        let most = ALLOCATOR.peak_usage() - before;
        let held = ALLOCATOR.current_usage() - before;
        let table = checkpoint.catalog().table();
        assert_eq!(table.len(), 272);
        let header = table.iter().map(|info| info.span.start()).min().expect("a tensor") as usize;
        assert!(most <= 2 * header, "{most} bytes at once for a header of {header}, {held} held");
        assert!(held * 4 <= header * 5, "{held} bytes are held for a header of {header}");
    }
}
