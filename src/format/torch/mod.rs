//! PyTorch checkpoints: from a pickle, and the places of its storages in the file, to a table of tensors.
//!
//! A tensor of PyTorch is a view of a storage: a start, a shape and strides. Tied weights are two views of one storage. Any other tensor (sparse,
//! quantized, or without data) is listed without bytes. The arrays of which it is composed have names below its name, such as
//! `embedding.weight.indices`.

mod build;
mod parts;

use std::collections::{HashMap, HashSet};

use crate::budget::{self, Short};
use crate::error::{Diagnostic, Error, Result};
use crate::format::pickle::{self, GlobalUse, Leaf, Pickled, StorageRef};
use crate::format::torch_zip;
use crate::rules;
use crate::tensor::Span;

pub use build::build;

/// The location of the bytes of a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageLocation {
    /// The bytes in the file, compressed if `inflated` is set. For a part of a storage, those of the whole.
    pub span: Span,
    /// The number of bytes once they are inflated; `None` if they are not compressed.
    pub inflated: Option<u64>,
    /// The checksum of the (inflated) bytes; 0 if the file has none.
    pub crc32: u32,
}

impl StorageLocation {
    /// Bytes that are not compressed, without a checksum.
    pub fn stored(span: Span) -> Self {
        Self { span, inflated: None, crc32: 0 }
    }

    /// The number of bytes in memory.
    pub fn bytes(&self) -> u64 {
        self.inflated.unwrap_or(self.span.len())
    }
}

/// The properties of a PyTorch file apart from its table of tensors.
#[derive(Debug)]
pub struct Torch {
    /// The values of the pickle.
    pub pickled: Pickled,
    /// The values that are not tensors, by name, in the order of the file.
    pub objects: Vec<Leaf>,
    /// True if the elements have their most significant byte first.
    pub big_endian: bool,
    /// The locations of storages, by their number; `None` for one that the file does not have.
    places: Vec<Option<StorageLocation>>,
    /// The compressed storages.
    deflated: DeflatedStorages,
    /// Globals of data after the pickle in its entry, which `torch.load` does not read.
    pub stray_globals: Vec<GlobalUse>,
}

/// The compressed storages of a file.
#[derive(Debug, Default)]
struct DeflatedStorages {
    /// Their checksums, by their first bytes in the file.
    checksums: HashMap<u64, u32>,
    /// The bytes of all of them in the file…
    compressed: u64,
    /// … and in memory.
    inflated: u64,
}

impl DeflatedStorages {
    fn new(places: &[Option<StorageLocation>]) -> Result<Self> {
        let mut found = Self::default();
        for place in places.iter().flatten() {
            let Some(size) = place.inflated else { continue };
            found.checksums.try_reserve(1).map_err(|_| Short::System(places.len()))?;
            if found.checksums.insert(place.span.start(), place.crc32).is_none() {
                found.compressed = found.compressed.saturating_add(place.span.len());
                found.inflated = found.inflated.saturating_add(size);
            }
        }
        Ok(found)
    }
}

impl Torch {
    /// The location of a storage, by its position in [`Pickled::storages`], or an error that names it.
    pub fn place(&self, number: usize) -> Result<StorageLocation> {
        let place = self.places.get(number).copied().flatten();
        place.ok_or_else(|| match self.pickled.storages.get(number) {
            Some(storage) => missing(storage).format(),
            None => Error::Index(format!("there is no storage {number}")),
        })
    }

    /// The storage at this location, if the file has one.
    pub fn place_at(&self, span: Span, inflated: Option<u64>) -> StorageLocation {
        StorageLocation {
            span,
            inflated,
            crc32: self.deflated.checksums.get(&span.start()).copied().unwrap_or_default(),
        }
    }

    /// Refuses to inflate any storage where all of them together would be an attack on memory.
    pub fn check_inflated(&self) -> Result<()> {
        torch_zip::check_ratio(self.deflated.compressed, self.deflated.inflated).map_err(|error| match error {
            Error::Format(mut fault) => {
                fault.message = format!("of the compressed storages in total, {}", fault.message);
                Error::Format(fault)
            }
            other => other,
        })
    }

    /// Refuses the bytes of the storage of this span if their checksum differs from the file's.
    pub fn check_crc32(&self, span: Span, declared: u32, actual: u32) -> Result<()> {
        if declared == 0 || declared == actual {
            return Ok(());
        }
        let here = |(_, have): &(&StorageRef, &Option<StorageLocation>)| have.is_some_and(|have| have.span == span);
        let key = self.pickled.storages.iter().zip(&self.places).find(here).map(|(storage, _)| &*storage.key);
        let name = format!("data/{}", key.unwrap_or_default());
        Err(torch_zip::wrong_crc32(&name, actual, declared, span.start()).format())
    }

    /// The storages of the file that have a checksum, each once.
    pub fn checksums(&self) -> impl Iterator<Item = StorageLocation> {
        let mut seen = HashSet::new();
        let known = self.places.iter().copied().flatten();
        known.filter(move |place| place.crc32 != 0 && seen.insert(place.span.start()))
    }

    /// A file without names for its tensors, for a loader that builds the nested values.
    pub fn new(mut pickled: Pickled, file: TorchFrame<'_>) -> Result<Self> {
        let places = places(&pickled, file.places)?;
        pickled.budget.take(budget::vec_bytes(&places))?;
        let (deflated, objects, stray_globals) = (DeflatedStorages::new(&places)?, Vec::new(), Vec::new());
        Ok(Self { pickled, objects, big_endian: file.big_endian, places, deflated, stray_globals })
    }
}

/// The properties of a file around its pickle.
#[derive(Clone, Copy)]
pub struct TorchFrame<'a> {
    /// True if the elements have their most significant byte first.
    pub big_endian: bool,
    /// The location of a whole storage, by its position in [`Pickled::storages`].
    pub places: &'a dyn Fn(usize, &StorageRef) -> Option<StorageLocation>,
}

/// The places of all storages. A storage shorter than the pickle says is an error; a missing one is an error when it is needed.
fn places(
    pickled: &Pickled,
    find: &dyn Fn(usize, &StorageRef) -> Option<StorageLocation>,
) -> Result<Vec<Option<StorageLocation>>> {
    let place = |(number, storage): (usize, &StorageRef)| {
        // A storage of no elements may have no entry, and needs none.
        let Some(place) = find(number, storage) else { return Ok(None) };
        if place.bytes() < storage.bytes() {
            let (have, requested) = (place.bytes(), storage.bytes());
            let cause = format!(
                "storage '{}' has {have} bytes, but its {} elements of {} take {requested}",
                crate::format::escape(&storage.key),
                storage.elements,
                storage.dtype.torch_dtype().name()
            );
            return Err(Diagnostic::new(rules::TORCH_STORAGE_SIZE, cause).offset(place.span.start()).format());
        }
        Ok(Some(place))
    };
    let mut places = budget::list(pickled.storages.len())?;
    for storage in pickled.storages.iter().enumerate() {
        places.push(place(storage)?);
    }
    Ok(places)
}

fn missing(storage: &StorageRef) -> Diagnostic {
    let cause =
        format!("the pickle names storage '{}', which the file does not have", crate::format::escape(&storage.key));
    Diagnostic::new(rules::TORCH_MISSING_STORAGE, cause).offset(storage.position)
}

/// The limits of a pickle in a file whose headers may have `header_bytes`.
pub fn pickle_limits(limits: &crate::format::HeaderLimits) -> pickle::PickleLimits {
    let most = usize::try_from(limits.header_bytes).unwrap_or(usize::MAX);
    let bytes = if limits.header_bytes == crate::format::MAX_HEADER_BYTES { pickle::MAX_PICKLE_BYTES } else { most };
    pickle::PickleLimits { pickle_bytes: bytes, rank: limits.rank, ..pickle::PickleLimits::default() }
}
