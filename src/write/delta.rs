//! Creates deltas: compares two versions of a checkpoint in one pass, in blocks, on all cores.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::layout::{DeclaredTensor, FileLayout, StoredElements, TensorPlacement};
use super::output::SaveTarget;
use super::spill::{Spill, SpilledPieces};
use super::version::{ElementSource, VersionTensor, VersionTensors};
use super::writer::TensorFileWriter;
use super::{MAX_HEADER, WriteOptions, check_safetensors_name};
use crate::checkpoint::{CheckpointIdentity, hash_of_block};
use crate::delta::{ChangeScratch, changes, differing};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::delta::{self, COLUMNS, ChangedBlock, DeltaHeader};
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// Blocks per task of a thread.
const AT_A_TIME: u64 = 64;

/// A summary of a delta.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeltaSummary {
    /// The identity of the base.
    pub base: String,
    /// The identity of the new version.
    pub target: String,
    /// The number of tensors with some changed elements.
    pub changed: usize,
    /// The number of tensors that are stored whole: new ones, and those that mostly changed.
    pub whole: usize,
    /// The number of tensors of the base that the new version lacks.
    pub removed: usize,
    /// The number of unchanged tensors.
    pub unchanged: usize,
    /// The number of replaced elements in partly changed tensors.
    pub elements: u64,
    /// The files written.
    pub files: Vec<PathBuf>,
}

/// The comparison of some blocks of a tensor.
struct Comparison {
    first: u64,
    /// Their records, which are spilled.
    records: SpilledPieces,
    blocks: Vec<ChangedBlock>,
    /// The hashes of all blocks of the new version, and of the base if it has the tensor.
    base: Vec<u64>,
    target: Vec<u64>,
}

/// A tensor of the new version, and the tensor of the base that it is compared with.
pub(super) struct VersionPair<'a> {
    pub(super) name: &'a str,
    pub(super) new: &'a VersionTensor<'a>,
    pub(super) base: Option<&'a ElementSource<'a>>,
    pub(super) bytes: u64,
    comparisons: Mutex<Vec<Comparison>>,
    /// The bytes of all records.
    size: AtomicU64,
}

impl<'a> VersionPair<'a> {
    /// Pairs a tensor of the new version with that of the base, if it has the same dtype and shape.
    pub(super) fn new(base: &'a VersionTensors<'a>, name: &'a str, new: &'a VersionTensor<'a>) -> Result<Self> {
        let same = base.tensors.get(name).filter(|base| (base.dtype, &base.shape) == (new.dtype, &new.shape));
        let (comparisons, size) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self { name, new, base: same.map(|base| &base.elements), bytes: new.bytes(name)?, comparisons, size })
    }

    /// The size of what is replaced together, in bytes.
    pub(super) fn width(&self) -> usize {
        delta::width(self.new.dtype)
    }

    fn block_bytes(&self) -> u64 {
        self.new.block_bytes()
    }

    /// Fails if a file was replaced or changed after it was opened.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        self.new.elements.check_unchanged()?;
        self.base.map_or(Ok(()), ElementSource::check_unchanged)
    }

    fn blocks(&self) -> u64 {
        self.bytes.div_ceil(self.block_bytes())
    }

    /// Whether the whole tensor takes fewer bytes than its records.
    fn is_whole(&self) -> bool {
        self.base.is_none() || self.size.load(Ordering::Relaxed) >= self.bytes / 4 * 3
    }

    fn compare(
        &self,
        numbers: Range<u64>,
        memory: &mut DeltaMemory,
        spill: &Spill,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let (width, size) = (self.width(), self.block_bytes());
        let (mut blocks, mut of_base, mut of_target) = (Vec::new(), Vec::new(), Vec::new());
        let (first, DeltaMemory { base, new, scratch, records }) = (numbers.start, memory);
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
            let record = hash_of_block(records.get(start as usize..).unwrap_or_default());
            blocks.extend(lists.map(|lists| ChangedBlock { number, start, lists, base, target, record }));
        }
        self.size.fetch_add(records.len() as u64, Ordering::Relaxed);
        if self.is_whole() {
            blocks = Vec::new();
            records.clear();
        }
        let mut pieces = SpilledPieces::default();
        spill.push(records, &mut pieces)?;
        let comparison = Comparison { first, records: pieces, blocks, base: of_base, target: of_target };
        self.comparisons.lock().unwrap_or_else(PoisonError::into_inner).push(comparison);
        Ok(())
    }
}

/// The differing elements of a block, and their new values.
pub(super) fn compared<'a>(
    old: &[u8],
    new: &[u8],
    width: usize,
    scratch: &'a mut ChangeScratch,
) -> Result<(&'a [u16], &'a [u8])> {
    differing(old, new, width, scratch).map_err(|error| Error::Argument(error.to_string()))
}

/// What a thread keeps between blocks.
#[derive(Default)]
struct DeltaMemory {
    base: Vec<u8>,
    new: Vec<u8>,
    scratch: ChangeScratch,
    records: Vec<u8>,
}

/// The stored change of a tensor.
enum WrittenChange {
    Nothing,
    /// The hashes of all blocks.
    Whole(Vec<u64>),
    /// The changed blocks and their records.
    Part {
        blocks: Vec<ChangedBlock>,
        records: SpilledPieces,
    },
}

/// Writes the changes from `base` to the new version as a delta, one safetensors file; `done` counts the compared bytes of the new version.
///
/// `folded`: the versions between the two, if the delta replaces a chain. Both versions are read once, in blocks. Changes are kept in memory, and
/// beyond 64 MiB spill to a temporary file. On failure nothing has changed.
///
/// # Errors
/// A path that is an input, or inside one; names reserved for changed tensors; read and write errors.
pub fn delta(
    base: &VersionTensors<'_>,
    new: &VersionTensors<'_>,
    folded: Vec<String>,
    (path, options): (&Path, WriteOptions),
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<DeltaSummary> {
    check_safetensors_name(path)?;
    base.check_target(path).and_then(|()| new.check_target(path))?;
    let names = base.tensors.keys().chain(new.tensors.keys());
    if let Some(name) = names.into_iter().find(|name| name.starts_with(delta::PREFIX)) {
        let name = text::escape(name);
        return Err(Error::Argument(format!(
            "tensor '{name}': names under '{}' are reserved for deltas; rename it",
            delta::PREFIX
        )));
    }
    let pairs = new.tensors.iter().map(|(name, new)| VersionPair::new(base, name, new)).collect::<Result<Vec<_>>>()?;
    let mut jobs: Vec<(&VersionPair<'_>, Range<u64>)> = Vec::new();
    for pair in &pairs {
        let starts = (0..pair.blocks()).step_by(AT_A_TIME as usize);
        jobs.extend(starts.map(|start| (pair, start..pair.blocks().min(start + AT_A_TIME))));
    }
    let spill = Spill::new();
    in_order(threads(), jobs, interrupt, |(pair, numbers), memory: &mut DeltaMemory, cancel| {
        let bytes = (numbers.end - numbers.start) * pair.block_bytes();
        pair.compare(numbers, memory, &spill, cancel)?;
        done.fetch_add(bytes.min(pair.bytes), Ordering::Relaxed);
        Ok(())
    })?;
    pairs.iter().try_for_each(VersionPair::check_unchanged)?;
    write(base, pairs, &spill, folded, (path, options), interrupt)
}

/// Writes the changes of all tensors, in the order of their names.
fn write(
    base: &VersionTensors<'_>,
    pairs: Vec<VersionPair<'_>>,
    spill: &Spill,
    folded: Vec<String>,
    (path, options): (&Path, WriteOptions),
    interrupt: Interrupt<'_>,
) -> Result<DeltaSummary> {
    let (mut summary, mut declared) = (DeltaSummary::default(), Vec::new());
    let mut target = CheckpointIdentity::default();
    let mut header = DeltaHeader::new(String::new(), String::new());
    let mut changes: BTreeMap<&str, (VersionPair<'_>, WrittenChange)> = BTreeMap::new();
    let mut hashes: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for pair in pairs {
        let name = pair.name;
        let mut comparison = std::mem::take(&mut *pair.comparisons.lock().unwrap_or_else(PoisonError::into_inner));
        comparison.sort_unstable_by_key(|some| some.first);
        let VersionTensor { dtype, shape, .. } = pair.new;
        target.add(name, *dtype, shape, comparison.iter().flat_map(|some| some.target.iter().copied()));
        let is_same = pair.base.is_some() && pair.size.load(Ordering::Relaxed) == 0;
        let change = if is_same {
            WrittenChange::Nothing
        } else if pair.is_whole() {
            WrittenChange::Whole(comparison.iter().flat_map(|some| some.target.iter().copied()).collect())
        } else {
            let (mut blocks, mut records) = (Vec::new(), SpilledPieces::default());
            for some in &mut comparison {
                let start = records.len();
                blocks.extend(some.blocks.iter().map(|block| ChangedBlock { start: block.start + start, ..*block }));
                records.append(&mut some.records);
            }
            WrittenChange::Part { blocks, records }
        };
        if pair.base.is_some() {
            hashes.insert(name, comparison.into_iter().flat_map(|some| some.base).collect());
        }
        changes.insert(name, (pair, change));
    }
    let (identity, samples) = base.identity_and_samples(|name| hashes.remove(name), interrupt)?;
    (header.base, header.samples, header.folded) = (identity, samples, folded);
    header.target = target.finish();
    header.removed = base.tensors.keys().filter(|name| !changes.contains_key(&***name)).cloned().collect();
    header.base_tensors = base.tensors_digest().digits();
    let is_same = |(_, change): &(VersionPair<'_>, WrittenChange)| matches!(change, WrittenChange::Nothing);
    let unchanged = changes.iter().filter(|(_, change)| is_same(change)).map(|(name, _)| *name);
    let unchanged = delta::unchanged_names(unchanged);
    header.unchanged = delta::digest_of(&unchanged);
    let mut rows_of: BTreeMap<String, Vec<u8>> = BTreeMap::from([(delta::UNCHANGED.to_owned(), unchanged)]);
    for (name, (pair, change)) in &changes {
        let plain = |name: String, dtype, shape| DeclaredTensor { name, stored: StoredElements::Plain(dtype), shape };
        match change {
            WrittenChange::Nothing => summary.unchanged += 1,
            WrittenChange::Whole(hashes) => {
                summary.whole += 1;
                declared.push(plain(delta::values_of(name), pair.new.dtype, pair.new.shape.clone()));
                let blocks =
                    hashes.iter().enumerate().map(|(number, hash)| ChangedBlock::of_values(number as u64, *hash));
                let rows: Vec<u8> = blocks.flat_map(|block| block.row()).flat_map(u64::to_le_bytes).collect();
                header.whole.insert((*name).to_owned(), delta::digest_of(&rows));
                rows_of.insert(delta::blocks_of(name), rows);
            }
            WrittenChange::Part { blocks, records } => {
                summary.changed += 1;
                let counts = blocks.iter().map(|block| block.lists.low.count + block.lists.whole.count);
                summary.elements += counts.map(u64::from).sum::<u64>();
                declared.push(plain(delta::changes_of(name), DType::UInt8, vec![records.len()]));
                let rows: Vec<u8> = blocks.iter().flat_map(ChangedBlock::row).flat_map(u64::to_le_bytes).collect();
                let dtype = pair.new.dtype.safetensors_name().to_owned();
                header.changed.insert((*name).to_owned(), (dtype, pair.new.shape.clone(), delta::digest_of(&rows)));
                rows_of.insert(delta::blocks_of(name), rows);
            }
        }
    }
    for (name, rows) in &rows_of {
        let count = rows.len() as u64 / 8;
        let is_rows = name != delta::UNCHANGED;
        let shape = if is_rows { vec![count / COLUMNS as u64, COLUMNS as u64] } else { vec![count] };
        declared.push(DeclaredTensor { name: name.clone(), stored: StoredElements::Plain(DType::UInt64), shape });
    }
    summary.removed = header.removed.len();
    let metadata = Some(metadata(&header, &declared, &options)?);
    let output = SaveTarget::Safetensors { path: path.to_path_buf(), metadata, options };
    summary.files = output.write(&declared, base.opened, false, interrupt, |writer, _| {
        changes.iter().try_for_each(|(name, (pair, change))| match change {
            WrittenChange::Nothing => Ok(()),
            WrittenChange::Whole(hashes) => write_whole(writer, pair, hashes, interrupt),
            WrittenChange::Part { records, .. } => {
                spill.write(records, writer, &delta::changes_of(name), |bytes| bytes, interrupt)
            }
        })?;
        rows_of.iter().try_for_each(|(name, rows)| writer.write_bytes(name, 0, rows, interrupt))
    })?;
    (summary.base, summary.target) = (header.base, header.target);
    Ok(summary)
}

/// The metadata of a delta of these tensors: its description, and the digest of the whole header.
fn metadata(
    header: &DeltaHeader,
    declared: &[DeclaredTensor],
    options: &WriteOptions,
) -> Result<BTreeMap<String, String>> {
    let json = header.to_json();
    if json.len() > MAX_HEADER {
        return Err(Error::Argument(format!("the delta has a header of {} bytes: no reader takes it", json.len())));
    }
    // The digest covers the offsets of tensors, too, which depend only on its length.
    let mut metadata =
        BTreeMap::from([(delta::KEY.to_owned(), json.clone()), (delta::DIGEST.to_owned(), "0".repeat(32))]);
    let layout = FileLayout::safetensors(declared.iter().cloned(), Some(&metadata), options)?;
    let tensors = layout.places().iter().map(|TensorPlacement { tensor, bytes }| {
        let StoredElements::Plain(dtype) = tensor.stored else {
            return (&*tensor.name, String::new(), &*tensor.shape, 0, 0);
        };
        (&*tensor.name, dtype.safetensors_name().to_owned(), &*tensor.shape, bytes.start, bytes.end)
    });
    let digest = delta::digest_of_header(&json, tensors);
    metadata.insert(delta::DIGEST.to_owned(), digest);
    Ok(metadata)
}

fn write_whole(
    writer: &TensorFileWriter,
    pair: &VersionPair<'_>,
    hashes: &[u64],
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let (mut bytes, name) = (Vec::new(), delta::values_of(pair.name));
    for (start, hash) in (0..pair.bytes).step_by(pair.block_bytes() as usize).zip(hashes) {
        interrupt()?;
        bytes.resize(pair.block_bytes().min(pair.bytes - start) as usize, 0);
        pair.new.elements.read(start, &mut bytes, interrupt)?;
        if hash_of_block(&bytes) != *hash {
            let name = text::escape(pair.name);
            return Err(Error::Argument(format!("tensor '{name}' was written to while the delta of it was made")));
        }
        writer.write_bytes(&name, start, &bytes, interrupt)?;
    }
    writer.write_bytes(&name, pair.bytes, &[], interrupt)
}
