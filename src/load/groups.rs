//! The groups that a stream reads: tensors in order, grouped by the memory that they need.

use std::ops::Range;

use super::device_place::DEVICE_ALIGN;
use super::recipe::Recipe;
use super::request::{Conversion, TensorRequest, is_decoded_to};
use super::strategy::ReadStrategy;
use super::{Codec, FileSegment, Inflate, Transform};
use crate::checkpoint::{Backend, FAR_AT_A_TIME, unpacking_bytes};
use crate::device::Device;
use crate::error::Result;
use crate::memory::{BLOCK_ALIGN, block_bytes};

/// Up to this size, neighbours share one piece of memory.
const SMALL: usize = 1 << 20;
/// The first group is small, so that the first tensor comes soon. Each group is twice as large as the previous one…
const FIRST: usize = 16 << 20;
/// … up to this size, or to a share of the budget.
const MAX_GROUP_BYTES: usize = 256 << 20;
const SHARE: usize = 4;

/// The maximum of direct requests in flight per thread.
const QUEUE: usize = 16;

/// Temporary memory in which threads read, gather and decode.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GroupScratch {
    /// The maximum of bytes that all threads read at a time.
    most: usize,
    /// The temporary bytes per byte read.
    factor: usize,
    /// The maximum memory of all threads for items that are read whole in order to unpack others, or for what deltas change.
    items: usize,
}

impl GroupScratch {
    pub(super) fn new<'a>(strategy: &ReadStrategy, requests: impl Iterator<Item = &'a TensorRequest>) -> Self {
        let direct = matches!(strategy.backend, Backend::Direct | Backend::Auto);
        let factor = |one: &TensorRequest| {
            let converted = one.conversion != Conversion::Nothing;
            let transform = one.placement.segment.transform;
            // The buffers of items are counted in `items`.
            let is_item = matches!(transform.inflate, Some(Inflate { codec: Codec::Item(_), .. }));
            let changed = one.cut.is_some() || (transform != Transform::default() && !is_item);
            let decoded = match one.conversion {
                Conversion::Decode { encoding, to } if !is_decoded_to(to) => {
                    (encoding.elements_per_block() * size_of::<f32>()).div_ceil(encoding.bytes_per_block())
                }
                _ => 0,
            };
            usize::from(direct || changed || converted) + usize::from(changed && converted) + decoded
        };
        let at_once = if direct { strategy.threads.max(QUEUE * strategy.direct_threads) } else { strategy.threads };
        let most = at_once.saturating_mul(strategy.sizes().converted);
        let item = |one: &TensorRequest| match one.placement.segment {
            FileSegment { span, transform: Transform { inflate: Some(inflate), .. }, .. } => match inflate.codec {
                Codec::Item(_) => span.len().saturating_add(inflate.size) as usize,
                Codec::Deltas => span.len() as usize,
                Codec::Zstd => unpacking_bytes(strategy.served.is_some()),
                Codec::Deflate => 0,
            },
            _ => 0,
        };
        let far = if strategy.served.is_some() && strategy.changed { FAR_AT_A_TIME as usize } else { 0 };
        let (factor, item) =
            requests.fold((0, far), |(most, largest), one| (most.max(factor(one)), largest.max(item(one))));
        Self { most, factor, items: at_once.saturating_mul(item) }
    }

    /// The temporary memory while `read` bytes of files are read.
    pub(super) fn bytes(self, read: usize) -> usize {
        let items = self.items.min(read.saturating_mul(2));
        self.most.min(read).saturating_mul(self.factor).saturating_add(items)
    }
}

/// Tensors whose memory is allocated and freed together: one large tensor, or small neighbours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MemoryUnit {
    /// The positions of the tensors.
    pub(super) tensors: Range<usize>,
    /// The target device.
    pub(super) device: Device,
    /// Bytes of memory on the device.
    pub(super) len: usize,
    /// Bytes of files that are read to their place, directly or through [`GroupScratch`].
    read: usize,
    /// Whether tensors are read in place. Otherwise they have their own memory…
    pub(super) in_place: bool,
    /// … and need this much scratch memory while they are read.
    scratch_bytes: usize,
}

impl MemoryUnit {
    /// The scratch memory of the threads that read the piece.
    pub(super) fn staging_bytes(&self, scratch: GroupScratch) -> usize {
        scratch.bytes(self.read)
    }

    /// The bytes that count against the budget.
    pub(super) fn bytes(&self) -> usize {
        if self.device == Device::Cpu { block_bytes(self.len) } else { self.len }
    }

    /// The host memory that a transfer to a device needs, without staging buffers.
    pub(super) fn host_bytes(&self, scratch: GroupScratch) -> usize {
        let made = if self.in_place { 0 } else { self.len };
        made.saturating_add(self.scratch_bytes).saturating_add(self.staging_bytes(scratch))
    }
}

/// Pieces that are read together.
#[derive(Debug, Default)]
pub(super) struct ReadGroup {
    pub(super) pieces: Vec<MemoryUnit>,
    /// The bytes that count against the budget.
    pub(super) bytes: usize,
    /// The scratch memory of the reads.
    pub(super) scratch_bytes: usize,
    read: usize,
}

impl ReadGroup {
    /// The positions of the group's tensors.
    pub(super) fn tensors(&self) -> Range<usize> {
        let start = self.pieces.first().map_or(0, |piece| piece.tensors.start);
        start..self.pieces.last().map_or(start, |piece| piece.tensors.end)
    }
}

/// The pieces of these tensors, in order. Tensors that are gathered, or inflated for a device, are materialized from what was read. With `whole`, all
/// tensors are.
pub(super) fn pieces(requests: &[Recipe], whole: bool) -> Result<Vec<MemoryUnit>> {
    let mut pieces: Vec<MemoryUnit> = Vec::new();
    for (i, recipe) in requests.iter().enumerate() {
        let Some(one) = recipe.one() else {
            pieces.push(composed(i, recipe)?);
            continue;
        };
        let placement = &one.placement;
        let len = one.size()?.next_multiple_of(align(one.device));
        let is_inflated = placement.segment.transform.inflate.is_some();
        let in_place = !whole && placement.is_dense() && (one.device == Device::Cpu || !is_inflated);
        if in_place
            && let Some(last) = pieces.last_mut()
            && last.in_place
            && last.device == one.device
            && last.len + len <= SMALL
        {
            last.tensors.end = i + 1;
            last.len += len;
            last.read += placement.len as usize;
            continue;
        }
        let read = if in_place { placement.len as usize } else { 0 };
        let mut piece = MemoryUnit { tensors: i..i + 1, device: one.device, len, read, in_place, scratch_bytes: 0 };
        if !in_place {
            let gathered = (placement.before + placement.len) as usize + BLOCK_ALIGN;
            let is_result = one.conversion == Conversion::Nothing && one.cut.is_none();
            if is_result {
                piece.len = len.max(gathered);
            }
            let decoded = match one.conversion {
                Conversion::Decode { to, .. } if !is_decoded_to(to) => len / to.bits().max(1) * 32,
                _ => 0,
            };
            let is_present = is_result && one.device == Device::Cpu;
            piece.scratch_bytes = if is_present { 0 } else { gathered.saturating_add(decoded) };
        }
        pieces.push(piece);
    }
    Ok(pieces)
}

/// The piece of a tensor with several parts, which has its own memory.
fn composed(i: usize, recipe: &Recipe) -> Result<MemoryUnit> {
    let len = recipe.size()?.next_multiple_of(align(recipe.device()));
    let read: u64 = recipe.requests().map(|one| one.placement.before + one.placement.len).sum();
    let made = recipe.requests().map(TensorRequest::size).sum::<Result<usize>>()?;
    // Parts that are read separately are in memory twice: as stored and converted.
    let scratch_bytes = if recipe.fills()?.is_some() { 0 } else { (read as usize).saturating_add(made) };
    let device = recipe.device();
    Ok(MemoryUnit { tensors: i..i + 1, device, len, read: read as usize, in_place: false, scratch_bytes })
}

/// The alignment of tensors in a piece.
pub(super) fn align(device: Device) -> usize {
    if device == Device::Cpu { BLOCK_ALIGN } else { DEVICE_ALIGN }
}

/// The minimum budget for these pieces, and the position that needs it. `reuse`: the caller released the previous tensor before it takes one.
pub(super) fn least(pieces: &[MemoryUnit], scratch: GroupScratch, reuse: bool) -> (usize, usize) {
    let mut before = 0;
    let needs = pieces.iter().enumerate().map(|(i, piece)| {
        let scratch_bytes = piece.scratch_bytes.saturating_add(piece.staging_bytes(scratch));
        let needed = piece.bytes().saturating_add(scratch_bytes).saturating_add(before);
        before = if reuse { 0 } else { piece.bytes() };
        (needed, i)
    });
    needs.max_by_key(|(needed, _)| *needed).unwrap_or_default()
}

/// Groups the pieces. Each group fits the budget together with the piece before it, if each piece does. Pieces that are read `whole` are hashed one
/// per thread, so their groups are as large as possible.
pub(super) fn groups(
    pieces: Vec<MemoryUnit>,
    scratch: GroupScratch,
    budget: usize,
    reuse: bool,
    whole: bool,
) -> Vec<ReadGroup> {
    let mut groups: Vec<ReadGroup> = Vec::new();
    let (mut most, mut limit, mut before) = (if whole { usize::MAX } else { FIRST }, 0, 0);
    for piece in pieces {
        let (bytes, scratch_bytes, read) = (piece.bytes(), piece.scratch_bytes, piece.read);
        let fits = |group: &ReadGroup| {
            group.bytes + group.scratch_bytes + bytes + scratch_bytes + scratch.bytes(group.read + read) <= limit
        };
        if !groups.last().is_some_and(fits) {
            limit = most.min(budget / SHARE).min(budget.saturating_sub(before));
            most = if whole { most } else { (most * 2).min(MAX_GROUP_BYTES) };
            groups.push(ReadGroup::default());
        }
        if let Some(group) = groups.last_mut() {
            group.bytes += bytes;
            group.scratch_bytes += scratch_bytes;
            group.read += read;
            group.pieces.push(piece);
        }
        before = if reuse { 0 } else { bytes };
    }
    for group in &mut groups {
        group.scratch_bytes += scratch.bytes(group.read);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(i: usize, len: usize) -> MemoryUnit {
        MemoryUnit { tensors: i..i + 1, device: Device::Cpu, len, read: len, in_place: true, scratch_bytes: 0 }
    }

    #[test]
    fn every_group_has_room_beside_the_piece_before_it() {
        const MIB: usize = 1 << 20;
        let many_threads = GroupScratch { most: 16 * MIB, factor: 2, items: 0 };
        for (budget, scratch, sizes) in [
            (40, GroupScratch::default(), vec![2, 6, 30, 8, 2, 2, 2, 38, 2]),
            (64, GroupScratch::default(), vec![10; 40]),
            (80, many_threads, vec![2, 6, 30, 8, 2, 2, 2, 38, 2]),
            (2048, many_threads, vec![50; 60]),
        ] {
            for reuse in [false, true] {
                let pieces: Vec<MemoryUnit> = sizes.iter().enumerate().map(|(i, size)| piece(i, size * MIB)).collect();
                assert!(least(&pieces, scratch, reuse).0 <= budget * MIB);
                let groups = groups(pieces, scratch, budget * MIB, reuse, budget == 80);
                let mut before = 0;
                for group in &groups {
                    assert!(before + group.bytes + group.scratch_bytes <= budget * MIB, "{budget} {group:?}");
                    let read: usize = group.pieces.iter().map(|piece| piece.len).sum();
                    assert_eq!(group.scratch_bytes, (scratch.most * scratch.factor).min(read * scratch.factor));
                    assert_eq!(group.bytes, group.pieces.iter().map(MemoryUnit::bytes).sum::<usize>());
                    before = if reuse { 0 } else { group.pieces.last().map_or(0, MemoryUnit::bytes) };
                }
                let positions: Vec<usize> = groups.iter().flat_map(ReadGroup::tensors).collect();
                assert_eq!(positions, (0..sizes.len()).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn the_least_budget_holds_a_piece_and_the_one_before_it_unless_memory_is_reused() {
        let pieces: Vec<MemoryUnit> =
            [100, 700, 900, 300].into_iter().enumerate().map(|(i, len)| piece(i, len)).collect();
        let none = GroupScratch::default();
        assert_eq!(least(&pieces, none, false), (1600, 2));
        assert_eq!(least(&pieces, none, true), (900, 2));
        assert_eq!(least(&[], none, false), (0, 0));
        let threads = GroupScratch { most: 200, factor: 3, items: 0 };
        assert_eq!(least(&pieces, threads, true), (900 + 600, 2));
        assert_eq!(threads.bytes(100), 300, "no more than is read");
    }
}
