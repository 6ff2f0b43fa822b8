//! Rows of tables by their numbers: now, or on a thread.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use max_weights::buffer::Buffer as Tensor;
use max_weights::checkpoint::Checkpoint;
use max_weights::error::{Error, Result};
use max_weights::load::{NegativeIds, RowIds, RowScaling, RowTable, TableShard};
use max_weights::memory::{Exclusive, ForkMutex};
use max_weights::text;
use max_weights::workers::POLL_INTERVAL;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::convert::{dtype_from_python, dtype_to_python};
use crate::dlpack::{Access, writable};
use crate::ending::detached;
use crate::error::{BindingResult, interrupt, of_option};
use crate::node::WeightsNode;
use crate::own::own_or_imported;
use crate::quantized::QuantizedRecord;
use crate::shared::OpenedCheckpoint;
use crate::tensor::PyTensor;

/// Counts of a cache: hits, misses, rows, bytes, limit.
type CacheFields = (u64, u64, u64, u64, u64);

/// A table of rows of one tree.
///
/// Args:
///     weights: Its tensors, in order.
///     records: For each, how it is quantized; None if it is not.
///     scales: The scales of all rows together; None without such.
///     cache: The most bytes of rows that stay in memory.
#[pyclass(frozen, name = "RowTable", module = "max_weights._core")]
pub(crate) struct PyRowTable {
    table: Arc<RowTable>,
    shared: Arc<OpenedCheckpoint>,
    /// Of the first tensor.
    name: String,
    hints: Arc<Hints>,
}

/// Announcements that wait; older ones are dropped.
const MAX_HINTS: usize = 64;

/// Rows that were announced, for a thread to fetch.
#[derive(Default)]
struct Hints(ForkMutex<HintState>);

#[derive(Default)]
struct HintState {
    /// The process whose thread fetches rows; 0 for none.
    process: u32,
    waiting: VecDeque<RowIds>,
}

#[pymethods]
impl PyRowTable {
    #[new]
    fn new(
        weights: Vec<Bound<'_, WeightsNode>>,
        records: Vec<Option<Bound<'_, QuantizedRecord>>>,
        scales: Vec<Option<Bound<'_, WeightsNode>>>,
        together: bool,
        cache: u64,
    ) -> BindingResult<Self> {
        let Some(first) = weights.first() else {
            return Err(of_option(Error::Argument("a table needs a weight".to_owned())));
        };
        let (py, shared) = (first.py(), first.get().shared().clone());
        let checkpoint = shared.checkpoint()?;
        let table = checkpoint.catalog().table();
        let rows = |number: usize| table.get(number).shape.first().copied().unwrap_or_default();
        let mut shards = Vec::with_capacity(weights.len());
        for (position, weight) in weights.iter().enumerate() {
            let mut shard = TableShard { number: weight.get().number()?, scaling: None };
            if let Some(record) = records.get(position).and_then(Option::as_ref) {
                let Some((packed, scaling)) = record.get().row_scaling() else {
                    let (name, scheme) = (text::escape(table.name(shard.number)), record.get().scheme.clone());
                    return Err(of_option(Error::Argument(format!(
                        "'{name}' is quantized as {scheme}, whose rows cannot be decoded by themselves: decode the whole weight with \
                         load(dtype=...)"
                    ))));
                };
                shard = TableShard { number: packed, scaling: Some(scaling) };
            }
            shards.push(shard);
        }
        let all: u64 = shards.iter().map(|shard| rows(shard.number)).fold(0, u64::saturating_add);
        let named = |scales: &Bound<'_, WeightsNode>, shard: usize, rows: u64| -> BindingResult<RowScaling> {
            let number = scales.get().number()?;
            let dims = table.get(shard).shape.iter().skip(1);
            let columns = dims.fold(1, |columns: u64, dim| columns.saturating_mul(*dim));
            let scaling = RowScaling::of_shape(number, table.get(number).shape, (rows, columns));
            let name = text::escape(scales.get().name());
            scaling.map_err(|error| of_option(Error::Argument(format!("'{name}': {error}"))))
        };
        let mut joint = None;
        for (position, scales) in scales.iter().enumerate() {
            let (Some(scales), Some(shard)) = (scales, shards.get_mut(position)) else { continue };
            if together {
                joint = Some(named(scales, shard.number, all)?);
            } else {
                shard.scaling = Some(named(scales, shard.number, rows(shard.number))?);
            }
        }
        let made = detached(py, || RowTable::new(&checkpoint, &shards, joint, cache, &interrupt));
        let name = first.get().name().to_owned();
        Ok(Self { table: Arc::new(made.map_err(of_option)?), shared, name, hints: Arc::default() })
    }

    /// The shape: rows, and that of a row.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let row = self.table.row_shape().iter().map(|dim| *dim as u64);
        PyTuple::new(py, std::iter::once(self.table.rows()).chain(row).collect::<Vec<u64>>())
    }

    /// The dtype of rows that are taken without one.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype_to_python(py, self.table.dtype()).cloned()
    }

    /// The bytes in the files, with scales.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.table.bytes()
    }

    /// What the cache had: hits, misses, rows, bytes and their limit; None without a cache.
    fn counts(&self) -> Option<CacheFields> {
        self.table.counts().map(|counts| (counts.hits, counts.misses, counts.rows, counts.bytes, counts.limit))
    }

    /// The rows of these ids, as a dtype or unconverted, in `out` if it is given.
    fn take(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> BindingResult<PyTensor> {
        let (checkpoint, request) = (self.shared.checkpoint()?, self.request(py, ids, dtype, out)?);
        let made = detached(py, || request.run(&self.table, &checkpoint, &interrupt));
        Ok(PyTensor::new(made?))
    }

    /// As `take`, on a thread.
    fn start(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> BindingResult<PendingRows> {
        let (checkpoint, request) = (self.shared.checkpoint()?, self.request(py, ids, dtype, out)?);
        let state = Arc::new(PendingState::default());
        let (shared, table) = (state.clone(), self.table.clone());
        let read = move || {
            let read = || request.run(&table, &checkpoint, &|| shared.check_running());
            let made = catch_unwind(AssertUnwindSafe(read));
            shared.finish(made.unwrap_or_else(|_| Err(Error::Argument("the thread of the rows panicked".to_owned()))));
        };
        let spawned = thread::Builder::new().name("max_weights-rows".into()).spawn(read);
        spawned.map_err(|error| Error::io(Path::new("rows"), "start a thread", error))?;
        Ok(PendingRows { state, process: std::process::id() })
    }

    /// Reads rows into the cache, on a thread.
    fn hint(&self, py: Python<'_>, ids: &Bound<'_, PyAny>) -> BindingResult<()> {
        let (checkpoint, ids) = (self.shared.checkpoint()?, self.ids(py, ids)?);
        let process = std::process::id();
        let mut state = self.hints.0.lock();
        if state.waiting.len() == MAX_HINTS {
            state.waiting.pop_front();
        }
        state.waiting.push_back(ids);
        if state.process == process {
            return Ok(());
        }
        let (hints, table) = (Arc::downgrade(&self.hints), self.table.clone());
        let fetch = move || {
            let is_dropped = || if hints.strong_count() == 0 { Err(Error::Interrupted) } else { Ok(()) };
            while let Some(ids) = hints.upgrade().and_then(|hints| hints.take()) {
                // The next `take` of these rows raises the error.
                let _ = catch_unwind(AssertUnwindSafe(|| table.fetch(&checkpoint, &ids, &is_dropped)));
            }
        };
        let spawned = thread::Builder::new().name("max_weights-rows".into()).spawn(fetch);
        spawned.map_err(|error| Error::io(Path::new("rows"), "start a thread", error))?;
        state.process = process;
        Ok(())
    }
}

impl Hints {
    /// The next ids; without any, the thread ends.
    fn take(&self) -> Option<RowIds> {
        let mut state = self.0.lock();
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.process = 0;
        }
        next
    }
}

/// Requested rows.
struct RowRequest {
    ids: RowIds,
    dtype: max_weights::DType,
    out: Option<Exclusive<Tensor>>,
}

impl RowRequest {
    fn run(self, table: &RowTable, checkpoint: &Checkpoint, interrupt: &dyn Fn() -> Result<()>) -> Result<Tensor> {
        table.take(checkpoint, &self.ids, self.dtype, self.out, interrupt)
    }
}

impl PyRowTable {
    fn ids(&self, py: Python<'_>, ids: &Bound<'_, PyAny>) -> BindingResult<RowIds> {
        let (ids, table) = (own_or_imported(ids)?, (self.name.as_str(), self.table.rows()));
        detached(py, || RowIds::new(&ids, table, NegativeIds::Refused, &interrupt)).map_err(of_option)
    }

    fn request(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> BindingResult<RowRequest> {
        let dtype = dtype.map(dtype_from_python).transpose()?.unwrap_or(self.table.dtype());
        let out = out.map(|out| writable(out, Access::Load)).transpose()?.map(|(_, out)| out);
        Ok(RowRequest { ids: self.ids(py, ids)?, dtype, out })
    }
}

/// Rows that a thread reads.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct PendingRows {
    state: Arc<PendingState>,
    /// The process with the thread.
    process: u32,
}

#[derive(Default)]
struct PendingState {
    /// None until the rows are read; they are taken from there once.
    made: Mutex<Option<Result<Tensor>>>,
    changed: Condvar,
    stop: AtomicBool,
}

impl PendingState {
    fn lock(&self) -> MutexGuard<'_, Option<Result<Tensor>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_running(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    fn finish(&self, made: Result<Tensor>) {
        *self.lock() = Some(made);
        self.changed.notify_all();
    }

    fn wait(&self) -> Result<Tensor> {
        let mut made = self.lock();
        loop {
            match &mut *made {
                Some(Ok(tensor)) => return Ok(tensor.clone()),
                Some(error) => {
                    let again = Error::Argument("the error of these rows was raised already".to_owned());
                    return std::mem::replace(error, Err(again));
                }
                None => {}
            }
            let (waited, timeout) =
                self.changed.wait_timeout(made, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner);
            made = waited;
            if timeout.timed_out() {
                drop(made);
                interrupt()?;
                made = self.lock();
            }
        }
    }
}

#[pymethods]
impl PendingRows {
    /// Waits for the rows. An error is raised once.
    fn result(&self, py: Python<'_>) -> BindingResult<PyTensor> {
        if self.process != std::process::id() {
            let cause = "these rows are read in the process that requested them; request them again in the child";
            return Err(of_option(Error::Argument(cause.to_owned())));
        }
        Ok(PyTensor::new(detached(py, || self.state.wait()).map_err(of_option)?))
    }

    /// Whether `result` would return, or raise, at once.
    fn done(&self) -> bool {
        self.process == std::process::id() && self.state.lock().is_some()
    }
}

impl Drop for PendingRows {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
    }
}

/// The rows of a weight by NumPy's integer-array indexing, in which negative numbers count from the end. Without a dtype they are unconverted, and those
/// of packed blocks are bytes.
#[pyfunction]
pub(crate) fn rows_of(
    node: &Bound<'_, WeightsNode>,
    ids: &Bound<'_, PyAny>,
    dtype: Option<&Bound<'_, PyAny>>,
) -> BindingResult<PyTensor> {
    let (py, node) = (node.py(), node.get());
    let (checkpoint, number) = (node.shared().checkpoint()?, node.number()?);
    let (ids, dtype) = (own_or_imported(ids)?, dtype.map(dtype_from_python).transpose()?);
    let made = detached(py, || {
        let shards = [TableShard { number, scaling: None }];
        let table = RowTable::new(&checkpoint, &shards, None, 0, &interrupt)?;
        let table = if dtype.is_none() { table.as_stored() } else { table };
        let size = (node.name(), table.rows());
        let ids = RowIds::new(&ids, size, NegativeIds::FromTheEnd, &interrupt)?;
        table.take(&checkpoint, &ids, dtype.unwrap_or(table.dtype()), None, &interrupt)
    });
    Ok(PyTensor::new(made.map_err(of_option)?))
}
