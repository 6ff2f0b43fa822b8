//! Tensors of a base that deltas change, as one source: each is composed as it is read.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::budget;
use crate::error::{Diagnostic, Error, Result};
use crate::memory::{self, ForkMutex, Origin};
use crate::source::{Filesystem, Part, Source};
use crate::tensor::Span;
use crate::workers::Interrupt;

use super::super::packed::Unpacker;
use super::frame::Base;
use super::overlay::Overlay;
use super::patch::Patches;

/// What is kept of tensors that are composed as a whole, but for the one that is read.
const KEPT: u64 = 256 << 20;
/// Blocks of which the records are in memory at a time: those of many deltas fit into the processor's cache.
const AT_A_TIME: u64 = 8;

/// What deltas change in a tensor.
#[derive(Debug)]
pub(super) enum Changes {
    /// Blocks of it, which are composed one by one.
    Blocks(Overlay),
    /// All of it: other libraries say nothing of parts.
    Whole(Patches),
}

/// A tensor that is composed as a whole, by its number, and its bytes.
#[derive(Debug)]
struct Kept {
    number: usize,
    bytes: u64,
    slot: Arc<Slot>,
}

type Slot = ForkMutex<Option<Arc<Vec<u8>>>>;

/// A tensor of the base, and what becomes of it.
#[derive(Debug)]
pub(super) struct ChangedTensor {
    pub(super) base: Arc<dyn Source>,
    pub(super) span: Span,
    pub(super) changes: Changes,
    /// Where it begins in the source.
    pub(super) start: u64,
}

impl ChangedTensor {
    fn files(&self) -> Vec<&Arc<dyn Source>> {
        let mut files: Vec<&Arc<dyn Source>> = vec![&self.base];
        match &self.changes {
            Changes::Blocks(overlay) => files.extend(overlay.layers.iter().map(|layer| &layer.delta)),
            Changes::Whole(patches) => files.extend(patches.layers.iter().map(|patch| &patch.file)),
        }
        files
    }

    /// All bytes of a tensor that is composed as a whole.
    fn composed(&self, patches: &Patches, interrupt: Interrupt<'_>) -> Result<Vec<u8>> {
        let mut all = budget::zeroed(budget::saturating_usize(self.span.len()))?;
        let read = |start: usize, bytes: &mut [u8]| {
            self.base.read(&mut [Part { offset: self.span.start() + start as u64, bytes }], interrupt)
        };
        let base = Base { read: &read, in_parts: self.is_near() };
        patches.compose(&mut all, base, &mut Unpacker::default(), interrupt)?;
        Ok(all)
    }

    /// Whether the base is on this machine. What is asked for over a network is one request.
    fn is_near(&self) -> bool {
        matches!(self.base.filesystem(), Some(Filesystem::Disk | Filesystem::Memory))
    }

    /// Fills `out` with bytes of a tensor of which blocks are composed.
    fn read_blocks(&self, overlay: &Overlay, offset: u64, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        let read =
            |at, bytes: &mut [u8]| self.base.read(&mut [Part { offset: self.span.start() + at, bytes }], interrupt);
        // On a disk, a block is changed while the processor's cache has it.
        let at_once = !self.is_near();
        if at_once {
            read(offset, out)?;
        }
        let (size, end) = (overlay.block_bytes(), offset + out.len() as u64);
        let (first, after) = (offset / size, end.div_ceil(size));
        let (mut whole, mut room) = (Vec::new(), Vec::new());
        let step = if at_once { u64::MAX } else { AT_A_TIME };
        let mut numbers = first..after.min(first.saturating_add(step));
        while !numbers.is_empty() {
            let records = overlay.records(&numbers, &mut room, interrupt)?;
            for number in numbers.clone() {
                let bytes = number * size..self.span.len().min((number + 1) * size);
                let wanted = bytes.start.max(offset)..bytes.end.min(end);
                let place = (wanted.start - offset) as usize..(wanted.end - offset) as usize;
                let Some(place) = out.get_mut(place) else { continue };
                if !at_once {
                    read(wanted.start, place)?;
                }
                if !records.iter().any(|of_layer| of_layer.has(number)) {
                    continue;
                }
                if wanted == bytes {
                    overlay.compose(number, &records, place)?;
                    continue;
                }
                // Of a block that is wanted in part, all bytes are compared.
                whole.resize((bytes.end - bytes.start) as usize, 0);
                read(bytes.start, &mut whole)?;
                overlay.compose(number, &records, &mut whole)?;
                let from = (wanted.start - bytes.start) as usize;
                place.copy_from_slice(&whole[from..from + place.len()]);
            }
            numbers = numbers.end..after.min(numbers.end.saturating_add(step));
        }
        Ok(())
    }
}

/// The tensors that deltas change, one after the other.
#[derive(Debug)]
pub(super) struct OverlaySource {
    /// What stands for it in messages: the last delta.
    last: Arc<dyn Source>,
    tensors: Vec<ChangedTensor>,
    /// Those that were composed last.
    kept: ForkMutex<VecDeque<Kept>>,
    end: u64,
    /// Every file that something is read of.
    files: Vec<Arc<dyn Source>>,
}

impl OverlaySource {
    pub(super) fn new(last: Arc<dyn Source>, tensors: Vec<ChangedTensor>, end: u64) -> Self {
        let mut files: Vec<Arc<dyn Source>> = Vec::new();
        for tensor in &tensors {
            for file in tensor.files() {
                // Neighbours have the same ones.
                if !files.iter().rev().any(|known| Arc::ptr_eq(known, file)) {
                    files.push(file.clone());
                }
            }
        }
        Self { last, tensors, kept: ForkMutex::new(), end, files }
    }

    /// Calls `work` with each tensor that has bytes of a range, its number, and the range of its own.
    fn each(
        &self,
        range: Range<u64>,
        mut work: impl FnMut(&ChangedTensor, usize, Range<u64>) -> Result<()>,
    ) -> Result<()> {
        let first = self.tensors.partition_point(|tensor| tensor.start + tensor.span.len() <= range.start);
        for (number, tensor) in self.tensors.iter().enumerate().skip(first) {
            if tensor.start >= range.end {
                break;
            }
            let own = range.start.saturating_sub(tensor.start)..(range.end - tensor.start).min(tensor.span.len());
            if !own.is_empty() {
                work(tensor, number, own)?;
            }
        }
        Ok(())
    }

    /// A tensor that is composed as a whole, by whoever asks for it first.
    fn whole(
        &self,
        number: usize,
        tensor: &ChangedTensor,
        patches: &Patches,
        interrupt: Interrupt<'_>,
    ) -> Result<Arc<Vec<u8>>> {
        let bytes = tensor.span.len();
        let slot = {
            let mut kept = self.kept.lock();
            let known = kept.iter().position(|known| known.number == number).and_then(|at| kept.remove(at));
            let own = known.unwrap_or_else(|| Kept { number, bytes, slot: Arc::default() });
            while kept.iter().map(|known| known.bytes).sum::<u64>() + bytes > KEPT && kept.pop_front().is_some() {}
            let slot = own.slot.clone();
            kept.push_back(own);
            slot
        };
        let mut all = slot.lock();
        if let Some(all) = &*all {
            return Ok(all.clone());
        }
        Ok(all.insert(Arc::new(tensor.composed(patches, interrupt)?)).clone())
    }

    fn within(&self, offset: u64, len: u64) -> Range<u64> {
        offset.min(self.end)..offset.saturating_add(len).min(self.end)
    }
}

impl Source for OverlaySource {
    fn origin(&self) -> &Arc<Origin> {
        self.last.origin()
    }

    fn len(&self) -> u64 {
        self.end
    }

    fn read(&self, parts: &mut [Part<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        for part in parts {
            let range = part.offset..part.offset.saturating_add(part.bytes.len() as u64);
            if range.end > self.end {
                return Err(self.origin().truncated());
            }
            let start = part.offset;
            self.each(range.clone(), |tensor, number, own| {
                let place = (tensor.start + own.start - start) as usize..(tensor.start + own.end - start) as usize;
                let out = part.bytes.get_mut(place).unwrap_or_default();
                match &tensor.changes {
                    Changes::Blocks(overlay) => tensor.read_blocks(overlay, own.start, out, interrupt),
                    Changes::Whole(patches) => {
                        let all = self.whole(number, tensor, patches, interrupt)?;
                        out.copy_from_slice(&all[own.start as usize..own.end as usize]);
                        Ok(())
                    }
                }
            })?;
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(|file| file.check_unchanged())
    }

    /// The rows of each tensor are read.
    fn faults(&self, interrupt: Interrupt<'_>) -> Result<Vec<Diagnostic>> {
        let mut faults = Vec::new();
        for tensor in &self.tensors {
            let Changes::Blocks(overlay) = &tensor.changes else { continue };
            for layer in &overlay.layers {
                match overlay.blocks(layer, interrupt) {
                    Ok(_) => {}
                    Err(Error::Format(fault)) => faults.push(*fault),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(faults)
    }

    fn read_ahead(&self, offset: u64, len: u64) {
        let _ = self.each(self.within(offset, len), |tensor, _, own| {
            tensor.base.read_ahead(tensor.span.start() + own.start, own.end - own.start);
            Ok(())
        });
    }

    fn is_cached(&self, offset: u64, len: u64) -> Option<bool> {
        let mut all = None;
        let _ = self.each(self.within(offset, len), |tensor, _, own| {
            match tensor.base.is_cached(tensor.span.start() + own.start, own.end - own.start) {
                Some(false) => all = Some(false),
                is_cached => all = all.or(is_cached),
            }
            Ok(())
        });
        all
    }

    fn forget(&self, offset: u64, len: u64) {
        let _ = self.each(self.within(offset, len), |tensor, _, own| {
            tensor.base.forget(tensor.span.start() + own.start, own.end - own.start);
            Ok(())
        });
    }

    fn filesystem(&self) -> Option<Filesystem> {
        self.tensors.first().map_or(&self.last, |tensor| &tensor.base).filesystem()
    }

    fn mapping(&self) -> Result<&Arc<memory::Storage>, &str> {
        Err("tensors that deltas change are put together when they are read")
    }
}
