//! The two versions of a checkpoint that a delta connects: tensors of files, or in memory.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::inputs::WriteInputs;
use crate::buffer::Buffer;
use crate::checkpoint::{Checkpoint, CheckpointIdentity, DeltaDialect, OpenOptions, OpenedDelta, hash_of_block};
use crate::delta::BLOCK;
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::format::delta::{self, MAX_SAMPLES, Sample, TensorsDigest};
use crate::load::PieceReader;
use crate::memory::FileMappings;
use crate::rules;
use crate::tensor::{Element, TensorInfo, checked_bytes};
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// The tensors of a version, by name.
#[derive(Debug, Default)]
pub struct VersionTensors<'a> {
    pub(super) tensors: BTreeMap<String, VersionTensor<'a>>,
    /// The input paths, which must not be overwritten.
    pub(super) opened: &'a [PathBuf],
    inputs: WriteInputs,
    /// Whether its checkpoint has deltas.
    has_deltas: bool,
}

/// A tensor of a version.
#[derive(Debug)]
pub(super) struct VersionTensor<'a> {
    pub(super) dtype: DType,
    pub(super) shape: Vec<u64>,
    pub(super) elements: ElementSource<'a>,
}

/// The source of a tensor's elements, in C order.
#[derive(Debug)]
pub(super) enum ElementSource<'a> {
    File(PieceReader<'a>),
    Memory(Buffer),
}

impl<'a> VersionTensors<'a> {
    /// All tensors of a checkpoint.
    ///
    /// # Errors
    /// Tensors whose elements are not plain, such as packed blocks.
    pub fn of_checkpoint(checkpoint: &'a Checkpoint) -> Result<Self> {
        let of_number = |(number, info): (usize, TensorInfo<'_>)| {
            let elements = ElementSource::File(PieceReader::new(checkpoint, number)?);
            let dtype = plain(info.element).map_err(|fault| {
                fault.tensor(info.name).path(&checkpoint.catalog().files()[info.file as usize].path).unsupported()
            })?;
            Ok((info.name.to_owned(), VersionTensor { dtype, shape: info.shape.to_vec(), elements }))
        };
        let tensors = checkpoint.catalog().table().iter().enumerate().map(of_number).collect::<Result<_>>()?;
        let (inputs, has_deltas) =
            (WriteInputs::of_checkpoint(checkpoint), checkpoint.catalog().changed_by_deltas().is_some());
        Ok(Self { tensors, opened: checkpoint.opened(), inputs, has_deltas })
    }

    /// Tensors in memory; non-contiguous ones are read in C order.
    ///
    /// # Errors
    /// Two of one name; elements of six bits.
    pub fn in_memory(buffers: impl IntoIterator<Item = (String, Buffer)>) -> Result<Self> {
        let mut version = Self::default();
        for (name, buffer) in buffers {
            plain(Element::Plain(buffer.dtype())).map_err(|fault| fault.tensor(&name).unsupported())?;
            let shape = buffer.shape().iter().map(|dim| *dim as u64).collect();
            let tensor = VersionTensor { dtype: buffer.dtype(), shape, elements: ElementSource::Memory(buffer) };
            if version.tensors.contains_key(&name) {
                return Err(Error::Argument(format!("two tensors have the name '{}'", text::escape(&name))));
            }
            version.tensors.insert(name, tensor);
        }
        Ok(version)
    }

    /// Fails if a delta at this path would overwrite a file of the version, or be in one of its folders. For tensors in memory, their mapped files
    /// are protected.
    ///
    /// # Errors
    /// The target conflicts with an input.
    pub fn check_target(&self, target: &Path) -> Result<()> {
        let mappings = FileMappings::now();
        let mapped = self.tensors.values().filter_map(|tensor| match &tensor.elements {
            ElementSource::Memory(buffer) => mappings.file_of(buffer.storage()),
            ElementSource::File(_) => None,
        });
        self.inputs.clone().and_mapped(mapped).check(target)
    }

    /// The bytes of all tensors, except for those that overflow.
    pub fn bytes(&self) -> u64 {
        let bytes = self.tensors.iter().map(|(name, tensor)| tensor.bytes(name).unwrap_or_default());
        bytes.fold(0, u64::saturating_add)
    }

    /// Its identity, as deltas record it: 32 hexadecimal digits. Every byte is read, on all cores; `done` counts them.
    ///
    /// # Errors
    /// A read error.
    pub fn identity(&self, done: &AtomicU64, interrupt: Interrupt<'_>) -> Result<String> {
        self.identity_of_hashes(&self.hashes(|_| true, done, interrupt)?)
    }

    /// The block hashes of the tensors whose names `is_requested` selects, on all cores.
    pub(super) fn hashes(
        &self,
        is_requested: impl Fn(&str) -> bool,
        done: &AtomicU64,
        interrupt: Interrupt<'_>,
    ) -> Result<BTreeMap<String, Vec<u64>>> {
        let all: Mutex<BTreeMap<String, Vec<u64>>> = Mutex::default();
        let jobs = self.tensors.iter().filter(|(name, _)| is_requested(name)).collect();
        in_order(threads(), jobs, interrupt, |(name, tensor): (&String, _), (): &mut (), cancel| {
            let tensor: &VersionTensor<'_> = tensor;
            let hashes = tensor.hashes(name, cancel)?;
            all.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), hashes);
            done.fetch_add(tensor.bytes(name)?, Ordering::Relaxed);
            Ok(())
        })?;
        Ok(all.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Its identity, computed from the block hashes of all tensors.
    pub(super) fn identity_of_hashes(&self, hashes: &BTreeMap<String, Vec<u64>>) -> Result<String> {
        let mut identity = CheckpointIdentity::default();
        for (name, tensor) in &self.tensors {
            let Some(hashes) = hashes.get(name) else {
                return Err(Error::Argument(format!("the hashes of tensor '{}' are not known", text::escape(name))));
            };
            identity.add(name, tensor.dtype, &tensor.shape, hashes.iter().copied());
        }
        Ok(identity.finish())
    }

    /// The digest of its names, dtypes and shapes.
    pub(super) fn tensors_digest(&self) -> TensorsDigest {
        let mut digest = TensorsDigest::default();
        for (name, tensor) in &self.tensors {
            digest.add(name, tensor.dtype.safetensors_name(), &tensor.shape);
        }
        digest
    }

    /// Its identity, and sample blocks that distinguish it from other versions. The block hashes of some tensors are passed; the others are read.
    pub(super) fn identity_and_samples(
        &self,
        mut known: impl FnMut(&str) -> Option<Vec<u64>>,
        interrupt: Interrupt<'_>,
    ) -> Result<(String, Vec<Sample>)> {
        let (mut identity, mut samples) = (CheckpointIdentity::default(), Vec::new());
        let changed: HashSet<(String, u64)> = self.changed_before(interrupt)?.into_iter().collect();
        let blocks =
            |(name, tensor): (&String, &VersionTensor<'_>)| Ok(tensor.bytes(name)?.div_ceil(tensor.block_bytes()));
        let all = self.tensors.iter().map(blocks).sum::<Result<u64>>()?;
        let every = all.div_ceil((MAX_SAMPLES - changed.len()) as u64).max(1);
        // From the middle of each interval: first blocks, such as padding, may be equal in many versions.
        let mut before = every / 2;
        for (name, tensor) in &self.tensors {
            let hashes = known(name).map_or_else(|| tensor.hashes(name, interrupt), Ok)?;
            for (number, hash) in hashes.iter().enumerate() {
                let is_sample = before % every == 0 || changed.contains(&(name.clone(), number as u64));
                if is_sample && samples.len() < MAX_SAMPLES {
                    samples.push((name.clone(), number as u64, format!("{hash:016x}")));
                }
                before += 1;
            }
            identity.add(name, tensor.dtype, &tensor.shape, hashes);
        }
        Ok((identity.finish(), samples))
    }

    /// Blocks that the last delta changed, if this is a base with deltas: they distinguish it from earlier versions.
    fn changed_before(&self, interrupt: Interrupt<'_>) -> Result<Vec<(String, u64)>> {
        if !self.has_deltas {
            return Ok(Vec::new());
        }
        let deltas = OpenedDelta::behind_base(self.opened, &OpenOptions::default())?;
        let last =
            deltas.iter().rev().find(|delta| delta.dialect() == DeltaDialect::MaxWeights && delta.changes_anything());
        let mut some = last.map_or_else(|| Ok(Vec::new()), |delta| delta.some_changed(MAX_SAMPLES / 2, interrupt))?;
        some.truncate(MAX_SAMPLES / 2);
        Ok(some)
    }
}

/// The dtype of plain elements.
fn plain(element: Element) -> Result<DType, Diagnostic> {
    match element {
        // Groups of 6-bit elements do not end at block boundaries.
        Element::Plain(dtype) if dtype.bits() != 6 => Ok(dtype),
        element => {
            Err(Diagnostic::new(rules::CAST_PAIR, format!("deltas do not support elements of the type {element}")))
        }
    }
}

impl VersionTensor<'_> {
    /// Its bytes.
    pub(super) fn bytes(&self, name: &str) -> Result<u64> {
        checked_bytes(&self.shape, self.dtype)
            .ok_or_else(|| Error::Argument(format!("tensor '{}' has too many elements", text::escape(name))))
    }

    /// The bytes of a block.
    pub(super) fn block_bytes(&self) -> u64 {
        (BLOCK * delta::width(self.dtype)) as u64
    }

    /// The hashes of its blocks.
    fn hashes(&self, name: &str, interrupt: Interrupt<'_>) -> Result<Vec<u64>> {
        let (size, bytes) = (self.block_bytes(), self.bytes(name)?);
        let (mut part_buffer, mut hashes) = (Vec::new(), Vec::new());
        for start in (0..bytes).step_by(size as usize) {
            interrupt()?;
            let len = size.min(bytes - start) as usize;
            hashes.push(hash_of_block(self.elements.piece(start, len, &mut part_buffer, interrupt)?));
        }
        self.elements.check_unchanged()?;
        Ok(hashes)
    }
}

impl ElementSource<'_> {
    /// Fills `out` from offset `start` on.
    pub(super) fn read(&self, start: u64, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        match self {
            Self::File(pieces) => pieces.read(start / pieces.unit() as u64, out, interrupt),
            Self::Memory(buffer) => buffer.read_bytes(start as usize, out, interrupt),
        }
    }

    /// `len` bytes from `start` on: in place, or read into `part_buffer`. A mapped file is read, so that its truncation is an error.
    pub(super) fn piece<'a>(
        &'a self,
        start: u64,
        len: usize,
        part_buffer: &'a mut Vec<u8>,
        interrupt: Interrupt<'_>,
    ) -> Result<&'a [u8]> {
        if let Self::Memory(buffer) = self
            && !buffer.storage().is_mapped()
            && let Some(bytes) = buffer.bytes().and_then(|bytes| bytes.get(start as usize..start as usize + len))
        {
            return Ok(bytes);
        }
        part_buffer.resize(len, 0);
        self.read(start, part_buffer, interrupt)?;
        Ok(part_buffer)
    }

    /// Fails if its file was replaced or changed after it was opened.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        match self {
            Self::File(pieces) => pieces.check_unchanged(),
            Self::Memory(_) => Ok(()),
        }
    }
}
