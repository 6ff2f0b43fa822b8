//! The elements of one tensor in C order, any run of them at a time: for work on two tensors that need not have either in memory.
//!
//! Pieces are read from the file, whether it is mapped or not. Only what is compressed is brought into memory as a whole.

use super::placement::{Placement, Swap};
use super::slice::FileRuns;
use super::tensor;
use crate::buffer::{Buffer, gather_some};
use crate::cast::elements_per_group;
use crate::checkpoint::Checkpoint;
use crate::error::{Diagnostic, Error, Result};
use crate::rules;
use crate::tensor::Element;
use crate::workers::Interrupt;

/// A tensor that is read a piece at a time.
#[derive(Debug)]
pub struct Pieces<'a> {
    checkpoint: &'a Checkpoint,
    placement: Placement,
    /// Bytes that are not parted: an element, the smallest group of them that fills whole bytes, or a packed block.
    unit: usize,
    units: u64,
    /// The whole tensor in C order, where it is not a run of the file.
    made: Option<Buffer>,
}

impl<'a> Pieces<'a> {
    /// Weight number `number`.
    ///
    /// # Errors
    /// No array of the file stands for it; compressed bytes that cannot be read.
    ///
    /// # Panics
    /// If there is no weight of this number.
    pub fn new(checkpoint: &'a Checkpoint, number: usize, interrupt: Interrupt<'_>) -> Result<Self> {
        let info = checkpoint.catalog().table().get(number);
        let placement = checkpoint.catalog().placement(number)?;
        let unit = match info.element {
            Element::Plain(dtype) => elements_per_group(dtype) * dtype.bits() / 8,
            Element::Packed(encoding) => encoding.bytes_per_block(),
            Element::Torch(dtype) => dtype.bytes() as usize,
            Element::Unknown(_) | Element::NoArray(..) => 1,
        };
        let made = match placement.segment.transform.inflate {
            Some(_) => Some(tensor::read(checkpoint, &placement)?.contiguous(interrupt)?),
            None => None,
        };
        let bytes = match (&made, placement.is_dense()) {
            (Some(made), _) => made.size() as u64,
            (None, true) => placement.len,
            (None, false) => {
                let bytes = placement.shape.iter().try_fold(item(&placement) as i64, |all, dim| all.checked_mul(*dim));
                bytes.ok_or_else(|| Error::Argument("the tensor's size overflows".into()))? as u64
            }
        };
        Ok(Self { checkpoint, placement, unit, units: bytes / unit.max(1) as u64, made })
    }

    /// The same, where the whole tensor is in memory, in units of so many bytes; none of the file is read again.
    #[must_use]
    pub fn replaced(self, made: Buffer) -> Self {
        Self { units: (made.size() / self.unit) as u64, made: Some(made), ..self }
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
    pub fn is_made(&self) -> bool {
        self.made.is_some()
    }

    /// Fills `out` with the units from number `from` on, in the byte order of this machine.
    pub fn read(&self, from: u64, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        let count = (out.len() / self.unit) as u64;
        if from.checked_add(count).is_none_or(|end| end > self.units) || !out.len().is_multiple_of(self.unit) {
            let cause = format!("{count} units from {from} reach beyond the end of a tensor, which has {}", self.units);
            return Err(Diagnostic::new(rules::SPAN_OUTSIDE, cause).format());
        }
        let start = from as usize * self.unit;
        if let Some(made) = &self.made {
            return made.storage().copy_runs(std::iter::once((made.offset() + start, out.len())), out);
        }
        let Placement { segment, shape, strides, start: first, .. } = &self.placement;
        let source = self.checkpoint.file(segment.file)?;
        let runs = FileRuns { source, span: segment.span, interrupt };
        match strides.as_deref().filter(|_| !self.placement.is_dense()) {
            None => crate::buffer::Runs::copy(&runs, &[(*first as usize + start, out.len())], out)?,
            Some(strides) => {
                let item = item(&self.placement);
                let elements = start / item..(start + out.len()) / item;
                gather_some(&runs, *first as usize, (shape, strides), item, elements, out, interrupt)?;
            }
        }
        Swap::apply(segment.transform.swap, out);
        Ok(())
    }

    /// An error if the file is no longer the one that was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        self.checkpoint.file(self.placement.segment.file)?.check_unchanged()
    }
}

/// Bytes of an element in memory; elements of less than one are in C order, and in no other.
fn item(placement: &Placement) -> usize {
    placement.dtype.bytes().unwrap_or(1)
}
