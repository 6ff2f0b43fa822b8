//! The faster read method per disk, found by probes, and remembered for the lifetime of the process.

use std::sync::Mutex;

use crate::checkpoint::Backend;
use crate::source::Source;

/// What a probe compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// Reads through the page cache, or past it.
    Reading,
    /// Views, or owned memory.
    Views,
}

/// The faster method, by device and question.
static FASTER: Mutex<Vec<(u64, Question, Backend)>> = Mutex::new(Vec::new());

/// The result for the devices of these files, if it is the same for all.
pub(super) fn remembered(question: Question, files: &[&dyn Source]) -> Option<Backend> {
    let known = FASTER.try_lock().ok()?;
    let of = |file: &&dyn Source| {
        let device = file.origin().fingerprint.identity.device().unwrap_or(0);
        known
            .iter()
            .find_map(|(number, requested, backend)| ((*number, *requested) == (device, question)).then_some(*backend))
    };
    let first = files.first().and_then(of)?;
    files.iter().all(|file| of(file) == Some(first)).then_some(first)
}

/// Remembers the result for the device of a file.
pub(super) fn remember(file: &dyn Source, question: Question, backend: Backend) {
    let device = file.origin().fingerprint.identity.device().unwrap_or(0);
    if let Ok(mut known) = FASTER.try_lock() {
        known.retain(|(number, requested, _)| (*number, *requested) != (device, question));
        known.push((device, question, backend));
    }
}
