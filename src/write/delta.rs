//! Deltas: what changed between two versions of a checkpoint, in one pass over both, in blocks, on all cores.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::aside::{Aside, Pieces};
use super::layout::{Declared, Stored};
use super::output::Output;
use super::version::{Elements, Version, VersionTensor};
use super::writer::Writer;
use super::{MAX_HEADER, Options, check_safetensors_name};
use crate::checkpoint::{Identity, hash_of_block};
use crate::delta::{Scratch, changes, differing};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::delta::{self, Block, COLUMNS, Header};
use crate::workers::{Interrupt, in_order, threads};

/// Blocks that a thread compares before it takes others.
const AT_A_TIME: u64 = 64;

/// What a delta has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeltaSummary {
    /// The identities of both versions.
    pub base: String,
    /// Of the new one.
    pub target: String,
    /// Tensors of which some elements changed.
    pub changed: usize,
    /// Tensors of which most changed, and those that the base has not, with all of their elements.
    pub whole: usize,
    /// Tensors of the base that the new version has not.
    pub removed: usize,
    /// Tensors that are the same in both.
    pub unchanged: usize,
    /// Elements that are replaced in those that changed in part.
    pub elements: u64,
    /// The files that were written.
    pub files: Vec<PathBuf>,
}

/// Some blocks of a tensor, compared.
struct Comparison {
    first: u64,
    /// Their records, which are put aside.
    records: Pieces,
    blocks: Vec<Block>,
    /// The hashes of all blocks of the new version; of the base, where it has such a tensor.
    base: Vec<u64>,
    target: Vec<u64>,
}

/// A tensor of the new version and the one of the base that it is compared with.
pub(super) struct Pair<'a> {
    pub(super) name: &'a str,
    pub(super) new: &'a VersionTensor<'a>,
    pub(super) base: Option<&'a Elements<'a>>,
    pub(super) bytes: u64,
    comparisons: Mutex<Vec<Comparison>>,
    /// Bytes of records.
    size: AtomicU64,
}

impl<'a> Pair<'a> {
    /// A tensor of the new version and that of the base, where that has one of the same dtype and shape.
    pub(super) fn new(base: &'a Version<'a>, name: &'a str, new: &'a VersionTensor<'a>) -> Result<Self> {
        let same = base.tensors.get(name).filter(|base| (base.dtype, &base.shape) == (new.dtype, &new.shape));
        let (comparisons, size) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self { name, new, base: same.map(|base| &base.elements), bytes: new.bytes(name)?, comparisons, size })
    }

    /// Bytes that are replaced as one.
    pub(super) fn width(&self) -> usize {
        delta::width(self.new.dtype)
    }

    fn block_bytes(&self) -> u64 {
        self.new.block_bytes()
    }

    /// An error if a file is no longer the one that was opened.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        self.new.elements.check_unchanged()?;
        self.base.map_or(Ok(()), Elements::check_unchanged)
    }

    fn blocks(&self) -> u64 {
        self.bytes.div_ceil(self.block_bytes())
    }

    /// Whether it takes fewer bytes to write it as it is.
    fn is_whole(&self) -> bool {
        self.base.is_none() || self.size.load(Ordering::Relaxed) >= self.bytes / 4 * 3
    }

    fn compare(&self, numbers: Range<u64>, memory: &mut Memory, aside: &Aside, interrupt: Interrupt<'_>) -> Result<()> {
        let (width, size) = (self.width(), self.block_bytes());
        let (mut blocks, mut of_base, mut of_target) = (Vec::new(), Vec::new(), Vec::new());
        let (first, Memory { base, new, scratch, records }) = (numbers.start, memory);
        records.clear();
        for number in numbers {
            let start = number * size;
            let len = size.min(self.bytes - start) as usize;
            let new = self.new.elements.piece(start, len, new, interrupt)?;
            let Some(elements) = self.base else {
                of_target.push(hash_of_block(new));
                continue;
            };
            let base = elements.piece(start, len, base, interrupt)?;
            let start = records.len() as u64;
            let lists =
                changes(base, new, width, scratch, records).map_err(|error| Error::Argument(error.to_string()))?;
            let base = hash_of_block(base);
            let target = if lists.is_some() { hash_of_block(new) } else { base };
            of_base.push(base);
            of_target.push(target);
            blocks.extend(lists.map(|lists| Block { number, start, lists, base, target }));
        }
        self.size.fetch_add(records.len() as u64, Ordering::Relaxed);
        if self.is_whole() {
            blocks = Vec::new();
            records.clear();
        }
        let mut pieces = Pieces::default();
        aside.push(records, &mut pieces)?;
        let comparison = Comparison { first, records: pieces, blocks, base: of_base, target: of_target };
        self.comparisons.lock().unwrap_or_else(PoisonError::into_inner).push(comparison);
        Ok(())
    }
}

/// The elements of a block that differ, and what they are now.
pub(super) fn compared<'a>(
    old: &[u8],
    new: &[u8],
    width: usize,
    scratch: &'a mut Scratch,
) -> Result<(&'a [u16], &'a [u8])> {
    differing(old, new, width, scratch).map_err(|error| Error::Argument(error.to_string()))
}

/// What a thread keeps between blocks.
#[derive(Default)]
struct Memory {
    base: Vec<u8>,
    new: Vec<u8>,
    scratch: Scratch,
    records: Vec<u8>,
}

/// What is written of a tensor.
enum Change {
    Nothing,
    Whole,
    /// The blocks that changed, and their records.
    Part {
        blocks: Vec<Block>,
        records: Pieces,
    },
}

/// Writes what changed from `base` to the new version as a delta, one safetensors file; `done` counts the bytes of the new version that were compared.
///
/// Both are read once, in blocks. What changed waits in memory until all of it is known, and beyond 64 MiB in a temporary file. In the end nothing has
/// changed, or all of the delta is there.
///
/// # Errors
/// A path that is one of what is read, or lies in it; names that would be those of a changed tensor; what reading and writing say.
pub fn delta(
    base: &Version<'_>,
    new: &Version<'_>,
    (path, options): (&Path, Options),
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<DeltaSummary> {
    check_safetensors_name(path)?;
    base.check_target(path).and_then(|()| new.check_target(path))?;
    let pairs = new.tensors.iter().map(|(name, new)| Pair::new(base, name, new)).collect::<Result<Vec<_>>>()?;
    let mut jobs: Vec<(&Pair<'_>, Range<u64>)> = Vec::new();
    for pair in &pairs {
        let starts = (0..pair.blocks()).step_by(AT_A_TIME as usize);
        jobs.extend(starts.map(|start| (pair, start..pair.blocks().min(start + AT_A_TIME))));
    }
    let aside = Aside::new();
    in_order(threads(), jobs, interrupt, |(pair, numbers), memory: &mut Memory, go_on| {
        let bytes = (numbers.end - numbers.start) * pair.block_bytes();
        pair.compare(numbers, memory, &aside, go_on)?;
        done.fetch_add(bytes.min(pair.bytes), Ordering::Relaxed);
        Ok(())
    })?;
    pairs.iter().try_for_each(Pair::check_unchanged)?;
    write(base, pairs, &aside, (path, options), interrupt)
}

/// Writes what changed of all tensors, which are in the order of their names.
fn write(
    base: &Version<'_>,
    pairs: Vec<Pair<'_>>,
    aside: &Aside,
    (path, options): (&Path, Options),
    interrupt: Interrupt<'_>,
) -> Result<DeltaSummary> {
    let (mut summary, mut declared) = (DeltaSummary::default(), Vec::new());
    let mut target = Identity::default();
    let mut header = Header::new(String::new(), String::new());
    let mut changes: BTreeMap<&str, (Pair<'_>, Change)> = BTreeMap::new();
    let mut hashes: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for pair in pairs {
        let name = pair.name;
        let mut comparison = std::mem::take(&mut *pair.comparisons.lock().unwrap_or_else(PoisonError::into_inner));
        comparison.sort_unstable_by_key(|some| some.first);
        let VersionTensor { dtype, shape, .. } = pair.new;
        target.add(name, *dtype, shape, comparison.iter().flat_map(|some| some.target.iter().copied()));
        let is_same = pair.base.is_some() && pair.size.load(Ordering::Relaxed) == 0;
        let change = if is_same {
            Change::Nothing
        } else if pair.is_whole() {
            Change::Whole
        } else {
            let (mut blocks, mut records) = (Vec::new(), Pieces::default());
            for some in &mut comparison {
                let start = records.len();
                blocks.extend(some.blocks.iter().map(|block| Block { start: block.start + start, ..*block }));
                records.append(&mut some.records);
            }
            Change::Part { blocks, records }
        };
        if pair.base.is_some() {
            hashes.insert(name, comparison.into_iter().flat_map(|some| some.base).collect());
        }
        changes.insert(name, (pair, change));
    }
    header.base = base.identity_with(|name| hashes.remove(name), interrupt)?;
    header.target = target.finish();
    header.removed = base.tensors.keys().filter(|name| !changes.contains_key(&***name)).cloned().collect();
    for (name, (pair, change)) in &changes {
        let plain = |name: String, dtype, shape| Declared { name, stored: Stored::Plain(dtype), shape };
        match change {
            Change::Nothing => summary.unchanged += 1,
            Change::Whole => {
                summary.whole += 1;
                declared.push(plain((*name).to_owned(), pair.new.dtype, pair.new.shape.clone()));
            }
            Change::Part { blocks, records } => {
                summary.changed += 1;
                let counts = blocks.iter().map(|block| block.lists.low.count + block.lists.whole.count);
                summary.elements += counts.map(u64::from).sum::<u64>();
                declared.push(plain(delta::changes_of(name), DType::UInt8, vec![records.len()]));
                declared.push(plain(delta::blocks_of(name), DType::UInt64, vec![blocks.len() as u64, COLUMNS as u64]));
                let what = (pair.new.dtype.safetensors_name().to_owned(), pair.new.shape.clone());
                header.changed.insert((*name).to_owned(), what);
            }
        }
    }
    summary.removed = header.removed.len();
    let json = header.to_json();
    if json.len() > MAX_HEADER {
        return Err(Error::Argument(format!("the delta has a header of {} bytes: no reader takes it", json.len())));
    }
    let metadata = Some(BTreeMap::from([(delta::KEY.to_owned(), json)]));
    let output = Output::Safetensors { path: path.to_path_buf(), metadata, options };
    summary.files = output.write(&declared, base.opened, false, interrupt, |writer, _| {
        changes.iter().try_for_each(|(name, (pair, change))| match change {
            Change::Nothing => Ok(()),
            Change::Whole => write_whole(writer, pair, interrupt),
            Change::Part { blocks, records } => {
                aside.write(records, writer, &delta::changes_of(name), |_, bytes| bytes, interrupt)?;
                let rows: Vec<u8> = blocks.iter().flat_map(Block::row).flat_map(u64::to_le_bytes).collect();
                writer.write_bytes(&delta::blocks_of(name), 0, &rows, interrupt)
            }
        })
    })?;
    (summary.base, summary.target) = (header.base, header.target);
    Ok(summary)
}

fn write_whole(writer: &Writer, pair: &Pair<'_>, interrupt: Interrupt<'_>) -> Result<()> {
    let mut bytes = Vec::new();
    let size = pair.block_bytes() * AT_A_TIME;
    for start in (0..pair.bytes).step_by(size as usize) {
        interrupt()?;
        bytes.resize(size.min(pair.bytes - start) as usize, 0);
        pair.new.elements.read(start, &mut bytes, interrupt)?;
        writer.write_bytes(pair.name, start, &bytes, interrupt)?;
    }
    writer.write_bytes(pair.name, pair.bytes, &[], interrupt)
}
