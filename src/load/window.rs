//! Windows of a tensor of several pieces: elements contiguous in C order, each read by its own load plan. So the tensor need not be in memory as a
//! whole.

use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use super::load_plan::LoadPlan;
use super::recipe::Recipe;
use super::slice::rises;
use super::strategy::{LoadOptions, TensorMemory};
use crate::buffer::IndexPart;
use crate::checkpoint::{Backend, Checkpoint};
use crate::error::{Error, Result};
use crate::workers::Interrupt;

impl Recipe {
    /// Whether contiguous elements can be read without much of what lies between them: each piece is stored in C order.
    pub(super) fn has_windows(&self) -> bool {
        let rises = |shape: &[i64], strides: &[i64]| strides.iter().all(|stride| *stride >= 0) && rises(shape, strides);
        self.dtype().bytes().is_some()
            && self.grid() == self.shape()
            && self.requests().all(|one| {
                let placement = &one.placement;
                let inflated = placement.segment.transform.inflate.is_some();
                !inflated && placement.strides.as_deref().is_none_or(|strides| rises(&placement.shape, strides))
            })
    }

    /// Fills `out` with the bytes of whole elements, from byte `start` of the tensor on.
    ///
    /// # Errors
    /// See [`LoadPlan::run`]; also bytes that are not whole elements, or outside the tensor.
    pub(super) fn read_window(
        &self,
        checkpoint: &Checkpoint,
        start: u64,
        out: &mut [u8],
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let outside = || Error::Argument("these bytes are not a whole number of the tensor's elements".to_owned());
        let item = self.dtype().bytes().ok_or_else(outside)? as u64;
        let elements = start / item..(start + out.len() as u64) / item;
        if !start.is_multiple_of(item)
            || !(out.len() as u64).is_multiple_of(item)
            || elements.end * item > self.size()? as u64
        {
            return Err(outside());
        }
        let mut boxes = Vec::new();
        boxes_of(self.shape(), elements, &mut Vec::new(), &mut boxes);
        let parts = boxes.iter().map(|expression| self.index(expression)).collect::<Result<Vec<_>>>()?;
        let options = LoadOptions { backend: Backend::Read, threads: NonZero::new(1), ..LoadOptions::default() };
        let plan = LoadPlan::new(checkpoint, parts, TensorMemory::Own, &[], &options)?;
        let (parts, _) = plan.run(checkpoint, Vec::new(), &AtomicU64::new(0), interrupt)?;
        let mut rest = out;
        for part in parts {
            let place = rest.split_off_mut(..part.size()).ok_or_else(outside)?;
            part.read_bytes(0, place, interrupt)?;
        }
        Ok(())
    }
}

/// The boxes that cover a range of elements in C order, in order.
fn boxes_of(shape: &[i64], elements: Range<u64>, outer: &mut Vec<IndexPart>, boxes: &mut Vec<Vec<IndexPart>>) {
    if elements.is_empty() {
        return;
    }
    let Some((_, inner)) = shape.split_first() else {
        boxes.push(outer.clone());
        return;
    };
    let row: u64 = inner.iter().map(|dim| *dim as u64).product();
    let range =
        |rows: Range<u64>| IndexPart::Slice { start: Some(rows.start as i64), stop: Some(rows.end as i64), step: 1 };
    let mut at = elements.start;
    while at < elements.end {
        let (first, begin) = (at / row, at % row);
        let rows = (elements.end / row).saturating_sub(first);
        if begin == 0 && rows > 0 {
            boxes.push(outer.iter().copied().chain([range(first..first + rows)]).collect());
            at = (first + rows) * row;
        } else {
            let end = row.min(elements.end - first * row);
            outer.push(range(first..first + 1));
            boxes_of(inner, begin..end, outer, boxes);
            outer.pop();
            at = first * row + end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_have_the_elements_of_a_range_in_their_order() {
        for shape in [vec![], vec![1], vec![7], vec![3, 5], vec![2, 1, 3], vec![2, 3, 4], vec![3, 2, 2, 2]] {
            let all: i64 = shape.iter().product();
            for start in 0..all {
                for end in start..=all {
                    let mut boxes = Vec::new();
                    boxes_of(&shape, start as u64..end as u64, &mut Vec::new(), &mut boxes);
                    assert!(boxes.len() < 2 * shape.len().max(1), "{shape:?} {start}..{end}: {boxes:?}");
                    let mut found = Vec::new();
                    for expression in &boxes {
                        let inside = |number: &i64| {
                            let mut rest = *number;
                            let position = |dim: &i64| {
                                let position = rest % dim;
                                rest /= dim;
                                position
                            };
                            let mut positions: Vec<i64> = shape.iter().rev().map(position).collect();
                            positions.reverse();
                            expression.iter().zip(&positions).all(|(index, position)| match index {
                                IndexPart::Slice { start: Some(start), stop: Some(stop), .. } => {
                                    (*start..*stop).contains(position)
                                }
                                _ => false,
                            })
                        };
                        found.extend((0..all).filter(inside));
                    }
                    assert_eq!(found, (start..end).collect::<Vec<_>>(), "{shape:?}: {boxes:?}");
                }
            }
        }
    }
}
