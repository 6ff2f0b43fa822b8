//! The files of a checkpoint: opens them by path or URL, recognises their formats by the first bytes, and reads their headers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::locate::{LocatedFiles, is_file_url, locate, locate_url};
use super::{More, OpenOptions, torch};
use crate::error::{Diagnostic, Diagnostics, Error, Result};
use crate::format::torch::Torch;
use crate::format::{self, FileHeader, FormatKind, drive, gguf, safetensors};
use crate::rules;
use crate::source::store::{self, ObjectStore};
use crate::source::{LocalFile, ReadRange, Source};

/// The first read of a file: the whole header of a small checkpoint, and enough to recognise the format.
const FIRST_READ: usize = 16 << 10;
/// The readahead per shard, which covers the headers of nearly all checkpoints. So cold shards are fetched concurrently.
const READAHEAD: u64 = 64 << 10;
/// The maximum number of files of a set that stay open; the others are reopened for each read. Systems limit a process to 1,024 open files, or to
/// 256.
const HELD_OPEN: usize = 128;
/// One set may use this share of the process's limit of open files.
#[cfg(unix)]
const SHARE: usize = 4;

/// Suffixes that imply a format.
const SUFFIXES: [(&str, &[FormatKind]); 5] = [
    ("safetensors", &[FormatKind::Safetensors]),
    ("gguf", &[FormatKind::Gguf]),
    ("pt", &[FormatKind::TorchZip, FormatKind::TorchLegacy, FormatKind::TorchTar]),
    ("pth", &[FormatKind::TorchZip, FormatKind::TorchLegacy, FormatKind::TorchTar]),
    ("bin", &[FormatKind::TorchZip, FormatKind::TorchLegacy, FormatKind::TorchTar]),
];

/// Opens the files of a checkpoint by path or by URL.
pub(super) struct FileOpener<'a> {
    store: Option<&'a dyn ObjectStore>,
    pub(super) options: &'a OpenOptions,
    /// Files that were opened ahead, and not yet taken.
    opened_early: RefCell<HashMap<PathBuf, Arc<dyn Source>>>,
}

impl<'a> FileOpener<'a> {
    pub(super) fn new(options: &'a OpenOptions) -> Self {
        let store = options.store.as_ref().or(store::store()).map(|store| &**store);
        Self { store, options, opened_early: RefCell::default() }
    }

    /// The store that opens this path.
    pub(super) fn store(&self, path: &Path) -> Option<&'a dyn ObjectStore> {
        self.store.filter(|_| store::is_url(path))
    }

    pub(super) fn locate(&self, path: &Path) -> Result<LocatedFiles> {
        match self.store(path) {
            Some(store) => locate_url(path, store, &self.options.format.interrupt),
            None => locate(path),
        }
    }

    pub(super) fn open(&self, path: &Path) -> Result<Arc<dyn Source>> {
        self.open_each(std::slice::from_ref(&path.to_path_buf())).swap_remove(0)
    }

    /// Opens URLs of files concurrently, before they are taken one by one. Each error is reported when its file is taken.
    ///
    /// # Errors
    /// Cancellation, which is not reported again later.
    pub(super) fn open_early(&self, paths: &[PathBuf]) -> Result<()> {
        let urls: Vec<PathBuf> =
            paths.iter().filter(|path| store::is_url(path) && is_file_url(path)).cloned().collect();
        if urls.len() > 1 {
            let opened = self.open_each(&urls);
            for (url, file) in urls.into_iter().zip(opened) {
                match file {
                    Ok(file) => _ = self.opened_early.borrow_mut().insert(url, file),
                    Err(Error::Interrupted) => return Err(Error::Interrupted),
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Opens the files of a set, and fetches the first bytes of all of them concurrently.
    pub(super) fn open_each(&self, paths: &[PathBuf]) -> Vec<Result<Arc<dyn Source>>> {
        let opened_early: Vec<_> = paths.iter().map(|path| self.opened_early.borrow_mut().remove(path)).collect();
        if opened_early.iter().any(Option::is_some) {
            let others = paths.iter().zip(&opened_early).filter(|(_, file)| file.is_none());
            let mut others = self.open_each(&others.map(|(path, _)| path.clone()).collect::<Vec<_>>()).into_iter();
            return opened_early.into_iter().filter_map(|file| file.map(Ok).or_else(|| others.next())).collect();
        }
        match paths.first().and_then(|path| self.store(path)) {
            Some(store) if paths.iter().all(|path| store::is_url(path)) => {
                store.open(paths, &self.options.format.interrupt)
            }
            Some(_) => paths.iter().map(|path| self.open(path)).collect(),
            None => open_each(paths),
        }
    }
}

/// Opens the files of a set, and fetches their first bytes concurrently. A set may have more files than a process can open.
fn open_each(paths: &[PathBuf]) -> Vec<Result<Arc<dyn Source>>> {
    let mut most = held_open();
    let mut files: Vec<Result<LocalFile>> = Vec::with_capacity(paths.len());
    for path in paths {
        let mut file = LocalFile::open(path);
        if file.as_ref().is_err_and(has_too_many_open) {
            files.iter_mut().flatten().for_each(LocalFile::close_for_now);
            (most, file) = (0, LocalFile::open(path));
        }
        if let Ok(file) = &mut file {
            if paths.len() > 1 {
                file.readahead(0, READAHEAD);
            }
            if paths.len() > 1 && files.len() >= most {
                file.close_for_now();
            }
        }
        files.push(file);
    }
    files.into_iter().map(|file| file.map(|file| Arc::new(file) as Arc<dyn Source>)).collect()
}

/// The number of files of a set that stay open.
fn held_open() -> usize {
    #[cfg(unix)]
    {
        let may = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        may.map_or(HELD_OPEN, |may| HELD_OPEN.min(usize::try_from(may).unwrap_or(usize::MAX) / SHARE))
    }
    #[cfg(not(unix))]
    HELD_OPEN
}

/// Whether a file cannot be opened because the process, or the system, has too many open files.
fn has_too_many_open(error: &Error) -> bool {
    #[cfg(unix)]
    {
        use rustix::io::Errno;
        let Error::Io { source, .. } = error else { return false };
        matches!(Errno::from_io_error(source), Some(Errno::MFILE | Errno::NFILE))
    }
    #[cfg(not(unix))]
    {
        let _ = error;
        false
    }
}

/// The first bytes of a file, enough to recognise its format.
pub(super) fn first_bytes(file: &dyn Source, options: &OpenOptions) -> Result<Vec<u8>> {
    let mut first = vec![0; FIRST_READ.min(usize::try_from(file.len()).unwrap_or(FIRST_READ))];
    file.read(&mut [ReadRange { offset: 0, bytes: &mut first }], &options.format.interrupt)?;
    Ok(first)
}

/// The header, and the data of the format that is kept with it.
pub(super) fn read_header(
    file: &dyn Source,
    first: Option<Vec<u8>>,
    options: &OpenOptions,
    findings: &mut Diagnostics,
) -> Result<(FormatKind, FileHeader, More)> {
    let first = first.map_or_else(|| first_bytes(file, options), Ok)?;
    let kind = format::sniff(&first, file.len())?;
    let misnamed = misnamed(file.path(), kind);
    if let Some(cause) = &misnamed {
        findings.note(rules::FILE_SUFFIX, |rule| Diagnostic::new(rule, cause.clone()).path(file.path()));
    }
    let read = read_kind(kind, file, first, options);
    let (header, more) = match (read, &misnamed) {
        (Err(Error::Format(mut fault)), Some(named)) => {
            fault.message = format!("{named}, and {}", fault.message);
            return Err(Error::Format(fault));
        }
        (read, _) => read?,
    };
    Ok((kind, header, more))
}

fn read_kind(kind: FormatKind, file: &dyn Source, first: Vec<u8>, options: &OpenOptions) -> Result<(FileHeader, More)> {
    let unnamed = options.unnamed;
    let options = &options.format;
    Ok(match kind {
        FormatKind::Safetensors => {
            let parser = safetensors::SafetensorsParser::new(first, file.len(), options);
            (drive(parser, file, &options.interrupt)?, More::Nothing)
        }
        FormatKind::Gguf => {
            let mut gguf = drive(gguf::GgufParser::new(first, file.len(), options), file, &options.interrupt)?;
            (std::mem::take(&mut gguf.header), More::Gguf(gguf.into()))
        }
        FormatKind::TorchZip => torch_parts(torch::zip(file, options, unnamed)?),
        FormatKind::TorchLegacy => torch_parts(torch::legacy(file, options, unnamed)?),
        FormatKind::TorchTar => return Err(torch::tar()),
        FormatKind::TorchDistributed => {
            let cause = "this is the metadata of a distributed checkpoint, but not under torch's name for it";
            let help = "name it .metadata, in the folder of the files that it describes, and open that";
            return Err(Diagnostic::new(rules::DISTRIBUTED_METADATA, cause).help(help).format());
        }
    })
}

fn torch_parts((header, torch): (FileHeader, Torch)) -> (FileHeader, More) {
    (header, More::Torch(Arc::new(torch)))
}

/// A note if the file's suffix implies another format than its first bytes.
fn misnamed(path: &Path, kind: FormatKind) -> Option<String> {
    let suffix = path.extension()?.to_string_lossy().to_lowercase();
    let (suffix, promised) = SUFFIXES.iter().find(|(known, _)| *known == suffix)?;
    (!promised.contains(&kind)).then(|| format!("the file is named .{suffix} but is a {kind} file"))
}
