//! The changed tensors of a base as one source: each is composed when it is read, and not kept.
//!
//! On a disk, a block is read and changed while it is in the processor's cache. From a server, the bytes of the base and of all deltas are requested
//! together.

use std::ops::Range;
use std::sync::Arc;

use crate::budget;
use crate::error::{Diagnostic, Error, Result};
use crate::memory::{self, Origin};
use crate::source::{Filesystem, ReadRange, Source};
use crate::tensor::Span;
use crate::workers::{Interrupt, in_order};

use super::super::FolderPieces;
use super::super::packed::Unpacker;
use super::overlay::{DeltaLayer, Overlay, Records};
use super::patch::{self, Patches};

/// Blocks whose records are in memory at a time; for many deltas, these still fit into the processor's cache.
const AT_A_TIME: u64 = 8;
/// Bytes of remote tensors and of their deltas that are requested together and held in memory.
pub(crate) const FAR_AT_A_TIME: u64 = 16 << 20;
/// Files that are read concurrently.
const FILES_AT_A_TIME: usize = 16;

/// The changes of deltas to a tensor.
#[derive(Debug)]
pub(super) enum OverlayChanges {
    /// Blocks, which are composed one by one.
    Blocks(Overlay),
    /// The whole tensor, for other libraries.
    Whole(Patches),
}

/// The bytes of a tensor before any change.
#[derive(Debug)]
pub(super) enum BaseBytes {
    /// A range of a file.
    Run(Arc<dyn Source>, Span),
    /// The pieces of a folder, which begin at this offset of the catalog.
    Pieces(Arc<FolderPieces>, u64),
}

impl BaseBytes {
    /// Fills `bytes` from offset `at` on.
    fn read(&self, at: u64, bytes: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        match self {
            Self::Run(file, span) => file.read(&mut [ReadRange { offset: span.start() + at, bytes }], interrupt),
            Self::Pieces(folder, start) => folder.read(*start, at, bytes, interrupt),
        }
    }

    /// Whether it is on this machine.
    fn is_near(&self) -> bool {
        match self {
            Self::Run(file, _) => is_near(&**file),
            Self::Pieces(folder, _) => folder.is_near(),
        }
    }
}

fn is_near(file: &dyn Source) -> bool {
    matches!(file.filesystem(), Some(Filesystem::Disk | Filesystem::Memory))
}

/// A tensor of the base, and its changes.
#[derive(Debug)]
pub(super) struct ChangedTensor {
    pub(super) base: BaseBytes,
    /// Its bytes.
    pub(super) len: u64,
    pub(super) changes: OverlayChanges,
    /// The offset in the source.
    pub(super) start: u64,
}

impl ChangedTensor {
    fn layers(&self) -> impl Iterator<Item = (&Overlay, &DeltaLayer)> {
        let overlay = if let OverlayChanges::Blocks(overlay) = &self.changes { Some(overlay) } else { None };
        overlay.into_iter().flat_map(|overlay| overlay.layers.iter().map(move |layer| (overlay, layer)))
    }

    fn files(&self) -> Vec<&Arc<dyn Source>> {
        let mut files: Vec<&Arc<dyn Source>> = Vec::new();
        if let BaseBytes::Run(file, _) = &self.base {
            files.push(file);
        }
        match &self.changes {
            OverlayChanges::Blocks(overlay) => files.extend(overlay.layers.iter().map(|layer| &layer.delta)),
            OverlayChanges::Whole(patches) => files.extend(patches.layers.iter().map(|patch| &patch.file)),
        }
        files
    }

    fn is_near(&self) -> bool {
        self.base.is_near() && self.layers().all(|(_, layer)| is_near(&*layer.delta))
    }

    /// Fills `out` with bytes of a tensor that is composed whole, usually with all of them.
    fn read_whole(&self, patches: &Patches, offset: u64, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        let read = |start: usize, bytes: &mut [u8]| self.base.read(start as u64, bytes, interrupt);
        // A compressed piece of a folder is unpacked on each read.
        let in_parts = matches!(&self.base, BaseBytes::Run(file, _) if is_near(&**file));
        let base = patch::PatchBase { read: &read, in_parts };
        if out.len() as u64 == self.len {
            return patches.compose(out, base, &mut Unpacker::default(), interrupt);
        }
        let mut all = budget::zeroed(budget::saturating_usize(self.len))?;
        patches.compose(&mut all, base, &mut Unpacker::default(), interrupt)?;
        out.copy_from_slice(&all[offset as usize..offset as usize + out.len()]);
        Ok(())
    }

    /// Fills `out` with bytes of a tensor that is composed in blocks, some at a time.
    fn read_blocks(&self, overlay: &Overlay, offset: u64, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        let (size, end) = (overlay.block_bytes(), offset + out.len() as u64);
        let (first, after) = (offset / size, end.div_ceil(size));
        let (mut whole, mut buffer) = (Vec::new(), Vec::new());
        let mut numbers = first..after.min(first.saturating_add(AT_A_TIME));
        while !numbers.is_empty() {
            let records = overlay.records(&numbers, &mut buffer, interrupt)?;
            for number in numbers.clone() {
                let bytes = number * size..self.len.min((number + 1) * size);
                let requested = bytes.start.max(offset)..bytes.end.min(end);
                let place = (requested.start - offset) as usize..(requested.end - offset) as usize;
                let Some(place) = out.get_mut(place) else { continue };
                let is_changed = records.iter().any(|of_layer| of_layer.has(number));
                if requested == bytes || !is_changed {
                    self.base.read(requested.start, place, interrupt)?;
                }
                if is_changed && requested == bytes {
                    overlay.compose(number, &records, place)?;
                } else if is_changed {
                    // A partly requested block is compared whole.
                    whole.resize((bytes.end - bytes.start) as usize, 0);
                    self.base.read(bytes.start, &mut whole, interrupt)?;
                    overlay.compose(number, &records, &mut whole)?;
                    let from = (requested.start - bytes.start) as usize;
                    place.copy_from_slice(&whole[from..from + place.len()]);
                }
            }
            numbers = numbers.end..after.min(numbers.end.saturating_add(AT_A_TIME));
        }
        Ok(())
    }
}

/// Bytes of a remote tensor that are being read.
struct Far<'a> {
    tensor: &'a ChangedTensor,
    overlay: &'a Overlay,
    /// Whole blocks, from this one on…
    first: u64,
    /// … in a separate buffer if less is requested: from this byte on.
    blocks: Option<(Vec<u8>, usize)>,
    out: &'a mut [u8],
    records: Vec<Records<'a>>,
    buffer: Vec<u8>,
}

impl<'a> Far<'a> {
    fn new(
        (tensor, overlay): (&'a ChangedTensor, &'a Overlay),
        offset: u64,
        out: &'a mut [u8],
        interrupt: Interrupt<'_>,
    ) -> Result<Self> {
        let (size, end) = (overlay.block_bytes(), offset + out.len() as u64);
        let numbers = offset / size..end.div_ceil(size);
        let bytes = numbers.start * size..tensor.len.min(numbers.end * size);
        let blocks = if bytes == (offset..end) {
            None
        } else {
            Some((budget::zeroed((bytes.end - bytes.start) as usize)?, (offset - bytes.start) as usize))
        };
        let records = overlay.records_of(&numbers, interrupt)?;
        let buffer = budget::zeroed(records.iter().map(Records::len).sum())?;
        Ok(Self { tensor, overlay, first: numbers.start, blocks, out, records, buffer })
    }

    /// The bytes requested.
    fn bytes(&self) -> u64 {
        self.blocks.as_ref().map_or(self.out.len(), |(blocks, _)| blocks.len()) as u64 + self.buffer.len() as u64
    }

    /// Composes the blocks that were read.
    fn compose(self) -> Result<()> {
        let Self { overlay, first, mut blocks, out, records, buffer, .. } = self;
        let mut records: Vec<Records<'_>> = records; // shortens the borrow to that of these bytes
        Records::filled(&mut records, &buffer);
        let all = blocks.as_mut().map_or(&mut *out, |(blocks, _)| blocks);
        for (number, block) in (first..).zip(all.chunks_mut(overlay.block_bytes() as usize)) {
            overlay.compose(number, &records, block)?;
        }
        if let Some((blocks, from)) = blocks {
            out.copy_from_slice(&blocks[from..from + out.len()]);
        }
        Ok(())
    }
}

/// A combined read, of a file or of a tensor in pieces.
enum OverlayRead<'a, 'p> {
    File(&'a Arc<dyn Source>, Vec<ReadRange<'p>>),
    Base(&'a BaseBytes, u64, &'p mut [u8]),
}

/// Reads remote bytes concurrently, and composes them.
fn read_far(mut all: Vec<Far<'_>>, interrupt: Interrupt<'_>) -> Result<()> {
    let mut fetches: Vec<OverlayRead<'_, '_>> = Vec::new();
    let mut bases = Vec::new();
    for Far { tensor, overlay, first, blocks, out, records, buffer } in &mut all {
        let bytes = blocks.as_mut().map_or(&mut **out, |(blocks, _)| blocks);
        let at = *first * overlay.block_bytes();
        match &tensor.base {
            BaseBytes::Run(file, span) => add(&mut fetches, file, ReadRange { offset: span.start() + at, bytes }),
            pieces @ BaseBytes::Pieces(..) => bases.push(OverlayRead::Base(pieces, at, bytes)),
        }
        for (file, part) in Records::parts(records, buffer) {
            add(&mut fetches, file, part);
        }
    }
    fetches.extend(bases);
    in_order(FILES_AT_A_TIME, fetches, interrupt, |fetch, (): &mut (), cancel| match fetch {
        OverlayRead::File(file, mut parts) => {
            parts.sort_by_key(|part| part.offset);
            file.read(&mut parts, cancel)
        }
        OverlayRead::Base(base, at, bytes) => base.read(at, bytes, cancel),
    })?;
    all.into_iter().try_for_each(Far::compose)
}

fn add<'a, 'p>(fetches: &mut Vec<OverlayRead<'a, 'p>>, file: &'a Arc<dyn Source>, part: ReadRange<'p>) {
    let of_file =
        |fetch: &&mut OverlayRead<'_, '_>| matches!(fetch, OverlayRead::File(known, _) if Arc::ptr_eq(known, file));
    match fetches.iter_mut().rev().find(of_file) {
        Some(OverlayRead::File(_, parts)) => parts.push(part),
        _ => fetches.push(OverlayRead::File(file, vec![part])),
    }
}

/// The tensors that deltas change, back to back.
#[derive(Debug)]
pub(super) struct ChangedTensors {
    /// The source that messages name: the last delta.
    last: Arc<dyn Source>,
    tensors: Vec<ChangedTensor>,
    end: u64,
    /// All files that are read.
    files: Vec<Arc<dyn Source>>,
}

impl ChangedTensors {
    pub(super) fn new(last: Arc<dyn Source>, tensors: Vec<ChangedTensor>, end: u64) -> Self {
        let mut files: Vec<Arc<dyn Source>> = Vec::new();
        for tensor in &tensors {
            for file in tensor.files() {
                // Neighbours usually share files.
                if !files.iter().rev().any(|known| Arc::ptr_eq(known, file)) {
                    files.push(file.clone());
                }
            }
        }
        Self { last, tensors, end, files }
    }

    pub(super) fn tensors(&self) -> &[ChangedTensor] {
        &self.tensors
    }

    /// Calls `work` with each tensor that overlaps a range, and with the range within the tensor.
    fn each<'a>(
        &'a self,
        range: Range<u64>,
        mut work: impl FnMut(&'a ChangedTensor, Range<u64>) -> Result<()>,
    ) -> Result<()> {
        let first = self.tensors.partition_point(|tensor| tensor.start + tensor.len <= range.start);
        for tensor in self.tensors.iter().skip(first) {
            if tensor.start >= range.end {
                break;
            }
            let own = range.start.saturating_sub(tensor.start)..(range.end - tensor.start).min(tensor.len);
            if !own.is_empty() {
                work(tensor, own)?;
            }
        }
        Ok(())
    }

    /// The bytes of the base that a range needs, if they are contiguous in a file.
    fn each_of_base(&self, offset: u64, len: u64, mut work: impl FnMut(&dyn Source, u64, u64)) {
        let range = offset.min(self.end)..offset.saturating_add(len).min(self.end);
        let _ = self.each(range, |tensor, own| {
            if let BaseBytes::Run(file, span) = &tensor.base {
                work(&**file, span.start() + own.start, own.end - own.start);
            }
            Ok(())
        });
    }

    /// Reads the rows of layers that are not loaded yet, in one batch per file.
    fn read_rows<'a>(
        layers: impl Iterator<Item = (&'a Overlay, &'a DeltaLayer)>,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let mut by_file: Vec<Vec<(&Overlay, &DeltaLayer)>> = Vec::new();
        for (overlay, layer) in layers.filter(|(_, layer)| layer.blocks.get().is_none()) {
            match by_file
                .iter_mut()
                .find(|of_file| of_file.iter().all(|(_, own)| Arc::ptr_eq(&own.delta, &layer.delta)))
            {
                Some(of_file) => of_file.push((overlay, layer)),
                None => by_file.push(vec![(overlay, layer)]),
            }
        }
        in_order(FILES_AT_A_TIME, by_file, interrupt, |mut layers, (): &mut (), cancel| {
            layers.sort_by_key(|(_, layer)| layer.rows.start());
            let lens = || layers.iter().map(|(_, layer)| budget::saturating_usize(layer.rows.len()));
            let mut rows = budget::zeroed(lens().sum())?;
            let parts = layers.iter().zip(memory::parts(&mut rows, lens()));
            let mut parts: Vec<ReadRange<'_>> =
                parts.map(|((_, layer), bytes)| ReadRange { offset: layer.rows.start(), bytes }).collect();
            if let Some((_, layer)) = layers.first() {
                layer.delta.read(&mut parts, cancel)?;
            }
            for ((overlay, layer), rows) in layers.iter().zip(memory::parts(&mut rows, lens())) {
                layer.blocks.get_or_try_init(|| overlay.blocks_of(layer, rows).map(Box::new))?;
            }
            Ok(())
        })
    }
}

impl Source for ChangedTensors {
    fn origin(&self) -> &Arc<Origin> {
        self.last.origin()
    }

    fn len(&self) -> u64 {
        self.end
    }

    fn read(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        let (mut far, mut bytes_of_far) = (Vec::new(), 0);
        for ReadRange { offset, bytes } in parts {
            let range = *offset..offset.saturating_add(bytes.len() as u64);
            if range.end > self.end {
                return Err(self.origin().truncated());
            }
            let (mut rest, mut at) = (&mut **bytes, *offset);
            self.each(range, |tensor, own| {
                // Gaps between tensors are skipped.
                let gap = (tensor.start + own.start - at) as usize;
                let (out, later) =
                    std::mem::take(&mut rest).split_at_mut(gap).1.split_at_mut((own.end - own.start) as usize);
                (rest, at) = (later, tensor.start + own.end);
                match &tensor.changes {
                    OverlayChanges::Whole(patches) => return tensor.read_whole(patches, own.start, out, interrupt),
                    OverlayChanges::Blocks(overlay) if tensor.is_near() => {
                        return tensor.read_blocks(overlay, own.start, out, interrupt);
                    }
                    OverlayChanges::Blocks(overlay) => {
                        // If each delta changes all of it, the records for this many bytes reach the memory limit.
                        let most = FAR_AT_A_TIME / (1 + overlay.layers.len() as u64);
                        let size = (most / overlay.block_bytes()).max(1) * overlay.block_bytes();
                        let (mut begin, mut rest) = (own.start, out);
                        while begin < own.end {
                            let end = own.end.min((begin / size + 1) * size);
                            let (out, later) = rest.split_at_mut((end - begin) as usize);
                            let next = Far::new((tensor, overlay), begin, out, interrupt)?;
                            if bytes_of_far + next.bytes() > FAR_AT_A_TIME {
                                read_far(std::mem::take(&mut far), interrupt)?;
                                bytes_of_far = 0;
                            }
                            bytes_of_far += next.bytes();
                            far.push(next);
                            (begin, rest) = (end, later);
                        }
                    }
                }
                Ok(())
            })?;
        }
        if far.is_empty() { Ok(()) } else { read_far(far, interrupt) }
    }

    fn look_up(&self, ranges: &[Range<u64>], interrupt: Interrupt<'_>) -> Result<()> {
        let mut layers = Vec::new();
        for range in ranges {
            self.each(range.clone(), |tensor, _| {
                if !tensor.is_near() {
                    layers.extend(tensor.layers());
                }
                Ok(())
            })?;
        }
        Self::read_rows(layers.into_iter(), interrupt)
    }

    fn check_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(|file| file.check_unchanged())
    }

    /// Reads the rows of each tensor.
    fn faults(&self, interrupt: Interrupt<'_>) -> Result<Vec<Diagnostic>> {
        let mut faults = Vec::new();
        for (overlay, layer) in self.tensors.iter().flat_map(ChangedTensor::layers) {
            match overlay.blocks(layer, interrupt) {
                Ok(_) => {}
                Err(Error::Format(fault)) => faults.push(*fault),
                Err(error) => return Err(error),
            }
        }
        Ok(faults)
    }

    fn readahead(&self, offset: u64, len: u64) {
        self.each_of_base(offset, len, |file, offset, len| file.readahead(offset, len));
    }

    fn is_cached(&self, offset: u64, len: u64) -> Option<bool> {
        let mut all = None;
        self.each_of_base(offset, len, |file, offset, len| match file.is_cached(offset, len) {
            Some(false) => all = Some(false),
            is_cached => all = all.or(is_cached),
        });
        all
    }

    fn forget(&self, offset: u64, len: u64) {
        self.each_of_base(offset, len, |file, offset, len| file.forget(offset, len));
    }

    /// The filesystem of a server, if one has a part of it.
    fn filesystem(&self) -> Option<Filesystem> {
        let served = |file: &Arc<dyn Source>| matches!(file.filesystem(), Some(Filesystem::Server(_)));
        self.files.iter().find(|file| served(file)).or(self.files.first()).unwrap_or(&self.last).filesystem()
    }

    fn mapping(&self) -> Result<&Arc<memory::Storage>, &str> {
        Err("tensors that deltas change are composed when they are read")
    }
}
