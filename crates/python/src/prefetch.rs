//! Readahead for tensors that are taken one by one.

use std::ops::Range;

use max_weights::error::Error;
use max_weights::load::Prefetch;
use pyo3::prelude::*;

use crate::ending::detached;
use crate::error::BindingResult;
use crate::node::WeightsNode;

/// Fetches the pages that follow the weight that is taken, in file order, if they come from a disk. Its threads end when idle, or when it is
/// dropped.
///
/// Args:
///     node: Any node of the tree.
///     names: Full names.
///     dtypes: One for each; None for that of the file.
///     own: Weights get their own memory.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct Prefetcher {
    prefetch: Prefetch,
    /// The pieces of each weight, as positions in `prefetch`.
    pieces: Vec<Range<usize>>,
}

#[pymethods]
impl Prefetcher {
    #[new]
    fn new(
        node: &Bound<'_, WeightsNode>,
        names: Vec<String>,
        dtypes: Vec<Option<Bound<'_, PyAny>>>,
        own: bool,
    ) -> BindingResult<Self> {
        let (py, node) = (node.py(), node.get());
        let checkpoint = node.shared().checkpoint()?;
        let request = node.requested(&names, &dtypes, None, None)?;
        Ok(detached(py, || {
            let recipes = request.recipes(&checkpoint, node.catalog(), false)?;
            let (mut requested, mut pieces) = (Vec::with_capacity(recipes.len()), Vec::with_capacity(recipes.len()));
            for recipe in recipes {
                let first = requested.len();
                requested.extend(recipe.into_request());
                pieces.push(first..requested.len());
            }
            Ok::<_, Error>(Self { prefetch: Prefetch::new(&checkpoint, &requested, own), pieces })
        })?)
    }

    /// Announces that the weight at this position is loaded next.
    fn take(&self, py: Python<'_>, position: usize) {
        let pieces = self.pieces.get(position).cloned().unwrap_or_default();
        detached(py, || pieces.for_each(|piece| self.prefetch.take(piece)));
    }
}
