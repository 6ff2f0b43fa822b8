//! A checkpoint that comes on standard input: it waits in a temporary file, since headers say where tensors are.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use max_weights::rules;
use max_weights::{Diagnostic, Error};
use tempfile::TempDir;

use crate::failure::CommandFailure;

/// How reports call standard input.
pub(crate) const STDIN: &str = "stdin";

/// The paths, `-` among them as a temporary file with what comes on standard input, and the folder that holds it.
pub(crate) fn with_stdin(given: &[PathBuf]) -> Result<(Vec<PathBuf>, Option<TempDir>), CommandFailure> {
    let (mut paths, mut stdin): (Vec<PathBuf>, Option<TempDir>) = (Vec::new(), None);
    for path in given {
        if path.as_os_str() != "-" {
            paths.push(path.clone());
        } else if stdin.is_none() {
            let failed = |error| Error::io(Path::new(STDIN), "copy it to a temporary file", error);
            let folder = tempfile::tempdir().map_err(failed)?;
            let path = folder.path().join(STDIN);
            let mut file = File::create(&path).map_err(failed)?;
            if io::copy(&mut io::stdin().lock(), &mut file).map_err(failed)? == 0 {
                // What was to write it failed, most likely.
                return Err(Diagnostic::new(rules::FORMAT_EMPTY, "nothing came")
                    .path(Path::new(STDIN))
                    .format()
                    .into());
            }
            paths.push(path);
            stdin = Some(folder);
        }
    }
    Ok((paths, stdin))
}
