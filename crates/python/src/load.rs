//! Loading many tensors of a tree: as views whose pages are in memory, into their own memory, or into the caller's.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};

use max_weights::checkpoint::{Catalog, Checkpoint};
use max_weights::device::Device;
use max_weights::dtype::DType;
use max_weights::error::Error;
use max_weights::load::{LoadOptions, LoadPlan, Recipe, Region, TensorMemory, check_digests, digests};
use max_weights::memory::Exclusive;
use max_weights::text;
use max_weights::workers::{self, Interrupt, now_and_then};
use pyo3::prelude::*;

use crate::convert::dtype_from_python;
use crate::dlpack::{Access, writable};
use crate::ending::{detached, reattached};
use crate::error::{BindingResult, interrupt};
use crate::node::WeightsNode;
use crate::place::device_from_python;
use crate::tensor::PyTensor;

type LoadedTensor = max_weights::buffer::Buffer;

/// The axes that are cut, and the requested (start, stop) ranges of each.
pub(crate) type PythonCut = Vec<(usize, Vec<(u64, u64)>)>;

/// Devices, and how many consecutive weights go to each.
pub(crate) type DeviceCounts<'py> = Vec<(Bound<'py, PyAny>, usize)>;

/// Requested weights, with one entry per weight in each field.
pub(crate) struct LoadArguments {
    pub(crate) numbers: Vec<usize>,
    pub(crate) dtypes: Vec<Option<DType>>,
    pub(crate) regions: Vec<Option<Region>>,
    devices: Vec<Device>,
}

impl LoadArguments {
    /// The plan of the load, for a checkpoint whose catalog has these numbers.
    pub(crate) fn plan(
        &self,
        checkpoint: &Checkpoint,
        memory: TensorMemory,
        outs: &[bool],
        options: &LoadOptions,
    ) -> Result<LoadPlan, Error> {
        LoadPlan::new(checkpoint, self.recipes(checkpoint, checkpoint.catalog(), options.whole)?, memory, outs, options)
    }

    /// The requests in the core's form, from a catalog of the checkpoint.
    pub(crate) fn recipes(
        &self,
        checkpoint: &Checkpoint,
        catalog: &Catalog,
        whole: bool,
    ) -> Result<Vec<Recipe>, Error> {
        let to_device = self.devices.iter().any(|device| *device != Device::Cpu);
        checkpoint.look_up(self.numbers.iter().copied(), to_device, &interrupt)?;
        let requested = self.numbers.iter().zip(&self.dtypes).zip(&self.regions).zip(&self.devices);
        requested
            .map(|(((&number, &dtype), region), &device)| {
                Ok(catalog.request(number, dtype, region.as_ref(), whole)?.on(device))
            })
            .collect()
    }
}

impl WeightsNode {
    /// Requests the weights of these full names, with a dtype, a region and a place for each. By default, weights go to host memory.
    pub(crate) fn requested(
        &self,
        names: &[String],
        dtypes: &[Option<Bound<'_, PyAny>>],
        cuts: Option<Vec<Option<PythonCut>>>,
        places: Option<DeviceCounts<'_>>,
    ) -> BindingResult<LoadArguments> {
        let numbers = names.iter().map(|name| self.catalog().require(name)).collect::<Result<Vec<usize>, Error>>()?;
        let mut cuts = cuts.unwrap_or_default().into_iter();
        let mut region = |_: &usize| {
            let cut = cuts.next().flatten();
            let ranges = |ranges: Vec<(u64, u64)>| ranges.into_iter().map(|(start, stop)| start..stop).collect();
            cut.map(|cut| cut.into_iter().map(|(axis, cut)| (axis, ranges(cut))).collect())
        };
        let regions = numbers.iter().map(&mut region).collect();
        let dtypes = dtypes.iter().map(|dtype| dtype.as_ref().map(dtype_from_python).transpose());
        let dtypes = dtypes.collect::<PyResult<Vec<_>>>()?;
        let mut devices = Vec::with_capacity(numbers.len());
        for (device, count) in places.unwrap_or_default() {
            devices.resize(numbers.len().min(devices.len().saturating_add(count)), device_from_python(&device)?);
        }
        devices.resize(numbers.len(), Device::Cpu);
        Ok(LoadArguments { numbers, dtypes, regions, devices })
    }
}

/// The tensors of these full names, with a dtype for each (None: unchanged), in this order, and a description of how they were read.
///
/// Args:
///     node: Any node of the tree.
///     names: Full names.
///     dtypes: One for each.
///     cuts: None, or one for each: None for the whole tensor, else the axes that are cut, and the ranges of each that are joined along it.
///     own: True: Every tensor is a copy. False: Unconverted tensors are views of the mapping, whose pages are brought into memory; a tensor
///         that cannot be a view is an error. None: Whichever is faster.
///     outs: {position: memory to write to}.
///     backend: 'auto', 'mmap', 'read', 'direct' or 'cufile'.
///     threads: How many; None for the best number.
///     drop_cache: Remove from the page cache what was read.
///     per_tensor: Allocate copies one by one, and not as parts of one block per dtype.
///     max_memory: The most bytes of memory that this may take.
///     places: Devices, and how many consecutive weights go to each; None for host memory.
///     verify: The digest of each, which is compared with that of the stored elements.
///     progress: Called now and then with the bytes done and the bytes in all; an exception ends the loading.
#[pyfunction]
#[pyo3(signature = (node, names, dtypes, *, cuts=None, own, outs, backend="auto", threads=None, drop_cache=false, per_tensor=false,
                    max_memory=None, places=None, verify=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "one for each option of `load`, by name")]
pub(crate) fn load_tensors(
    node: &Bound<'_, WeightsNode>,
    names: Vec<String>,
    dtypes: Vec<Option<Bound<'_, PyAny>>>,
    cuts: Option<Vec<Option<PythonCut>>>,
    own: Option<bool>,
    outs: HashMap<usize, Bound<'_, PyAny>>,
    backend: &str,
    #[pyo3(from_py_with = crate::numbers::threads)] threads: Option<NonZero<usize>>,
    drop_cache: bool,
    per_tensor: bool,
    max_memory: Option<u64>,
    places: Option<DeviceCounts<'_>>,
    verify: Option<Vec<String>>,
    progress: Option<&Bound<'_, PyAny>>,
) -> BindingResult<(Vec<PyTensor>, String)> {
    let (backend, cufile) = crate::open::load_backend(backend)?;
    let whole = verify.is_some();
    let options = LoadOptions { backend, threads, drop_cache, per_tensor, cufile, whole, max_memory };
    let (py, node) = (node.py(), node.get());
    let checkpoint = node.shared().checkpoint()?;
    let requested = node.requested(&names, &dtypes, cuts, places)?;
    let mut part_buffer: Vec<Option<Exclusive<LoadedTensor>>> = names.iter().map(|_| None).collect();
    for (position, out) in outs {
        if let Some(part_buffer) = part_buffer.get_mut(position) {
            *part_buffer = Some(writable(&out, Access::Load)?.1);
        }
    }
    let given: Vec<bool> = part_buffer.iter().map(Option::is_some).collect();
    let (done, progress) = (AtomicU64::new(0), progress.map(|progress| progress.clone().unbind()));
    let loaded = detached(py, || {
        // The caller's memory is written only after all of it was verified.
        if let Some(expected) = verify.as_ref().filter(|_| given.contains(&true)) {
            let found =
                digests(&checkpoint, &requested.numbers, threads.map(NonZero::get), &done, &now_and_then(&interrupt))?;
            check_digests(&checkpoint, &requested.numbers, expected, &found)?;
            done.store(0, Ordering::Relaxed);
        }
        let mut plan = requested.plan(&checkpoint, memory_of(own), &given, &options)?;
        require_views(&plan, own, &names)?;
        if let Some(expected) = verify {
            plan = plan.verified(&requested.numbers, expected);
        }
        let bytes = plan.bytes();
        let tell = |done: u64| tell(progress.as_ref(), done, bytes);
        tell(0)?;
        let cancel = || interrupt().and_then(|()| tell(done.load(Ordering::Relaxed)));
        let loaded = plan.run(&checkpoint, part_buffer, &done, &now_and_then(&cancel))?;
        tell(bytes)?;
        Ok::<_, Error>(loaded)
    })?;
    let (loaded, choice) = (loaded.0, loaded.1.to_string());
    let mut made = Vec::with_capacity(loaded.len());
    for (number, tensor) in requested.numbers.into_iter().zip(loaded) {
        node.note_refused_mapping(py, &checkpoint, number, &tensor)?;
        made.push(PyTensor::new(tensor));
    }
    Ok((made, choice))
}

/// Where tensors may be, for an argument `copy`.
pub(crate) fn memory_of(own: Option<bool>) -> TensorMemory {
    match own {
        Some(true) => TensorMemory::Own,
        Some(false) => TensorMemory::Views,
        None => TensorMemory::Fastest,
    }
}

/// Fails if views were requested, and a tensor of these names cannot be one.
pub(crate) fn require_views(plan: &LoadPlan, own: Option<bool>, names: &[String]) -> Result<(), Error> {
    let copied = if own == Some(false) { plan.first_copied() } else { None };
    copied.map_or(Ok(()), |(position, reason)| {
        let name = text::escape(&names[position]);
        Err(Error::Argument(format!(
            "copy=False asks for views of the files, and '{name}' cannot be one: {reason}; leave copy out to get a copy of it"
        )))
    })
}

/// The digests of the tensors of these full names, in this order.
#[pyfunction]
#[pyo3(signature = (node, names, *, threads=None, progress=None))]
pub(crate) fn digests_of(
    node: &Bound<'_, WeightsNode>,
    names: Vec<String>,
    #[pyo3(from_py_with = crate::numbers::threads)] threads: Option<NonZero<usize>>,
    progress: Option<&Bound<'_, PyAny>>,
) -> BindingResult<Vec<String>> {
    over_weights(node, &names, progress, |checkpoint, numbers, done, cancel| {
        digests(checkpoint, numbers, threads.map(NonZero::get), done, cancel)
    })
}

/// Does work that reads the weights of these full names, without the GIL. `work` gets their numbers, counts the bytes that are done, and checks for
/// cancellation; `progress` is called with the count.
pub(crate) fn over_weights<T: Send>(
    node: &Bound<'_, WeightsNode>,
    names: &[String],
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Checkpoint, &[usize], &AtomicU64, Interrupt<'_>) -> Result<T, Error> + Send,
) -> BindingResult<T> {
    let (py, node) = (node.py(), node.get());
    let checkpoint = node.shared().checkpoint()?;
    let numbers = names.iter().map(|name| node.catalog().require(name)).collect::<Result<Vec<usize>, Error>>()?;
    let bytes = numbers.iter().map(|&number| node.catalog().table().get(number).bytes()).fold(0, u64::saturating_add);
    let (done, progress) = (AtomicU64::new(0), progress.map(|progress| progress.clone().unbind()));
    Ok(detached(py, || {
        let cancel = || interrupt().and_then(|()| tell(progress.as_ref(), done.load(Ordering::Relaxed), bytes));
        let found = work(&checkpoint, &numbers, &done, &now_and_then(&cancel))?;
        tell(progress.as_ref(), bytes, bytes)?;
        Ok::<_, Error>(found)
    })?)
}

/// Reports progress; an exception of the function ends the work.
pub(crate) fn tell(progress: Option<&Py<PyAny>>, done: u64, bytes: u64) -> Result<(), Error> {
    let Some(progress) = progress else { return Ok(()) };
    let reported = reattached(|py| {
        progress.call1(py, (done, bytes)).map(drop).map_err(|error| {
            error.restore(py);
            Error::Interrupted
        })
    });
    reported.unwrap_or(Err(Error::Interrupted))
}

/// Set how many threads everything uses.
///
/// Args:
///     threads: 1 at least; None for as many as the process may use.
///
/// Raises:
///     ArgumentError: another number (a ValueError).
///
/// Example:
///     >>> max_weights.set_threads(None)
#[pyfunction]
pub(crate) fn set_threads(#[pyo3(from_py_with = crate::numbers::threads)] threads: Option<NonZero<usize>>) {
    workers::set_threads(threads);
}

/// Sets how many threads calls on this thread use, for as long as one call of the package lasts; returns the number before.
#[pyfunction]
pub(crate) fn limit_threads(
    #[pyo3(from_py_with = crate::numbers::threads)] threads: Option<NonZero<usize>>,
) -> Option<NonZero<usize>> {
    workers::limit_threads(threads)
}

/// How many threads work is divided among.
#[pyfunction]
pub(crate) fn get_threads() -> usize {
    workers::threads()
}
