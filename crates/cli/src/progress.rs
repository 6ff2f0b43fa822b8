//! How far long work is: a bar on standard error, which appears after a while and goes when the work is done.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Work that takes less shows nothing.
const PATIENCE: Duration = Duration::from_millis(300);
const STEP: Duration = Duration::from_millis(50);

/// A bar that is there while this lives.
pub(crate) struct CommandProgress {
    ended: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

impl CommandProgress {
    /// A bar for bytes that are counted in `done`; none where standard error is not a terminal.
    pub(crate) fn new(done: &Arc<AtomicU64>, total: u64) -> Self {
        Self::growing(done, &Arc::new(AtomicU64::new(total)))
    }

    /// A bar whose end moves while more work is found.
    pub(crate) fn growing(done: &Arc<AtomicU64>, total: &Arc<AtomicU64>) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let watcher = std::io::stderr().is_terminal().then(|| {
            let (done, total, ended) = (done.clone(), total.clone(), ended.clone());
            thread::spawn(move || watch(&done, &total, &ended))
        });
        Self { ended, watcher }
    }
}

impl Drop for CommandProgress {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(watcher) = self.watcher.take() {
            watcher.thread().unpark();
            // It only draws, so its errors do not matter.
            let _ = watcher.join();
        }
    }
}

fn watch(done: &AtomicU64, total: &AtomicU64, ended: &AtomicBool) {
    let pause = |time: Duration| {
        thread::park_timeout(time);
        ended.load(Ordering::Relaxed)
    };
    if pause(PATIENCE) {
        return;
    }
    let bar = ProgressBar::new(total.load(Ordering::Relaxed));
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}") {
        bar.set_style(style.progress_chars("## "));
    }
    while !pause(STEP) {
        bar.set_length(total.load(Ordering::Relaxed));
        bar.set_position(done.load(Ordering::Relaxed));
    }
    bar.finish_and_clear();
}
