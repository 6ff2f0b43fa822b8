//! A recipe describes a tensor, and which boxes of it are composed of which weights or parts of weights.
//!
//! Recipes are concatenated, stacked, indexed, split and transposed like NumPy arrays, without reading. An ordinary tensor has one piece, and is read
//! directly.

use std::collections::BTreeSet;
use std::ops::Range;

use super::placement::Placement;
use super::request::{Conversion, TensorRequest};
use crate::buffer::{IndexAxis, IndexPart, axes, checked_size, row_major};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Shorter rows are not read directly to their places: the list of rows would be larger than their bytes.
const ROW: usize = 16 << 10;

/// A tensor composed of pieces, which fill it and do not overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    pub(super) dtype: DType,
    pub(super) shape: Vec<i64>,
    /// The shape in which pieces are boxes: that of the tensor, or with some axes split, with the same elements in C order.
    pub(super) grid: Vec<i64>,
    /// The number of grid axes per axis of the tensor.
    pub(super) axes: Vec<usize>,
    pub(super) device: Device,
    /// Whether the result is in C order, even if its only piece is stored in another order.
    pub(super) in_order: bool,
    pub(super) pieces: Vec<RecipePiece>,
}

/// A box of a tensor, and its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecipePiece {
    /// The start of the box on each axis of the grid.
    pub(super) start: Vec<i64>,
    /// The contents, with the shape of the box.
    pub(super) request: TensorRequest,
}

/// The source of contiguous bytes of a composed tensor.
#[derive(Debug)]
pub(super) enum Fill<'a> {
    /// A whole piece.
    Whole(&'a TensorRequest),
    /// The bytes of its segment in this range.
    Row(&'a TensorRequest, Range<u64>),
}

impl From<TensorRequest> for Recipe {
    fn from(request: TensorRequest) -> Self {
        let (dtype, shape, device) = (request.dtype, request.shape.clone(), request.device);
        Self { pieces: vec![RecipePiece { start: vec![0; shape.len()], request }], ..Self::empty(dtype, device, shape) }
    }
}

/// A tensor to be read, of one piece or of several.
#[derive(Debug)]
pub enum RecipeRequest {
    /// A piece, which is the whole tensor.
    One(TensorRequest),
    /// Several pieces, or one that is reordered.
    Composed(Recipe),
}

impl From<TensorRequest> for RecipeRequest {
    fn from(request: TensorRequest) -> Self {
        Self::One(request)
    }
}

impl From<Recipe> for RecipeRequest {
    fn from(recipe: Recipe) -> Self {
        recipe.into_one().map_or_else(Self::Composed, Self::One)
    }
}

fn refused<T>(cause: String) -> Result<T> {
    Err(Error::Argument(cause))
}

impl Recipe {
    /// Composes a tensor of boxes: the start of each on each axis, and its contents, of the shape of the box.
    ///
    /// # Errors
    /// A piece of another dtype or device, or outside the tensor; pieces that overlap; elements without a piece.
    pub fn new(dtype: DType, shape: &[i64], pieces: Vec<(Vec<i64>, TensorRequest)>) -> Result<Self> {
        checked_size(dtype, shape)?;
        let device = pieces.first().map_or(Device::Cpu, |(_, request)| request.device);
        for (number, (start, request)) in pieces.iter().enumerate() {
            if (request.dtype, request.device) != (dtype, device) {
                let (found, on) = (request.dtype, request.device);
                return refused(format!("piece {number} is {found} on {on}, but the tensor is {dtype} on {device}"));
            }
            let size = &request.shape;
            let fits =
                start.len() == shape.len()
                    && size.len() == shape.len()
                    && start.iter().zip(size).zip(shape).all(|((start, size), dim)| {
                        *start >= 0 && start.checked_add(*size).is_some_and(|end| end <= *dim)
                    });
            if !fits {
                return refused(format!(
                    "piece {number}, {size:?} from {start:?} on, extends beyond a tensor of {shape:?}"
                ));
            }
        }
        let pieces = pieces.into_iter().map(|(start, request)| RecipePiece { start, request });
        let whole = Self { pieces: pieces.collect(), ..Self::empty(dtype, device, shape.to_vec()) };
        whole.check_filled()?;
        Ok(whole)
    }

    /// Creates a tensor without pieces.
    pub(super) fn empty(dtype: DType, device: Device, shape: Vec<i64>) -> Self {
        let (grid, axes) = (shape.clone(), vec![1; shape.len()]);
        Self { dtype, shape, grid, axes, device, in_order: false, pieces: Vec::new() }
    }

    /// Fails if two pieces overlap, or the pieces leave a gap.
    fn check_filled(&self) -> Result<()> {
        let elements = |shape: &[i64]| shape.iter().map(|dim| *dim as u64).product::<u64>();
        let mut order: Vec<usize> = (0..self.pieces.len()).collect();
        let box_of = |i: usize, axis: usize| {
            let piece = &self.pieces[i];
            piece.start[axis]..piece.start[axis] + piece.request.shape[axis]
        };
        order.retain(|&i| elements(&self.pieces[i].request.shape) > 0);
        if self.shape.is_empty() && order.len() > 1 {
            return refused(format!("pieces {} and {} overlap", order[0], order[1]));
        }
        // Boxes are compared only if they overlap along one axis. The axis with the most distinct starts has the fewest such pairs.
        let starts = |axis: usize| order.iter().map(|&i| box_of(i, axis).start).collect::<BTreeSet<i64>>().len();
        let first = (0..self.shape.len()).max_by_key(|&axis| starts(axis)).unwrap_or_default();
        if !self.shape.is_empty() {
            order.sort_by_key(|&i| box_of(i, first).start);
        }
        let overlap = |a: usize, b: usize| {
            (0..self.shape.len()).all(|axis| {
                let (a, b) = (box_of(a, axis), box_of(b, axis));
                a.start < b.end && b.start < a.end
            })
        };
        for (position, &i) in order.iter().enumerate() {
            let near = order[position + 1..].iter().take_while(|&&j| box_of(j, first).start < box_of(i, first).end);
            if let Some(&j) = near.clone().find(|&&j| overlap(i, j)) {
                let (first, second) = (i.min(j), i.max(j));
                return refused(format!("pieces {first} and {second} overlap"));
            }
        }
        let filled: u64 = order.iter().map(|&i| elements(&self.pieces[i].request.shape)).sum();
        let all = elements(&self.shape);
        if filled < all {
            return refused(format!("the pieces have {filled} of the {all} elements of a tensor of {:?}", self.shape));
        }
        Ok(())
    }

    /// Concatenates tensors along an axis, as `numpy.concatenate` does.
    ///
    /// # Errors
    /// No tensor; one of another dtype, device, or shape outside that axis; an axis that does not exist.
    pub fn join(axis: usize, recipes: Vec<Self>) -> Result<Self> {
        let Some(first) = recipes.first() else { return refused("there is nothing to join".to_owned()) };
        let (dtype, device, mut shape) = (first.dtype, first.device, first.shape.clone());
        if axis >= shape.len() {
            return refused(format!("a tensor of {shape:?} has no axis {axis} to be joined along"));
        }
        let recipes = Self::of_one_grid(axis, recipes)?;
        let Some((mut grid, axes)) = recipes.first().map(|first| (first.grid.clone(), first.axes.clone())) else {
            return refused("there is nothing to join".to_owned());
        };
        // If the axis is several axes of the grid, the first of them grows.
        let first_axis = axes[..axis].iter().sum::<usize>();
        grid[first_axis] = 0;
        let (mut end, mut pieces) = (0_i64, Vec::new());
        for (number, recipe) in recipes.into_iter().enumerate() {
            let mut like = recipe.shape.clone();
            if let (Some(dim), true) = (like.get_mut(axis), recipe.shape.len() == shape.len()) {
                *dim = shape[axis];
            }
            if like != shape || (recipe.dtype, recipe.device) != (dtype, device) {
                let (found, kind, on) = (&recipe.shape, recipe.dtype, recipe.device);
                return refused(format!(
                    "number {number} is {kind} {found:?} on {on}, which cannot follow {dtype} {shape:?} on {device} along axis {axis}"
                ));
            }
            for mut piece in recipe.pieces {
                piece.start[first_axis] += grid[first_axis];
                pieces.push(piece);
            }
            grid[first_axis] += recipe.grid.get(first_axis).copied().unwrap_or_default();
            end = end.checked_add(recipe.shape[axis]).ok_or_else(|| Error::Argument("the size overflows".into()))?;
        }
        shape[axis] = end;
        checked_size(dtype, &shape)?;
        Ok(Self { dtype, shape, grid, axes, device, in_order: false, pieces })
    }

    /// Stacks tensors of one shape along a new axis, as `numpy.stack` does.
    ///
    /// # Errors
    /// See [`Self::join`].
    pub fn stack(axis: usize, recipes: &[Self]) -> Result<Self> {
        let with_axis = |recipe: &Self| {
            if axis > recipe.shape.len() {
                return refused(format!("a tensor of {:?} cannot get a new axis {axis}", recipe.shape));
            }
            let mut expression = vec![WHOLE; recipe.shape.len()];
            expression.insert(axis, IndexPart::NewAxis);
            recipe.index(&expression)
        };
        Self::join(axis, recipes.iter().map(with_axis).collect::<Result<_>>()?)
    }

    /// Selects `expression`, as NumPy's basic indexing does. Only the selected elements are read.
    ///
    /// # Errors
    /// The errors of NumPy; also an index that would split elements which are stored together, such as those of a block.
    pub fn index(&self, expression: &[IndexPart]) -> Result<Self> {
        let request = axes(&self.shape, expression)?;
        let shape = request.iter().filter_map(IndexAxis::len).collect();
        let (request, axes) = match self.in_grid(&request) {
            Ok(in_grid) => in_grid,
            Err(axis) => return self.without_grid(axis)?.index(expression),
        };
        let grid = request.iter().filter_map(IndexAxis::len).collect();
        let mut pieces = Vec::new();
        for piece in &self.pieces {
            if let Some(piece) = piece.index(&request)? {
                pieces.push(piece);
            }
        }
        Ok(Self { dtype: self.dtype, shape, grid, axes, device: self.device, in_order: self.in_order, pieces })
    }

    /// Splits an axis into parts of these sizes, as `torch.split` does.
    ///
    /// # Errors
    /// See [`Self::index`]; also sizes that do not add up to the axis.
    pub fn split(&self, axis: usize, sizes: &[i64]) -> Result<Vec<Self>> {
        if self.shape.get(axis).copied() != sizes.iter().try_fold(0_i64, |end, size| end.checked_add(*size)) {
            return refused(format!("a tensor of {:?} cannot be split into {sizes:?} along axis {axis}", self.shape));
        }
        let mut end = 0;
        let part = |size: &i64| {
            let start = end;
            end += size;
            let mut expression = vec![WHOLE; self.shape.len()];
            expression[axis] = IndexPart::Slice { start: Some(start), stop: Some(end), step: 1 };
            self.index(&expression)
        };
        sizes.iter().map(part).collect()
    }

    /// Reorders the axes, as `numpy.transpose` does.
    ///
    /// # Errors
    /// An invalid order; with blocks, the last axis must stay the last.
    pub fn transpose(&self, order: &[usize]) -> Result<Self> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..self.shape.len()) {
            return refused(format!("{order:?} is not a permutation of the axes of {:?}", self.shape));
        }
        let in_grid: Vec<usize> = order.iter().flat_map(|&axis| self.grid_axes(axis)).collect();
        let pieces = self.pieces.iter().map(|RecipePiece { start, request }| {
            let start = in_grid.iter().map(|&axis| start[axis]).collect();
            Ok(RecipePiece { start, request: request.transpose(&in_grid)? })
        });
        let (dtype, device, pieces) = (self.dtype, self.device, pieces.collect::<Result<_>>()?);
        let shape = order.iter().map(|&axis| self.shape[axis]).collect();
        let (grid, axes) = (in_grid.iter().map(|&axis| self.grid[axis]), order.iter().map(|&axis| self.axes[axis]));
        let (grid, axes) = (grid.collect(), axes.collect());
        Ok(Self { dtype, shape, grid, axes, device, in_order: self.in_order, pieces })
    }

    /// Adds a number to each element, as [`Conversion::Add`] does. The result is not a view of a file.
    ///
    /// # Errors
    /// Packed blocks; pieces that already have a sum.
    pub fn with_sum(mut self, amount: i32) -> Result<Self> {
        for RecipePiece { request, .. } in &mut self.pieces {
            request.conversion = request.conversion.with_sum(request.dtype, amount)?;
        }
        Ok(self)
    }

    /// The same in C order, which is no view of a file that stores the elements differently.
    #[must_use]
    pub fn in_order(self) -> Self {
        Self { in_order: true, ..self }
    }

    /// The same on a device.
    #[must_use]
    pub fn on(mut self, device: Device) -> Self {
        self.device = device;
        for piece in &mut self.pieces {
            piece.request.device = device;
        }
        self
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its shape, slowest dimension first.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// The target device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Its bytes.
    pub(super) fn size(&self) -> Result<usize> {
        checked_size(self.dtype, &self.shape)
    }

    /// The requests of its pieces.
    pub fn into_request(self) -> impl Iterator<Item = TensorRequest> {
        self.pieces.into_iter().map(|piece| piece.request)
    }

    /// The requests of its pieces, by reference.
    pub(super) fn requests(&self) -> impl Iterator<Item = &TensorRequest> + Clone {
        self.pieces.iter().map(|piece| &piece.request)
    }

    /// The placements of its pieces.
    pub(crate) fn placements(&self) -> impl Iterator<Item = &Placement> {
        self.requests().map(|one| &one.placement)
    }

    /// The placement, if it is one piece that is loaded unchanged.
    pub(crate) fn as_stored(&self) -> Option<&Placement> {
        self.one().filter(|one| one.is_unchanged()).map(|one| &one.placement)
    }

    /// The starts and placements of its pieces, if each is loaded unchanged.
    pub(crate) fn stored_pieces(&self) -> Option<Vec<(&[i64], &Placement)>> {
        let stored = self.pieces.iter().map(|piece| {
            let request = &piece.request;
            (self.grid == self.shape && request.is_unchanged()).then_some((&*piece.start, &request.placement))
        });
        stored.collect()
    }

    pub(super) fn pieces(&self) -> &[RecipePiece] {
        &self.pieces
    }

    /// The shape in which its pieces are boxes.
    pub(super) fn grid(&self) -> &[i64] {
        &self.grid
    }

    /// The only piece, if it is the whole tensor unchanged.
    pub(super) fn one(&self) -> Option<&TensorRequest> {
        match &*self.pieces {
            [piece] if self.is_one(&piece.request) && self.grid == self.shape => Some(&piece.request),
            _ => None,
        }
    }

    fn is_one(&self, request: &TensorRequest) -> bool {
        // A part with elements of less than a byte has their bytes as a separate axis.
        let has_shape = request.conversion != Conversion::Nothing || request.placement.shape == self.grid;
        let has_order = !self.in_order || request.placement.is_dense();
        request.cut.is_some() || (request.shape == self.grid && has_shape && has_order)
    }

    /// The recipe as a request of one piece, or the recipe itself if that is not possible.
    pub(crate) fn into_one(mut self) -> std::result::Result<TensorRequest, Self> {
        match &*self.pieces {
            [piece] if self.is_one(&piece.request) && self.grid == self.shape => Ok(self.pieces.remove(0).request),
            [piece]
                if self.is_one(&piece.request) && piece.request.placement.is_dense() && piece.request.cut.is_none() =>
            {
                let mut one = self.pieces.remove(0).request;
                if one.conversion == Conversion::Nothing {
                    (one.placement.shape, one.placement.strides) = (self.shape.clone(), None);
                }
                Ok(TensorRequest { shape: self.shape, ..one })
            }
            _ => Err(self),
        }
    }

    /// The source of each byte range, in order, with its offset. `None` if rows are so short that pieces are read separately first.
    ///
    /// # Errors
    /// A piece with elements of less than a byte that begins or ends within a byte.
    pub(super) fn fills(&self) -> Result<Option<Vec<(usize, Fill<'_>)>>> {
        let (strides, bits) = (row_major(&self.grid), self.dtype.bits());
        let (mut fills, mut by_rows) = (Vec::new(), true);
        for RecipePiece { start, request } in self.pieces.iter().filter(|piece| !piece.request.shape.contains(&0)) {
            let size = &request.shape;
            // From this axis on, contiguous elements of the piece are contiguous in the tensor.
            let together = (0..size.len()).rfind(|&axis| size[axis] != self.grid[axis]).unwrap_or_default();
            let first: i64 = start.iter().zip(&*strides).map(|(start, stride)| start * stride).sum();
            let begin = bytes_of(first, bits)?;
            let row = bytes_of(size[together..].iter().product(), bits)?;
            for stride in (0..together).filter(|&axis| size[axis] > 1).map(|axis| strides[axis]) {
                bytes_of(stride, bits)?;
            }
            let is_one_row = size[..together].iter().all(|dim| *dim == 1);
            if is_one_row && request.placement.is_dense() {
                fills.push((begin, Fill::Whole(request)));
                continue;
            }
            let rows = request.rows(together, (first, &strides));
            let Some((axis, rows)) = rows.filter(|_| by_rows && row >= ROW) else {
                by_rows = false;
                continue;
            };
            let len: i64 = size[axis..].iter().product();
            if bytes_of(len, bits)? < ROW {
                by_rows = false;
                continue;
            }
            for (row, at) in rows {
                fills.push((bytes_of(at, bits)?, Fill::Row(request, row)));
            }
        }
        fills.sort_by_key(|(at, _)| *at);
        Ok(by_rows.then_some(fills))
    }
}

/// Elements of less than a byte are written in whole bytes.
fn bytes_of(elements: i64, bits: usize) -> Result<usize> {
    let bits = elements as usize * bits;
    if bits.is_multiple_of(8) {
        Ok(bits / 8)
    } else {
        refused(format!("a piece begins or ends at bit {bits}, within a byte"))
    }
}

pub(super) const WHOLE: IndexPart = IndexPart::Slice { start: None, stop: None, step: 1 };

impl RecipePiece {
    /// The box: a range of each axis.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<i64>> {
        self.start.iter().zip(&self.request.shape).map(|(start, size)| *start..start + size)
    }

    /// The selected part of the box; `None` if it is empty.
    fn index(&self, request: &[IndexAxis]) -> Result<Option<Self>> {
        let (mut start, mut expression) = (Vec::new(), Vec::new());
        let mut own = self.ranges();
        for axis in request {
            match *axis {
                IndexAxis::New => {
                    start.push(0);
                    expression.push(IndexPart::NewAxis);
                }
                IndexAxis::At(element) => {
                    let Some(own) = own.next().filter(|own| own.contains(&element)) else { return Ok(None) };
                    expression.push(IndexPart::At(element - own.start));
                }
                IndexAxis::Range { begin, len, step } => {
                    let Some(own) = own.next() else { return Ok(None) };
                    let size = i64::try_from(step.unsigned_abs()).unwrap_or(i64::MAX);
                    // The distance of the first and last selected elements from the start, in the direction of the step.
                    let (near, far) = if step > 0 {
                        (own.start - begin, own.end - begin)
                    } else {
                        (begin - (own.end - 1), begin - own.start + 1)
                    };
                    let (from, to) = (div_ceil(near, size).max(0), div_ceil(far, size).min(len));
                    if from >= to {
                        return Ok(None);
                    }
                    let first = begin + from * step - own.start;
                    let last = first + (to - from - 1) * step;
                    let stop = if step > 0 { Some(last + 1) } else { (last > 0).then(|| last - 1) };
                    expression.push(IndexPart::Slice { start: Some(first), stop, step });
                    start.push(from);
                }
            }
        }
        Ok(Some(Self { start, request: self.request.part(&expression)? }))
    }
}

fn div_ceil(number: i64, by: i64) -> i64 {
    number.div_euclid(by) + i64::from(number.rem_euclid(by) > 0)
}
