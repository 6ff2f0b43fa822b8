//! Nodes of a tree of weights, as the rest of the binding makes and asks them.

use std::sync::Arc;

use max_weights::checkpoint::{Catalog, Checkpoint, Tree, TreeLimits};
use max_weights::error::Error;
use max_weights::names::join;
use pyo3::prelude::*;

use crate::formats;
use crate::open::Arguments;
use crate::shared::Shared;
use crate::weights::WeightsNode;

impl WeightsNode {
    /// The node of this name in a tree of its own; the root has none.
    pub(crate) fn below(py: Python<'_>, checkpoint: Checkpoint, arguments: Arguments, name: &str) -> Self {
        Self::at(Arc::new(Shared::over(py, Arc::new(checkpoint), arguments)), name.to_owned())
    }

    pub(crate) fn at(shared: Arc<Shared>, name: String) -> Self {
        Self { shared, name, number: None }
    }

    /// The weight of this number.
    pub(crate) fn numbered(shared: Arc<Shared>, number: u32) -> Self {
        let name = shared.catalog.table().name(number as usize).to_owned();
        Self { shared, name, number: Some(number) }
    }

    /// The number of the weight of this name.
    pub(crate) fn number(&self) -> Result<usize, Error> {
        self.number.map_or_else(|| self.catalog().require(&self.name), |number| Ok(number as usize))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Bound<'_, Self>> {
        formats::into_python(py, self)
    }

    pub(crate) fn child<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, Self>> {
        Self::at(self.shared.clone(), join(&self.name, key)).into_python(py)
    }

    pub(crate) fn catalog(&self) -> &Arc<Catalog> {
        &self.shared.catalog
    }

    pub(crate) fn tree(&self, lines: Option<usize>, fold: bool) -> Tree {
        Tree::new(self.catalog(), &self.name, TreeLimits { lines, fold })
    }
}
