//! Statistics of one tensor, of every dtype and encoding whose values are known here.

use std::sync::atomic::{AtomicU64, Ordering};

use super::histogram::MAX_BINS;
use super::summary::Statistics;
use super::{codes, wide};
use crate::cast::elements_per_group;
use crate::checkpoint::Checkpoint;
use crate::error::{Diagnostic, Error, Result};
use crate::load::Scan;
use crate::rules;
use crate::tensor::{Element, TensorInfo};
use crate::text;
use crate::workers::Interrupt;

/// The statistics of weight number `number`, with a histogram of so many bins; 0 for none. `done` counts bytes of the tensor, each
/// once however often it is read.
///
/// Elements of at most 16 bits are read once; wider ones twice where there is a histogram. All cores work on a large tensor, and the result is the
/// same however many they are.
///
/// # Errors
/// A type whose values are not known here; too many bins; a file that cannot be read, or that was changed meanwhile.
///
/// # Panics
/// If there is no weight of this number.
pub fn statistics(
    checkpoint: &Checkpoint,
    number: usize,
    bins: usize,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Statistics> {
    if bins > MAX_BINS {
        return Err(Error::Argument(format!("a histogram has at most {MAX_BINS} bins, not {bins}")));
    }
    let info = checkpoint.catalog().table().get(number);
    let counted = AtomicU64::new(0);
    let progress = |bytes: u64| {
        counted.fetch_add(bytes, Ordering::Relaxed);
        done.fetch_add(bytes, Ordering::Relaxed);
    };
    let found = match info.element {
        Element::Plain(dtype) => {
            let group = elements_per_group(dtype);
            let unit = group * dtype.bits() / 8;
            Scan::new(checkpoint, &checkpoint.catalog().placement(number)?, unit).and_then(|scan| {
                let found = if dtype.bits() <= 16 {
                    codes::statistics(&scan, dtype, bins, &progress, interrupt)?
                } else {
                    wide::statistics(&scan, wide::Kind::Plain(dtype), bins, &progress, interrupt)?
                };
                Ok((found, scan))
            })
        }
        Element::Packed(encoding) => {
            let placement = checkpoint.catalog().placement(number)?;
            Scan::new(checkpoint, &placement, encoding.bytes_per_block()).and_then(|scan| {
                let found = wide::statistics(&scan, wide::Kind::Packed(encoding), bins, &progress, interrupt)?;
                Ok((found, scan))
            })
        }
        Element::Torch(_) | Element::Unknown(_) | Element::NoArray(..) => {
            checkpoint.catalog().placement(number)?;
            let cause = format!("values of the type '{}' are not supported", info.element);
            Err(Diagnostic::new(rules::TENSOR_UNKNOWN_TYPE, cause).unsupported())
        }
    };
    let (mut found, scan) = found.map_err(|error| about(error, checkpoint, &info))?;
    // What a second pass would have counted, if there was none, and what was lost in halves.
    progress(scan.bytes().saturating_sub(counted.load(Ordering::Relaxed)));
    found.repeat(scan.repeats());
    Ok(found)
}

/// The error with the tensor that it is about.
pub(super) fn about(mut error: Error, checkpoint: &Checkpoint, info: &TensorInfo<'_>) -> Error {
    if let Error::Format(fault) | Error::Unsupported(fault) | Error::FileChanged(fault) = &mut error {
        fault.tensor.get_or_insert_with(|| info.name.to_owned());
        fault.offset.get_or_insert(info.span.start());
    }
    if let Error::Io { action, .. } = &mut error {
        *action = format!("{action}, of '{}'", text::shown(info.name));
    }
    error.at_path(&checkpoint.catalog().files()[info.file as usize].path)
}
