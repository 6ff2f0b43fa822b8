//! The elements of one tensor in C order, any run of them at a time, to compare two tensors without loading either.
//!
//! Pieces are read from the file, whether it is mapped or not. Only a compressed tensor is loaded whole.

use super::scan::{TensorScan, group_bytes, one_piece};
use crate::checkpoint::Checkpoint;
use crate::error::{Diagnostic, Result};
use crate::rules;
use crate::tensor::Element;
use crate::workers::Interrupt;

/// A tensor that is read piece by piece.
#[derive(Debug)]
pub struct PieceReader<'a> {
    scan: TensorScan<'a>,
    /// Bytes that are never split: an element, the smallest group of them that fills whole bytes, or a packed block.
    unit: usize,
    units: u64,
}

impl<'a> PieceReader<'a> {
    /// Weight number `number`.
    ///
    /// # Errors
    /// A weight without an array in the file; compressed bytes that cannot be read.
    ///
    /// # Panics
    /// If there is no weight of this number.
    pub fn new(checkpoint: &'a Checkpoint, number: usize) -> Result<Self> {
        let info = checkpoint.catalog().table().get(number);
        let unit = match info.element {
            Element::Torch(dtype) => dtype.bytes() as usize,
            element => group_bytes(element),
        };
        let placement = match one_piece(checkpoint, number)? {
            Ok(placement) => placement,
            Err(recipe) => {
                let scan = TensorScan::of_pieces(checkpoint, recipe, unit)?;
                return Ok(Self { units: scan.bytes() / unit as u64, scan, unit });
            }
        };
        // Elements of less than a byte are always in C order.
        let item = if placement.is_dense() { unit } else { placement.dtype.bytes().unwrap_or(1) };
        let scan = TensorScan::in_any_order(checkpoint, &placement, item)?;
        Ok(Self { units: scan.bytes() / unit as u64, scan, unit })
    }

    /// Bytes that are never split: an element, the smallest group of them that fills whole bytes, or a packed block.
    pub fn unit(&self) -> usize {
        self.unit
    }

    /// The number of units.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Whether the whole tensor is in memory.
    pub fn is_in_memory(&self) -> bool {
        self.scan.is_in_memory()
    }

    /// Fills `out` with the units from number `from` on, in native byte order.
    pub fn read(&self, from: u64, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        let count = (out.len() / self.unit) as u64;
        if from.checked_add(count).is_none_or(|end| end > self.units) || !out.len().is_multiple_of(self.unit) {
            let cause = format!("{count} units from {from} on exceed the tensor, which has {}", self.units);
            return Err(Diagnostic::new(rules::SPAN_OUTSIDE, cause).format());
        }
        let (start, item) = (from as usize * self.unit, self.scan.unit());
        self.scan.read(start / item..(start + out.len()) / item, out, interrupt)
    }

    /// Fails if the file was replaced or changed after it was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        self.scan.check_unchanged()
    }
}
