//! Files that commands write.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use max_weights::write::{PendingFile, WriteInputs, is_open_file};
use max_weights::{Error, text};

use crate::failure::CommandFailure;

/// What is done to them, in messages.
const WRITE: &str = "write it";

/// What the reports of this program have in their first bytes, as others have it in none.
const OWN: [&str; 2] = ["max-weights", "max_weights"];
/// Bytes that are read of them.
const LOOKED_AT: u64 = 4096;
/// What reports of people end with, which say nothing of this program.
const TEXTS: [&str; 5] = ["txt", "md", "html", "xml", "sarif"];
/// Files of a model that end so, too.
const OF_MODELS: [&str; 3] = ["vocab.txt", "merges.txt", "README.md"];

/// Checks that a report can be written before the work for it begins.
pub(crate) fn prepare(path: &Path, read: &[PathBuf]) -> Result<(), CommandFailure> {
    let failed = |error| CommandFailure::Checkpoint(Error::io(path, WRITE, error));
    if path.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    check_replaced(path, read)?;
    let folder = folder(path);
    match fs::metadata(folder) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(failed(io::ErrorKind::NotADirectory.into())),
        Err(error) => Err(CommandFailure::Checkpoint(Error::io(folder, "write into it", error))),
    }
}

/// As `prepare`, for a report: the folders of it that lack are made.
pub(crate) fn prepare_with_folders(path: &Path, read: &[PathBuf]) -> Result<(), CommandFailure> {
    fs::create_dir_all(folder(path)).map_err(|error| Error::io(path, WRITE, error))?;
    prepare(path, read)
}

/// An error if a report would replace its input: one of these files, a file of a model in one of these folders, or any file that is not text.
fn check_replaced(path: &Path, read: &[PathBuf]) -> Result<(), CommandFailure> {
    let usage = |error: Error| CommandFailure::Usage(error.to_string());
    let inputs = WriteInputs::new(read.iter().cloned());
    inputs.check_file(path).map_err(usage)?;
    if !fs::metadata(path).is_ok_and(|file| file.is_file()) {
        return Ok(());
    }
    let mut start = Vec::new();
    let opened = File::open(path).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut start));
    opened.map_err(|error| Error::io(path, WRITE, error))?;
    let refused = |why: &str| {
        let path = text::path(path);
        Err(CommandFailure::Usage(format!("{path}: {why}, which would be lost: write to another path")))
    };
    if start.contains(&0) {
        return refused("the existing file is not a report");
    }
    let text = String::from_utf8_lossy(&start);
    let suffix = path.extension().unwrap_or_default();
    let is_report = OWN.iter().any(|own| text.contains(own))
        || text.trim_start().starts_with('[')
        || TEXTS.iter().any(|known| suffix.eq_ignore_ascii_case(known))
            && !OF_MODELS.iter().any(|name| path.ends_with(name));
    if !is_report && inputs.hold(path) {
        return refused("this is one of the files of the model that is read");
    }
    Ok(())
}

/// Writes a file whole or not at all: one that is half there may be taken for a whole one. A symbolic link is replaced, as by everything that writes;
/// what is not a regular file, such as a pipe or `/dev/null`, and what is open already, such as `/dev/stdout`, is written to.
pub(crate) fn write(path: &Path, make: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), CommandFailure> {
    let written = match fs::metadata(path) {
        Ok(present) if !present.is_file() || is_open_file(path) => {
            let written = File::options().append(true).open(path).and_then(|mut file| buffered(&mut file, make));
            written.map_err(|error| Error::io(path, WRITE, error))
        }
        _ => replace(path, make),
    };
    Ok(written?)
}

fn replace(path: &Path, make: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Error> {
    let mut bytes = Vec::new();
    make(&mut bytes).map_err(|error| Error::io(path, WRITE, error))?;
    PendingFile::of_bytes(path, &bytes, false)?.commit()
}

fn buffered(file: &mut File, make: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    make(&mut out)?;
    out.flush()
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
