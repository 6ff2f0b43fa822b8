//! Locates the pieces of a folder's tensors in files and items. A piece is located when it is first needed, so a listing only reads `.metadata`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use once_cell::race::OnceBox;

use super::item::{self, LocatedPiece};
use super::unpacked::{Ends, is_zstd, unpacked};
use crate::budget;
use crate::buffer::Buffer;
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::format::distributed::{Distributed, DistributedItem, DistributedTensor};
use crate::memory::Storage;
use crate::source::{Filesystem, Loaded, ReadRange, Source};
use crate::tensor::{RegionBytes, extent};
use crate::workers::{Interrupt, in_order};

/// The maximum that torch.save writes in addition to a tensor's elements; an item that unpacks to more is not a piece.
const MAX_COMPANIONS: u64 = 1 << 20;
/// Items on a server up to this size are read whole: locating the elements first takes another request.
const WHOLE: u64 = 8 << 20;
/// A compressed item that unpacks to at most this size is unpacked whole, once; of a longer one, both ends are read first.
const UNPACKED_WHOLE: u64 = 8 << 20;
/// Items on a server that are located concurrently.
const LOOKED_INTO: usize = 64;
/// Compressed items that are located concurrently.
const UNPACKED_AT_A_TIME: usize = 8;

/// The tensors of a folder and their pieces. The files are those of an open checkpoint; once it is closed, no more pieces are located.
#[derive(Debug)]
pub struct FolderPieces {
    declared: Arc<Distributed>,
    /// The number of the first file in the catalog.
    first_file: u32,
    paths: Vec<PathBuf>,
    files: Vec<Option<Weak<dyn Source>>>,
    /// The tensors in the catalog: the number of each, its offset in the catalog, and its first piece.
    tensors: Vec<(usize, u64, usize)>,
    located: Vec<OnceBox<LocatedPiece>>,
    /// The cancellation check of lookups, for all callers.
    interrupt: fn() -> Result<()>,
}

/// A piece of a tensor.
#[derive(Debug)]
pub(crate) struct PlacedPiece<'a> {
    /// The start on each axis.
    pub(crate) start: &'a [u64],
    /// The size on each axis.
    pub(crate) size: &'a [u64],
    /// The number of its file in the catalog.
    pub(crate) file: u32,
    /// The bytes of its item in the file.
    pub(crate) item: &'a DistributedItem,
    /// The place of its elements.
    pub(crate) place: PiecePlace<'a>,
}

/// The place of a piece's elements.
#[derive(Debug)]
pub(crate) enum PiecePlace<'a> {
    /// Located.
    Located(&'a LocatedPiece),
    /// In its item, which is read whole ([`FolderPieces::content`]): the number of the piece, and the bytes of its elements.
    InItem(u32, u64),
}

/// A piece as `.metadata` declares it.
struct DeclaredPiece<'a> {
    tensor: &'a DistributedTensor,
    start: &'a [u64],
    size: &'a [u64],
    item: &'a DistributedItem,
    located: &'a OnceBox<LocatedPiece>,
}

impl DeclaredPiece<'_> {
    /// The bytes of its elements.
    fn bytes(&self) -> u64 {
        self.size.iter().product::<u64>().saturating_mul(self.tensor.dtype.bytes())
    }

    /// The maximum unpacked size of its item.
    fn most(&self) -> u64 {
        self.bytes().saturating_add(MAX_COMPANIONS)
    }

    fn is_packed(&self) -> bool {
        self.item.transform.as_deref().is_some_and(is_zstd)
    }
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

    /// The contents of `.metadata`.
    pub(crate) fn declared(&self) -> &Distributed {
        &self.declared
    }

    /// The position in `tensors` of the tensor at this catalog offset.
    fn position(&self, start: u64) -> Result<usize> {
        let position = self.tensors.binary_search_by_key(&start, |(_, start, _)| *start);
        position.map_err(|_| Error::Index("the folder has no such tensor".to_owned()))
    }

    /// The pieces of the tensor at a position, with their numbers.
    fn declared_pieces(&self, position: usize) -> impl Iterator<Item = (u32, DeclaredPiece<'_>)> {
        let (number, _, first) = self.tensors[position];
        let tensor = &self.declared.tensors[number];
        let pieces = self.declared.pieces(tensor).zip(&self.located[first..]).zip(first as u32..);
        pieces.map(move |(((start, size, item), located), number)| {
            (number, DeclaredPiece { tensor, start, size, item, located })
        })
    }

    /// The pieces of the tensor at this catalog offset.
    ///
    /// # Errors
    /// An item that is not a piece, or is unreadable; a closed checkpoint.
    pub(crate) fn of(&self, start: u64) -> Result<Vec<PlacedPiece<'_>>> {
        let placed = self.declared_pieces(self.position(start)?).map(|(number, piece)| {
            let place = match piece.located.get() {
                Some(located) => PiecePlace::Located(located),
                None if self.is_read_whole(&piece)? => PiecePlace::InItem(number, piece.bytes()),
                None => PiecePlace::Located(self.located(&piece)?),
            };
            let DeclaredPiece { start, size, item, .. } = piece;
            Ok(PlacedPiece { start, size, file: self.first_file + item.file, item, place })
        });
        placed.collect()
    }

    /// Locates the pieces of the tensors at these catalog offsets; items that are read whole only with `all`. Items on a server are located
    /// concurrently.
    pub(crate) fn locate(&self, starts: impl Iterator<Item = u64>, all: bool, interrupt: Interrupt<'_>) -> Result<()> {
        let mut pieces = Vec::new();
        for start in starts {
            for (_, piece) in self.declared_pieces(self.position(start)?) {
                if piece.located.get().is_none() && (all || !self.is_read_whole(&piece)?) {
                    budget::reserve(&mut pieces, 1)?;
                    pieces.push(piece);
                }
            }
        }
        // Compressed items are unpacked for this, with memory for each, so fewer are processed at a time.
        let (packed, others): (Vec<_>, Vec<_>) = pieces.into_iter().partition(DeclaredPiece::is_packed);
        in_order(LOOKED_INTO, others, interrupt, |piece, (): &mut (), _| self.located(&piece).map(drop))?;
        in_order(UNPACKED_AT_A_TIME, packed, interrupt, |piece, (): &mut (), _| self.located(&piece).map(drop))
    }

    /// Whether an item is read whole, so that its elements are located during that read.
    fn is_read_whole(&self, piece: &DeclaredPiece<'_>) -> Result<bool> {
        if self.declared.is_raw {
            return Ok(false);
        }
        let file = match self.file(piece.item.file as usize) {
            // Reading it reports the error; the other pieces exist.
            Err(Error::MissingFile { .. }) => return Ok(true),
            file => file?,
        };
        if piece.item.offset.checked_add(piece.item.length).is_none_or(|end| end > file.len()) {
            return Ok(false);
        }
        if piece.is_packed() {
            return Ok(piece.most() <= UNPACKED_WHOLE && piece.item.length <= UNPACKED_WHOLE);
        }
        let is_served = matches!(file.filesystem(), Some(Filesystem::Server(_)));
        Ok(is_served && piece.item.transform.is_none() && piece.item.length <= WHOLE)
    }

    /// Calls `each` with the elements of a piece in C order: the piece of this number, whose item is in `file`.
    pub(crate) fn content(
        &self,
        number: u32,
        file: &dyn Source,
        interrupt: Interrupt<'_>,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let position = self.tensors.partition_point(|(_, _, first)| *first <= number as usize).saturating_sub(1);
        let piece =
            self.tensors.get(position).and_then(|_| self.declared_pieces(position).find(|(own, _)| *own == number));
        let (_, piece) = piece.ok_or_else(|| Error::Index("the folder has no such piece".to_owned()))?;
        let dtype = piece.tensor.dtype;
        let named = |error| about(error, piece.tensor);
        let bytes = if piece.is_packed() {
            Cow::Owned(unpacked(file, piece.item, piece.most(), interrupt).map_err(named)?)
        } else if let Some(bytes) = file.in_memory(piece.item.offset, piece.item.length) {
            Cow::Borrowed(bytes)
        } else {
            let mut bytes = budget::zeroed(budget::saturating_usize(piece.item.length))?;
            file.read(&mut [ReadRange { offset: piece.item.offset, bytes: &mut bytes }], interrupt)?;
            Cow::Owned(bytes)
        };
        let look_up = || {
            if piece.is_packed() {
                return item::locate_unpacked(&Ends::whole(file, &bytes), dtype, piece.size, self.interrupt)
                    .map(Box::new);
            }
            let loaded = Loaded::new(file, piece.item.offset, &bytes);
            item::locate(&loaded, piece.item, dtype, piece.size, self.interrupt).map(Box::new)
        };
        let located = piece.located.get_or_try_init(|| look_up().map_err(named))?;
        let changed = || file.origin().truncated();
        let begin = if located.unpacked.is_some() { 0 } else { piece.item.offset };
        let first = located
            .storage
            .checked_sub(begin)
            .and_then(|first| first.checked_add(located.start))
            .ok_or_else(changed)?;
        let of_item = bytes.get(budget::saturating_usize(first)..).ok_or_else(changed)?;
        let Some(strides) = &located.strides else {
            return each(of_item.get(..budget::saturating_usize(piece.bytes())).ok_or_else(changed)?);
        };
        let item = dtype.bytes() as i64;
        let shape: Vec<i64> = piece.size.iter().map(|dim| *dim as i64).chain([item]).collect();
        let strides: Vec<i64> = strides.iter().map(|stride| stride.saturating_mul(item)).chain([1]).collect();
        let reach = extent(&shape, &strides).ok_or_else(changed)?.len;
        let storage = Storage::of_bytes(of_item.get(..budget::saturating_usize(reach)).ok_or_else(changed)?)?;
        let tensor = Buffer::strided_at(storage, 0, DType::UInt8, &shape, &strides)?.contiguous(interrupt)?;
        each(tensor.bytes().unwrap_or_default())
    }

    /// Fills `out` with bytes of the tensor at catalog offset `start`, from its byte `at` on, for deltas. Items that must be read whole are read on
    /// each call.
    pub(crate) fn read(&self, start: u64, at: u64, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        let position = self.position(start)?;
        let tensor = &self.declared.tensors[self.tensors[position].0];
        let (shape, item) = (self.declared.shape(tensor), tensor.dtype.bytes());
        let range = at..at + out.len() as u64;
        // Per file: the place in `out`, the offset in the file, and the length.
        let mut runs: BTreeMap<u32, Vec<(usize, u64, usize)>> = BTreeMap::new();
        for (number, piece) in self.declared_pieces(position) {
            let moves = RegionBytes::of_box(shape, piece.start, piece.size, item).within(&range);
            let rows = moves.iter().flat_map(|one| (0..one.rows).map(move |row| one.row(row)));
            let rows =
                rows.map(|(place, from, len)| (budget::saturating_usize(place), from, budget::saturating_usize(len)));
            if moves.is_empty() {
                continue;
            }
            let located = if piece.located.get().is_none() && self.is_read_whole(&piece)? {
                None
            } else {
                Some(self.located(&piece)?)
            };
            if let Some(located) = located.filter(|located| located.strides.is_none() && located.unpacked.is_none()) {
                let first = located.storage + located.start;
                runs.entry(piece.item.file)
                    .or_default()
                    .extend(rows.map(|(place, from, len)| (place, first + from, len)));
                continue;
            }
            let mut content = Vec::new();
            self.content(number, &*self.file(piece.item.file as usize)?, interrupt, &mut |bytes| {
                budget::reserve(&mut content, bytes.len())?;
                content.extend_from_slice(bytes);
                Ok(())
            })?;
            for (place, from, len) in rows {
                let from = budget::saturating_usize(from);
                let (Some(to), Some(from)) = (out.get_mut(place..place + len), content.get(from..from + len)) else {
                    return Err(Error::Index("a piece extends beyond its tensor".to_owned()));
                };
                to.copy_from_slice(from);
            }
        }
        for (file, mut runs) in runs {
            runs.sort_unstable();
            let (mut rest, mut end, mut parts) = (&mut *out, 0, Vec::new());
            for (place, offset, len) in runs {
                let overlap = || Error::Index("pieces of a tensor overlap".to_owned());
                let own = rest.split_off_mut(place.checked_sub(end).ok_or_else(overlap)?..).ok_or_else(overlap)?;
                let (bytes, later) = own.split_at_mut_checked(len).ok_or_else(overlap)?;
                (rest, end) = (later, place + len);
                parts.push(ReadRange { offset, bytes });
            }
            parts.sort_unstable_by_key(|part| part.offset);
            self.file(file as usize)?.read(&mut parts, interrupt)?;
        }
        Ok(())
    }

    /// Whether all existing files are on this machine.
    pub(crate) fn is_near(&self) -> bool {
        let is_near = |file: Arc<dyn Source>| matches!(file.filesystem(), Some(Filesystem::Disk | Filesystem::Memory));
        self.files.iter().flatten().filter_map(Weak::upgrade).all(is_near)
    }

    /// Locates the elements of a piece, once.
    fn located<'a>(&self, piece: &DeclaredPiece<'a>) -> Result<&'a LocatedPiece> {
        let (item, dtype, size) = (piece.item, piece.tensor.dtype, piece.size);
        let look_up = || {
            if self.declared.is_raw {
                return Ok(Box::new(LocatedPiece { storage: item.offset, start: 0, strides: None, unpacked: None }));
            }
            let file = self.file(item.file as usize)?;
            if !piece.is_packed() || item.offset + item.length > file.len() {
                return item::locate(&*file, item, dtype, size, self.interrupt).map(Box::new);
            }
            let unpacked = Ends::of(&file, item, piece.most(), &self.interrupt)?;
            item::locate_unpacked(&unpacked, dtype, size, self.interrupt).map(Box::new)
        };
        piece.located.get_or_try_init(|| look_up().map_err(|error| about(error, piece.tensor)))
    }

    /// The tensors with bytes in a range of a catalog file, in file order.
    pub(crate) fn names_at(&self, file: u32, range: std::ops::Range<u64>) -> Vec<&str> {
        let mut names: Vec<(u64, &str)> = Vec::new();
        for position in 0..self.tensors.len() {
            let of_it = |item: &DistributedItem| {
                self.first_file + item.file == file
                    && item.offset < range.end
                    && range.start < item.offset + item.length
            };
            let piece = self.declared_pieces(position).map(|(_, piece)| piece).find(|piece| of_it(piece.item));
            names.extend(piece.map(|piece| (piece.item.offset, &*piece.tensor.name)));
        }
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name).collect()
    }

    fn file(&self, number: usize) -> Result<Arc<dyn Source>> {
        let path = || self.paths.get(number).map_or(Path::new(""), PathBuf::as_path).to_path_buf();
        match self.files.get(number) {
            Some(Some(file)) => file.upgrade().ok_or_else(|| Error::Closed { path: path() }),
            _ => Err(Error::MissingFile { path: path(), near: Vec::new() }),
        }
    }

    /// The faults of the items of pieces.
    pub(crate) fn faults(&self, interrupt: Interrupt<'_>) -> Result<Vec<Diagnostic>> {
        let mut faults = Vec::new();
        for position in 0..self.tensors.len() {
            for (_, piece) in self.declared_pieces(position) {
                interrupt()?;
                match self.located(&piece) {
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

/// Adds the name of the tensor to an error.
fn about(error: Error, tensor: &DistributedTensor) -> Error {
    match error {
        Error::Format(fault) => Error::Format(Box::new(fault.tensor(&tensor.name))),
        Error::Unsupported(fault) => Error::Unsupported(Box::new(fault.tensor(&tensor.name))),
        other => other,
    }
}
