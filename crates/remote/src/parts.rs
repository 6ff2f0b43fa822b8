//! The parts of an upload: how long they are, and which have come and been sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use max_weights::{Error, Result};
use object_store::multipart::PartId;
use tokio::task::AbortHandle;

/// The bytes of a part where no more are needed.
const PART: u64 = 8 << 20;
/// The least that stores take, but for the last part.
const LEAST_PART: u64 = 5 << 20;
/// The most that they take.
const MOST_PART: u64 = 5 << 30;
/// The most parts of an upload.
const MOST_PARTS: u64 = 10_000;
/// A part that is being filled.
pub(crate) struct Part {
    pub(crate) bytes: Vec<u8>,
    /// Bytes that have not come yet.
    pub(crate) missing: u64,
}

#[derive(Default)]
pub(crate) struct State {
    /// By number.
    pub(crate) open: HashMap<usize, Arc<Mutex<Part>>>,
    pub(crate) under_way: usize,
    pub(crate) sent: HashMap<usize, PartId>,
    /// Bytes that have come, holes among them.
    pub(crate) come: u64,
    /// Why a part could not be sent; whoever sees it first says so.
    pub(crate) failed: Option<Error>,
    pub(crate) has_failed: bool,
    pub(crate) tasks: Vec<AbortHandle>,
    pub(crate) is_over: bool,
    pub(crate) is_compared: bool,
}

impl State {
    /// The error of a part that could not be sent.
    pub(crate) fn check(&mut self) -> Result<()> {
        if !self.has_failed {
            return Ok(());
        }
        // The others that write are only told to stop.
        Err(self.failed.take().unwrap_or(Error::Interrupted))
    }
}

/// How long parts are: equal but for the last one, no more of them than stores take.
pub(crate) fn part_size(len: u64, asked: Option<u64>) -> Option<u64> {
    let least = len.div_ceil(MOST_PARTS).next_multiple_of(1 << 20);
    let part = asked.unwrap_or(PART).clamp(LEAST_PART, MOST_PART).max(least);
    (part <= MOST_PART).then_some(part)
}

/// Whether stores take parts of so many bytes.
pub(crate) fn is_taken(part: u64) -> bool {
    (LEAST_PART..=MOST_PART).contains(&part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_no_more_and_no_shorter_than_stores_take() {
        assert_eq!(part_size(1, None), Some(8 << 20));
        assert_eq!(part_size(1, Some(1)), Some(5 << 20));
        for len in [1 << 20, 80 << 30, 5 << 40] {
            let part = part_size(len, None).expect("a size");
            assert!(len.div_ceil(part) <= 10_000 && part >= 5 << 20, "{len}");
        }
        assert_eq!(part_size(100 << 40, None), None);
    }
}
