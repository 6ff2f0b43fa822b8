//! Other names for the tensors of a checkpoint, so that those of two schemes meet.

use std::collections::HashMap;

use max_weights::names::{Pattern, Renames};
use max_weights::{Catalog, Result};

/// What tensors are called instead.
#[derive(Debug, Clone, Default)]
pub struct RenamedTensors {
    /// Exact names, by the name in the file.
    pub exact: HashMap<String, String>,
    /// For names that are not among these.
    pub patterns: Vec<Pattern>,
}

impl RenamedTensors {
    /// The catalog with other names; `None` where all keep theirs.
    ///
    /// # Errors
    /// Two tensors that get one name; a pattern that matches none.
    pub(super) fn apply(&self, catalog: &Catalog) -> Result<Option<Catalog>> {
        if self.exact.is_empty() && self.patterns.is_empty() {
            return Ok(None);
        }
        let table = catalog.table();
        let all: Vec<&str> = table.iter().map(|info| info.name).collect();
        let mut new = Renames::new(self.patterns.clone()).apply_all(&all)?;
        for (name, new) in all.iter().zip(&mut new) {
            if let Some(exact) = self.exact.get(*name) {
                *new = Some(exact.clone());
            }
        }
        catalog.renamed(|number| new[number].clone()).map(Some)
    }
}
