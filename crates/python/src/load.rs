//! Loading many tensors of a tree: as views whose pages are in memory, into their own memory, or into the caller's.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};

use max_weights::checkpoint::{Catalog, Checkpoint};
use max_weights::device::Device;
use max_weights::dtype::DType;
use max_weights::error::Error;
use max_weights::load::{Layout, LoadOptions, Recipe, Region, TensorMemory, check_digests, digests};
use max_weights::memory::Exclusive;
use max_weights::text;
use max_weights::workers::{self, Interrupt, now_and_then};
use pyo3::prelude::*;

use crate::convert::dtype_from_python;
use crate::dlpack::{Access, writable};
use crate::ending::{detached, reattached};
use crate::error::{Outcome, interrupt};
use crate::node::WeightsNode;
use crate::place::device_from_python;
use crate::tensor::Buffer;

type Tensor = max_weights::buffer::Buffer;

/// The axes that are cut, and the (start, stop) on each that are wanted.
pub(crate) type PythonCut = Vec<(usize, Vec<(u64, u64)>)>;

/// Devices, and how many weights one after the other go to each.
pub(crate) type Places<'py> = Vec<(Bound<'py, PyAny>, usize)>;

/// What is asked for of weights, one place for each.
pub(crate) struct Asked {
    pub(crate) numbers: Vec<usize>,
    pub(crate) dtypes: Vec<Option<DType>>,
    pub(crate) regions: Vec<Option<Region>>,
    devices: Vec<Device>,
}

impl Asked {
    /// The layout of it, for a checkpoint with the catalog that the numbers are of.
    pub(crate) fn layout(
        &self,
        checkpoint: &Checkpoint,
        memory: TensorMemory,
        outs: &[bool],
        options: &LoadOptions,
    ) -> Result<Layout, Error> {
        Layout::new(checkpoint, self.recipes(checkpoint, checkpoint.catalog(), options.whole)?, memory, outs, options)
    }

    /// The same in the words of the core, of a catalog of the checkpoint.
    pub(crate) fn recipes(
        &self,
        checkpoint: &Checkpoint,
        catalog: &Catalog,
        whole: bool,
    ) -> Result<Vec<Recipe>, Error> {
        let to_device = self.devices.iter().any(|device| *device != Device::Cpu);
        checkpoint.look_up(self.numbers.iter().copied(), to_device, &interrupt)?;
        let asked = self.numbers.iter().zip(&self.dtypes).zip(&self.regions).zip(&self.devices);
        asked
            .map(|(((&number, &dtype), region), &device)| {
                Ok(catalog.request(number, dtype, region.as_ref(), whole)?.on(device))
            })
            .collect()
    }
}

impl WeightsNode {
    /// The weights of these full names, each as the dtype beside it, of which the parts beside it are wanted, where they are wanted: in host
    /// memory, if nobody says so.
    pub(crate) fn asked(
        &self,
        names: &[String],
        dtypes: &[Option<Bound<'_, PyAny>>],
        cuts: Option<Vec<Option<PythonCut>>>,
        places: Option<Places<'_>>,
    ) -> Outcome<Asked> {
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
        Ok(Asked { numbers, dtypes, regions, devices })
    }
}

/// The tensors of these full names, each as the dtype beside it (None: as it is), in this order; and how they were read, in words.
///
/// Args:
///     node: Any node of the tree.
///     names: Full names.
///     dtypes: One for each.
///     cuts: None, or one for each: None for the whole tensor, else the axes that are cut, and the ranges of each that are joined along it.
///     own: Give every tensor its own memory; if False, those that the file has as they are wanted are views of its mapping, whose pages are
///         brought into memory, and one that cannot be a view is an error; if None, they are what is faster.
///     outs: {position: memory to write to}.
///     backend: 'auto', 'mmap', 'read', 'direct' or 'cufile'.
///     threads: How many; None for as many as is best.
///     drop_cache: Let the page cache forget what was read.
///     per_tensor: Memory of its own is one piece for each tensor, and not a part of one for all of its dtype.
///     max_memory: The most bytes of memory that this may take.
///     places: Devices, and how many of the weights go to each, one after the other; None for host memory.
///     verify: The digest of each, with which what it is made of is compared.
///     progress: Called now and then with the bytes that are done and those of all; what it raises ends the loading.
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
    places: Option<Places<'_>>,
    verify: Option<Vec<String>>,
    progress: Option<&Bound<'_, PyAny>>,
) -> Outcome<(Vec<Buffer>, String)> {
    let (backend, cufile) = crate::open::load_backend(backend)?;
    let whole = verify.is_some();
    let options = LoadOptions { backend, threads, drop_cache, per_tensor, cufile, whole, max_memory };
    let (py, node) = (node.py(), node.get());
    let checkpoint = node.shared().checkpoint()?;
    let asked = node.asked(&names, &dtypes, cuts, places)?;
    let mut room: Vec<Option<Exclusive<Tensor>>> = names.iter().map(|_| None).collect();
    for (position, out) in outs {
        if let Some(room) = room.get_mut(position) {
            *room = Some(writable(&out, Access::Load)?.1);
        }
    }
    let given: Vec<bool> = room.iter().map(Option::is_some).collect();
    let (done, progress) = (AtomicU64::new(0), progress.map(|progress| progress.clone().unbind()));
    let loaded = detached(py, || {
        // Nothing is written to memory of the caller's before all of it is known to be right.
        if let Some(expected) = verify.as_ref().filter(|_| given.contains(&true)) {
            let found =
                digests(&checkpoint, &asked.numbers, threads.map(NonZero::get), &done, &now_and_then(&interrupt))?;
            check_digests(&checkpoint, &asked.numbers, expected, &found)?;
            done.store(0, Ordering::Relaxed);
        }
        let mut layout = asked.layout(&checkpoint, memory_of(own), &given, &options)?;
        require_views(&layout, own, &names)?;
        if let Some(expected) = verify {
            layout = layout.verified(&asked.numbers, expected);
        }
        let bytes = layout.bytes();
        let tell = |done: u64| tell(progress.as_ref(), done, bytes);
        tell(0)?;
        let go_on = || interrupt().and_then(|()| tell(done.load(Ordering::Relaxed)));
        let loaded = layout.run(&checkpoint, room, &done, &now_and_then(&go_on))?;
        tell(bytes)?;
        Ok::<_, Error>(loaded)
    })?;
    let (loaded, choice) = (loaded.0, loaded.1.to_string());
    let mut made = Vec::with_capacity(loaded.len());
    for (number, tensor) in asked.numbers.into_iter().zip(loaded) {
        node.note_refused_mapping(py, &checkpoint, number, &tensor)?;
        made.push(Buffer::new(tensor));
    }
    Ok((made, choice))
}

/// Whose memory tensors may be in, where `copy` is this.
pub(crate) fn memory_of(own: Option<bool>) -> TensorMemory {
    match own {
        Some(true) => TensorMemory::Own,
        Some(false) => TensorMemory::Views,
        None => TensorMemory::Fastest,
    }
}

/// An error if views were asked for, and a tensor of these names cannot be one.
pub(crate) fn require_views(layout: &Layout, own: Option<bool>, names: &[String]) -> Result<(), Error> {
    let copied = if own == Some(false) { layout.first_copied() } else { None };
    copied.map_or(Ok(()), |(position, reason)| {
        let name = text::shown(&names[position]);
        Err(Error::Argument(format!(
            "copy=False asks for views of the files, and '{name}' cannot be one: {reason}; leave copy out to get it in memory of its own"
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
) -> Outcome<Vec<String>> {
    over_weights(node, &names, progress, |checkpoint, numbers, done, go_on| {
        digests(checkpoint, numbers, threads.map(NonZero::get), done, go_on)
    })
}

/// Does work that reads the weights of these full names, without the lock of Python: `work` gets their numbers, counts the bytes that are done, and
/// asks whether to go on; `progress` is told.
pub(crate) fn over_weights<T: Send>(
    node: &Bound<'_, WeightsNode>,
    names: &[String],
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Checkpoint, &[usize], &AtomicU64, Interrupt<'_>) -> Result<T, Error> + Send,
) -> Outcome<T> {
    let (py, node) = (node.py(), node.get());
    let checkpoint = node.shared().checkpoint()?;
    let numbers = names.iter().map(|name| node.catalog().require(name)).collect::<Result<Vec<usize>, Error>>()?;
    let bytes = numbers.iter().map(|&number| node.catalog().table().get(number).bytes()).fold(0, u64::saturating_add);
    let (done, progress) = (AtomicU64::new(0), progress.map(|progress| progress.clone().unbind()));
    Ok(detached(py, || {
        let go_on = || interrupt().and_then(|()| tell(progress.as_ref(), done.load(Ordering::Relaxed), bytes));
        let found = work(&checkpoint, &numbers, &done, &now_and_then(&go_on))?;
        tell(progress.as_ref(), bytes, bytes)?;
        Ok::<_, Error>(found)
    })?)
}

/// Tells how far it is; what the function raises ends the work.
pub(crate) fn tell(progress: Option<&Py<PyAny>>, done: u64, bytes: u64) -> Result<(), Error> {
    let Some(progress) = progress else { return Ok(()) };
    let told = reattached(|py| {
        progress.call1(py, (done, bytes)).map(drop).map_err(|error| {
            error.restore(py);
            Error::Interrupted
        })
    });
    told.unwrap_or(Err(Error::Interrupted))
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
