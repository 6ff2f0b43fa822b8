//! Applies deltas to tensors of a base: changed blocks are composed, and compared with their hashes before and after.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

use once_cell::race::OnceBox;

use super::identity::hash_of_block;
use crate::budget;
use crate::delta::{self, BLOCK, Lists};
use crate::error::{Diagnostic, Error, Result};
use crate::format::delta::{ChangedBlock, digest_of, read_blocks};
use crate::memory;
use crate::rules::{self, Rule};
use crate::source::{ReadRange, Source};
use crate::tensor::Span;
use crate::text;
use crate::workers::Interrupt;

/// The changes of successive deltas to a tensor.
#[derive(Debug)]
pub(crate) struct Overlay {
    pub(super) name: String,
    /// Bytes of the tensor.
    pub(super) len: u64,
    /// The size of what is replaced together, in bytes.
    pub(super) width: usize,
    pub(super) layers: Vec<DeltaLayer>,
    /// The source of all elements, if a delta has the tensor whole; the first layer describes them. Otherwise they are those of the base.
    pub(super) values: Option<(Arc<dyn Source>, Span)>,
}

/// The changes of one delta to a tensor.
#[derive(Debug)]
pub(super) struct DeltaLayer {
    pub(super) delta: Arc<dyn Source>,
    pub(super) changes: Span,
    pub(super) rows: Span,
    /// The digest of the rows.
    pub(super) digest: String,
    /// Whether the delta has the tensor whole, with a row for each block and no records.
    pub(super) is_values: bool,
    pub(super) blocks: OnceBox<Vec<ChangedBlock>>,
}

/// The records of a delta for some blocks of a tensor.
pub(crate) struct Records<'a> {
    layer: &'a DeltaLayer,
    blocks: &'a [ChangedBlock],
    /// The start of the first record, their bytes, and the end of the last one.
    start: u64,
    bytes: &'a [u8],
    end: u64,
}

impl<'a> Records<'a> {
    pub(super) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// The reads of these records, with the file of each: contiguous places in `buffer`.
    pub(super) fn parts<'p>(all: &[Self], buffer: &'p mut [u8]) -> Vec<(&'a Arc<dyn Source>, ReadRange<'p>)> {
        let buffers = memory::parts(buffer, all.iter().map(Self::len));
        let parts = all.iter().zip(buffers).filter(|(_, bytes)| !bytes.is_empty());
        let place = |records: &Self| records.layer.changes.start() + records.start;
        parts.map(|(records, bytes)| (&records.layer.delta, ReadRange { offset: place(records), bytes })).collect()
    }

    /// Points the records to the bytes read.
    pub(super) fn filled(all: &mut [Self], buffer: &'a [u8]) {
        let mut rest = buffer;
        for records in all {
            let (bytes, others) = rest.split_at(records.len().min(rest.len()));
            (records.bytes, rest) = (bytes, others);
        }
    }

    /// Whether the delta changes the block of this number.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.get(number).is_some()
    }

    /// The block of this number, and its record.
    pub(super) fn get(&self, number: u64) -> Option<(&ChangedBlock, &[u8])> {
        let position = self.blocks.binary_search_by_key(&number, |block| block.number).ok()?;
        let block = self.blocks.get(position)?;
        let end = self.blocks.get(position + 1).map_or(self.end, |next| next.start);
        let record = self.bytes.get((block.start - self.start) as usize..(end - self.start) as usize)?;
        Some((block, record))
    }
}

impl Overlay {
    /// The bytes of a block.
    pub(crate) fn block_bytes(&self) -> u64 {
        (BLOCK * self.width) as u64
    }

    /// Fills `bytes` from `start` of the tensor on, if a delta has it whole; false otherwise.
    pub(crate) fn read_values(&self, start: u64, bytes: &mut [u8], interrupt: Interrupt<'_>) -> Result<bool> {
        let Some((file, span)) = &self.values else { return Ok(false) };
        file.read(&mut [ReadRange { offset: span.start() + start, bytes }], interrupt)?;
        Ok(true)
    }

    /// The size of what is replaced together, in bytes.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Whether no delta changes the tensor.
    pub(crate) fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Whether a delta has the tensor whole.
    pub(crate) fn has_values(&self) -> bool {
        self.values.is_some()
    }

    /// Fails if a file of the deltas was replaced or changed after it was opened.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.layers.iter().try_for_each(|layer| layer.delta.check_unchanged())
    }

    /// The final hashes of all blocks that the deltas change.
    pub(crate) fn outcome(&self, interrupt: Interrupt<'_>) -> Result<BTreeMap<u64, u64>> {
        let mut outcome = BTreeMap::new();
        for layer in &self.layers {
            outcome.extend(self.blocks(layer, interrupt)?.iter().map(|block| (block.number, block.target)));
        }
        Ok(outcome)
    }

    /// The number of blocks of the tensor.
    pub(crate) fn blocks_in_all(&self) -> u64 {
        self.len.div_ceil(self.block_bytes())
    }

    pub(super) fn fault(&self, rule: &'static Rule, layer: &DeltaLayer, number: u64, cause: &str) -> Error {
        let elements = number * BLOCK as u64..((number + 1) * BLOCK as u64).min(self.len / self.width as u64);
        let cause = format!("{cause}, in the elements {} to {}", elements.start, elements.end.saturating_sub(1));
        Diagnostic::new(rule, cause).tensor(&self.name).path(layer.delta.path()).format()
    }

    pub(super) fn blocks<'a>(&self, layer: &'a DeltaLayer, interrupt: Interrupt<'_>) -> Result<&'a [ChangedBlock]> {
        let read = || {
            let mut rows = budget::zeroed(layer.rows.len() as usize)?;
            layer.delta.read(&mut [ReadRange { offset: layer.rows.start(), bytes: &mut rows }], interrupt)?;
            self.blocks_of(layer, &rows).map(Box::new)
        };
        Ok(layer.blocks.get_or_try_init(read)?)
    }

    /// The blocks that these rows of a delta describe.
    pub(super) fn blocks_of(&self, layer: &DeltaLayer, rows: &[u8]) -> Result<Vec<ChangedBlock>> {
        let about = |error| match error {
            Error::Format(fault) => fault.tensor(&self.name).path(layer.delta.path()).format(),
            other => other,
        };
        let damaged = |cause: &str| {
            let fault = Diagnostic::new(rules::DELTA_CHANGES, cause).tensor(&self.name).path(layer.delta.path());
            Err(fault.offset(layer.rows.start()).format())
        };
        let blocks = read_blocks(rows, self.blocks_in_all(), layer.changes.len()).map_err(about)?;
        if digest_of(rows) != layer.digest {
            return damaged("the digest of its block rows differs from the header of the delta");
        }
        let is_block =
            |(number, block): (usize, &ChangedBlock)| *block == ChangedBlock::of_values(number as u64, block.target);
        let are_all = || blocks.len() as u64 == self.blocks_in_all() && blocks.iter().enumerate().all(is_block);
        if layer.is_values && !are_all() {
            return damaged("the delta has all of its elements, but not a row for each of its blocks");
        }
        Ok(blocks)
    }

    /// The records of the deltas for a range of blocks, read into `buffer`.
    pub(crate) fn records<'a>(
        &'a self,
        numbers: &Range<u64>,
        buffer: &'a mut Vec<u8>,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<Records<'a>>> {
        let mut all = self.records_of(numbers, interrupt)?;
        let len = all.iter().map(Records::len).sum();
        // Released memory would be zeroed again on reuse, which takes as long as reading.
        if buffer.len() < len {
            *buffer = budget::zeroed(len)?;
        }
        for part in Records::parts(&all, buffer) {
            part.0.read(&mut [part.1], interrupt)?;
        }
        Records::filled(&mut all, buffer);
        Ok(all)
    }

    /// The records of the deltas for a range of blocks, not yet read.
    pub(super) fn records_of(&self, numbers: &Range<u64>, interrupt: Interrupt<'_>) -> Result<Vec<Records<'_>>> {
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
            all.push(Records { layer, blocks: own, start: begin.start, bytes: &[], end });
        }
        Ok(all)
    }

    /// Composes a block of the base with all deltas.
    pub(crate) fn compose(&self, number: u64, records: &[Records<'_>], block: &mut [u8]) -> Result<()> {
        let mut changes = records.iter().filter_map(|of_layer| Some((of_layer.layer, of_layer.get(number)?)));
        match changes.next() {
            Some((layer, (change, _))) if change.base != hash_of_block(block) => {
                if layer.is_values {
                    let cause = "its values differ from those that were written";
                    return Err(self.fault(rules::DELTA_CHANGES, layer, number, cause));
                }
                let cause = "the values of the base differ from those that the delta was made from";
                Err(self.fault(rules::DELTA_BASE, layer, number, cause))
            }
            _ => self.next_block(number, records, 0, block, &mut |_, _| Ok(())),
        }
    }

    /// The number of deltas already applied to a block: none in the base, all in the result.
    pub(crate) fn applied(&self, number: u64, records: &[Records<'_>], block: &[u8]) -> Result<usize> {
        let mut changes = records.iter().filter_map(|of_layer| Some((of_layer.layer, of_layer.get(number)?.0)));
        let Some((layer, first)) = changes.next() else { return Ok(0) };
        let hash = hash_of_block(block);
        if hash == first.base {
            return Ok(0);
        }
        let after = std::iter::once(first).chain(changes.map(|(_, change)| change));
        let last = after.enumerate().filter(|(_, change)| change.target == hash).last();
        last.map(|(position, _)| position + 1).ok_or_else(|| {
            let cause = "its values differ from those that the delta was made from, and from its result";
            self.fault(rules::DELTA_BASE, layer, number, cause)
        })
    }

    /// Applies the remaining deltas to a block, from number `from` on. `before` receives each record and the block before the change.
    pub(crate) fn next_block(
        &self,
        number: u64,
        records: &[Records<'_>],
        from: usize,
        block: &mut [u8],
        before: &mut impl FnMut((&[u8], Lists, usize), &[u8]) -> Result<()>,
    ) -> Result<()> {
        let changes = records.iter().filter_map(|of_layer| Some((of_layer.layer, of_layer.get(number)?)));
        let mut last: Option<(u64, &DeltaLayer)> = None;
        for (layer, (change, record)) in changes.skip(from) {
            if let Some((target, of)) = last.filter(|(target, _)| *target != change.base) {
                let path = text::path(of.delta.path());
                let cause =
                    format!("the values after '{path}' ({target:016x}) differ from those that it was made from");
                return Err(self.fault(rules::DELTA_BASE, layer, number, &cause));
            }
            let fault = |cause: &dyn Display| self.fault(rules::DELTA_CHANGES, layer, number, &cause.to_string());
            before((record, change.lists, self.width), block).map_err(|error| fault(&error))?;
            delta::apply(record, change.lists, self.width, block).map_err(|error| fault(&error))?;
            last = Some((change.target, layer));
        }
        match last {
            Some((target, layer)) if hash_of_block(block) != target => {
                let cause = "its changes do not give the expected result";
                Err(self.fault(rules::DELTA_CHANGES, layer, number, cause))
            }
            _ => Ok(()),
        }
    }
}
