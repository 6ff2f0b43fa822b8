//! Memory that a file asks for: counted against the length of the file, and asked of the system in a way that can be refused.
//!
//! A parser makes large blocks and blocks without number. The large ones are asked for here, each by itself; for the small ones, a look
//! now and then whether there is room for all that come before the next look ([`Pace`]) is enough, and costs nothing that can be measured.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::hint::black_box;

use memmap2::MmapOptions;

use crate::error::{Diagnostic, Error, Result};
use crate::rules::{self, Rule};

/// What the values of a file may take in memory, for each byte of the file…
pub const BYTES_PER_FILE_BYTE: usize = 16;
/// … beside these.
pub const BYTES_BESIDE: usize = 48 << 20;
/// What the system needs for a block beside its bytes.
pub const BLOCK_BYTES: usize = 16;

/// Steps between two looks.
const STEPS: u32 = 1 << 14;
/// What the small blocks of so many steps may take: 512 bytes each.
const STEPS_BYTES: usize = 8 << 20;
/// From here on, allocators ask the system for a block by itself.
const MAPPED: usize = 128 << 10;
/// The rules of faults that are not those of the file.
const SYSTEM: &Rule = rules::MEMORY;
const INTERRUPTED: &Rule = rules::INTERRUPTED;

/// Why there is no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Short {
    /// The file may not take so much: this is the most, with what was made of it before left out.
    Budget(usize),
    /// The system does not have so many bytes.
    System(usize),
    /// There is, but nobody wants it any more: see [`interruptible`].
    Interrupted,
}

/// A number of a file as memory counts. One that no memory has room for becomes the largest there is, and is refused where memory is asked for.
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
    /// The error where only the system can have refused, or a parser has no sentence of its own.
    pub fn into_fault(self, rule: &'static Rule) -> Diagnostic {
        match self {
            Self::Budget(most) => {
                let cause = format!(
                    "what the file describes would take more than the {most} bytes of memory that are left to it"
                );
                let help = format!(
                    "what is built from a file, apart from its tensors, may take {BYTES_PER_FILE_BYTE} times its length plus {} MiB",
                    BYTES_BESIDE >> 20
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

/// The error of a system without memory.
pub(crate) fn no_memory(bytes: usize) -> Error {
    let source = std::io::ErrorKind::OutOfMemory.into();
    Error::Io { path: "memory".into(), action: format!("allocate {bytes} bytes"), source }
}

/// The error behind a fault of a parser, which may be that there is no memory.
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

/// Looks whether the system has so many bytes, for what is going to ask for them in a way that cannot be refused.
pub fn probe(bytes: usize) -> Result<(), Short> {
    if bytes < MAPPED {
        let mut block: Vec<u8> = Vec::new();
        block.try_reserve_exact(bytes).map_err(|_| Short::System(bytes))?;
        // Or the compiler sees that nothing is done with it, and leaves both halves out.
        black_box(block.as_mut_ptr());
        return Ok(());
    }
    // By way of the system, and not of the allocator, which would keep larger blocks from then on.
    match MmapOptions::new().len(bytes.max(1)).map_anon() {
        Ok(_) => Ok(()),
        Err(_) => Err(Short::System(bytes)),
    }
}

/// Room for `more` elements at the end of `vec`.
#[inline]
pub fn reserve<T>(vec: &mut Vec<T>, more: usize) -> Result<(), Short> {
    vec.try_reserve(more).map_err(|_| Short::System(more.saturating_mul(size_of::<T>())))
}

/// A list with room for exactly `count` elements.
pub fn list<T>(count: usize) -> Result<Vec<T>, Short> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| Short::System(count.saturating_mul(size_of::<T>())))?;
    Ok(list)
}

/// All elements of an iterator that knows how many they are.
pub fn collected<T>(elements: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, Short> {
    let mut collected = list(elements.len())?;
    collected.extend(elements);
    Ok(collected)
}

/// So many zeros. From the system they come as untouched pages, which an extra pass over them would cost.
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
    static GO_ON: Cell<fn() -> Result<()>> = const { Cell::new(|| Ok(())) };
}

/// Does `work`, the long loops of which ask `go_on` now and then on this thread; an error ends them.
pub fn interruptible<T>(go_on: fn() -> Result<()>, work: impl FnOnce() -> T) -> T {
    struct Restore(fn() -> Result<()>);
    impl Drop for Restore {
        fn drop(&mut self) {
            GO_ON.set(self.0);
        }
    }
    let _before = Restore(GO_ON.replace(go_on));
    work()
}

/// Looks now and then whether there is room for the small blocks of the next steps, and asks whether they are wanted: [`interruptible`].
#[derive(Debug, Clone)]
pub struct Pace(u32);

impl Default for Pace {
    fn default() -> Self {
        // Small files are read without a look.
        Self(STEPS / 16)
    }
}

impl Pace {
    /// One step of a long loop.
    #[inline]
    pub fn step(&mut self) -> Result<(), Short> {
        if self.0 > 0 {
            self.0 -= 1;
            return Ok(());
        }
        self.0 = STEPS;
        GO_ON.get()().map_err(|_| Short::Interrupted)?;
        probe(STEPS_BYTES)
    }
}

/// What the values of a file may still take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    most: usize,
    used: usize,
}

impl Budget {
    /// Of a file of so many bytes.
    pub fn of_file(bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Self::new(bytes.saturating_mul(BYTES_PER_FILE_BYTE).saturating_add(BYTES_BESIDE))
    }

    /// So many bytes.
    pub const fn new(most: usize) -> Self {
        Self { most, used: 0 }
    }

    /// Allows so many bytes more: of something else, which is gone.
    pub fn extend(&mut self, bytes: usize) {
        self.most = self.most.saturating_add(bytes);
    }

    /// The bytes that are left.
    pub const fn left(&self) -> usize {
        self.most.saturating_sub(self.used)
    }

    /// Counts what is going to be made.
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

    /// Counts what is gone again.
    pub fn give(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Memory for a moment: it must be allowed, and there.
    pub fn scratch(&self, bytes: usize) -> Result<(), Short> {
        if bytes > self.left() {
            return Err(Short::Budget(self.most));
        }
        if bytes > STEPS_BYTES / 8 { probe(bytes) } else { Ok(()) }
    }

    /// Room for `more` elements at the end of `vec`.
    #[inline]
    pub fn reserve<T>(&mut self, vec: &mut Vec<T>, more: usize) -> Result<(), Short> {
        if vec.capacity() - vec.len() >= more { Ok(()) } else { self.grow(vec, more) }
    }

    /// Room for `more` bytes at the end of `text`.
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

    /// How much a block grows, in elements; it is counted at once.
    #[cold]
    fn target(&mut self, capacity: usize, len: usize, more: usize, size: usize) -> Result<usize, Short> {
        const FIRST: usize = 4;
        /// Where half as much again is enough to keep the copying rare.
        const LARGE: usize = 1 << 20;
        let needed = len.saturating_add(more);
        let wanted = if capacity.saturating_mul(size) < LARGE { capacity * 2 } else { capacity + capacity / 2 };
        // While the old block is copied, both are there. What is left is taken at once where it is less than is wanted: growing step by step
        // would copy the block as often.
        let target = wanted.max(needed).max(FIRST).min(self.left() / size.max(1));
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

    /// Room for another entry of `map`.
    #[inline]
    pub fn entry<K: Eq + std::hash::Hash, V>(&mut self, map: &mut HashMap<K, V>) -> Result<(), Short> {
        if map.len() < map.capacity() { Ok(()) } else { self.widen(map) }
    }

    #[cold]
    fn widen<K: Eq + std::hash::Hash, V>(&mut self, map: &mut HashMap<K, V>) -> Result<(), Short> {
        let before = map_bytes(map);
        // Twice as many, and the old ones until they are moved.
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

/// The bytes behind a map: of eight places, seven are used at most, and each has a byte beside its entry.
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
