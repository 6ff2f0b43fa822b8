//! Items that zstd compressed as a whole, each as a source of what it unpacks to: forwards as it is read, and again from the start for what lies far
//! behind. What is kept of them is bounded, whatever an item unpacks to.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::super::packed::Unpacker;
use crate::budget;
use crate::error::{Diagnostic, Error, Result};
use crate::format::distributed::Item;
use crate::memory::{ForkMutex, Origin};
use crate::rules;
use crate::source::{Part, Source};
use crate::workers::Interrupt;

/// What is unpacked in one step.
const STEP: usize = 1 << 20;
/// What torch.save writes beside the elements of a tensor: an item that unpacks to more than that is no piece.
pub(super) const BESIDE: u64 = 1 << 20;
/// Of an item, this much that was unpacked last is kept, and up to twice as much: threads that read it do not come in its order.
const RECENT: usize = 64 << 20;
/// What is kept of all items together, but for those that are being read.
const KEPT: u64 = 512 << 20;

/// Whether this is what torch calls its extension for zstd.
pub(super) fn is_zstd(transform: &str) -> bool {
    let (name, version) = transform.split_once('/').unwrap_or((transform, ""));
    name == "stream.zstd" && version.split('.').next() == Some("1")
}

/// The items of a checkpoint that were read last.
#[derive(Debug, Default)]
pub(super) struct UnpackedItems {
    kept: ForkMutex<VecDeque<Kept>>,
}

/// An item by its file and place, what is kept of it at most, and how far it is unpacked.
#[derive(Debug)]
struct Kept {
    key: (u32, u64),
    bytes: u64,
    slot: Arc<Slot>,
}

type Slot = ForkMutex<Option<Arc<Unpacked>>>;

impl UnpackedItems {
    /// An item of a file, which unpacks to so many bytes at most.
    pub(super) fn get(
        &self,
        file: &Arc<dyn Source>,
        item: &Item,
        most: u64,
        interrupt: Interrupt<'_>,
    ) -> Result<Arc<Unpacked>> {
        let key = (item.file, item.offset);
        let slot = {
            let mut kept = self.kept.lock();
            let known = kept.iter().position(|known| known.key == key).and_then(|at| kept.remove(at));
            let bytes = most.min(2 * RECENT as u64);
            let own = known.unwrap_or_else(|| Kept { key, bytes, slot: Arc::default() });
            while kept.iter().map(|known| known.bytes).sum::<u64>() + bytes > KEPT {
                kept.pop_front();
            }
            let slot = own.slot.clone();
            kept.push_back(own);
            slot
        };
        let mut unpacked = slot.lock();
        if let Some(unpacked) = &*unpacked {
            return Ok(unpacked.clone());
        }
        Ok(unpacked.insert(Arc::new(Unpacked::open(file.clone(), item, most, interrupt)?)).clone())
    }
}

/// All that an item unpacks to, if that is no more than this.
pub(super) fn unpacked(file: &Arc<dyn Source>, item: &Item, most: u64, interrupt: Interrupt<'_>) -> Result<Vec<u8>> {
    let unpacked = Unpacked::open(file.clone(), item, most, interrupt)?;
    let mut bytes = budget::zeroed(unpacked.len as usize)?;
    unpacked.read(&mut [Part { offset: 0, bytes: &mut bytes }], interrupt)?;
    Ok(bytes)
}

/// What an item unpacks to.
#[derive(Debug)]
pub(super) struct Unpacked {
    file: Arc<dyn Source>,
    item: Range<u64>,
    len: u64,
    state: ForkMutex<State>,
}

impl Unpacked {
    /// Unpacks all of it once, to know how long it is.
    fn open(file: Arc<dyn Source>, item: &Item, most: u64, interrupt: Interrupt<'_>) -> Result<Self> {
        let item = item.offset..item.offset + item.length;
        let mut unpacked = Self { file, item, len: 0, state: ForkMutex::new() };
        unpacked.len = {
            let mut state = unpacked.state.lock();
            while !state.has_ended {
                unpacked.advance(&mut state, interrupt)?;
                if state.end() > most {
                    return Err(unpacked.fault(format!("it unpacks to more than the {most} bytes that it may have")));
                }
            }
            state.end()
        };
        Ok(unpacked)
    }

    fn fault(&self, cause: String) -> Error {
        let cause = format!("the item was compressed, and {cause}");
        Diagnostic::new(rules::DISTRIBUTED_ITEM, cause).offset(self.item.start).path(self.file.path()).format()
    }

    /// Unpacks the next bytes.
    fn advance(&self, state: &mut State, interrupt: Interrupt<'_>) -> Result<()> {
        interrupt()?;
        let State { unpacker, recent, first, is_in_frame, has_ended } = state;
        if !*is_in_frame && unpacker.is_at_end(&self.item) {
            *has_ended = true;
            *unpacker = Unpacker::default(); // what it has as a window is not needed any more
            return Ok(());
        }
        let start = recent.len();
        budget::reserve(recent, STEP)?;
        recent.resize(start + STEP, 0);
        let unpacked =
            unpacker.step(&*self.file, &self.item, &mut recent[start..], interrupt, &|cause| self.fault(cause));
        recent.truncate(start + unpacked.as_ref().map_or(0, |(len, _)| *len));
        *is_in_frame = !unpacked?.1;
        if recent.len() > 2 * RECENT {
            let gone = recent.len() - RECENT;
            recent.drain(..gone);
            *first += gone as u64;
        }
        Ok(())
    }

    /// Copies what is unpacked from one byte on; no more than is kept.
    fn copy(&self, state: &mut State, offset: u64, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        if offset < state.first {
            *state = State::default();
        }
        while state.end() < offset + out.len() as u64 {
            if state.has_ended {
                return Err(self.file.origin().truncated());
            }
            self.advance(state, interrupt)?;
        }
        let start = (offset - state.first) as usize;
        out.copy_from_slice(&state.recent[start..start + out.len()]);
        Ok(())
    }
}

impl Source for Unpacked {
    fn origin(&self) -> &Arc<Origin> {
        self.file.origin()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, parts: &mut [Part<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        let mut state = self.state.lock();
        for Part { offset, bytes } in parts {
            let mut at = *offset;
            for out in bytes.chunks_mut(RECENT / 4) {
                if at.checked_add(out.len() as u64).is_none_or(|end| end > self.len) {
                    return Err(self.file.origin().truncated());
                }
                self.copy(&mut state, at, out, interrupt)?;
                at += out.len() as u64;
            }
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        self.file.check_unchanged()
    }
}

/// How far an item is unpacked.
#[derive(Default)]
struct State {
    unpacker: Unpacker,
    /// What was unpacked last, and where that begins.
    recent: Vec<u8>,
    first: u64,
    is_in_frame: bool,
    has_ended: bool,
}

impl State {
    fn end(&self) -> u64 {
        self.first + self.recent.len() as u64
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State at {}", self.end())
    }
}
