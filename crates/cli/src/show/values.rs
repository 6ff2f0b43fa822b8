//! The values of a PyTorch file that are no tensors.

use max_weights::Checkpoint;
use serde::Serialize;

use crate::failure::Failure;
use crate::screen::Screen;

/// A value as Python shows it.
#[derive(Serialize)]
pub(super) struct Shown {
    name: String,
    value: String,
}

pub(super) fn all(_checkpoint: &Checkpoint) -> Result<Vec<Shown>, Failure> {
    Ok(Vec::new())
}

pub(super) fn write(_checkpoint: &Checkpoint, _name: &str, _json: bool, _screen: &mut Screen) -> Result<bool, Failure> {
    Ok(false)
}
