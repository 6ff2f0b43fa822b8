//! Files that commands write.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use max_weights::Error;
use max_weights::write::Replacement;

use crate::failure::Failure;

/// What is done to them, in messages.
const WRITE: &str = "write it";

/// Makes sure that there is a place for a file before the work begins whose result it gets.
pub(crate) fn prepare(path: &Path) -> Result<(), Failure> {
    let failed = |error| Failure::Checkpoint(Error::io(path, WRITE, error));
    if path.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    let folder = folder(path);
    match fs::metadata(folder) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(failed(io::ErrorKind::NotADirectory.into())),
        Err(error) => Err(Failure::Checkpoint(Error::io(folder, "write into it", error))),
    }
}

/// As `prepare`, for a report: the folders of it that lack are made.
pub(crate) fn prepare_with_folders(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder(path)).map_err(|error| Error::io(path, WRITE, error))?;
    prepare(path)
}

/// Writes a file whole or not at all: one that is half there may be taken for a whole one. A link stays a link, and what is not a regular file,
/// such as a pipe or `/dev/null`, is written to and not replaced.
pub(crate) fn write(path: &Path, make: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let written = match fs::metadata(path) {
        Ok(there) if !there.is_file() => {
            let written = File::options().write(true).open(path).and_then(|mut file| buffered(&mut file, make));
            written.map_err(|error| Error::io(path, WRITE, error))
        }
        _ => replace(&fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()), make),
    };
    Ok(written?)
}

fn replace(path: &Path, make: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Error> {
    let mut bytes = Vec::new();
    make(&mut bytes).map_err(|error| Error::io(path, WRITE, error))?;
    Replacement::of_bytes(path, &bytes, false)?.commit()
}

fn buffered(file: &mut File, make: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    make(&mut out)?;
    out.flush()
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
