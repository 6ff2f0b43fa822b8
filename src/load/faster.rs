//! What was tried on a disk, and what was faster there. Remembered as long as the process lives.

use std::sync::Mutex;

use crate::checkpoint::Backend;
use crate::source::Source;

/// What was tried on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// Reading through the page cache, or past it.
    Reading,
    /// Views, or memory of its own.
    Views,
}

/// The faster way, by device and question.
static FASTER: Mutex<Vec<(u64, Question, Backend)>> = Mutex::new(Vec::new());

/// What was seen of the devices that files are on, if it is the same for all.
pub(super) fn remembered(question: Question, files: &[&dyn Source]) -> Option<Backend> {
    let known = FASTER.try_lock().ok()?;
    let of = |file: &&dyn Source| {
        let device = file.origin().fingerprint.identity.device().unwrap_or(0);
        known.iter().find_map(|(number, asked, backend)| ((*number, *asked) == (device, question)).then_some(*backend))
    };
    let first = files.first().and_then(of)?;
    files.iter().all(|file| of(file) == Some(first)).then_some(first)
}

/// Remembers what was seen of the device that a file is on.
pub(super) fn remember(file: &dyn Source, question: Question, backend: Backend) {
    let device = file.origin().fingerprint.identity.device().unwrap_or(0);
    if let Ok(mut known) = FASTER.try_lock() {
        known.retain(|(number, asked, _)| (*number, *asked) != (device, question));
        known.push((device, question, backend));
    }
}
