//! `WeightsNode`: a node of a tree of weights. Its Python methods are in `weights.rs`.

use std::sync::Arc;

use max_weights::checkpoint::{Catalog, Checkpoint, PrefixTree, TreeLimits};
use max_weights::error::Error;
use pyo3::prelude::*;

use crate::open::OpenArguments;
use crate::shared::OpenedCheckpoint;

/// One node of a tree of weights: a name, which may be that of a weight, a prefix of others, both, or neither.
///
/// `weights.model.layers[0].weight` is the node named `model.layers.0.weight`: each attribute or index adds a component. A
/// name is looked up when it is used, and where it is not there, the error has near names.
///
/// A node that is a weight has `shape` and `dtype`, unless a child has such a name. Slices, `...` and tuples are
/// NumPy's basic indexing, `weight[1:2]`. An integer is always a child, `layers[1]`, `layers[-1]`. NumPy, torch, JAX
/// and others accept a weight as an array. All weights at and below: `items()`, `len(node)`; `name in node` tests for
/// one below. One level of the tree: `children()`. Two nodes are equal if they have one name in one tree. Less common
/// operations are functions of the package: `max_weights.infos(node)`, `max_weights.stats(node)` …
#[pyclass(frozen, subclass, mapping, module = "max_weights._weights")]
pub(crate) struct WeightsNode {
    pub(crate) shared: Arc<OpenedCheckpoint>,
    pub(crate) name: String,
    /// The number of the weight, where it is known without a search.
    pub(crate) number: Option<u32>,
}

impl WeightsNode {
    /// The node of this name in a separate tree; the root has none.
    pub(crate) fn below(py: Python<'_>, checkpoint: Checkpoint, arguments: OpenArguments, name: &str) -> Self {
        Self::at(Arc::new(OpenedCheckpoint::over(py, Arc::new(checkpoint), arguments)), name.to_owned())
    }

    pub(crate) fn at(shared: Arc<OpenedCheckpoint>, name: String) -> Self {
        Self { shared, name, number: None }
    }

    /// The weight of this number.
    pub(crate) fn numbered(shared: Arc<OpenedCheckpoint>, number: u32) -> Self {
        let name = shared.catalog.table().name(number as usize).to_owned();
        Self { shared, name, number: Some(number) }
    }

    /// The number of the weight of this name.
    pub(crate) fn number(&self) -> Result<usize, Error> {
        self.number.map_or_else(|| self.catalog().require(&self.name), |number| Ok(number as usize))
    }

    pub(crate) fn shared(&self) -> &Arc<OpenedCheckpoint> {
        &self.shared
    }

    pub(crate) fn catalog(&self) -> &Arc<Catalog> {
        &self.shared.catalog
    }

    pub(crate) fn tree(&self, lines: Option<usize>, fold: bool) -> PrefixTree {
        PrefixTree::new(self.catalog(), &self.name, TreeLimits { lines, fold })
    }
}
