//! What a [`Layout`] will do, as data.

use std::fmt;

use super::job::Destination;
use super::layout::{Layout, Way};
use super::plan;
use super::wanted::Conversion;
use super::{Swap, Transform};
use crate::device::Device;
use crate::dtype::DType;

/// Bytes of a file that are read, or brought into memory, as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The number of the file.
    pub file: u32,
    /// The first byte in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub len: u64,
    /// Bytes in memory that are taken for them, or written to.
    pub room: u64,
    /// The positions of the tensors that have some of them, in the order in which these were wanted.
    pub tensors: Vec<usize>,
    /// What is done to them on the way.
    pub action: Action,
    /// The memory that they go to…
    pub to: Target,
    /// … and the byte there, where the memory holds several ranges.
    pub at: usize,
}

/// What is done to bytes on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The pages of the mapping are fetched.
    Fetch,
    /// They are read, and converted where that is not [`Conversion::Nothing`].
    Read(Conversion),
    /// They are read, and parts of each row are taken.
    Rows(Conversion),
    /// They are read by themselves, changed (inflated, swapped), or gathered where they are as they should be, and converted.
    Apart(Transform, Conversion),
}

/// The memory that bytes go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Pages of the mapping.
    Mapping,
    /// The arena of a dtype on a device.
    Arena(Device, DType),
    /// Memory for one tensor.
    Own,
    /// Memory of the caller's.
    Out,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conversion = match self {
            Self::Fetch => return f.write_str("fetch pages"),
            Self::Read(conversion) => {
                f.write_str("read")?;
                conversion
            }
            Self::Rows(conversion) => {
                f.write_str("read, cut rows")?;
                conversion
            }
            Self::Apart(transform, conversion) => {
                f.write_str(match transform {
                    Transform { inflate: Some(_), swap: Swap::Nothing } => "read, inflate",
                    Transform { inflate: Some(_), .. } => "read, inflate, swap bytes",
                    Transform { inflate: None, swap: Swap::Nothing } => "read, gather",
                    Transform { inflate: None, .. } => "read, swap bytes",
                })?;
                conversion
            }
        };
        match conversion {
            Conversion::Nothing => Ok(()),
            Conversion::Cast { from, to } => write!(f, ", convert {from} to {to}"),
            Conversion::Decode { encoding, to } => write!(f, ", decode {encoding} to {to}"),
        }
    }
}

impl fmt::Display for Target {
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

impl Layout {
    /// The memory that is taken for tensors that lie together: dtype and bytes, on each device.
    pub fn arenas(&self) -> impl Iterator<Item = (DType, usize)> {
        let shared = self.shared.iter().flatten();
        shared.filter_map(|((_, dtype), arena)| Some((*dtype, self.arenas.get(*arena)?.len)))
    }

    /// What the arena of a number is.
    fn target(&self, arena: usize) -> Target {
        let shared = self.shared.iter().flatten().find(|(_, number)| **number == arena);
        shared.map_or(Target::Own, |(&(device, dtype), _)| Target::Arena(device, dtype))
    }

    /// Everything that will be read or fetched, in the order of the files.
    pub fn planned(&self) -> Vec<Planned> {
        let mut planned: Vec<Planned> = Vec::with_capacity(self.runs.len() + self.fetched.len());
        // Those of an arena follow each other in it.
        let mut in_arenas: Vec<(usize, usize, usize, usize)> = Vec::new();
        for run in &self.runs {
            let (to, tensors) = match run.to {
                Destination::Arena(arena) => {
                    in_arenas.push((arena, run.at, run.at + run.room, planned.len()));
                    (self.target(arena), Vec::new())
                }
                Destination::Out(i) => (Target::Out, vec![i]),
            };
            let (action, offset, len) = match run.cut.as_deref() {
                None => (Action::Read(run.conversion), run.offset, run.len),
                Some(cut) => {
                    let reach = cut.reach();
                    let len = cut.rows.saturating_sub(1) * cut.row + reach.len();
                    (Action::Rows(run.conversion), run.offset + reach.start as u64, len as u64)
                }
            };
            let (file, room, at) = (run.file, run.room as u64, run.at);
            planned.push(Planned { file, offset, len, room, tensors, action, to, at });
        }
        in_arenas.sort_unstable();
        let first_fetched = planned.len();
        for (file, range) in &self.fetched {
            let (offset, len) = (range.start, range.end - range.start);
            let (action, to) = (Action::Fetch, Target::Mapping);
            planned.push(Planned { file: *file, offset, len, room: 0, tensors: Vec::new(), action, to, at: 0 });
        }
        for (i, (one, way)) in self.wanted.iter().zip(&self.ways).enumerate() {
            let placement = &one.placement;
            let segment = &placement.segment;
            match way {
                Way::Arena(arena, start) => {
                    let len = if one.conversion == Conversion::Nothing && one.cut.is_none() {
                        placement.len
                    } else {
                        one.size().unwrap_or_default() as u64
                    };
                    let end = start + len as usize;
                    let first = in_arenas.partition_point(|&(of, at, end, _)| {
                        of < *arena || (of == *arena && end <= *start && at < *start)
                    });
                    let runs =
                        in_arenas[first..].iter().take_while(|run| run.0 == *arena && (run.1 < end || run.1 == *start));
                    runs.for_each(|run| planned[run.3].tensors.push(i));
                }
                Way::Made(_) => {
                    let offset = segment.span.start() + placement.start;
                    let fetched = &self.fetched;
                    let at = fetched
                        .partition_point(|(file, range)| (*file, range.end) < (segment.file, offset + placement.len));
                    // Where there is too little memory, pages are left to come when they are touched.
                    if fetched.get(at).is_some_and(|(file, range)| *file == segment.file && range.start <= offset) {
                        planned[first_fetched + at].tensors.push(i);
                    }
                }
                Way::Apart => {
                    let needed = plan::needed(placement);
                    let raw = segment.transform == Transform::default();
                    let (offset, len) = if raw {
                        (segment.span.start() + needed.start, needed.end - needed.start)
                    } else {
                        (segment.span.start(), segment.span.len())
                    };
                    let action = Action::Apart(segment.transform, one.conversion);
                    let (to, room) = (Target::Own, one.size().unwrap_or_default() as u64);
                    planned.push(Planned {
                        file: segment.file,
                        offset,
                        len,
                        room,
                        tensors: vec![i],
                        action,
                        to,
                        at: 0,
                    });
                }
                Way::Out => {}
            }
        }
        planned.sort_by_key(|planned| (planned.file, planned.offset));
        // Rows that only change places are one range.
        planned.dedup_by(|next, last| {
            let joins = (next.file, next.offset) == (last.file, last.offset + last.len)
                && (next.action, next.to) == (last.action, last.to)
                && next.tensors == last.tensors
                && next.len > 0;
            if joins {
                last.len += next.len;
                last.room += next.room;
                last.at = last.at.min(next.at);
            }
            joins
        });
        planned
    }
}
