//! Opening what an argument names.

use std::path::PathBuf;

use max_weights::checkpoint::ModelCache;
use max_weights::{Checkpoint, OpenOptions};

use crate::failure::Failure;
use crate::inputs::Reading;

/// Opens files, folders, indexes, or a model in the local cache, as one checkpoint.
pub(crate) fn open(paths: &[PathBuf], reading: &Reading) -> Result<Checkpoint, Failure> {
    let options = OpenOptions::default().strict(!reading.no_strict);
    Ok(Checkpoint::open_named(paths, &ModelCache::from_environment(), &options)?)
}
