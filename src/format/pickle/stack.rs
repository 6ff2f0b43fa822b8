//! The stack of the machine, the values that are put on it, and the memory that they take.

use super::ids::ObjectId;
use super::machine::PickleMachine;
use super::object::{ArenaSlice, PickleObject};
use super::short_list::ShortList;
use super::{ParseStep, limit};
use crate::budget::{Short, vec_bytes};
use crate::error::Diagnostic;
use crate::rules::{self, Rule};

/// The number of values that fit without growing.
const KEPT: usize = 1 << 12;

impl PickleMachine<'_> {
    pub(super) fn fault(&self, rule: &'static Rule, cause: impl Into<String>) -> Box<Diagnostic> {
        Diagnostic::new(rule, cause).offset(self.position).into()
    }

    pub(super) fn full(&self) -> Box<Diagnostic> {
        limit("values", self.limits.objects, self.position)
    }

    /// More memory than the file may take, or than is available.
    #[cold]
    pub(super) fn short(&self, short: Short) -> Box<Diagnostic> {
        short.into_fault(rules::PICKLE_MEMORY).offset(self.position).into()
    }

    /// Counts memory before it is allocated.
    pub(super) fn take(&mut self, bytes: usize) -> ParseStep<()> {
        self.budget.take(bytes).map_err(|short| self.short(short))
    }

    /// Counts memory that is needed for a moment.
    pub(super) fn scratch(&self, bytes: usize) -> ParseStep<()> {
        self.budget.scratch(bytes).map_err(|short| self.short(short))
    }

    /// Takes the list of [`PickleMachine::pop_mark`] back, for reuse.
    pub(super) fn freed(&mut self, items: Vec<ObjectId>) {
        let gone = if items.capacity() <= KEPT { std::mem::replace(&mut self.items, items) } else { items };
        self.budget.give(vec_bytes(&gone));
    }

    /// Puts a value into the arena.
    #[inline]
    pub(super) fn make(&mut self, object: PickleObject) -> ParseStep<ObjectId> {
        if self.objects.len() >= self.limits.objects {
            return Err(self.full());
        }
        let made = self.objects.push(object, &mut self.budget).map_err(|short| self.short(short))?;
        made.ok_or_else(|| self.full())
    }

    pub(super) fn tuple(&mut self, elements: &[ObjectId]) -> ParseStep<PickleObject> {
        ShortList::of(elements, &mut self.budget).map(PickleObject::Tuple).map_err(|short| self.short(short))
    }

    pub(super) fn make_tuple(&mut self, elements: &[ObjectId]) -> ParseStep<ObjectId> {
        let tuple = self.tuple(elements)?;
        self.make(tuple)
    }

    pub(super) fn make_text(&mut self, text: &str) -> ParseStep<ObjectId> {
        let slice = self.store_text(text)?;
        self.make(PickleObject::Text(slice))
    }

    pub(super) fn store_text(&mut self, text: &str) -> ParseStep<ArenaSlice> {
        let slice = self.objects.store_text(text, &mut self.budget).map_err(|short| self.short(short))?;
        slice.ok_or_else(|| self.full())
    }

    pub(super) fn store_bytes(&mut self, bytes: &[u8]) -> ParseStep<ArenaSlice> {
        let slice = self.objects.store_bytes(bytes, &mut self.budget).map_err(|short| self.short(short))?;
        slice.ok_or_else(|| self.full())
    }

    #[inline]
    pub(super) fn shared(&mut self, place: usize, object: PickleObject) -> ParseStep<()> {
        let id = match self.small.get(place).copied().flatten() {
            Some(id) => id,
            None => self.make(object)?,
        };
        if let Some(slot) = self.small.get_mut(place) {
            *slot = Some(id);
        }
        self.push(id)
    }

    #[inline]
    pub(super) fn push(&mut self, id: ObjectId) -> ParseStep<()> {
        if self.stack.len() >= self.limits.stack {
            return Err(limit("values on the stack", self.limits.stack, self.position));
        }
        self.budget.reserve(&mut self.stack, 1).map_err(|short| self.short(short))?;
        self.stack.push(id);
        Ok(())
    }

    #[inline]
    pub(super) fn has_value(&self) -> ParseStep<()> {
        if self.stack.len() > self.marks.last().copied().unwrap_or(0) {
            return Ok(());
        }
        Err(self.fault(rules::PICKLE_STACK, "an instruction takes a value from the stack, but there is none"))
    }

    #[inline]
    pub(super) fn pop(&mut self) -> ParseStep<ObjectId> {
        self.has_value()?;
        self.stack.pop().ok_or_else(|| self.full())
    }

    #[inline]
    pub(super) fn top(&self) -> ParseStep<ObjectId> {
        self.has_value()?;
        self.stack.last().copied().ok_or_else(|| self.full())
    }

    /// The values above the last mark; the list is returned with [`PickleMachine::freed`].
    pub(super) fn pop_mark(&mut self) -> ParseStep<Vec<ObjectId>> {
        let height = self.mark_height()?;
        let above = self.stack.get(height..).unwrap_or_default();
        let mut items = std::mem::take(&mut self.items);
        items.clear();
        let reserved = self.budget.reserve(&mut items, above.len());
        reserved.map_err(|short| self.short(short))?;
        items.extend_from_slice(above);
        self.stack.truncate(height);
        Ok(items)
    }

    /// Like [`PickleMachine::pop_mark`], with the exact capacity, to be kept.
    pub(super) fn pop_mark_copied(&mut self) -> ParseStep<Vec<ObjectId>> {
        let items = self.pop_mark()?;
        let copy = self.budget.copied(&items).map_err(|short| self.short(short))?;
        self.freed(items);
        Ok(copy)
    }

    pub(super) fn drop_mark(&mut self) -> ParseStep<()> {
        let height = self.mark_height()?;
        self.stack.truncate(height);
        Ok(())
    }

    pub(super) fn mark_height(&mut self) -> ParseStep<usize> {
        match self.marks.pop() {
            Some(height) => Ok(height.min(self.stack.len())),
            None => {
                Err(self.fault(rules::PICKLE_STACK, "an instruction takes values down to a mark, but there is none"))
            }
        }
    }
}
