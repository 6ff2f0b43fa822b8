//! The conversion of elements that are written to a file, part by part, on any thread.

use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{DeclaredTensor, StoredElements};
use super::writer::TensorFileWriter;
use crate::cast::{elements_per_group, is_supported};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::load::{Conversion, TensorScan};
use crate::quant::{self, Encoding};
use crate::text;
use crate::workers::Interrupt;

/// The elements of a part: whole blocks and whole bytes of every type, and a few megabytes.
const ELEMENTS: usize = 1 << 20;

/// A thread's buffers for reads and intermediate results.
#[derive(Debug, Default)]
pub(super) struct StepScratch {
    read: Vec<u8>,
    first: Vec<u8>,
    second: Vec<u8>,
    between: Vec<u8>,
}

/// The conversion steps.
#[derive(Debug, Clone, Copy)]
pub(super) struct ElementSteps {
    /// The source type.
    from: StoredElements,
    /// To plain elements, or nothing.
    pub(super) conversion: Conversion,
    /// Then from float32 into blocks.
    pub(super) encoding: Option<Encoding>,
}

impl ElementSteps {
    /// The steps from one type to another; an error if there are none.
    pub(super) fn new(from: StoredElements, to: StoredElements) -> std::result::Result<Self, String> {
        if from == to {
            return Ok(Self { from, conversion: Conversion::Nothing, encoding: None });
        }
        let (plain, encoding) = match to {
            StoredElements::Plain(dtype) => (dtype, None),
            StoredElements::Packed(encoding) => (DType::Float32, Some(encoding)),
        };
        let conversion = match from {
            StoredElements::Plain(dtype) if dtype == plain => Conversion::Nothing,
            StoredElements::Plain(dtype) if is_supported(dtype, plain) => Conversion::Cast { from: dtype, to: plain },
            StoredElements::Plain(dtype) => return Err(format!("{dtype} cannot be converted to {plain}")),
            StoredElements::Packed(encoding) if is_supported(DType::Float32, plain) => {
                Conversion::Decode { encoding, to: plain }
            }
            StoredElements::Packed(encoding) => {
                return Err(format!("blocks of {encoding} cannot be converted to {plain}"));
            }
        };
        Ok(Self { from, conversion, encoding })
    }

    /// The plain dtype after the first step; `None` without a conversion.
    pub(super) fn dtype(self) -> Option<DType> {
        match self.conversion {
            Conversion::Nothing => None,
            Conversion::Cast { to, .. } | Conversion::Add { to, .. } | Conversion::Decode { to, .. } => Some(to),
        }
    }

    pub(super) fn are_none(self) -> bool {
        self.conversion == Conversion::Nothing && self.encoding.is_none()
    }

    /// The number of elements that are never split, and their bytes: one element, those of a byte, or those of a block.
    pub(super) fn unit(self) -> (usize, usize) {
        match self.from {
            StoredElements::Packed(encoding) => (encoding.elements_per_block(), encoding.bytes_per_block()),
            StoredElements::Plain(dtype) => {
                let group = elements_per_group(dtype);
                (group, group * dtype.bits() / 8)
            }
        }
    }

    /// Converts and writes a tensor that is read in parts of whole units: on this thread, with `alone` as its buffers, or on all threads. `done`
    /// counts the bytes written.
    pub(super) fn write(
        self,
        scan: &TensorScan<'_>,
        tensor: &DeclaredTensor,
        writer: &TensorFileWriter,
        alone: Option<&mut StepScratch>,
        done: &AtomicU64,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let part_bytes = tensor.stored.bytes(&[ELEMENTS as u64]).unwrap_or_default();
        let per_part = ELEMENTS / self.unit().0;
        let converted = |scratch: &mut StepScratch, part: u64, from: &[u8], cancel: Interrupt<'_>| {
            let converted = self.apply(from, scratch).map_err(|error| about(error, &tensor.name))?;
            writer.write_bytes(&tensor.name, part * part_bytes, converted, cancel)?;
            done.fetch_add(converted.len() as u64, Ordering::Relaxed);
            Ok(())
        };
        if let Some(scratch) = alone {
            let (mut read, mut part) = (std::mem::take(&mut scratch.read), 0);
            scan.each_in_order(per_part, &mut read, interrupt, |from| {
                part += 1;
                converted(scratch, part - 1, from, interrupt)
            })?;
            scratch.read = read;
        } else {
            scan.each(per_part, true, interrupt, StepScratch::default, converted, |_| {})?;
        }
        // An empty tensor counts as written, too.
        writer.write(&tensor.name, tensor.bytes()?, &[])
    }

    /// Converts whole units; the result is in `scratch`, or is the input.
    fn apply<'a>(self, from: &'a [u8], scratch: &'a mut StepScratch) -> Result<&'a [u8]> {
        let StepScratch { first, second, between, .. } = scratch;
        let plain = match self.conversion {
            Conversion::Nothing => from,
            conversion => {
                let (units_in, units_out) = conversion.unit();
                first.resize(from.len() / units_in * units_out, 0);
                conversion.apply(from, first, false, between)?;
                first
            }
        };
        let Some(encoding) = self.encoding else { return Ok(plain) };
        let (words, _) = plain.as_chunks::<4>();
        let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
        second.resize(values.len() / encoding.elements_per_block() * encoding.bytes_per_block(), 0);
        quant::quantize(encoding, &values, second)?;
        Ok(second)
    }
}

/// The error, with the name of the tensor.
pub(super) fn about(error: Error, name: &str) -> Error {
    match error {
        Error::Argument(cause) => Error::Argument(format!("tensor '{}': {cause}", text::escape(name))),
        other => other,
    }
}
