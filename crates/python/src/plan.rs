//! The plan of a load.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZero;

use max_weights::error::Error;
use max_weights::load::{LoadOptions, Planned};
use pyo3::prelude::*;

use crate::ending::detached;
use crate::error::BindingResult;
use crate::load::{DeviceCounts, PythonCut, memory_of, require_views};
use crate::node::WeightsNode;

/// (file, offset, bytes in the file, bytes in memory, positions of tensors, operation, destination, byte there).
type Range = (u32, u64, u64, u64, Vec<usize>, String, String, usize);
/// (ranges, arenas, how).
type Description = (Vec<Range>, Vec<(String, usize)>, String);

/// What `load_tensors` would do with the same arguments. Reads nothing from the files, and allocates no tensors.
///
/// Args:
///     node: Any node of the tree.
///     names: Full names.
///     dtypes: One for each.
///     cuts: None, or one for each: None for the whole tensor, else the axes that are cut, and the ranges of each that are joined along it.
///     own: Give every tensor its own memory; False, not None: an error for a tensor that cannot be a view.
///     outs: The positions of those that are written to the caller's memory.
///     backend: 'auto', 'mmap', 'read', 'direct' or 'cufile'.
///     threads: How many; None for the best number.
///     drop_cache: Remove from the page cache what was read.
///     per_tensor: Allocate copies one by one.
///     max_memory: The most bytes of host memory that the load may take.
///     places: Devices, and how many consecutive weights go to each; None for host memory.
///     whole: Every tensor is read as a whole, to be compared with a digest.
///
/// Returns:
///     The ranges in file order, the arenas, and a description of how the files would be read.
///     A range is (file, offset, bytes in the file, bytes in memory, tensor positions, operation, destination, byte there).
///     An arena is (dtype, bytes on all devices).
#[pyfunction]
#[pyo3(signature = (node, names, dtypes, *, cuts=None, own, outs, backend="auto", threads=None, drop_cache=false, per_tensor=false,
                    max_memory=None, places=None, whole=false))]
#[expect(clippy::too_many_arguments, reason = "one for each option of `plan`, by name")]
#[expect(clippy::needless_pass_by_value, reason = "as PyO3 gives them")]
pub(crate) fn plan_tensors(
    node: &Bound<'_, WeightsNode>,
    names: Vec<String>,
    dtypes: Vec<Option<Bound<'_, PyAny>>>,
    cuts: Option<Vec<Option<PythonCut>>>,
    own: Option<bool>,
    outs: HashSet<usize>,
    backend: &str,
    #[pyo3(from_py_with = crate::numbers::threads)] threads: Option<NonZero<usize>>,
    drop_cache: bool,
    per_tensor: bool,
    max_memory: Option<u64>,
    places: Option<DeviceCounts<'_>>,
    whole: bool,
) -> BindingResult<Description> {
    let (backend, cufile) = crate::open::load_backend(backend)?;
    let options = LoadOptions { backend, threads, drop_cache, per_tensor, cufile, whole, max_memory };
    let (py, node) = (node.py(), node.get());
    let checkpoint = node.shared().checkpoint()?;
    let requested = node.requested(&names, &dtypes, cuts, places)?;
    let given: Vec<bool> = (0..names.len()).map(|position| outs.contains(&position)).collect();
    let plan = detached(py, || {
        let plan = requested.plan(&checkpoint, memory_of(own), &given, &options)?;
        require_views(&plan, own, &names)?;
        Ok::<_, Error>(plan)
    })?;
    let ranges = plan.planned().into_iter().map(|planned| {
        let Planned { file, offset, len, out_bytes, tensors, action, to, at } = planned;
        (file, offset, len, out_bytes, tensors, action.to_string(), to.to_string(), at)
    });
    let mut arenas: BTreeMap<String, usize> = BTreeMap::new();
    for (dtype, bytes) in plan.arenas() {
        *arenas.entry(dtype.to_string()).or_default() += bytes;
    }
    Ok((ranges.collect(), arenas.into_iter().collect(), plan.strategy().to_string()))
}
