//! Keys of a dict and elements of a set: Python compares those of one hash one by one, and computes the hash of a tuple again each time,
//! so that a few kilobytes of them could take hours. Both are counted.

use std::collections::HashMap;

use max_weights::error::{Diagnostic, Result};
use max_weights::format::pickle::{ObjectId, PickleObject, PickleObjects};
use max_weights::rules;
use pyo3::prelude::*;

use crate::error::BindingResult;

/// The most tuples inside one another in a key.
const DEPTH: usize = 32;
/// The most values that are visited to compute hashes, and to compare values of equal hash: some seconds.
const MAX_KEY_PARTS: u64 = 100_000_000;
/// Containers of fewer keys may have any.
const MANY: usize = 1000;
/// The most keys of one hash. Those of real checkpoints are texts, and small numbers.
const ALIKE: u32 = 1000;

/// Keys that were counted so far.
#[derive(Default)]
pub(crate) struct Keys {
    /// The values below each tuple, itself one of them.
    sizes: HashMap<ObjectId, u64>,
    seen: u64,
    /// How many keys have a hash.
    alike: HashMap<isize, u32>,
}

impl Keys {
    /// Counts the values that a hash is computed of.
    pub(crate) fn count(&mut self, objects: &PickleObjects, key: ObjectId) -> Result<()> {
        if !matches!(objects.get(key), PickleObject::Tuple(_)) {
            return Ok(());
        }
        let size = self.size(objects, key, DEPTH)?;
        self.seen = self.seen.saturating_add(size);
        if self.seen > MAX_KEY_PARTS {
            Err(refuse(format!("the keys of dicts have more than {MAX_KEY_PARTS} parts in total")))
        } else {
            Ok(())
        }
    }

    fn size(&mut self, objects: &PickleObjects, key: ObjectId, depth: usize) -> Result<u64> {
        let PickleObject::Tuple(elements) = objects.get(key) else { return Ok(1) };
        if let Some(size) = self.sizes.get(&key) {
            return Ok(*size);
        }
        let deeper = depth.checked_sub(1);
        let deeper =
            deeper.ok_or_else(|| refuse(format!("the key of a dict has tuples nested more than {DEPTH} deep")))?;
        let mut size = 1_u64;
        for element in elements {
            size = size.saturating_add(self.size(objects, *element, deeper)?);
        }
        self.sizes.insert(key, size);
        Ok(size)
    }

    /// Counts a key of a container of `count`; `new` if it was not in it before.
    pub(crate) fn added(
        &mut self,
        objects: &PickleObjects,
        id: ObjectId,
        key: &Bound<'_, PyAny>,
        count: usize,
        new: bool,
    ) -> BindingResult<()> {
        // The hash of a text is one that no file can foresee.
        if count < MANY || !new || matches!(objects.get(id), PickleObject::Text(_) | PickleObject::Bytes(_)) {
            return Ok(());
        }
        let alike = self.alike.entry(key.hash()?).or_default();
        *alike += 1;
        if *alike > ALIKE {
            let cause = format!("more than {ALIKE} keys of a dict, or elements of a set, have the same hash");
            return Err(refuse(cause).into());
        }
        let compared = u64::from(*alike).saturating_mul(self.size(objects, id, DEPTH)?);
        self.seen = self.seen.saturating_add(compared);
        if self.seen > MAX_KEY_PARTS {
            return Err(
                refuse(format!("keys with the same hash have more than {MAX_KEY_PARTS} parts to compare")).into()
            );
        }
        Ok(())
    }
}

fn refuse(cause: String) -> max_weights::error::Error {
    Diagnostic::new(rules::TORCH_KEY, cause).format()
}
