//! Saving by several ranks: the layout of the files, and the writes of a rank. The exchange is up to torch.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use max_weights::buffer::Buffer as Tensor;
use max_weights::dtype::DType;
use max_weights::error::Error;
use max_weights::load::ranks::Mesh;
use max_weights::source::store::SentPart;
use max_weights::workers::now_and_then;
use max_weights::write::{
    Begun, DeclaredTensor, RankParts, RankWriter, ShardedFolder, ShardedSave, StoredElements, WriteOptions,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::dtype_from_python;
use crate::ending::detached;
use crate::error::{BindingResult, interrupt};
use crate::ranks::{PythonMesh, meshes};
use crate::remote::StoreHandle;
use crate::save::destination;
use crate::tensor::PyTensor;

/// A tensor by its number, and a range of each of its axes.
type PythonBox = (usize, Vec<(u64, u64)>);

/// The files of a checkpoint that several ranks write. Every rank that passes the same arguments gets the same files.
///
/// Args:
///     folder: The destination.
///     tensors: The name, dtype and shape of each.
///     metadata: That of every file.
///     world: The number of ranks.
///     sharings: The number of the mesh of each tensor; None if it is replicated.
///     meshes: As for `RankPlan`.
///     boxes: Instead of these, the shards of each rank: numbers of tensors, and a range of each axis of them.
///     alignment: As for `save_tensors`.
///     sync: As for `save_tensors`.
///     stem: As for `save_tensors`.
///     max_shard_size: As for `save_tensors`.
///     store: As for `save_tensors`.
///     verify: As for `save_tensors`.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct RankSave {
    save: ShardedSave,
    verify: bool,
    /// The files that this process has begun.
    begun: Mutex<Option<Begun>>,
    /// The writer of this rank.
    share: Mutex<Option<RankWriter>>,
}

#[pymethods]
impl RankSave {
    #[new]
    #[pyo3(signature = (folder, tensors, metadata, *, world, sharings=Vec::new(), meshes=Vec::new(), boxes=None,
                        alignment, sync, stem, max_shard_size, store=None, verify=false))]
    #[expect(clippy::too_many_arguments, reason = "all that the files are a function of, by name")]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        tensors: Vec<(String, Bound<'_, PyAny>, Vec<u64>)>,
        metadata: BTreeMap<String, String>,
        world: u32,
        sharings: Vec<Option<usize>>,
        meshes: Vec<PythonMesh>,
        boxes: Option<Vec<Vec<PythonBox>>>,
        #[pyo3(from_py_with = crate::numbers::alignment)] alignment: u64,
        sync: bool,
        stem: String,
        max_shard_size: u64,
        store: Option<StoreHandle>,
        verify: bool,
    ) -> BindingResult<Self> {
        let to = destination(store, "replace")?;
        let declare = |(name, dtype, shape): (String, Bound<'_, PyAny>, Vec<u64>)| {
            Ok(DeclaredTensor { name, stored: StoredElements::Plain(dtype_from_python(&dtype)?), shape })
        };
        let tensors = tensors.into_iter().map(declare).collect::<PyResult<Vec<_>>>()?;
        let save = detached(py, || {
            let parts = match boxes {
                Some(boxes) => {
                    RankParts::Boxes(boxes.into_iter().map(|own| own.into_iter().map(placed).collect()).collect())
                }
                None => RankParts::Placed(sharings, self::meshes(meshes, world).collect::<Result<Vec<Mesh>, Error>>()?),
            };
            let options = WriteOptions { alignment, sync };
            let folder = ShardedFolder { path: folder, stem, most: max_shard_size, options, to };
            ShardedSave::new(folder, tensors, &metadata, (parts, world))
        })?;
        Ok(Self { save, verify, begun: Mutex::default(), share: Mutex::default() })
    }

    /// A hash of the layout and of the shards of all ranks.
    fn hash<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.save.hash())
    }

    /// Makes the unfinished files, or begins uploads; returns the names by which other ranks find them.
    fn begin(&self, py: Python<'_>) -> BindingResult<Vec<OsString>> {
        let begun = detached(py, || self.save.begin(&interrupt))?;
        let names = begun.names.iter().map(|name| name.clone().into_os_string()).collect();
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
        Ok(names)
    }

    /// Opens the unfinished files to write these parts of a rank; returns how many bytes it writes.
    fn open(
        &self,
        py: Python<'_>,
        rank: u32,
        unfinished: Vec<PathBuf>,
        parts: Vec<Bound<'_, PyTensor>>,
    ) -> BindingResult<u64> {
        let parts: Vec<Tensor> = parts.iter().map(|part| part.get().tensor().clone()).collect();
        let share = detached(py, || {
            let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
            RankWriter::open(&self.save, rank, (&unfinished, begun.as_mut()), parts, self.verify, &interrupt)
        })?;
        let bytes = share.bytes();
        *self.share.lock().unwrap_or_else(PoisonError::into_inner) = Some(share);
        Ok(bytes)
    }

    /// Writes about `most` of the remaining bytes that are not exchanged; returns how many, 0 at the end.
    fn write(&self, py: Python<'_>, most: u64) -> BindingResult<u64> {
        Ok(detached(py, || {
            let mut share = self.share.lock().unwrap_or_else(PoisonError::into_inner);
            share.as_mut().map_or(Ok(0), |share| share.write(&self.save, most, &now_and_then(&interrupt)))
        })?)
    }

    /// The number of exchanges; the same on all ranks.
    #[getter]
    fn rounds(&self) -> usize {
        self.share.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, RankWriter::rounds)
    }

    /// The data that this rank sends in a round, ordered by rank; how many bytes go to each, and how many come from
    /// each.
    fn message(&self, py: Python<'_>, round: usize) -> BindingResult<(PyTensor, Vec<u64>, Vec<u64>)> {
        let (message, to, of) = detached(py, || {
            let share = self.share.lock().unwrap_or_else(PoisonError::into_inner);
            let share = share.as_ref().ok_or_else(not_open)?;
            let (message, to, of) = share.message(&self.save, round, &now_and_then(&interrupt))?;
            let size = [to.iter().sum::<u64>() as i64];
            Ok::<_, Error>((Tensor::contiguous_at(message.freeze(), 0, DType::UInt8, &size)?, to, of))
        })?;
        Ok((PyTensor::new(message), to, of))
    }

    /// Writes the data of a round, received or local; returns how many bytes.
    fn take(&self, arrived: &Bound<'_, PyTensor>, round: usize) -> BindingResult<u64> {
        let (py, arrived) = (arrived.py(), arrived.get().tensor());
        Ok(detached(py, || {
            let share = self.share.lock().unwrap_or_else(PoisonError::into_inner);
            let share = share.as_ref().ok_or_else(not_open)?;
            let bytes = arrived.bytes().ok_or_else(|| Error::Argument("what arrived is not in memory".to_owned()))?;
            share.take(&self.save, round, bytes, &now_and_then(&interrupt))
        })?)
    }

    /// Waits until they are sent, or on the disk if `sync` is set.
    fn flush(&self, py: Python<'_>) -> BindingResult<()> {
        Ok(detached(py, || {
            let mut share = self.share.lock().unwrap_or_else(PoisonError::into_inner);
            share.as_mut().map_or(Ok(()), |share| share.flush(&interrupt))
        })?)
    }

    /// Reads back and compares what this rank wrote, if `verify` is set: files on a disk before they are renamed,
    /// uploads after they are complete.
    fn verify(&self, py: Python<'_>, is_placed: bool) -> BindingResult<()> {
        Ok(detached(py, || {
            let mut share = self.share.lock().unwrap_or_else(PoisonError::into_inner);
            share.as_mut().map_or(Ok(()), |share| share.verify(&self.save, is_placed, &interrupt))
        })?)
    }

    /// The parts of uploads that this rank has sent, for each file: their numbers, and the server's names.
    fn sent(&self) -> Vec<Vec<SentPart>> {
        self.share.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(Vec::new(), RankWriter::sent)
    }

    /// Puts the files into their places; returns them, an index last. `sent` are the parts of uploads that other ranks have sent, of each file.
    #[pyo3(signature = (sent=Vec::new()))]
    fn finish(&self, py: Python<'_>, sent: Vec<Vec<SentPart>>) -> BindingResult<Vec<OsString>> {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner).take();
        let files = detached(py, || {
            let mut share = self.share.lock().unwrap_or_else(PoisonError::into_inner);
            self.save.finish(begun.ok_or_else(not_open)?, share.as_mut(), sent, &interrupt)
        })?;
        Ok(files.into_iter().map(PathBuf::into_os_string).collect())
    }

    /// Leaves uploads that another rank has begun and completed.
    fn leave(&self) {
        if let Some(share) = self.share.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            share.leave();
        }
    }

    /// Discards: removes what this process has begun, and the leftovers of one that ended.
    fn discard(&self, py: Python<'_>) {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner).take();
        let share = self.share.lock().unwrap_or_else(PoisonError::into_inner).take();
        detached(py, || {
            drop((begun, share));
            self.save.remove_abandoned();
        });
    }
}

fn placed((number, ranges): PythonBox) -> (usize, Vec<Range<u64>>) {
    (number, ranges.into_iter().map(|(start, stop)| start..stop).collect())
}

fn not_open() -> Error {
    Error::Argument("the files of this save are not open".to_owned())
}
