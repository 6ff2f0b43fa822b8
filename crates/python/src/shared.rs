//! What all nodes of one tree share: the open files, how they were opened, and the names, which may be others than the files'.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use max_weights::checkpoint::{Catalog, Checkpoint};
use max_weights::error::Error;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::Outcome;
use crate::open::Arguments;

/// What all nodes of one opened checkpoint share.
pub(crate) struct Shared {
    pub(crate) catalog: Arc<Catalog>,
    /// None once closed.
    checkpoint: RwLock<Option<Arc<Checkpoint>>>,
    /// Name -> value, of the weights that were allocated.
    pub(crate) allocated: Py<PyDict>,
    /// How it was opened.
    arguments: Arguments,
    refusal_logged: AtomicBool,
    /// None for the names of the file.
    renaming: Option<Renaming>,
}

/// What a tree with other names than the file's knows beside them.
struct Renaming {
    /// The argument of `renamed`.
    scheme: String,
    /// Number of a weight -> number of heads, where the order of rows differs from the file's too.
    heads: HashMap<usize, u64>,
}

impl Shared {
    /// A tree of its own over a checkpoint that other trees may hold too, with the names of the file.
    pub(crate) fn over(py: Python<'_>, checkpoint: Arc<Checkpoint>, arguments: Arguments) -> Self {
        Self {
            catalog: checkpoint.catalog().clone(),
            checkpoint: RwLock::new(Some(checkpoint)),
            allocated: PyDict::new(py).unbind(),
            arguments,
            refusal_logged: AtomicBool::new(false),
            renaming: None,
        }
    }

    /// A tree over the same open files with other names: {name in the file: new name}, and for weights whose rows are pairs to be taken apart
    /// {name in the file: heads}.
    pub(crate) fn renamed(
        &self,
        py: Python<'_>,
        scheme: String,
        names: &HashMap<String, String>,
        heads: HashMap<String, u64>,
    ) -> Outcome<Self> {
        let checkpoint = self.checkpoint()?;
        let file = checkpoint.catalog();
        let heads = heads.into_iter().filter_map(|(name, heads)| Some((file.find(&name)?, heads))).collect();
        let catalog = Arc::new(file.renamed(|number| names.get(file.table().name(number)).cloned())?);
        let renaming = Some(Renaming { scheme, heads });
        Ok(Self { catalog, renaming, ..Self::over(py, checkpoint.clone(), self.arguments.clone()) })
    }

    /// The scheme of the names; `None` if they are the file's.
    pub(crate) fn scheme(&self) -> Option<&str> {
        self.renaming.as_ref().map(|renaming| renaming.scheme.as_str())
    }

    /// The heads that the rows of a weight are ordered by in the file, where the names of this tree ask for another order.
    pub(crate) fn heads(&self, number: usize) -> Option<u64> {
        self.renaming.as_ref()?.heads.get(&number).copied()
    }

    /// True once: that the system refuses to map is said in the log the first time.
    pub(crate) fn is_first_refusal(&self) -> bool {
        !self.refusal_logged.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn arguments(&self) -> &Arguments {
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
