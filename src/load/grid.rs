//! Recipes whose axes are split and merged: an axis of 12 positions is 3 groups of 4. C order does not change.
//!
//! Pieces are boxes in the grid, where each axis of the tensor is one or several axes. A merge leaves the grid unchanged; a split cuts the pieces
//! that end within a group.

use std::ops::Range;

use super::recipe::{Recipe, RecipePiece, WHOLE};
use crate::buffer::{IndexAxis, IndexPart};
use crate::error::{Error, Result};

/// The maximum number of pieces when grid axes are merged again.
const MAX_PIECES: i64 = 1 << 16;

/// The axes of an index in the grid, and the number of grid axes per axis of the result. Otherwise the axis that must become a single one first.
type InGrid = std::result::Result<(Vec<IndexAxis>, Vec<usize>), usize>;

fn refused<T>(cause: String) -> Result<T> {
    Err(Error::Argument(cause))
}

impl Recipe {
    /// The grid axes of an axis of the tensor.
    pub(super) fn grid_axes(&self, axis: usize) -> Range<usize> {
        let start = self.axes.iter().take(axis).sum();
        start..start + self.axes.get(axis).copied().unwrap_or_default()
    }

    /// Splits an axis into two: groups of `inner` positions.
    ///
    /// # Errors
    /// An axis that does not exist, or that `inner` does not divide; a split between elements that are stored together, such as those of a block.
    pub fn unflatten(&self, axis: usize, inner: i64) -> Result<Self> {
        let Some(&size) = self.shape.get(axis).filter(|size| inner > 0 && **size % inner == 0) else {
            return refused(format!("axis {axis} of {:?} cannot be split into groups of {inner}", self.shape));
        };
        let of_grid = self.grid_axes(axis);
        let mut shape = self.shape.clone();
        shape.splice(axis..=axis, [size / inner, inner]);
        let mut axes = self.axes.clone();
        // If the grid is already split there, only the axes are regrouped.
        let split = of_grid.clone().find(|&first| self.grid[first..of_grid.end].iter().product::<i64>() == inner);
        if let Some(split) = split.filter(|split| *split > of_grid.start) {
            axes.splice(axis..=axis, [split - of_grid.start, of_grid.end - split]);
            return Ok(Self { shape, axes, ..self.clone() });
        }
        if of_grid.len() > 1 {
            return self.without_grid(axis)?.unflatten(axis, inner);
        }
        let first = of_grid.start;
        let mut grid = self.grid.clone();
        grid.splice(first..=first, [size / inner, inner]);
        axes.splice(axis..=axis, [1, 1]);
        let mut pieces = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            piece.in_groups(first, inner, &mut pieces)?;
        }
        Ok(Self { shape, grid, axes, pieces, ..Self::empty(self.dtype, self.device, Vec::new()) })
    }

    /// Merges two neighbouring axes, the first of which is `axis`.
    ///
    /// # Errors
    /// There are not two such axes.
    pub fn flatten(&self, axis: usize) -> Result<Self> {
        let (mut shape, mut axes) = (self.shape.clone(), self.axes.clone());
        let size = match shape.get(axis..axis + 2) {
            Some([outer, inner]) => outer.checked_mul(*inner),
            _ => return refused(format!("a tensor of {shape:?} has no axes {axis} and {}", axis + 1)),
        };
        shape.splice(axis..axis + 2, [size.ok_or_else(|| Error::Argument("the size overflows".into()))?]);
        let both = axes[axis] + axes[axis + 1];
        axes.splice(axis..axis + 2, [both]);
        Ok(Self { shape, axes, ..self.clone() })
    }

    /// As before, with a single grid axis for this axis. Pieces that form several boxes are cut.
    ///
    /// # Errors
    /// More than [`MAX_PIECES`] pieces.
    pub(super) fn without_grid(&self, axis: usize) -> Result<Self> {
        let of_grid = self.grid_axes(axis);
        if of_grid.len() == 1 {
            return Ok(self.clone());
        }
        let last = of_grid.end.saturating_sub(1);
        let outer = of_grid.start..last;
        let rows = |piece: &RecipePiece| piece.request.shape[outer.clone()].iter().product::<i64>();
        if self.pieces.iter().map(rows).sum::<i64>() > MAX_PIECES {
            return refused(format!(
                "axis {axis} of {:?} has too many pieces for that: load the whole tensor, and index it",
                self.shape
            ));
        }
        let (mut grid, mut axes) = (self.grid.clone(), self.axes.clone());
        grid.splice(of_grid.clone(), [self.shape[axis]]);
        axes[axis] = 1;
        let mut pieces = Vec::new();
        for piece in &self.pieces {
            for mut number in 0..rows(piece) {
                let mut expression = vec![WHOLE; self.grid.len()];
                let mut start = piece.start[last];
                let mut stride = self.grid[last];
                for axis in outer.clone().rev() {
                    let (size, at) = (piece.request.shape[axis], &mut expression[axis]);
                    *at = IndexPart::At(number % size);
                    start += (piece.start[axis] + number % size) * stride;
                    number /= size;
                    stride *= self.grid[axis];
                }
                let mut starts = piece.start.clone();
                starts.splice(of_grid.clone(), [start]);
                pieces.push(RecipePiece { start: starts, request: piece.request.part(&expression)? });
            }
        }
        Ok(Self { grid, axes, pieces, ..self.clone() })
    }

    /// The recipes with one common grid, except for its first axis along `axis`.
    pub(super) fn of_one_grid(axis: usize, mut recipes: Vec<Self>) -> Result<Vec<Self>> {
        let rank = recipes.first().map_or(0, |first| first.shape.len());
        // Recipes of another rank are rejected by the join.
        if recipes.iter().any(|recipe| recipe.shape.len() != rank) {
            return Ok(recipes);
        }
        for other in 0..rank {
            let own = |recipe: &Self| {
                let mut axes = recipe.grid_axes(other);
                axes.start += usize::from(other == axis);
                recipe.grid[axes].to_vec()
            };
            let first = recipes.first().map(own);
            let is_same = recipes.iter().all(|recipe| Some(own(recipe)) == first);
            if !is_same && recipes.iter().any(|recipe| recipe.axes[other] > 1) {
                recipes = recipes.iter().map(|recipe| recipe.without_grid(other)).collect::<Result<_>>()?;
            }
        }
        Ok(recipes)
    }

    /// Translates an index of the tensor to the grid.
    pub(super) fn in_grid(&self, requested: &[IndexAxis]) -> InGrid {
        let (mut in_grid, mut axes) = (Vec::with_capacity(requested.len()), Vec::with_capacity(requested.len()));
        let mut own = 0..self.shape.len();
        for axis in requested {
            if *axis == IndexAxis::New {
                in_grid.push(IndexAxis::New);
                axes.push(1);
                continue;
            }
            let number = own.next().unwrap_or_default();
            let grid = &self.grid[self.grid_axes(number)];
            let before = in_grid.len();
            if grid.len() == 1 {
                in_grid.push(*axis);
            } else {
                in_axis(*axis, grid, &mut in_grid).ok_or(number)?;
            }
            if let IndexAxis::Range { .. } = axis {
                axes.push(in_grid[before..].iter().filter(|axis| axis.len().is_some()).count());
            }
        }
        Ok((in_grid, axes))
    }
}

/// Translates an index of an axis to its grid axes; `None` if it is not one box there.
fn in_axis(axis: IndexAxis, grid: &[i64], found: &mut Vec<IndexAxis>) -> Option<()> {
    let whole = |size: i64| IndexAxis::Range { begin: 0, len: size, step: 1 };
    let Some((&first, rest)) = grid.split_first() else { return Some(()) };
    let inner: i64 = rest.iter().product();
    match axis {
        IndexAxis::At(element) => {
            let mut left = element;
            for at in 0..grid.len() {
                let inner: i64 = grid[at + 1..].iter().product();
                found.push(IndexAxis::At(left / inner.max(1)));
                left %= inner.max(1);
            }
            Some(())
        }
        IndexAxis::Range { begin, len, step } if rest.is_empty() => {
            found.push(IndexAxis::Range { begin, len, step });
            Some(())
        }
        IndexAxis::Range { begin, len, .. } if begin == 0 && len == first * inner => {
            found.extend(grid.iter().map(|&size| whole(size)));
            Some(())
        }
        IndexAxis::Range { begin, len, step: 1 } if inner > 0 && begin % inner == 0 && len % inner == 0 => {
            found.push(IndexAxis::Range { begin: begin / inner, len: len / inner, step: 1 });
            found.extend(rest.iter().map(|&size| whole(size)));
            Some(())
        }
        IndexAxis::Range { begin, len, step: 1 }
            if inner > 0 && len > 0 && begin / inner == (begin + len - 1) / inner =>
        {
            found.push(IndexAxis::At(begin / inner));
            in_axis(IndexAxis::Range { begin: begin % inner, len, step: 1 }, rest, found)
        }
        _ => None,
    }
}

impl RecipePiece {
    /// Splits an axis into groups of `inner` positions: the partial groups at the ends, and whole ones.
    fn in_groups(&self, axis: usize, inner: i64, pieces: &mut Vec<Self>) -> Result<()> {
        let (begin, end) = (self.start[axis], self.start[axis] + self.request.shape[axis]);
        let mut at = begin;
        while at < end {
            // Up to the end of a group, or of the last whole one.
            let next =
                if at % inner == 0 && end - at >= inner { end - end % inner } else { end.min(at - at % inner + inner) };
            let mut expression = vec![WHOLE; self.start.len()];
            expression[axis] = IndexPart::Slice { start: Some(at - begin), stop: Some(next - begin), step: 1 };
            let rows = ((next - at) / inner).max(1);
            let part = if next - at == self.request.shape[axis] {
                self.request.clone()
            } else {
                self.request.part(&expression)?
            };
            let mut start = self.start.clone();
            start.splice(axis..=axis, [at / inner, at % inner]);
            pieces.push(Self { start, request: part.unflatten(axis, rows)? });
            at = next;
        }
        Ok(())
    }
}
