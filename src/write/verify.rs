//! Reads back written files and verifies them: before they are put in place, or on a server once they are named.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crc32fast::Hasher;

use super::run::AT_A_TIME;
use super::{FileLayout, StoredElements, TensorPlacement};
use crate::checkpoint::{OpenOptions, inspect};
use crate::error::{Diagnostic, Result};
use crate::rules;
use crate::source::store::is_url;
use crate::source::{ReadRange, Source};
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// Pieces of a tensor that are fetched from a server concurrently.
const SEVERAL: u64 = 4;

/// The byte range of a part of a tensor, and its checksum.
type SummedPart = (Range<u64>, Hasher);

/// Checksums (CRC-32) of the parts of tensors, computed while they are written, in any order.
#[derive(Debug)]
pub(super) struct PartChecksums {
    /// By tensor.
    parts: Vec<Mutex<Vec<SummedPart>>>,
}

impl PartChecksums {
    pub(super) fn new(tensors: usize) -> Self {
        Self { parts: (0..tensors).map(|_| Mutex::default()).collect() }
    }

    /// Records a part that is written.
    pub(super) fn add(&self, tensor: usize, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        self.parts[tensor]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((offset..offset + bytes.len() as u64, hasher));
    }

    /// The checksums of the written bytes of a tensor: disjoint, non-adjacent ranges in order.
    fn of(&self, tensor: usize) -> Vec<(Range<u64>, u32)> {
        let mut parts = self.parts[tensor].lock().unwrap_or_else(PoisonError::into_inner);
        parts.sort_by_key(|(range, _)| range.start);
        let mut joined: Vec<(Range<u64>, Hasher)> = Vec::new();
        for (range, part) in parts.iter() {
            match joined.last_mut() {
                Some((before, whole)) if before.end == range.start => {
                    before.end = range.end;
                    whole.combine(part);
                }
                _ => joined.push((range.clone(), part.clone())),
            }
        }
        joined.into_iter().map(|(range, hasher)| (range, hasher.finalize())).collect()
    }

    /// Reads the new file of `target` like any other file, and compares names, types, shapes, offsets and bytes.
    ///
    /// # Errors
    /// Something differs from what was written; `help` is added to the error.
    pub(super) fn check(
        &self,
        source: Arc<dyn Source>,
        target: &Path,
        layout: &FileLayout,
        help: &'static str,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let differs = |place: Option<&TensorPlacement>, cause: String| {
            let fault = Diagnostic::new(rules::TENSOR_DIGEST, cause).help(help);
            let fault = match place {
                Some(place) => fault.tensor(&place.tensor.name).offset(place.bytes.start),
                None => fault,
            };
            Err(fault.path(target).format())
        };
        let (catalog, faults) = inspect(source.clone(), &OpenOptions::default().strict(false))?;
        let Some(catalog) = catalog else {
            let why = faults.first().map_or_else(String::new, |fault| fault.message.clone());
            return differs(None, format!("what was written cannot be opened: {why}"));
        };
        let (found, written) = (catalog.table().len(), layout.places().len());
        if found != written {
            return differs(None, format!("{written} tensors were written, but {found} were read back"));
        }
        // On a server, as much at a time as several requests deliver.
        let at_a_time = if is_url(target) { AT_A_TIME * SEVERAL } else { AT_A_TIME };
        let jobs: Vec<(usize, &TensorPlacement)> = layout.places().iter().enumerate().collect();
        in_order(threads(), jobs, interrupt, |(number, place), memory: &mut Vec<u8>, cancel| {
            let Some(info) = catalog.find(&place.tensor.name).map(|number| catalog.table().get(number)) else {
                return differs(Some(place), "it was written, but is missing when the file is read back".to_owned());
            };
            let (stored, shape) = (place.tensor.stored, &place.tensor.shape);
            let bytes = info.span.start()..info.span.start() + info.span.len();
            if StoredElements::of(info.element) != Some(stored) || info.shape != shape {
                let (element, found) = (info.element, text::shape(info.shape));
                let cause = format!("written as {stored} {}, but read back as {element} {found}", text::shape(shape));
                return differs(Some(place), cause);
            }
            if bytes != place.bytes && !place.bytes.is_empty() {
                return differs(Some(place), format!("written at {:?}, but found at {bytes:?}", place.bytes));
            }
            for (part, written) in self.of(number) {
                let mut hasher = Hasher::new();
                let range = place.bytes.start + part.start..place.bytes.start + part.end;
                for start in range.clone().step_by(at_a_time as usize) {
                    cancel()?;
                    memory.resize(at_a_time.min(range.end - start) as usize, 0);
                    source.read(&mut [ReadRange { offset: start, bytes: memory }], cancel)?;
                    hasher.update(memory);
                }
                let read = hasher.finalize();
                if read != written {
                    let which =
                        if range == place.bytes { String::new() } else { format!(" {} to {}", part.start, part.end) };
                    let cause = format!(
                        "its bytes{which} have the CRC-32 {read:08x} when read back, but had {written:08x} when written"
                    );
                    return differs(Some(place), cause);
                }
            }
            Ok(())
        })
    }
}
