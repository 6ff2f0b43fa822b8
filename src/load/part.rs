//! Parts of a request, by NumPy's basic indexing or with reordered axes. Elements that are stored together, such as those of a block, stay together.

use std::ops::Range;

use super::placement::Placement;
use super::request::{Conversion, TensorRequest};
use crate::buffer::{IndexAxis, IndexPart, IndexSelection, axes, row_major};
use crate::cast::elements_per_group;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{StridedAxis, StridedSteps, extent};

/// A tensor in units of what is stored together: `per` elements along the last axis take `bytes`.
struct Units {
    per: i64,
    bytes: i64,
    /// In units.
    shape: Vec<i64>,
    /// In bytes.
    strides: Vec<i64>,
}

impl TensorRequest {
    /// The part that `expression` selects.
    pub(super) fn part(&self, expression: &[IndexPart]) -> Result<Self> {
        let (units, requested) = (self.units()?, axes(&self.shape, expression)?);
        let shape: Vec<i64> = requested.iter().filter_map(IndexAxis::len).collect();
        let of_units = if units.per == 1 { requested } else { self.axes_of_units(&units, requested)? };
        let IndexSelection { first, shape: of_shape, strides } = IndexSelection::of_axes(&of_units, &units.strides);
        self.with(Units { shape: of_shape, strides, ..units }, first, shape)
    }

    /// The request with its axes in this order.
    pub(super) fn transpose(&self, order: &[usize]) -> Result<Self> {
        let units = self.units()?;
        if units.per > 1 && order.last().is_some_and(|last| last + 1 != order.len()) {
            return self.refuse(&units, "must stay the last");
        }
        let [shape, of_shape, strides] = [&self.shape, &units.shape, &units.strides]
            .map(|values| order.iter().map(|&axis| values[axis]).collect::<Vec<i64>>());
        self.with(Units { shape: of_shape, strides, ..units }, 0, shape)
    }

    /// Splits an axis into two, with `rows` rows, each of whole units.
    pub(super) fn unflatten(&self, axis: usize, rows: i64) -> Result<Self> {
        let mut units = self.units()?;
        let mut shape = self.shape.clone();
        let inner = shape[axis] / rows.max(1);
        let of_last = if axis + 1 == shape.len() { units.per } else { 1 };
        if inner % of_last != 0 {
            return self.refuse(&units, "is taken in whole units");
        }
        shape.splice(axis..=axis, [rows, inner]);
        let (of_axis, stride) = (inner / of_last, units.strides[axis]);
        units.shape.splice(axis..=axis, [rows, of_axis]);
        units.strides.splice(axis..=axis, [stride.saturating_mul(of_axis), stride]);
        self.with(units, 0, shape)
    }

    /// The longest rows of contiguous bytes, from axis `from` on or a later one. Returns that axis and each row's bytes in the segment, with its
    /// destination by the strides `to` from `first` on. `None` if even the last axis is not contiguous.
    pub(super) fn rows(
        &self,
        from: usize,
        (first, to): (i64, &[i64]),
    ) -> Option<(usize, impl Iterator<Item = (Range<u64>, i64)>)> {
        let Units { shape, strides, bytes, .. } = self.units().ok()?;
        let (mut axis, mut len) = (shape.len(), bytes);
        while axis > from && (shape[axis - 1] == 1 || strides[axis - 1] == len) {
            axis -= 1;
            len *= shape[axis];
        }
        let unit = self.conversion.unit().0 as i64;
        if axis == shape.len() && !shape.is_empty() || len % unit != 0 {
            return None;
        }
        let outer = shape[..axis].iter().zip(&strides).zip(to);
        let outer =
            outer.map(|((&dim, &from), &to)| StridedAxis { count: dim as usize, from: from as isize, to: to as usize });
        let rows = StridedSteps::new(outer.collect::<Vec<_>>(), self.placement.start as usize, first as usize);
        Some((axis, rows.map(move |(from, to)| (from as u64..from as u64 + len as u64, to as i64))))
    }

    fn units(&self) -> Result<Units> {
        if self.cut.is_some() {
            return Err(Error::Argument(
                "a part of a tensor cannot be indexed again: index the whole tensor".to_owned(),
            ));
        }
        let plain = |dtype: DType| {
            let group = elements_per_group(dtype);
            (group, group * dtype.bits() / 8)
        };
        let (per, bytes) = match self.conversion {
            Conversion::Decode { encoding, .. } => (encoding.elements_per_block(), encoding.bytes_per_block()),
            Conversion::Cast { from, .. } | Conversion::Add { from, .. } => plain(from),
            Conversion::Nothing => plain(self.dtype),
        };
        let (per, bytes, placement) = (per as i64, bytes as i64, &self.placement);
        let in_bytes = |strides: &[i64]| strides.iter().map(|stride| stride.saturating_mul(bytes)).collect();
        if per == 1 {
            let dense = row_major(&self.shape);
            let strides = in_bytes(placement.strides.as_deref().unwrap_or(&dense));
            return Ok(Units { per, bytes, shape: self.shape.clone(), strides });
        }
        let mut shape = self.shape.clone();
        match shape.last_mut() {
            Some(row) if *row % per == 0 => *row /= per,
            _ => return Err(Error::Argument(format!("rows of {:?} are not a multiple of {per} elements", self.shape))),
        }
        // Parts have the bytes of a unit as a separate axis.
        let strides = match &placement.strides {
            Some(strides) if placement.shape.len() > shape.len() => strides[..shape.len()].to_vec(),
            _ => in_bytes(&row_major(&shape)),
        };
        Ok(Units { per, bytes, shape, strides })
    }

    /// The index in units. The last axis must stay last and select whole units.
    fn axes_of_units(&self, units: &Units, mut requested: Vec<IndexAxis>) -> Result<Vec<IndexAxis>> {
        let per = units.per;
        match requested.last_mut() {
            Some(IndexAxis::Range { begin, len, step }) if *begin % per == 0 && *len % per == 0 && *step == 1 => {
                (*begin, *len) = (*begin / per, *len / per);
                Ok(requested)
            }
            _ => self.refuse(units, "must stay the last, and is taken in whole units"),
        }
    }

    fn refuse<T>(&self, units: &Units, what: &str) -> Result<T> {
        let (per, shape) = (units.per, &self.shape);
        Err(Error::Argument(format!(
            "{per} elements of a tensor of {shape:?} are stored together: its last axis {what}"
        )))
    }

    /// Other units of the same segment; the first one is `first` bytes behind this request's first.
    fn with(&self, units: Units, first: i64, shape: Vec<i64>) -> Result<Self> {
        let Units { per, bytes, shape: mut of_shape, mut strides } = units;
        let (mut item, mut dtype) = (bytes, self.placement.dtype);
        if per > 1 {
            of_shape.push(bytes);
            strides.push(1);
            (item, dtype) = (1, DType::UInt8);
        }
        for stride in &mut strides {
            *stride /= item;
        }
        let reach = extent(&of_shape, &strides).and_then(|extent| extent.bytes(item as u64));
        let reach = reach.ok_or_else(|| Error::Argument("the part's size overflows".into()))?;
        let start = self.placement.start.saturating_add_signed(first);
        let (before, len) = (reach.before, reach.len - reach.before);
        let (segment, aligned) = (self.placement.segment, self.placement.aligned);
        let strides = Some(strides);
        let placement = Placement { segment, aligned, dtype, shape: of_shape, strides, start, len, before };
        Ok(Self { placement, shape, ..self.clone() })
    }
}
