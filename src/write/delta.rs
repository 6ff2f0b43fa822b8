//! Deltas: what changed between two versions of a checkpoint, in one pass over both, in blocks, on all cores.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::layout::{Declared, Stored};
use super::output::Output;
use super::writer::Writer;
use super::{MAX_HEADER, Options};
use crate::buffer::Buffer;
use crate::checkpoint::{Checkpoint, Identity, hash_of_block};
use crate::delta::{BLOCK, Scratch, changes, differing};
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::format::delta::{self, Block, COLUMNS, Header};
use crate::load::Pieces;
use crate::rules;
use crate::source::Spooled;
use crate::tensor::{Element, TensorInfo, checked_bytes};
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// Blocks that a thread compares before it takes others.
const AT_A_TIME: u64 = 64;
/// What changed is in memory up to so many bytes, and in a temporary file beyond.
const IN_MEMORY: usize = 64 << 20;

/// A tensor of the new version.
#[derive(Debug)]
pub struct NewTensor<'a> {
    name: String,
    dtype: DType,
    shape: Vec<u64>,
    elements: Elements<'a>,
}

/// Where the elements of a tensor are, in C order.
#[derive(Debug)]
pub(super) enum Elements<'a> {
    File(Pieces<'a>),
    Memory(Buffer),
}

impl Elements<'_> {
    /// Fills `out` from one byte on.
    pub(super) fn read(&self, start: u64, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        match self {
            Self::File(pieces) => pieces.read(start / pieces.unit() as u64, out, interrupt),
            Self::Memory(buffer) => buffer.read_bytes(start as usize, out, interrupt),
        }
    }

    /// So many bytes from one byte on: where they are, or read into `room`. A mapping is read, since a file that is truncated is an error then.
    pub(super) fn piece<'a>(
        &'a self,
        start: u64,
        len: usize,
        room: &'a mut Vec<u8>,
        interrupt: Interrupt<'_>,
    ) -> Result<&'a [u8]> {
        if let Self::Memory(buffer) = self
            && !buffer.storage().is_mapped()
            && let Some(bytes) = buffer.bytes().and_then(|bytes| bytes.get(start as usize..start as usize + len))
        {
            return Ok(bytes);
        }
        room.resize(len, 0);
        self.read(start, room, interrupt)?;
        Ok(room)
    }

    fn check_unchanged(&self) -> Result<()> {
        match self {
            Self::File(pieces) => pieces.check_unchanged(),
            Self::Memory(_) => Ok(()),
        }
    }
}

/// The dtype of a tensor whose elements are plain.
fn dtype(checkpoint: &Checkpoint, info: &TensorInfo<'_>) -> Result<DType> {
    match info.element {
        // Groups of elements of six bits do not end where blocks do.
        Element::Plain(dtype) if dtype.bits() != 6 => Ok(dtype),
        element => {
            let cause = format!("elements of the type {element} have no deltas");
            let path = &checkpoint.catalog().files()[info.file as usize].path;
            Err(Diagnostic::new(rules::CAST_PAIR, cause).tensor(info.name).path(path).unsupported())
        }
    }
}

impl<'a> NewTensor<'a> {
    /// A tensor in memory; what is not contiguous is read in C order.
    pub fn in_memory(name: String, buffer: Buffer) -> Self {
        let shape = buffer.shape().iter().map(|dim| *dim as u64).collect();
        Self { name, dtype: buffer.dtype(), shape, elements: Elements::Memory(buffer) }
    }

    /// All tensors of a checkpoint.
    ///
    /// # Errors
    /// Tensors whose elements are not plain, such as packed blocks.
    pub fn of_checkpoint(checkpoint: &'a Checkpoint) -> Result<Vec<Self>> {
        let of_number = |(number, info): (usize, TensorInfo<'_>)| {
            let elements = Elements::File(Pieces::new(checkpoint, number)?);
            let (name, dtype) = (info.name.to_owned(), dtype(checkpoint, &info)?);
            Ok(Self { name, dtype, shape: info.shape.to_vec(), elements })
        };
        checkpoint.catalog().table().iter().enumerate().map(of_number).collect()
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What its elements are.
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where its elements are.
    pub(super) fn elements(&self) -> &Elements<'a> {
        &self.elements
    }

    /// Its bytes; none of one that has more than can be counted.
    #[expect(clippy::len_without_is_empty, reason = "it is not a collection")]
    pub fn len(&self) -> u64 {
        checked_bytes(&self.shape, self.dtype).unwrap_or_default()
    }

    fn bytes(&self) -> Result<u64> {
        checked_bytes(&self.shape, self.dtype)
            .ok_or_else(|| Error::Argument(format!("tensor '{}' has too many elements", text::shown(&self.name))))
    }
}

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
    /// Where their records are among those put aside, and how many bytes they have.
    records: (u64, usize),
    blocks: Vec<Block>,
    /// The hashes of all blocks of the new version; of the base, where it has such a tensor.
    base: Vec<u64>,
    target: Vec<u64>,
}

/// A tensor of the new version and the one of the base that it is compared with.
pub(super) struct Pair<'a> {
    pub(super) new: &'a NewTensor<'a>,
    pub(super) base: Option<Elements<'a>>,
    pub(super) bytes: u64,
    comparisons: Mutex<Vec<Comparison>>,
    /// Bytes of records.
    size: AtomicU64,
}

impl Pair<'_> {
    /// Bytes that are replaced as one.
    pub(super) fn width(&self) -> usize {
        delta::width(self.new.dtype)
    }

    fn block_bytes(&self) -> u64 {
        (BLOCK * self.width()) as u64
    }

    /// An error if a file is no longer the one that was opened.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        self.new.elements.check_unchanged()?;
        self.base.as_ref().map_or(Ok(()), Elements::check_unchanged)
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
            let Some(elements) = &self.base else {
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
        let records = (aside.push(records)?, records.len());
        let comparison = Comparison { first, records, blocks, base: of_base, target: of_target };
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

/// Records of all tensors, as they come, until it is known what is before them in the file.
struct Aside(Mutex<Spooled>);

impl Aside {
    /// Puts records aside; returns from where on they are there.
    fn push(&self, records: &[u8]) -> Result<u64> {
        let mut spooled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = spooled.len();
        spooled.push(records)?;
        Ok(start)
    }
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
    /// The blocks that changed, and where their records are among those put aside.
    Part {
        blocks: Vec<Block>,
        records: Vec<(u64, usize)>,
    },
}

/// Writes what changed from `base` to the new version as a delta at `path`; `done` counts the bytes of the new version that were compared.
///
/// Both are read once, in blocks. What changed waits in memory until all of it is known, and beyond 64 MiB in a temporary file. In the end nothing has
/// changed, or all of the delta is there.
///
/// # Errors
/// Tensors without plain elements, two of one name, names that would be those of a changed tensor; what reading and writing say.
pub fn delta(
    base: &Checkpoint,
    new: &[NewTensor<'_>],
    output: impl FnOnce(BTreeMap<String, String>) -> Output,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<DeltaSummary> {
    let mut order: Vec<&NewTensor<'_>> = new.iter().collect();
    order.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some([one, _]) = order.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(Error::Argument(format!("two tensors have the name '{}'", text::shown(&one.name))));
    }
    let pairs = order.into_iter().map(|new| pair(base, new)).collect::<Result<Vec<_>>>()?;
    let mut jobs: Vec<(&Pair<'_>, Range<u64>)> = Vec::new();
    for pair in &pairs {
        let starts = (0..pair.blocks()).step_by(AT_A_TIME as usize);
        jobs.extend(starts.map(|start| (pair, start..pair.blocks().min(start + AT_A_TIME))));
    }
    let aside = Aside(Mutex::new(Spooled::within(IN_MEMORY)));
    in_order(threads(), jobs, interrupt, |(pair, numbers), memory: &mut Memory, go_on| {
        let bytes = (numbers.end - numbers.start) * pair.block_bytes();
        pair.compare(numbers, memory, &aside, go_on)?;
        done.fetch_add(bytes.min(pair.bytes), Ordering::Relaxed);
        Ok(())
    })?;
    pairs.iter().try_for_each(Pair::check_unchanged)?;
    let aside = aside.0.into_inner().unwrap_or_else(PoisonError::into_inner);
    write(base, pairs, &aside, output, interrupt)
}

/// A tensor of the new version and that of the base, where that has one of the same dtype and shape.
pub(super) fn pair<'a>(base: &'a Checkpoint, new: &'a NewTensor<'a>) -> Result<Pair<'a>> {
    let catalog = base.catalog();
    let number = catalog.find(&new.name);
    let same = match number {
        None => None,
        Some(number) => {
            let info = catalog.table().get(number);
            let is_same = dtype(base, &info)? == new.dtype && info.shape == new.shape;
            is_same.then(|| Pieces::new(base, number)).transpose()?
        }
    };
    let (comparisons, size) = (Mutex::default(), AtomicU64::new(0));
    Ok(Pair { new, base: same.map(Elements::File), bytes: new.bytes()?, comparisons, size })
}

/// Writes what changed of all tensors, which are in the order of their names.
fn write(
    base: &Checkpoint,
    pairs: Vec<Pair<'_>>,
    aside: &Spooled,
    output: impl FnOnce(BTreeMap<String, String>) -> Output,
    interrupt: Interrupt<'_>,
) -> Result<DeltaSummary> {
    let (mut summary, mut declared, mut of_names) = (DeltaSummary::default(), Vec::new(), Vec::new());
    let (mut from, mut to) = (Identity::default(), Identity::default());
    let mut header = Header::new(String::new(), String::new());
    let mut of_base: BTreeMap<&str, usize> = BTreeMap::new();
    let catalog = base.catalog();
    for (number, info) in catalog.table().iter().enumerate() {
        of_base.insert(info.name, number);
    }
    let mut changes: BTreeMap<String, (Pair<'_>, Change)> = BTreeMap::new();
    for pair in pairs {
        let mut comparison = std::mem::take(&mut *pair.comparisons.lock().unwrap_or_else(PoisonError::into_inner));
        comparison.sort_unstable_by_key(|some| some.first);
        let NewTensor { name, dtype, shape, .. } = pair.new;
        to.add(name, *dtype, shape, comparison.iter().flat_map(|some| some.target.iter().copied()));
        let is_same = pair.base.is_some() && pair.size.load(Ordering::Relaxed) == 0;
        let change = if is_same {
            Change::Nothing
        } else if pair.is_whole() {
            Change::Whole
        } else {
            let (mut blocks, mut records, mut start) = (Vec::new(), Vec::new(), 0);
            for some in &comparison {
                blocks.extend(some.blocks.iter().map(|block| Block { start: block.start + start, ..*block }));
                start += some.records.1 as u64;
                records.push(some.records);
            }
            Change::Part { blocks, records }
        };
        of_names.push((name.clone(), comparison.into_iter().flat_map(|some| some.base).collect::<Vec<u64>>()));
        changes.insert(name.clone(), (pair, change));
    }
    // The identity of the base needs the hashes of what the new version has in another shape, or not at all.
    let hashes: BTreeMap<String, Vec<u64>> = of_names.into_iter().collect();
    for (name, number) in of_base {
        let info = catalog.table().get(number);
        let own = dtype(base, &info)?;
        let known = changes.get(name).is_some_and(|(pair, _)| pair.base.is_some());
        let blocks = match hashes.get(name).filter(|_| known) {
            Some(blocks) => blocks.clone(),
            None => hashes_of(base, number, own, interrupt)?,
        };
        from.add(name, own, info.shape, blocks);
        if !changes.contains_key(name) {
            header.removed.push(name.to_owned());
        }
    }
    (header.base, header.target) = (from.finish(), to.finish());
    for (name, (pair, change)) in &changes {
        let plain = |name: String, dtype, shape| Declared { name, stored: Stored::Plain(dtype), shape };
        match change {
            Change::Nothing => summary.unchanged += 1,
            Change::Whole => {
                summary.whole += 1;
                declared.push(plain(name.clone(), pair.new.dtype, pair.new.shape.clone()));
            }
            Change::Part { blocks, records } => {
                summary.changed += 1;
                let counts = blocks.iter().map(|block| block.lists.low.count + block.lists.whole.count);
                summary.elements += counts.map(u64::from).sum::<u64>();
                let bytes = records.iter().map(|(_, len)| *len as u64).sum();
                declared.push(plain(delta::changes_of(name), DType::UInt8, vec![bytes]));
                declared.push(plain(delta::blocks_of(name), DType::UInt64, vec![blocks.len() as u64, COLUMNS as u64]));
                let what = (pair.new.dtype.safetensors_name().to_owned(), pair.new.shape.clone());
                header.changed.insert(name.clone(), what);
            }
        }
    }
    summary.removed = header.removed.len();
    let json = header.to_json();
    if json.len() > MAX_HEADER {
        return Err(Error::Argument(format!("the delta has a header of {} bytes: no reader takes it", json.len())));
    }
    let output = output(BTreeMap::from([(delta::KEY.to_owned(), json)]));
    summary.files = output.write(&declared, base.opened(), false, interrupt, |writer, _| {
        changes.iter().try_for_each(|(name, (pair, change))| match change {
            Change::Nothing => Ok(()),
            Change::Whole => write_whole(writer, pair, interrupt),
            Change::Part { blocks, records } => {
                let (changes, mut start, mut room) = (delta::changes_of(name), 0, Vec::new());
                for (at, len) in records {
                    room.resize(*len, 0);
                    aside.read_at(*at, &mut room)?;
                    writer.write_bytes(&changes, start, &room, interrupt)?;
                    start += *len as u64;
                }
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
        writer.write_bytes(&pair.new.name, start, &bytes, interrupt)?;
    }
    writer.write_bytes(&pair.new.name, pair.bytes, &[], interrupt)
}

/// The hashes of the blocks of a tensor.
fn hashes_of(checkpoint: &Checkpoint, number: usize, dtype: DType, interrupt: Interrupt<'_>) -> Result<Vec<u64>> {
    let pieces = Pieces::new(checkpoint, number)?;
    let per_block = (BLOCK * delta::width(dtype) / pieces.unit()) as u64;
    let (mut block, mut hashes) = (Vec::new(), Vec::new());
    for start in (0..pieces.units()).step_by(per_block as usize) {
        interrupt()?;
        block.resize(per_block.min(pieces.units() - start) as usize * pieces.unit(), 0);
        pieces.read(start, &mut block, interrupt)?;
        hashes.push(hash_of_block(&block));
    }
    pieces.check_unchanged()?;
    Ok(hashes)
}

/// The identity of a checkpoint, as deltas have it of their base and their target: 32 hexadecimal digits. Every byte is read, on all cores.
///
/// # Errors
/// Tensors without plain elements; what reading says.
pub fn identity(checkpoint: &Checkpoint, done: &AtomicU64, interrupt: Interrupt<'_>) -> Result<String> {
    let catalog = checkpoint.catalog();
    let mut names: Vec<(&str, usize)> = catalog.table().iter().enumerate().map(|(n, info)| (info.name, n)).collect();
    names.sort_unstable();
    let all: Mutex<BTreeMap<&str, Vec<u64>>> = Mutex::default();
    in_order(threads(), names.clone(), interrupt, |(name, number), (): &mut (), go_on| {
        let info = catalog.table().get(number);
        let hashes = hashes_of(checkpoint, number, dtype(checkpoint, &info)?, go_on)?;
        all.lock().unwrap_or_else(PoisonError::into_inner).insert(name, hashes);
        done.fetch_add(info.bytes(), Ordering::Relaxed);
        Ok(())
    })?;
    let mut identity = Identity::default();
    let mut hashes = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (name, number) in names {
        let info = catalog.table().get(number);
        identity.add(name, dtype(checkpoint, &info)?, info.shape, hashes.remove(name).unwrap_or_default());
    }
    Ok(identity.finish())
}

/// One safetensors file of this path, as a delta is written.
pub fn delta_file(path: PathBuf, options: Options) -> impl FnOnce(BTreeMap<String, String>) -> Output {
    move |metadata| Output::Safetensors { path, metadata: Some(metadata), options }
}
