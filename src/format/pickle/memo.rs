//! The memo of a pickle: numbers are assigned in order, but a file may use any.

use std::collections::HashMap;

use super::ids::ObjectId;
use crate::budget::{Budget, Short, map_bytes, vec_bytes};

#[derive(Debug, Default)]
pub(super) struct Memo {
    dense: Vec<ObjectId>,
    /// Numbers that were assigned before their predecessors: memory is proportional to their count, whatever their values.
    sparse: HashMap<u32, ObjectId>,
}

impl Memo {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.dense.len() + self.sparse.len()
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<ObjectId> {
        self.dense.get(index as usize).or_else(|| self.sparse.get(&index)).copied()
    }

    /// Its size in memory.
    pub(super) fn bytes(&self) -> usize {
        vec_bytes(&self.dense) + map_bytes(&self.sparse)
    }

    #[inline]
    pub(super) fn put(&mut self, index: u32, id: ObjectId, budget: &mut Budget) -> Result<(), Short> {
        let dense = self.dense.len();
        if let Some(slot) = self.dense.get_mut(index as usize) {
            *slot = id;
        } else if dense == index as usize {
            if !self.sparse.is_empty() {
                self.sparse.remove(&index);
            }
            budget.reserve(&mut self.dense, 1)?;
            self.dense.push(id);
        } else {
            budget.entry(&mut self.sparse)?;
            self.sparse.insert(index, id);
        }
        Ok(())
    }
}
