//! The operations of a [`LoadPlan`], as data.

use std::fmt;

use super::inflate::DeflatedSegment;
use super::job::RunTarget;
use super::load_plan::{LoadPlan, Route};
use super::recipe::Recipe;
use super::request::{Conversion, TensorRequest};
use super::tensor;
use super::{FileSegment, Swap, Transform};
use crate::buffer::checked_size;
use crate::device::Device;
use crate::dtype::DType;

/// Bytes of a file that are read, or loaded into memory, by one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The number of the file.
    pub file: u32,
    /// The first byte in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub len: u64,
    /// Bytes of memory allocated for them, or written.
    pub out_bytes: u64,
    /// The positions of the tensors that these bytes belong to, in request order.
    pub tensors: Vec<usize>,
    /// The operation.
    pub action: ByteAction,
    /// The target memory.
    pub to: MemoryTarget,
    /// The offset there, where the memory holds several ranges.
    pub at: usize,
}

/// What happens to the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteAction {
    /// The pages of the mapping are loaded.
    Fetch,
    /// Bytes are read…
    Read {
        /// … transformed…
        transform: Transform,
        /// … gathered or cut, …
        elements: ElementSelection,
        /// … and converted.
        conversion: Conversion,
    },
}

/// Which elements of a read the tensors need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementSelection {
    /// All, in file order.
    All,
    /// Parts of each row.
    Rows,
    /// All, in another order.
    Gathered,
}

/// The target memory of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryTarget {
    /// Pages of the mapping.
    Mapping,
    /// The arena of a dtype on a device.
    Arena(Device, DType),
    /// Memory of one tensor.
    Own,
    /// Memory of the caller.
    Out,
}

impl fmt::Display for ByteAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Read { transform, elements, conversion } = self else { return f.write_str("fetch pages") };
        f.write_str("read")?;
        if transform.inflate.is_some() {
            f.write_str(", inflate")?;
        }
        if transform.swap != Swap::Nothing {
            f.write_str(", swap bytes")?;
        }
        f.write_str(match elements {
            ElementSelection::All => "",
            ElementSelection::Rows => ", cut rows",
            ElementSelection::Gathered => ", gather",
        })?;
        match conversion {
            Conversion::Nothing => Ok(()),
            Conversion::Cast { from, to } => write!(f, ", convert {from} to {to}"),
            Conversion::Add { from, to, amount } if from == to => write!(f, ", add {amount}"),
            Conversion::Add { from, to, amount } => write!(f, ", add {amount}, convert {from} to {to}"),
            Conversion::Decode { encoding, to } => write!(f, ", decode {encoding} to {to}"),
        }
    }
}

impl fmt::Display for MemoryTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapping => f.write_str("mapping"),
            Self::Arena(Device::Cpu, dtype) => write!(f, "arena of {dtype}"),
            Self::Arena(device, dtype) => write!(f, "arena of {dtype} on {device}"),
            Self::Own => f.write_str("own memory"),
            Self::Out => f.write_str("out"),
        }
    }
}

impl LoadPlan {
    /// The memory that tensors share: the dtype and bytes of each arena.
    pub fn arenas(&self) -> impl Iterator<Item = (DType, usize)> {
        let shared = self.shared.iter().flatten();
        shared.filter_map(|((_, dtype), arena)| Some((*dtype, self.arenas.get(*arena)?.len)))
    }

    /// The target of the arena of this number.
    fn target(&self, arena: usize) -> MemoryTarget {
        let shared = self.shared.iter().flatten().find(|(_, number)| **number == arena);
        shared.map_or(MemoryTarget::Own, |(&(device, dtype), _)| MemoryTarget::Arena(device, dtype))
    }

    /// All reads and page loads, in file order.
    pub fn planned(&self) -> Vec<Planned> {
        let mut planned: Vec<Planned> = Vec::with_capacity(self.runs.len() + self.fetched.len());
        // The runs of an arena follow each other in it.
        let mut in_arenas: Vec<(usize, usize, usize, usize)> = Vec::new();
        for run in &self.runs {
            let (to, tensors) = match run.to {
                RunTarget::Arena(arena) => {
                    in_arenas.push((arena, run.at, run.at + run.out_len, planned.len()));
                    (self.target(arena), Vec::new())
                }
                RunTarget::Out(i) => (MemoryTarget::Out, vec![i]),
            };
            let (elements, offset, len) = match (run.cut.as_deref(), run.deflated) {
                (cut, Some(DeflatedSegment { span, .. })) => (
                    if cut.is_some() { ElementSelection::Rows } else { ElementSelection::All },
                    span.start(),
                    span.len(),
                ),
                (None, None) => (ElementSelection::All, run.offset, run.len),
                (Some(cut), None) => (ElementSelection::Rows, run.offset + cut.span().start as u64, cut.bytes_read()),
            };
            let transform = Transform { inflate: run.deflated.map(|deflated| deflated.inflate), swap: run.swap };
            let action = ByteAction::Read { transform, elements, conversion: run.conversion };
            let (file, out_bytes, at) = (run.file, run.out_len as u64, run.at);
            planned.push(Planned { file, offset, len, out_bytes, tensors, action, to, at });
        }
        in_arenas.sort_unstable();
        let first_fetched = planned.len();
        for (file, range) in &self.fetched {
            let (offset, len) = (range.start, range.end - range.start);
            let (action, to) = (ByteAction::Fetch, MemoryTarget::Mapping);
            planned.push(Planned { file: *file, offset, len, out_bytes: 0, tensors: Vec::new(), action, to, at: 0 });
        }
        for (i, route) in self.routes.iter().enumerate() {
            match route {
                Route::Arena(arena, start) => {
                    let end = start + self.buffer_of(i);
                    let first = in_arenas.partition_point(|&(of, at, end, _)| {
                        of < *arena || (of == *arena && end <= *start && at < *start)
                    });
                    let runs =
                        in_arenas[first..].iter().take_while(|run| run.0 == *arena && (run.1 < end || run.1 == *start));
                    runs.for_each(|run| planned[run.3].tensors.push(i));
                }
                Route::Ready(_) => {
                    let Some(TensorRequest { placement, .. }) = self.requests.get(i) else { continue };
                    let (segment, fetched) = (&placement.segment, &self.fetched);
                    let offset = segment.span.start() + placement.start;
                    let at = fetched
                        .partition_point(|(file, range)| (*file, range.end) < (segment.file, offset + placement.len));
                    // With too little memory, pages are loaded when they are touched.
                    if fetched.get(at).is_some_and(|(file, range)| *file == segment.file && range.start <= offset) {
                        planned[first_fetched + at].tensors.push(i);
                    }
                }
                Route::Materialize => planned.extend(self.pieces_of(i).map(|one| by_itself(one, i))),
                Route::Out => {}
            }
        }
        for tensor in planned.iter_mut().flat_map(|planned| &mut planned.tensors) {
            *tensor = self.positions.get(*tensor).copied().unwrap_or(*tensor);
        }
        planned.sort_by_key(|planned| (planned.file, planned.offset));
        // Rows that are only reordered form one range.
        planned.dedup_by(|next, last| {
            let joins = (next.file, next.offset) == (last.file, last.offset + last.len)
                && (next.action, next.to) == (last.action, last.to)
                && next.tensors == last.tensors
                && next.len > 0;
            if joins {
                last.len += next.len;
                last.out_bytes += next.out_bytes;
                last.at = last.at.min(next.at);
            }
            joins
        });
        planned
    }
    /// The bytes of a tensor in an arena.
    fn buffer_of(&self, i: usize) -> usize {
        let one = self.requests.get(i);
        if let Some(one) = one.filter(|one| one.conversion == Conversion::Nothing && one.cut.is_none()) {
            return one.placement.len as usize;
        }
        let (_, dtype, shape) = self.result(i);
        checked_size(dtype, shape).unwrap_or_default()
    }

    /// The pieces of a tensor.
    fn pieces_of(&self, i: usize) -> impl Iterator<Item = &TensorRequest> {
        let composed = i.checked_sub(self.requests.len()).and_then(|i| self.composed.get(i));
        self.requests.get(i).into_iter().chain(composed.into_iter().flat_map(Recipe::requests))
    }
}

/// A tensor, or a piece of one, that is read separately.
fn by_itself(one: &TensorRequest, i: usize) -> Planned {
    let (placement, needed) = (&one.placement, tensor::needed(&one.placement));
    let FileSegment { file, span, transform } = placement.segment;
    let (offset, len) = match transform.inflate {
        Some(_) => (span.start(), span.len()),
        None => (span.start() + needed.start, needed.end - needed.start),
    };
    let elements = if placement.is_dense() { ElementSelection::All } else { ElementSelection::Gathered };
    let action = ByteAction::Read { transform, elements, conversion: one.conversion };
    let out_bytes = one.size().unwrap_or_default() as u64;
    Planned { file, offset, len, out_bytes, tensors: vec![i], action, to: MemoryTarget::Own, at: 0 }
}
