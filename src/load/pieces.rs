//! The elements of one tensor in C order, any run of them at a time: for work on two tensors that need not have either in memory.
//!
//! Pieces are read from the file, whether it is mapped or not. Only what is compressed is brought into memory as a whole.

use super::scan::{Scan, group_bytes, one_piece};
use crate::checkpoint::Checkpoint;
use crate::error::{Diagnostic, Result};
use crate::rules;
use crate::tensor::Element;
use crate::workers::Interrupt;

/// A tensor that is read a piece at a time.
#[derive(Debug)]
pub struct Pieces<'a> {
    scan: Scan<'a>,
    /// Bytes that are not parted: an element, the smallest group of them that fills whole bytes, or a packed block.
    unit: usize,
    units: u64,
}

impl<'a> Pieces<'a> {
    /// Weight number `number`.
    ///
    /// # Errors
    /// No array of the file stands for it; compressed bytes that cannot be read.
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
                let scan = Scan::of_pieces(checkpoint, recipe, unit)?;
                return Ok(Self { units: scan.bytes() / unit as u64, scan, unit });
            }
        };
        // Elements of less than a byte are in C order, and in no other.
        let item = if placement.is_dense() { unit } else { placement.dtype.bytes().unwrap_or(1) };
        let scan = Scan::in_any_order(checkpoint, &placement, item)?;
        Ok(Self { units: scan.bytes() / unit as u64, scan, unit })
    }

    /// Bytes that are not parted: an element, the smallest group of them that fills whole bytes, or a packed block.
    pub fn unit(&self) -> usize {
        self.unit
    }

    /// How many units there are.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Whether all of it is in memory.
    pub fn is_in_memory(&self) -> bool {
        self.scan.is_in_memory()
    }

    /// Fills `out` with the units from number `from` on, in the byte order of this machine.
    pub fn read(&self, from: u64, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        let count = (out.len() / self.unit) as u64;
        if from.checked_add(count).is_none_or(|end| end > self.units) || !out.len().is_multiple_of(self.unit) {
            let cause = format!("{count} units from {from} reach beyond the end of a tensor, which has {}", self.units);
            return Err(Diagnostic::new(rules::SPAN_OUTSIDE, cause).format());
        }
        let (start, item) = (from as usize * self.unit, self.scan.unit());
        self.scan.read(start / item..(start + out.len()) / item, out, interrupt)
    }

    /// An error if the file is no longer the one that was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        self.scan.check_unchanged()
    }
}
