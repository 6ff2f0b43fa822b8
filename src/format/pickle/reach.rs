//! Finds the values that lead to a tensor. Values may contain each other, so the search goes upwards from the tensors, and visits each value once.

use super::ids::ObjectId;
use super::object::{PickleObject, PickleObjects};
use crate::budget::{self, Budget, Short, saturating_u32};

/// For each value of the arena, whether it is a tensor or contains one.
pub(super) fn leads_to_tensor(objects: &PickleObjects, budget: &Budget) -> Result<Vec<bool>, Short> {
    // The containers of each value, one list after the other.
    let mut starts = zeros(objects.len() + 1, budget)?;
    for (id, _) in objects.iter() {
        for_each_child(objects, id, |child| {
            if let Some(count) = starts.get_mut(child.index() + 1) {
                *count += 1;
            }
        });
    }
    let mut total = 0;
    for start in &mut starts {
        total += *start;
        *start = total;
    }
    let mut parents = zeros(total as usize, budget)?;
    let mut next = zeros(starts.len(), budget)?;
    next.copy_from_slice(&starts);
    for (id, _) in objects.iter() {
        for_each_child(objects, id, |child| {
            let Some(place) = next.get_mut(child.index()) else { return };
            if let Some(slot) = parents.get_mut(*place as usize) {
                *slot = saturating_u32(id.index());
            }
            *place += 1;
        });
    }
    let mut leads = budget::list(objects.len())?;
    leads.resize(objects.len(), false);
    // Each value is opened once.
    let mut open: Vec<u32> = budget::list(objects.len())?;
    for (id, object) in objects.iter() {
        if matches!(object, PickleObject::Tensor(_)) {
            mark(&mut leads, &mut open, saturating_u32(id.index()));
        }
    }
    while let Some(index) = open.pop() {
        let index = index as usize;
        let range =
            starts.get(index).copied().unwrap_or(0) as usize..starts.get(index + 1).copied().unwrap_or(0) as usize;
        for parent in parents.get(range).unwrap_or_default() {
            mark(&mut leads, &mut open, *parent);
        }
    }
    Ok(leads)
}

/// A list of zeros, for the time of this module.
fn zeros(len: usize, budget: &Budget) -> Result<Vec<u32>, Short> {
    budget.scratch(len.saturating_mul(2 * size_of::<u32>()))?;
    let mut list = budget::list(len)?;
    list.resize(len, 0);
    Ok(list)
}

fn mark(leads: &mut [bool], open: &mut Vec<u32>, index: u32) {
    if let Some(slot) = leads.get_mut(index as usize).filter(|slot| !**slot) {
        *slot = true;
        open.push(index);
    }
}

/// The values that may get names below this one.
fn for_each_child(objects: &PickleObjects, id: ObjectId, mut visit: impl FnMut(ObjectId)) {
    match objects.get(id) {
        PickleObject::List(elements) => elements.iter().copied().for_each(visit),
        PickleObject::Tuple(elements) => elements.iter().copied().for_each(visit),
        PickleObject::Dict(dict) => dict.entries.iter().for_each(|(_, value)| visit(*value)),
        PickleObject::Parameter { tensor, .. } => visit(*tensor),
        PickleObject::Subclass { tensor, state, .. } => [*tensor, *state].into_iter().for_each(visit),
        PickleObject::Opaque(_) => {
            if let Some(opaque) = objects.opaque(id) {
                let items = opaque.items.iter().map(|(_, value)| *value);
                opaque.arguments.into_iter().chain(opaque.states.iter().copied()).chain(items).for_each(visit);
            }
        }
        _ => {}
    }
}
