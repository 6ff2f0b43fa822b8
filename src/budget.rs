//! Memory budget of a file: allocations count against the length of the file, and can fail without aborting the process.
//!
//! A parser allocates some large blocks and very many small ones. Each large block is requested here. For the small ones, [`MemoryPace`] checks now and
//! then whether there is memory for all that come before the next check; the cost of this cannot be measured.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::hint::black_box;

use memmap2::MmapOptions;

use crate::error::{Diagnostic, Error, Result};
use crate::rules::{self, Rule};

/// What the values of a file may take in memory, per byte of the file…
pub const BYTES_PER_FILE_BYTE: usize = 16;
/// … and in addition, for every file.
pub const SCRATCH_BYTES: usize = 48 << 20;
/// What the system needs for a block in addition to its bytes.
pub const BLOCK_BYTES: usize = 16;

/// Steps between two checks.
const STEPS: u32 = 1 << 14;
/// What the small blocks of [`STEPS`] steps may take: 512 bytes each.
const STEPS_BYTES: usize = 8 << 20;
/// From this size on, allocators request a separate mapping for a block.
const MAPPED: usize = 128 << 10;
/// The rules of faults that are not those of the file.
const SYSTEM: &Rule = rules::MEMORY;
const INTERRUPTED: &Rule = rules::INTERRUPTED;

/// Why there is no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Short {
    /// The file exceeds its budget: this many bytes, less what earlier values took.
    Budget(usize),
    /// The system cannot provide this many bytes.
    System(usize),
    /// The caller has cancelled: see [`interruptible`].
    Interrupted,
}

/// A number of a file as `usize`. A larger one becomes the maximum, and is refused where memory is requested.
#[inline]
pub(crate) fn saturating_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// A number, below a limit that the caller checked, in 32 bits.
#[inline]
pub(crate) fn saturating_u32(number: impl TryInto<u32>) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

impl Short {
    /// The error where only the system can have refused, or the parser has no message for it.
    pub fn into_fault(self, rule: &'static Rule) -> Diagnostic {
        match self {
            Self::Budget(most) => {
                let cause = format!(
                    "what the file describes would take more than the {most} bytes of memory that are left to it"
                );
                let help = format!(
                    "what is built from a file, apart from its tensors, may take {BYTES_PER_FILE_BYTE} times its length plus {} MiB",
                    SCRATCH_BYTES >> 20
                );
                Diagnostic::new(rule, cause).help(help)
            }
            Self::System(bytes) => Diagnostic::new(SYSTEM, format!("there is no memory for {bytes} bytes")),
            Self::Interrupted => Diagnostic::new(INTERRUPTED, Error::Interrupted.to_string()),
        }
    }
}

impl From<Short> for Error {
    fn from(short: Short) -> Self {
        match short {
            Short::System(bytes) => no_memory(bytes),
            Short::Interrupted => Error::Interrupted,
            Short::Budget(_) => short.into_fault(rules::MEMORY_BUDGET).format(),
        }
    }
}

impl From<Short> for Box<Diagnostic> {
    fn from(short: Short) -> Self {
        short.into_fault(rules::MEMORY_BUDGET).into()
    }
}

/// The error of a system that is out of memory.
pub(crate) fn no_memory(bytes: usize) -> Error {
    let source = std::io::ErrorKind::OutOfMemory.into();
    Error::Io { path: "memory".into(), action: format!("allocate {bytes} bytes"), source }
}

/// The error behind a fault of a parser, which may be that memory is exhausted.
pub fn error_of(fault: Box<Diagnostic>) -> Error {
    if fault.rule == SYSTEM {
        let source = std::io::ErrorKind::OutOfMemory.into();
        Error::Io { path: "memory".into(), action: fault.message, source }
    } else if fault.rule == INTERRUPTED {
        Error::Interrupted
    } else {
        Error::Format(fault)
    }
}

/// The fault of an error, where a parser can only fail with one.
pub(crate) fn fault_of(error: Error) -> Diagnostic {
    match error {
        Error::Format(fault) | Error::Unsupported(fault) | Error::FileChanged(fault) => *fault,
        Error::Interrupted => Short::Interrupted.into_fault(INTERRUPTED),
        other => Diagnostic::new(SYSTEM, other.to_string()),
    }
}

/// Checks that the system can provide this many bytes, before an allocation that cannot fail gracefully.
pub fn probe(bytes: usize) -> Result<(), Short> {
    if bytes < MAPPED {
        let mut block: Vec<u8> = Vec::new();
        block.try_reserve_exact(bytes).map_err(|_| Short::System(bytes))?;
        // Without this, the compiler sees that the block is unused, and removes the allocation.
        black_box(block.as_mut_ptr());
        return Ok(());
    }
    // Asks the system and not the allocator, which would keep larger blocks from then on.
    match MmapOptions::new().len(bytes.max(1)).map_anon() {
        Ok(_) => Ok(()),
        Err(_) => Err(Short::System(bytes)),
    }
}

/// Reserves memory for `more` elements at the end of `vec`.
#[inline]
pub fn reserve<T>(vec: &mut Vec<T>, more: usize) -> Result<(), Short> {
    vec.try_reserve(more).map_err(|_| Short::System(more.saturating_mul(size_of::<T>())))
}

/// An empty list with capacity for exactly `count` elements.
pub fn list<T>(count: usize) -> Result<Vec<T>, Short> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| Short::System(count.saturating_mul(size_of::<T>())))?;
    Ok(list)
}

/// All elements of an iterator of known length.
pub fn collected<T>(elements: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, Short> {
    let mut collected = list(elements.len())?;
    collected.extend(elements);
    Ok(collected)
}

/// `len` zeros. The system provides them as untouched pages; writing zeros would touch each of them.
pub fn zeroed(len: usize) -> Result<Vec<u8>, Short> {
    probe(len)?;
    Ok(vec![0; len])
}

/// A copy of a string.
pub fn text(text: &str) -> Result<String, Short> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len()).map_err(|_| Short::System(text.len()))?;
    copy.push_str(text);
    Ok(copy)
}

thread_local! {
    static CANCEL: Cell<fn() -> Result<()>> = const { Cell::new(|| Ok(())) };
}

/// Does `work`, whose long loops check `cancel` now and then on this thread; an error of it ends them.
pub fn interruptible<T>(cancel: fn() -> Result<()>, work: impl FnOnce() -> T) -> T {
    struct BudgetGuard(fn() -> Result<()>);
    impl Drop for BudgetGuard {
        fn drop(&mut self) {
            CANCEL.set(self.0);
        }
    }
    let _before = BudgetGuard(CANCEL.replace(cancel));
    work()
}

/// Checks now and then whether there is memory for the small blocks of the next steps, and whether the caller has cancelled: [`interruptible`].
#[derive(Debug, Clone)]
pub struct MemoryPace(u32);

impl Default for MemoryPace {
    fn default() -> Self {
        // Small files are read without a check.
        Self(STEPS / 16)
    }
}

impl MemoryPace {
    /// One step of a long loop.
    #[inline]
    pub fn step(&mut self) -> Result<(), Short> {
        if self.0 > 0 {
            self.0 -= 1;
            return Ok(());
        }
        self.0 = STEPS;
        CANCEL.get()().map_err(|_| Short::Interrupted)?;
        probe(STEPS_BYTES)
    }
}

/// The memory budget that is left for the values of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    most: usize,
    used: usize,
}

impl Budget {
    /// The budget of a file of `bytes` bytes.
    pub fn of_file(bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Self::new(bytes.saturating_mul(BYTES_PER_FILE_BYTE).saturating_add(SCRATCH_BYTES))
    }

    /// A budget of `most` bytes.
    pub const fn new(most: usize) -> Self {
        Self { most, used: 0 }
    }

    /// Raises the budget by the bytes of an object that was freed.
    pub fn extend(&mut self, bytes: usize) {
        self.most = self.most.saturating_add(bytes);
    }

    /// The remaining bytes.
    pub const fn left(&self) -> usize {
        self.most.saturating_sub(self.used)
    }

    /// Counts bytes before they are allocated.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Result<(), Short> {
        match self.used.checked_add(bytes) {
            Some(used) if used <= self.most => {
                self.used = used;
                Ok(())
            }
            _ => Err(Short::Budget(self.most)),
        }
    }

    /// Returns freed bytes to the budget.
    pub fn give(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Temporary memory: checks both the budget and the system.
    pub fn scratch(&self, bytes: usize) -> Result<(), Short> {
        if bytes > self.left() {
            return Err(Short::Budget(self.most));
        }
        if bytes > STEPS_BYTES / 8 { probe(bytes) } else { Ok(()) }
    }

    /// Reserves memory for `more` elements at the end of `vec`.
    #[inline]
    pub fn reserve<T>(&mut self, vec: &mut Vec<T>, more: usize) -> Result<(), Short> {
        if vec.capacity() - vec.len() >= more { Ok(()) } else { self.grow(vec, more) }
    }

    /// Reserves memory for `more` bytes at the end of `text`.
    #[inline]
    pub fn reserve_text(&mut self, text: &mut String, more: usize) -> Result<(), Short> {
        if text.capacity() - text.len() >= more {
            return Ok(());
        }
        let target = self.target(text.capacity(), text.len(), more, 1)?;
        text.try_reserve_exact(target - text.len()).map_err(|_| Short::System(target))
    }

    #[cold]
    fn grow<T>(&mut self, vec: &mut Vec<T>, more: usize) -> Result<(), Short> {
        let target = self.target(vec.capacity(), vec.len(), more, size_of::<T>())?;
        vec.try_reserve_exact(target - vec.len()).map_err(|_| Short::System(target.saturating_mul(size_of::<T>())))
    }

    /// The new capacity of a block, in elements; its bytes are counted at once.
    #[cold]
    fn target(&mut self, capacity: usize, len: usize, more: usize, size: usize) -> Result<usize, Short> {
        const FIRST: usize = 4;
        /// From this size on, growing by a half is enough to keep copies rare.
        const LARGE: usize = 1 << 20;
        let needed = len.saturating_add(more);
        let requested = if capacity.saturating_mul(size) < LARGE { capacity * 2 } else { capacity + capacity / 2 };
        // While the old block is copied, both exist. If less is left than `target`, all of it is taken at once: growing step by step would copy the
        // block as often.
        let target = requested.max(needed).max(FIRST).min(self.left() / size.max(1));
        if target < needed {
            return Err(Short::Budget(self.most));
        }
        let before = if capacity == 0 { 0 } else { capacity * size + BLOCK_BYTES };
        self.used = self.used.saturating_sub(before);
        self.take(target * size + BLOCK_BYTES)?;
        Ok(target)
    }

    /// A copy of elements, exactly as long.
    pub fn copied<T: Copy>(&mut self, elements: &[T]) -> Result<Vec<T>, Short> {
        self.take(size_of_val(elements) + BLOCK_BYTES)?;
        let mut copy = list(elements.len())?;
        copy.extend_from_slice(elements);
        Ok(copy)
    }

    /// Reserves memory for another entry of `map`.
    #[inline]
    pub fn entry<K: Eq + std::hash::Hash, V>(&mut self, map: &mut HashMap<K, V>) -> Result<(), Short> {
        if map.len() < map.capacity() { Ok(()) } else { self.widen(map) }
    }

    #[cold]
    fn widen<K: Eq + std::hash::Hash, V>(&mut self, map: &mut HashMap<K, V>) -> Result<(), Short> {
        let before = map_bytes(map);
        // Twice the capacity, and the old table until its entries are moved.
        let after = before.saturating_mul(2).max(4 * (size_of::<(K, V)>() + 1));
        if after > self.left() {
            return Err(Short::Budget(self.most));
        }
        map.try_reserve(map.len().max(1)).map_err(|_| Short::System(after))?;
        self.used = self.used.saturating_sub(before);
        self.take(map_bytes(map))
    }
}

/// The bytes behind a list.
pub fn vec_bytes<T>(vec: &Vec<T>) -> usize {
    if vec.capacity() == 0 { 0 } else { vec.capacity() * size_of::<T>() + BLOCK_BYTES }
}

/// The bytes behind a map: of eight slots, at most seven are used, and each has a control byte in addition to its entry.
pub fn map_bytes<K, V, S: BuildHasher>(map: &HashMap<K, V, S>) -> usize {
    if map.capacity() == 0 {
        return 0;
    }
    map.capacity().saturating_mul(8).div_ceil(7).next_power_of_two() * (size_of::<(K, V)>() + 1) + BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_counts_what_lists_and_maps_have_and_refuses_the_rest() {
        let mut budget = Budget::new(10_000);
        let mut list: Vec<u64> = Vec::new();
        for value in 0..100 {
            budget.reserve(&mut list, 1).expect("room");
            list.push(value);
        }
        assert_eq!(budget.left(), 10_000 - vec_bytes(&list));
        let mut map: HashMap<u64, u64> = HashMap::new();
        for key in 0..100 {
            budget.entry(&mut map).expect("room");
            map.insert(key, key);
        }
        assert_eq!(budget.left(), 10_000 - vec_bytes(&list) - map_bytes(&map));
        assert_eq!(budget.reserve(&mut list, 1000), Err(Short::Budget(10_000)));
        assert_eq!(budget.copied(&[0_u8; 9000]).err(), Some(Short::Budget(10_000)));
        budget.give(vec_bytes(&list));
        drop(list);
        assert_eq!(budget.copied(&[1_u8; 3000]).expect("room"), [1; 3000]);
    }

    #[test]
    fn memory_that_no_system_has_is_an_error() {
        const TOO_MUCH: usize = isize::MAX as usize;
        assert_eq!(probe(TOO_MUCH), Err(Short::System(TOO_MUCH)));
        assert!(zeroed(TOO_MUCH).is_err());
        assert!(matches!(error_of(Box::new(Short::System(7).into_fault(rules::MEMORY_BUDGET))), Error::Io { .. }));
        assert!(matches!(Error::from(Short::System(7)), Error::Io { .. }));
    }
}
