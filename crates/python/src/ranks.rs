//! Loading by several ranks: the plan, and the reads of a rank. The exchange is up to torch.

use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use max_weights::buffer::Buffer as Tensor;
use max_weights::dtype::DType;
use max_weights::error::Error;
use max_weights::load::ranks::{ExchangePlan, Mesh, MeshSplit, PlannedTensor, RankSizes, Sharing};
use max_weights::load::{LoadOptions, LoadPlan, TensorMemory};
use max_weights::memory::IdentityKind;
use max_weights::tensor::{AxisRanges, Region};
use max_weights::text;
use max_weights::workers::now_and_then;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::ending::detached;
use crate::error::{BindingResult, interrupt};
use crate::load::PythonCut;
use crate::node::WeightsNode;
use crate::tensor::PyTensor;

/// The sharding: None for replicated, the number of a mesh, or one region per rank.
#[derive(FromPyObject)]
enum PythonSharing {
    Mesh(usize),
    Parts(Vec<Option<PythonCut>>),
}

/// Ranks, where the largest number means that the rank does not take part; sizes; and for each size the split axis (None for none), with the chunks
/// that the axis already has (0 for one).
pub(crate) type PythonMesh = (Vec<u32>, Vec<u32>, Vec<(Option<usize>, u64)>);

/// Bytes, and the ranges of each axis.
type PythonPart = (u64, Vec<Vec<(u64, u64)>>);
/// Which rank reads what of some weights, and what ranks exchange then. Every rank that passes the same arguments gets the same plan.
///
/// Args:
///     node: Any node of the tree.
///     names: Full names.
///     sharings: The sharding of each: None for replicated, the number of a mesh, or a list with the region of each part.
///     meshes: Ranks, sizes, and for each size the split axis of the tensor, None for none, and its number of chunks so far.
///     part_of: The number of the part of each rank, if there are parts.
///     nodes: The number of the node of each rank.
///     unit_bytes: About how much is read at once; None for the best size.
///     round_bytes: How much a rank reads for one exchange; None for the best size.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct RankPlan {
    plan: ExchangePlan,
    names: Vec<String>,
    numbers: Vec<usize>,
    /// Nothing more is read.
    ended: AtomicBool,
}

#[pymethods]
impl RankPlan {
    #[new]
    #[pyo3(signature = (node, names, sharings, *, meshes, part_of, nodes, unit_bytes=None, round_bytes=None))]
    #[expect(clippy::too_many_arguments, reason = "all that a plan is a function of, by name")]
    fn new(
        node: &Bound<'_, WeightsNode>,
        names: Vec<String>,
        sharings: Vec<Option<PythonSharing>>,
        meshes: Vec<PythonMesh>,
        part_of: Vec<u32>,
        nodes: Vec<u32>,
        unit_bytes: Option<u64>,
        round_bytes: Option<u64>,
    ) -> BindingResult<Self> {
        let (py, node) = (node.py(), node.get());
        let numbers = names.iter().map(|name| node.catalog().require(name)).collect::<Result<Vec<usize>, Error>>()?;
        let (checkpoint, catalog) = (node.shared().checkpoint()?, node.catalog());
        let plan = detached(py, || {
            // On all ranks, so that all of them have the same plan.
            checkpoint.look_up(numbers.iter().copied(), true, &interrupt)?;
            let world = nodes.len() as u32;
            let meshes = self::meshes(meshes, world).collect::<Result<Vec<Mesh>, Error>>()?;
            let members = numbers.iter().zip(sharings).map(|(&number, sharing)| {
                let sharing = match sharing {
                    None => Sharing::Everyone,
                    Some(PythonSharing::Mesh(mesh)) => Sharing::Mesh(mesh),
                    Some(PythonSharing::Parts(parts)) => Sharing::Parts(parts.into_iter().map(region).collect()),
                };
                PlannedTensor::of(catalog, number, sharing)
            });
            let members = members.collect::<Result<Vec<PlannedTensor>, Error>>()?;
            ExchangePlan::new(members, meshes, part_of, nodes, RankSizes { unit: unit_bytes, round: round_bytes })
        })?;
        Ok(Self { plan, names, numbers, ended: AtomicBool::new(false) })
    }

    /// The number of rounds.
    #[getter]
    fn rounds(&self) -> usize {
        self.plan.rounds()
    }

    /// For each tensor, the round after which it is complete on all ranks.
    fn last_rounds(&self, py: Python<'_>) -> Vec<usize> {
        detached(py, || self.plan.last_rounds())
    }

    /// A hash of all inputs of the plan.
    fn hash<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.plan.hash())
    }

    /// The local shard of a rank for each tensor: its bytes, and the ranges of every axis that are joined along it;
    /// None if the rank has none of it.
    fn parts(&self, py: Python<'_>, rank: u32) -> BindingResult<Vec<Option<PythonPart>>> {
        let named = |at: usize, error: Error| match error {
            Error::Argument(cause) => Error::Argument(format!("'{}': {cause}", text::escape(&self.names[at]))),
            other => other,
        };
        let part = |at: usize| self.plan.part_of_rank(at, rank).map_err(|error| named(at, error));
        let parts = detached(py, || (0..self.numbers.len()).map(part).collect::<Result<Vec<_>, Error>>())?;
        let part = |(bytes, runs): (u64, AxisRanges)| {
            (bytes, runs.into_iter().map(|runs| runs.into_iter().map(|run| (run.start, run.end)).collect()).collect())
        };
        Ok(parts.into_iter().map(|one| one.map(part)).collect())
    }

    /// The actions of a rank in a round, as one array of records of ten little-endian 64-bit integers. They are action, rank, unit, tensor, offset
    /// and stride of the rows in the source, offset and stride in the destination, the number of rows, and the bytes of each. The actions are to
    /// read a unit, send, receive and keep rows, broadcast a unit, and take rows of that.
    fn round<'py>(&self, py: Python<'py>, number: usize, rank: u32) -> BindingResult<Bound<'py, PyBytes>> {
        let packed = detached(py, || Ok::<_, Error>(self.plan.round(number, rank)?.packed()))?;
        Ok(PyBytes::new(py, &packed))
    }

    /// Reads the units of a rank for a round: the bytes of each, tensor by tensor. If memory is short, it uses fewer
    /// threads.
    #[pyo3(signature = (node, number, rank, *, backend="auto", threads=None, drop_cache=false, max_memory=None))]
    #[expect(clippy::too_many_arguments, reason = "how a round is read, by name")]
    fn read(
        &self,
        node: &Bound<'_, WeightsNode>,
        number: usize,
        rank: u32,
        backend: &str,
        #[pyo3(from_py_with = crate::numbers::threads)] threads: Option<NonZero<usize>>,
        drop_cache: bool,
        max_memory: Option<u64>,
    ) -> BindingResult<Vec<Vec<PyTensor>>> {
        let (backend, _) = crate::open::load_backend(backend)?;
        let (py, node) = (node.py(), node.get());
        let checkpoint = node.shared().checkpoint()?;
        let options = LoadOptions { backend, threads, drop_cache, per_tensor: true, ..LoadOptions::default() };
        let cancel = || if self.ended.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { interrupt() };
        let units = detached(py, || {
            let reads = self.plan.round(number, rank)?.reads;
            let extents: Vec<_> = reads.iter().flat_map(|(_, _, extents)| extents.iter().cloned()).collect();
            let recipes = self.plan.recipes(&checkpoint, &self.numbers, &extents)?;
            let mut layout = LoadPlan::new(&checkpoint, recipes, TensorMemory::Own, &[], &options)?;
            max_memory.map(|most| layout.keep_threads_to(most)).transpose()?;
            let (read, _) = layout.run(&checkpoint, Vec::new(), &AtomicU64::new(0), &now_and_then(&cancel))?;
            let mut read = read.into_iter();
            let mut units: Vec<Vec<Tensor>> = Vec::with_capacity(reads.len());
            for (_, _, extents) in &reads {
                let unit = extents.iter().zip(read.by_ref()).map(|(extent, tensor)| bytes_of(&tensor, extent.len));
                units.push(unit.collect::<Result<_, Error>>()?);
            }
            Ok::<_, Error>(units)
        })?;
        Ok(units.into_iter().map(|unit| unit.into_iter().map(PyTensor::new).collect()).collect())
    }

    /// Cancels reads on other threads, which do not see Ctrl-C.
    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// The cost: bytes that each rank reads, requests, bytes that ranks receive, the most that a node receives from
    /// others, and rounds.
    fn costs(&self, py: Python<'_>) -> BindingResult<(Vec<u64>, u64, u64, u64, usize)> {
        let costs = detached(py, || Ok::<_, Error>(self.plan.costs()))?;
        Ok((costs.read, costs.requests, costs.exchanged, costs.fabric, costs.rounds))
    }
}

/// Meshes of some of `world` ranks.
pub(crate) fn meshes(meshes: Vec<PythonMesh>, world: u32) -> impl Iterator<Item = Result<Mesh, Error>> {
    meshes.into_iter().map(move |(ranks, dims, splits)| {
        let splits = splits.into_iter().map(|split| match split {
            (None, _) => MeshSplit::Replicate,
            (Some(axis), 0) => MeshSplit::Shard { axis },
            (Some(axis), factor) => MeshSplit::Strided { axis, factor },
        });
        Mesh::new(world, ranks, dims, splits.collect())
    })
}

/// The ranges of each axis that the rank at a place of a mesh has of a tensor of this shape.
#[pyfunction]
pub(crate) fn ranges_in_mesh(
    sizes: Vec<u32>,
    splits: Vec<(Option<usize>, u64)>,
    place: u32,
    shape: Vec<u64>,
) -> BindingResult<Vec<Vec<(u64, u64)>>> {
    let world = sizes.iter().fold(1, |product: u32, size| product.saturating_mul(*size));
    let ranges = meshes(vec![((0..world).collect(), sizes, splits)], world).try_fold(Vec::new(), |_, mesh| {
        let mesh = mesh?;
        mesh.require_axes(&shape)?;
        let runs = mesh.runs(place, &shape).unwrap_or_default();
        let pairs = |axis: Vec<Range<u64>>| axis.into_iter().map(|range| (range.start, range.end)).collect();
        Ok::<_, Error>(runs.into_iter().map(pairs).collect())
    })?;
    Ok(ranges)
}

fn region(cut: Option<PythonCut>) -> Option<Region> {
    let ranges = |ranges: Vec<(u64, u64)>| ranges.into_iter().map(|(start, stop)| start..stop).collect();
    cut.map(|cut| cut.into_iter().map(|(axis, cut)| (axis, ranges(cut))).collect())
}

/// The elements of a tensor in C order, as bytes.
fn bytes_of(tensor: &Tensor, len: u64) -> Result<Tensor, Error> {
    let tensor = tensor.contiguous(&interrupt)?;
    Tensor::contiguous_at(tensor.storage().clone(), tensor.offset(), DType::UInt8, &[len as i64])
}

/// The identity of the files of a tree: the length of each, whether it is an object of a store, and a mark that changes
/// with its content.
#[pyfunction]
pub(crate) fn file_identities(node: &Bound<'_, WeightsNode>) -> BindingResult<Vec<(u64, bool, i128)>> {
    let checkpoint = node.get().shared().checkpoint()?;
    let identity = |one: max_weights::memory::FileIdentity| {
        (one.len, matches!(one.identity, IdentityKind::Object(_)), one.identity.mark())
    };
    Ok(checkpoint.fingerprints().map(identity).collect())
}
