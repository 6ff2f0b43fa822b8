//! Where the pieces of the tensors of a folder are: in which files, and where in their items. That is looked up when a piece is first asked for, so that
//! a listing reads `.metadata` alone.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use once_cell::race::OnceBox;

use super::item::{self, Located};
use super::unpacked::{Ends, is_zstd};
use crate::budget;
use crate::error::{Diagnostic, Error, Result};
use crate::format::distributed::{Distributed, Item, Tensor};
use crate::source::Source;
use crate::workers::Interrupt;

/// What torch.save writes beside the elements of a tensor: an item that unpacks to more than that is no piece.
const MAX_BESIDE: u64 = 1 << 20;

/// The tensors of a folder and their pieces. The files are those of an open checkpoint: once it is closed, no more pieces are looked up.
#[derive(Debug)]
pub struct FolderPieces {
    declared: Arc<Distributed>,
    /// The number of the first file in the catalog.
    first_file: u32,
    paths: Vec<PathBuf>,
    files: Vec<Option<Weak<dyn Source>>>,
    /// The tensors that are in the catalog: the number of each, where its bytes begin as the catalog counts them, and its first piece.
    tensors: Vec<(usize, u64, usize)>,
    located: Vec<OnceBox<Located>>,
    /// What looking up asks, whoever it is for.
    interrupt: fn() -> Result<()>,
}

/// A piece of a tensor.
#[derive(Debug)]
pub(crate) struct PlacedPiece<'a> {
    /// Where it begins on each axis.
    pub(crate) start: &'a [u64],
    /// Its size on each.
    pub(crate) size: &'a [u64],
    /// The number of its file in the catalog.
    pub(crate) file: u32,
    /// The bytes of its item in the file.
    pub(crate) item: &'a Item,
    /// Where its elements are.
    pub(crate) located: &'a Located,
}

impl FolderPieces {
    pub(super) fn new(
        declared: Arc<Distributed>,
        starts: &[(usize, u64)],
        paths: Vec<PathBuf>,
        files: &[Option<Arc<dyn Source>>],
        first_file: u32,
        interrupt: fn() -> Result<()>,
    ) -> Result<Self> {
        let mut tensors = budget::list(starts.len())?;
        let mut count = 0;
        for &(number, start) in starts {
            tensors.push((number, start, count));
            count += declared.pieces(&declared.tensors[number]).len();
        }
        let mut located = budget::list(count)?;
        located.resize_with(count, OnceBox::new);
        let files = files.iter().map(|file| file.as_ref().map(Arc::downgrade)).collect();
        Ok(Self { declared, first_file, paths, files, tensors, located, interrupt })
    }

    /// What `.metadata` says.
    pub(crate) fn declared(&self) -> &Distributed {
        &self.declared
    }

    /// The pieces of the tensor whose bytes begin there, as the catalog counts them.
    ///
    /// # Errors
    /// An item that is no piece, or that cannot be read; a closed checkpoint.
    pub(crate) fn of(&self, start: u64) -> Result<Vec<PlacedPiece<'_>>> {
        let position = self.tensors.binary_search_by_key(&start, |(_, start, _)| *start);
        let tensor = position.ok().and_then(|position| self.tensors.get(position));
        let &(number, _, first) = tensor.ok_or_else(|| Error::Index("the folder has no such tensor".to_owned()))?;
        let tensor = &self.declared.tensors[number];
        let pieces = self.declared.pieces(tensor).zip(&self.located[first..]);
        let placed = pieces.map(|((start, size, item), located)| {
            let file = self.first_file + item.file;
            let located = self.located(tensor, size, item, located)?;
            Ok(PlacedPiece { start, size, file, item, located })
        });
        placed.collect()
    }

    /// Where the elements of a piece are. It is looked up once.
    fn located<'a>(
        &self,
        tensor: &Tensor,
        size: &[u64],
        item: &Item,
        located: &'a OnceBox<Located>,
    ) -> Result<&'a Located> {
        let look_up = || {
            if self.declared.is_raw {
                return Ok(Box::new(Located { storage: item.offset, start: 0, strides: None, unpacked: None }));
            }
            let file = self.file(item.file as usize)?;
            let is_packed = item.transform.as_deref().is_some_and(is_zstd);
            if !is_packed || item.offset + item.length > file.len() {
                return item::locate(&*file, item, tensor.dtype, size, self.interrupt).map(Box::new);
            }
            let most = (size.iter().product::<u64>() * tensor.dtype.bytes()).saturating_add(MAX_BESIDE);
            let unpacked = Ends::of(&file, item, most, &self.interrupt)?;
            item::locate_unpacked(&unpacked, tensor.dtype, size, self.interrupt).map(Box::new)
        };
        located.get_or_try_init(|| look_up().map_err(|error| about(error, tensor)))
    }

    fn file(&self, number: usize) -> Result<Arc<dyn Source>> {
        let path = || self.paths.get(number).map_or(Path::new(""), PathBuf::as_path).to_path_buf();
        match self.files.get(number) {
            Some(Some(file)) => file.upgrade().ok_or_else(|| Error::Closed { path: path() }),
            _ => Err(Error::MissingFile { path: path(), near: Vec::new() }),
        }
    }

    /// What is wrong with the items of pieces.
    pub(crate) fn faults(&self, interrupt: Interrupt<'_>) -> Result<Vec<Diagnostic>> {
        let mut faults = Vec::new();
        for &(number, _, first) in &self.tensors {
            let tensor = &self.declared.tensors[number];
            for ((_, size, item), located) in self.declared.pieces(tensor).zip(&self.located[first..]) {
                interrupt()?;
                match self.located(tensor, size, item, located) {
                    Ok(_) | Err(Error::MissingFile { .. }) => {}
                    Err(Error::Format(fault) | Error::Unsupported(fault)) => {
                        budget::reserve(&mut faults, 1)?;
                        faults.push(*fault);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(faults)
    }
}

/// An error about a tensor, with its name.
fn about(error: Error, tensor: &Tensor) -> Error {
    match error {
        Error::Format(fault) => Error::Format(Box::new(fault.tensor(&tensor.name))),
        Error::Unsupported(fault) => Error::Unsupported(Box::new(fault.tensor(&tensor.name))),
        other => other,
    }
}
