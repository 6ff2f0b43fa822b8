//! Tensors of a base with the changes of deltas, as one source: blocks that changed are composed as they are read, and compared with their hashes
//! before and after.

use std::ops::Range;
use std::sync::Arc;

use once_cell::race::OnceBox;

use super::identity::hash_of_block;
use crate::budget;
use crate::delta::{self, BLOCK};
use crate::error::{Diagnostic, Error, Result};
use crate::format::delta::{Block, read_blocks};
use crate::memory::{self, Origin};
use crate::rules::{self, Rule};
use crate::source::{Filesystem, Part, Source};
use crate::tensor::Span;
use crate::text;
use crate::workers::Interrupt;

/// What deltas change in a tensor, one after the other.
#[derive(Debug)]
pub(crate) struct Overlay {
    pub(super) name: String,
    /// Bytes of the tensor.
    pub(super) len: u64,
    /// Bytes that are replaced as one.
    pub(super) width: usize,
    pub(super) layers: Vec<Layer>,
}

/// What one delta changes in a tensor.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) delta: Arc<dyn Source>,
    pub(super) changes: Span,
    pub(super) rows: Span,
    pub(super) blocks: OnceBox<Vec<Block>>,
}

/// What a delta has for some blocks of a tensor.
pub(crate) struct Records<'a> {
    layer: &'a Layer,
    blocks: &'a [Block],
    /// Where the first of them begins, their bytes, and where the last ends.
    start: u64,
    bytes: Vec<u8>,
    end: u64,
}

impl Records<'_> {
    /// Whether the delta changes the block of this number.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.get(number).is_some()
    }

    /// The block of this number, and its record.
    fn get(&self, number: u64) -> Option<(&Block, &[u8])> {
        let position = self.blocks.binary_search_by_key(&number, |block| block.number).ok()?;
        let block = self.blocks.get(position)?;
        let end = self.blocks.get(position + 1).map_or(self.end, |next| next.start);
        let record = self.bytes.get((block.start - self.start) as usize..(end - self.start) as usize)?;
        Some((block, record))
    }
}

impl Overlay {
    /// Bytes of a block.
    pub(crate) fn block_bytes(&self) -> u64 {
        (BLOCK * self.width) as u64
    }

    fn fault(&self, rule: &'static Rule, layer: &Layer, number: u64, cause: &str) -> Error {
        let elements = number * BLOCK as u64..((number + 1) * BLOCK as u64).min(self.len / self.width as u64);
        let cause = format!("{cause}, in the elements {} to {}", elements.start, elements.end.saturating_sub(1));
        Diagnostic::new(rule, cause).tensor(&self.name).path(layer.delta.path()).format()
    }

    fn blocks<'a>(&self, layer: &'a Layer, interrupt: Interrupt<'_>) -> Result<&'a [Block]> {
        let read = || {
            let mut rows = budget::zeroed(layer.rows.len() as usize)?;
            layer.delta.read(&mut [Part { offset: layer.rows.start(), bytes: &mut rows }], interrupt)?;
            let about = |error| match error {
                Error::Format(fault) => fault.tensor(&self.name).path(layer.delta.path()).format(),
                other => other,
            };
            read_blocks(&rows, self.len.div_ceil(self.block_bytes()), layer.changes.len()).map(Box::new).map_err(about)
        };
        Ok(layer.blocks.get_or_try_init(read)?)
    }

    /// What the deltas have for a range of blocks.
    pub(crate) fn records(&self, numbers: &Range<u64>, interrupt: Interrupt<'_>) -> Result<Vec<Records<'_>>> {
        let mut all = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let blocks = self.blocks(layer, interrupt)?;
            let first = blocks.partition_point(|block| block.number < numbers.start);
            let after = blocks.partition_point(|block| block.number < numbers.end);
            let (Some(own), Some(begin)) = (blocks.get(first..after), blocks.get(first)) else { continue };
            if own.is_empty() {
                continue;
            }
            let end = blocks.get(after).map_or(layer.changes.len(), |block| block.start);
            let mut bytes = budget::zeroed((end - begin.start) as usize)?;
            let offset = layer.changes.start() + begin.start;
            layer.delta.read(&mut [Part { offset, bytes: &mut bytes }], interrupt)?;
            all.push(Records { layer, blocks: own, start: begin.start, bytes, end });
        }
        Ok(all)
    }

    /// Makes a block of the base what the last delta says.
    pub(crate) fn compose(&self, number: u64, records: &[Records<'_>], block: &mut [u8]) -> Result<()> {
        let mut changes = records.iter().filter_map(|of_layer| Some((of_layer.layer, of_layer.get(number)?)));
        match changes.next() {
            Some((layer, (change, _))) if change.base != hash_of_block(block) => {
                let cause = "the base has other values than those that the delta was made from";
                Err(self.fault(rules::DELTA_BASE, layer, number, cause))
            }
            _ => self.go_on(number, records, 0, block),
        }
    }

    /// How many of the deltas that change a block are in it already: none in one of the base, all in one that is done.
    pub(crate) fn applied(&self, number: u64, records: &[Records<'_>], block: &[u8]) -> Result<usize> {
        let hash = hash_of_block(block);
        let mut changes = records.iter().filter_map(|of_layer| Some((of_layer.layer, of_layer.get(number)?.0)));
        let Some((layer, first)) = changes.next() else { return Ok(0) };
        if hash == first.base {
            return Ok(0);
        }
        let after = std::iter::once(first).chain(changes.map(|(_, change)| change));
        let last = after.enumerate().filter(|(_, change)| change.target == hash).last();
        last.map(|(position, _)| position + 1).ok_or_else(|| {
            let cause = "it has other values than those that the delta was made from, and than those that it makes";
            self.fault(rules::DELTA_BASE, layer, number, cause)
        })
    }

    /// Makes a block what the last delta says, in which so many of those that change it are already.
    pub(crate) fn go_on(&self, number: u64, records: &[Records<'_>], from: usize, block: &mut [u8]) -> Result<()> {
        let changes = records.iter().filter_map(|of_layer| Some((of_layer.layer, of_layer.get(number)?)));
        let mut before: Option<(u64, &Layer)> = None;
        for (layer, (change, record)) in changes.skip(from) {
            if let Some((target, of)) = before.filter(|(target, _)| *target != change.base) {
                let path = text::path(of.delta.path());
                let cause = format!("'{path}' leaves other values ({target:016x}) than those that it was made from");
                return Err(self.fault(rules::DELTA_BASE, layer, number, &cause));
            }
            delta::apply(record, change.lists, self.width, block)
                .map_err(|error| self.fault(rules::DELTA_CHANGES, layer, number, &error.to_string()))?;
            before = Some((change.target, layer));
        }
        match before {
            Some((target, layer)) if hash_of_block(block) != target => {
                let cause = "its changes do not give what they should";
                Err(self.fault(rules::DELTA_CHANGES, layer, number, cause))
            }
            _ => Ok(()),
        }
    }
}

/// A tensor of the base under an overlay.
#[derive(Debug)]
pub(super) struct ChangedTensor {
    pub(super) base: Arc<dyn Source>,
    pub(super) span: Span,
    pub(super) overlay: Overlay,
    /// Where it begins in the source.
    pub(super) start: u64,
}

impl ChangedTensor {
    /// Fills `out` with bytes of the tensor.
    fn read(&self, offset: u64, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let (size, end) = (self.overlay.block_bytes(), offset + out.len() as u64);
        let numbers = offset / size..end.div_ceil(size);
        let records = self.overlay.records(&numbers, interrupt)?;
        self.base.read(&mut [Part { offset: self.span.start() + offset, bytes: out }], interrupt)?;
        let mut whole = Vec::new();
        for number in numbers {
            if !records.iter().any(|of_layer| of_layer.has(number)) {
                continue;
            }
            let bytes = number * size..self.span.len().min((number + 1) * size);
            let wanted = bytes.start.max(offset)..bytes.end.min(end);
            let place = (wanted.start - offset) as usize..(wanted.end - offset) as usize;
            let Some(place) = out.get_mut(place) else { continue };
            if wanted == bytes {
                self.overlay.compose(number, &records, place)?;
                continue;
            }
            // Of a block that is wanted in part, all bytes are compared.
            whole.resize((bytes.end - bytes.start) as usize, 0);
            self.base.read(&mut [Part { offset: self.span.start() + bytes.start, bytes: &mut whole }], interrupt)?;
            self.overlay.compose(number, &records, &mut whole)?;
            let from = (wanted.start - bytes.start) as usize;
            place.copy_from_slice(&whole[from..from + place.len()]);
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
    end: u64,
    /// Every file that something is read of.
    files: Vec<Arc<dyn Source>>,
}

impl OverlaySource {
    pub(super) fn new(last: Arc<dyn Source>, tensors: Vec<ChangedTensor>, end: u64) -> Self {
        let mut files: Vec<Arc<dyn Source>> = Vec::new();
        for tensor in &tensors {
            for file in tensor.overlay.layers.iter().map(|layer| &layer.delta).chain([&tensor.base]) {
                // Neighbours have the same ones.
                if !files.iter().rev().any(|known| Arc::ptr_eq(known, file)) {
                    files.push(file.clone());
                }
            }
        }
        Self { last, tensors, end, files }
    }

    /// Calls `work` with each tensor that has bytes of a range, and with the range of its own.
    fn each(&self, range: Range<u64>, mut work: impl FnMut(&ChangedTensor, Range<u64>) -> Result<()>) -> Result<()> {
        let first = self.tensors.partition_point(|tensor| tensor.start + tensor.span.len() <= range.start);
        for tensor in self.tensors.iter().skip(first).take_while(|tensor| tensor.start < range.end) {
            let own = range.start.saturating_sub(tensor.start)..(range.end - tensor.start).min(tensor.span.len());
            if !own.is_empty() {
                work(tensor, own)?;
            }
        }
        Ok(())
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
            self.each(range.clone(), |tensor, own| {
                let place = (tensor.start + own.start - start) as usize..(tensor.start + own.end - start) as usize;
                let out = part.bytes.get_mut(place).unwrap_or_default();
                tensor.read(own.start, out, interrupt)
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
            for layer in &tensor.overlay.layers {
                match tensor.overlay.blocks(layer, interrupt) {
                    Ok(_) => {}
                    Err(Error::Format(fault)) => faults.push(*fault),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(faults)
    }

    fn read_ahead(&self, offset: u64, len: u64) {
        let _ = self.each(self.within(offset, len), |tensor, own| {
            tensor.base.read_ahead(tensor.span.start() + own.start, own.end - own.start);
            Ok(())
        });
    }

    fn is_cached(&self, offset: u64, len: u64) -> Option<bool> {
        let mut all = None;
        let _ = self.each(self.within(offset, len), |tensor, own| {
            match tensor.base.is_cached(tensor.span.start() + own.start, own.end - own.start) {
                Some(false) => all = Some(false),
                is_cached => all = all.or(is_cached),
            }
            Ok(())
        });
        all
    }

    fn forget(&self, offset: u64, len: u64) {
        let _ = self.each(self.within(offset, len), |tensor, own| {
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
