//! Reading back what was written, before it takes its place.

use std::sync::{Arc, Mutex, PoisonError};

use crc32fast::Hasher;

use super::run::AT_A_TIME;
use super::{Layout, Place, Replacement, Stored};
use crate::checkpoint::{OpenOptions, inspect};
use crate::error::{Diagnostic, Result};
use crate::rules;
use crate::source::{LocalFile, Part, Source};
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// Checksums (CRC-32) of the parts of tensors, taken while they are written, in whatever order they come.
#[derive(Debug)]
pub(super) struct Sums {
    /// By tensor: the first byte of each part, and its checksum.
    parts: Vec<Mutex<Vec<(u64, Hasher)>>>,
}

impl Sums {
    pub(super) fn new(tensors: usize) -> Self {
        Self { parts: (0..tensors).map(|_| Mutex::default()).collect() }
    }

    /// Notes a part that is written.
    pub(super) fn add(&self, tensor: usize, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        self.parts[tensor].lock().unwrap_or_else(PoisonError::into_inner).push((offset, hasher));
    }

    /// The checksum of a tensor of which every byte was written.
    fn of(&self, tensor: usize) -> u32 {
        let mut parts = self.parts[tensor].lock().unwrap_or_else(PoisonError::into_inner);
        parts.sort_by_key(|(offset, _)| *offset);
        let mut whole = Hasher::new();
        for (_, part) in parts.iter() {
            whole.combine(part);
        }
        whole.finalize()
    }

    /// Opens the file as any other one, and compares names, types, shapes, places and bytes.
    ///
    /// # Errors
    /// Something is not what was written. The file has not taken its place then.
    pub(super) fn check(&self, file: &Replacement, layout: &Layout, interrupt: Interrupt<'_>) -> Result<()> {
        let target = file.target();
        let differs = |place: Option<&Place>, cause: String| {
            let fault = Diagnostic::new(rules::TENSOR_DIGEST, cause).help(
                "the file was not put in place, and what was there is unchanged; the disk or the memory may be failing: try another disk",
            );
            let fault = match place {
                Some(place) => fault.tensor(&place.tensor.name).offset(place.bytes.start),
                None => fault,
            };
            Err(fault.path(target).format())
        };
        let source: Arc<dyn Source> = Arc::new(LocalFile::open(file.unfinished())?);
        // What is on the disk is read from there, and not from the page cache, which has what was meant.
        source.forget(0, source.len());
        let (catalog, faults) = inspect(source.clone(), &OpenOptions::default().strict(false))?;
        let Some(catalog) = catalog else {
            let why = faults.first().map_or_else(String::new, |fault| fault.message.clone());
            return differs(None, format!("what was written cannot be opened: {why}"));
        };
        let (found, written) = (catalog.table().len(), layout.places().len());
        if found != written {
            return differs(None, format!("{written} tensors were written, but {found} were read back"));
        }
        let jobs: Vec<(usize, &Place)> = layout.places().iter().enumerate().collect();
        in_order(threads(), jobs, interrupt, |(number, place), memory: &mut Vec<u8>, go_on| {
            let Some(info) = catalog.find(&place.tensor.name).map(|number| catalog.table().get(number)) else {
                return differs(Some(place), "it was written, but is missing when the file is read back".to_owned());
            };
            let (stored, shape) = (place.tensor.stored, &place.tensor.shape);
            let bytes = info.span.start()..info.span.start() + info.span.len();
            if Stored::of(info.element) != Some(stored) || info.shape != shape {
                let (element, found) = (info.element, text::shape(info.shape));
                let cause = format!("written as {stored} {}, but read back as {element} {found}", text::shape(shape));
                return differs(Some(place), cause);
            }
            if bytes != place.bytes && !place.bytes.is_empty() {
                return differs(Some(place), format!("written at {:?}, but found at {bytes:?}", place.bytes));
            }
            let mut hasher = Hasher::new();
            for start in place.bytes.clone().step_by(AT_A_TIME as usize) {
                go_on()?;
                memory.resize(AT_A_TIME.min(place.bytes.end - start) as usize, 0);
                source.read(&mut [Part { offset: start, bytes: memory }], go_on)?;
                hasher.update(memory);
            }
            let (read, written) = (hasher.finalize(), self.of(number));
            if read != written {
                let cause =
                    format!("its bytes have the CRC-32 {read:08x} when read back, but had {written:08x} when written");
                return differs(Some(place), cause);
            }
            Ok(())
        })
    }
}
