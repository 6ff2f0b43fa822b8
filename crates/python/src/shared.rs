//! The state that all nodes of one tree share: the open files, how they were opened, and the names, which may differ from those in the files.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use max_weights::checkpoint::{Catalog, Checkpoint, ConversionRule};
use max_weights::error::Error;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::ending::detached;
use crate::error::BindingResult;
use crate::open::OpenArguments;

/// The state that all nodes of one opened checkpoint share.
pub(crate) struct OpenedCheckpoint {
    pub(crate) catalog: Arc<Catalog>,
    /// None once closed.
    checkpoint: RwLock<Option<Arc<Checkpoint>>>,
    /// Name -> value, of the weights that were allocated.
    pub(crate) allocated: Py<PyDict>,
    /// How it was opened.
    arguments: OpenArguments,
    refusal_logged: AtomicBool,
    /// None for the names of the file.
    renaming: Option<Arc<Renaming>>,
}

/// How a tree with other names than the file's, or other weights, was derived.
struct Renaming {
    /// The argument of `renamed`.
    scheme: String,
    /// The catalog of the original tree, and its own renaming.
    of: (Arc<Catalog>, Option<Arc<Renaming>>),
    /// The rules, if weights are converted: a Python object, for pickles.
    rules: Option<Py<PyAny>>,
}

impl OpenedCheckpoint {
    /// A separate tree over a checkpoint that other trees may share, with the names of the file.
    pub(crate) fn over(py: Python<'_>, checkpoint: Arc<Checkpoint>, arguments: OpenArguments) -> Self {
        Self {
            catalog: checkpoint.catalog().clone(),
            checkpoint: RwLock::new(Some(checkpoint)),
            allocated: PyDict::new(py).unbind(),
            arguments,
            refusal_logged: AtomicBool::new(false),
            renaming: None,
        }
    }

    /// A tree over the same open files with other names: {name in the file: new name}. Weights with paired rows are unpaired by {name in the file:
    /// heads}. Weights with an offset have {name in the file: what is added}.
    pub(crate) fn renamed(
        &self,
        py: Python<'_>,
        scheme: String,
        names: &HashMap<String, String>,
        heads: &HashMap<String, u64>,
        amounts: &HashMap<String, i32>,
    ) -> BindingResult<Self> {
        let checkpoint = self.checkpoint()?;
        let catalog = Arc::new(checkpoint.catalog().renamed_from_gguf(names, heads, amounts)?);
        Ok(self.with(py, &checkpoint, catalog, Renaming { scheme, of: self.base(), rules: None }))
    }

    /// A tree over the same open files with the weights converted by these rules; `rules` are the same in Python.
    pub(crate) fn converted(
        &self,
        py: Python<'_>,
        scheme: String,
        of_core: Vec<ConversionRule>,
        rules: Py<PyAny>,
    ) -> BindingResult<Self> {
        let checkpoint = self.checkpoint()?;
        let catalog = Arc::new(detached(py, || checkpoint.catalog().converted(of_core))?);
        let renaming = Renaming { scheme, of: self.base(), rules: Some(rules) };
        Ok(self.with(py, &checkpoint, catalog, renaming))
    }

    fn base(&self) -> (Arc<Catalog>, Option<Arc<Renaming>>) {
        (self.catalog.clone(), self.renaming.clone())
    }

    fn with(&self, py: Python<'_>, checkpoint: &Checkpoint, catalog: Arc<Catalog>, renaming: Renaming) -> Self {
        let checkpoint = Arc::new(checkpoint.with_catalog(catalog));
        Self { renaming: Some(Arc::new(renaming)), ..Self::over(py, checkpoint, self.arguments.clone()) }
    }

    /// How pickles restore a renamed tree: from the original tree, the scheme, and the rules.
    pub(crate) fn composed_of(
        &self,
        py: Python<'_>,
        checkpoint: &Checkpoint,
    ) -> Option<(Self, &str, Option<Py<PyAny>>)> {
        let renaming = self.renaming.as_ref()?;
        let (catalog, of) = &renaming.of;
        let of_files = Arc::new(checkpoint.with_catalog(catalog.clone()));
        let tree = Self { renaming: of.clone(), ..Self::over(py, of_files, self.arguments.clone()) };
        Some((tree, &renaming.scheme, renaming.rules.as_ref().map(|rules| rules.clone_ref(py))))
    }

    /// The catalog of the files, if the tree differs from it.
    pub(crate) fn of_files(&self) -> Option<Arc<Catalog>> {
        let mut renaming = self.renaming.as_ref()?;
        while let Some(of) = &renaming.of.1 {
            renaming = of;
        }
        Some(renaming.of.0.clone())
    }

    /// The scheme of the names; `None` if they are the file's.
    pub(crate) fn scheme(&self) -> Option<&str> {
        self.renaming.as_ref().map(|renaming| renaming.scheme.as_str())
    }

    /// True once: a refusal of the system to map is logged the first time.
    pub(crate) fn is_first_refusal(&self) -> bool {
        !self.refusal_logged.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn arguments(&self) -> &OpenArguments {
        &self.arguments
    }

    pub(crate) fn checkpoint(&self) -> Result<Arc<Checkpoint>, Error> {
        let checkpoint = self.checkpoint.read().unwrap_or_else(PoisonError::into_inner);
        let closed =
            || Error::Closed { path: self.catalog.files().first().map(|file| file.path.clone()).unwrap_or_default() };
        checkpoint.clone().ok_or_else(closed)
    }

    pub(crate) fn close(&self) {
        self.checkpoint.write().unwrap_or_else(PoisonError::into_inner).take();
    }
}
