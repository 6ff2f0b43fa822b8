//! Opening what an argument names.

use std::path::PathBuf;

use max_weights::checkpoint::ModelCache;
use max_weights::{Checkpoint, OpenOptions};

use crate::failure::CommandFailure;
use crate::inputs::ReadArguments;
use crate::stdin::with_stdin;

/// Opens files, folders, indexes, or a model in the local cache, as one checkpoint; `-` is a file on standard input.
pub(crate) fn open(paths: &[PathBuf], reading: &ReadArguments) -> Result<Checkpoint, CommandFailure> {
    let options = OpenOptions::default().strict(!reading.no_strict);
    // An open file outlives its name.
    let (paths, _stdin) = with_stdin(paths)?;
    Ok(Checkpoint::open_named(&paths, &ModelCache::from_environment(), &options)?)
}
