//! Lists of values that are mostly short: up to four are stored inline. A pickle of many instances has a tuple and a state for each of them, and
//! allocating a block for each would dominate the time.

use std::ops::Deref;

use super::ids::ObjectId;
use crate::budget::{Budget, Short};

const INLINE: usize = 4;

/// A list of values.
#[derive(Clone)]
pub struct ShortList(Inner);

#[derive(Clone)]
enum Inner {
    Here(u8, [ObjectId; INLINE]),
    Elsewhere(Vec<ObjectId>),
}

impl ShortList {
    /// A copy of these.
    pub(super) fn of(elements: &[ObjectId], budget: &mut Budget) -> Result<Self, Short> {
        match Self::here(elements) {
            Some(here) => Ok(here),
            None => Ok(Self(Inner::Elsewhere(budget.copied(elements)?))),
        }
    }

    /// A copy of these, if they are few.
    #[inline]
    pub(super) fn here(elements: &[ObjectId]) -> Option<Self> {
        let mut list = [ObjectId::FIRST; INLINE];
        list.get_mut(..elements.len())?.copy_from_slice(elements);
        u8::try_from(elements.len()).ok().map(|len| Self(Inner::Here(len, list)))
    }

    /// Adds one at the end.
    pub(super) fn push(&mut self, element: ObjectId, budget: &mut Budget) -> Result<(), Short> {
        match &mut self.0 {
            Inner::Here(len, list) => {
                if let Some(slot) = list.get_mut(usize::from(*len)) {
                    *slot = element;
                    *len += 1;
                    return Ok(());
                }
                let mut elsewhere = Vec::new();
                budget.reserve(&mut elsewhere, 2 * INLINE)?;
                elsewhere.extend_from_slice(list);
                elsewhere.push(element);
                self.0 = Inner::Elsewhere(elsewhere);
                Ok(())
            }
            Inner::Elsewhere(list) => {
                budget.reserve(list, 1)?;
                list.push(element);
                Ok(())
            }
        }
    }
}

impl Default for ShortList {
    fn default() -> Self {
        Self(Inner::Here(0, [ObjectId::FIRST; INLINE]))
    }
}

impl Deref for ShortList {
    type Target = [ObjectId];

    #[inline]
    fn deref(&self) -> &[ObjectId] {
        match &self.0 {
            Inner::Here(len, list) => list.get(..usize::from(*len)).unwrap_or_default(),
            Inner::Elsewhere(list) => list,
        }
    }
}

impl<'a> IntoIterator for &'a ShortList {
    type Item = &'a ObjectId;
    type IntoIter = std::slice::Iter<'a, ObjectId>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl PartialEq for ShortList {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl std::fmt::Debug for ShortList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_what_was_added_however_long_it_is() {
        let ids: Vec<ObjectId> = (0..20).filter_map(ObjectId::from_index).collect();
        let (mut list, mut budget) = (ShortList::default(), Budget::new(1 << 20));
        for (count, id) in ids.iter().enumerate() {
            assert_eq!(*list, ids[..count]);
            assert_eq!(ShortList::of(&ids[..count], &mut budget).expect("memory"), list);
            list.push(*id, &mut budget).expect("memory");
        }
        assert!(ShortList::here(&ids[..4]).is_some() && ShortList::here(&ids[..5]).is_none());
        let short = ShortList::of(&ids, &mut Budget::new(10)).expect_err("no memory");
        assert_eq!(short, Short::Budget(10));
    }
}
