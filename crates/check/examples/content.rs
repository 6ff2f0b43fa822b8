//! Reads the tensors of checkpoints, a line each with its speed: `cargo run --release -p max-weights-check --example content -- PATH…`.

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use max_weights::uninterrupted;
use max_weights_check::content::stats;
use max_weights_check::{Level, ValidateOptions, ValidateProgress, validate};

fn main() -> max_weights::Result<()> {
    for path in std::env::args().skip(1) {
        let checkpoint = max_weights::open(&path)?;
        let bytes: u64 = checkpoint.catalog().table().iter().map(|info| info.bytes()).sum();
        let speed = |started: Instant| bytes as f64 / 1e9 / started.elapsed().as_secs_f64();
        let started = Instant::now();
        let all: Vec<usize> = (0..checkpoint.catalog().table().len()).collect();
        let found = stats(&checkpoint, &all, 0, &AtomicU64::new(0), &uninterrupted)?;
        println!("{path}: statistics of {} tensors at {:.2} GB/s", found.len(), speed(started));
        let options = ValidateOptions { level: Level::Content, ..ValidateOptions::default() };
        let started = Instant::now();
        let report = validate(&[path.clone().into()], &options, &ValidateProgress::default(), &uninterrupted)?;
        println!("{path}: content at {:.2} GB/s, {} findings", speed(started), report.findings.len());
    }
    Ok(())
}
