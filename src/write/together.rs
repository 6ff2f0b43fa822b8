//! Several ranks write the files of one sharded checkpoint: each its own bytes, at the places that they have in the end.
//!
//! Where everything lies follows from names, dtypes, shapes and meshes: every rank works it out alone, and all get the same.

use std::ops::Range;
use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

use super::in_store::InStore;
use super::unfinished::remove_abandoned;
use super::{Declared, Destination, Layout, Options, Shards, Stored};
use crate::cast::elements_per_group;
use crate::error::{Error, Result};
use crate::load::ranks::{Mesh, Owned, Written};
use crate::source::store::{is_url, join};
use crate::text;

/// The folder, and how its files are called and written.
#[derive(Debug, Clone)]
pub struct Folder {
    /// Where it is; it is made if it is not there.
    pub path: PathBuf,
    /// What the names of the files begin with.
    pub stem: String,
    /// The most bytes of tensors in a file.
    pub most: u64,
    /// How files are written.
    pub options: Options,
    /// What is written to by URL.
    pub to: Destination,
}

/// The files of a checkpoint that several ranks write, and who writes what.
#[derive(Debug)]
pub struct Together {
    pub(super) folder: Folder,
    tensors: Vec<Declared>,
    /// The mesh of each tensor, by number; none where every rank has all of it.
    sharings: Vec<Option<usize>>,
    meshes: Vec<Mesh>,
    world: u32,
    pub(super) shards: Shards,
    pub(super) layouts: Vec<Layout>,
    /// The file of each tensor, and its first byte there.
    places: Vec<(usize, u64)>,
    hash: [u8; 32],
}

impl Together {
    /// What `world` ranks write of these tensors.
    ///
    /// # Errors
    /// As of [`Shards::new`] and [`Layout::safetensors`]; a mesh that is not there.
    pub fn new(
        folder: Folder,
        tensors: Vec<Declared>,
        metadata: &std::collections::BTreeMap<String, String>,
        sharings: Vec<Option<usize>>,
        (meshes, world): (Vec<Mesh>, u32),
    ) -> Result<Self> {
        if sharings.len() != tensors.len() || sharings.iter().flatten().any(|mesh| *mesh >= meshes.len()) {
            return Err(Error::Argument("a tensor has a mesh that is not there".to_owned()));
        }
        let shards = Shards::new(&folder.stem, &tensors, folder.most)?;
        let layouts =
            shards.layouts(&tensors, |_, of_file| Layout::safetensors(of_file, Some(metadata), &folder.options))?;
        let mut places = vec![(0, 0); tensors.len()];
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        for (file, ((name, group), layout)) in shards.files.iter().zip(&layouts).enumerate() {
            add(name.as_bytes());
            add(layout.start());
            for &number in group {
                if let Some(position) = layout.position(&tensors[number].name) {
                    places[number] = (file, layout.places()[position].bytes.start);
                }
            }
        }
        for mesh in &meshes {
            for number in mesh.numbers() {
                add(&number.to_le_bytes());
            }
        }
        for sharing in &sharings {
            add(&sharing.map_or(u64::MAX, |mesh| mesh as u64).to_le_bytes());
        }
        add(&world.to_le_bytes());
        let hash = hash.finalize().into();
        Ok(Self { folder, tensors, sharings, meshes, world, shards, layouts, places, hash })
    }

    /// A hash of where everything lies and of who has what.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// What a rank has of a tensor, and writes of it.
    ///
    /// # Errors
    /// As of [`Owned::of_rank`].
    pub fn written(&self, number: usize, rank: u32) -> Result<Written> {
        Ok(self.owned(number, rank)?.map(|owned| owned.all()).unwrap_or_default())
    }

    /// The same; `None` of a tensor that the rank has nothing of.
    pub(super) fn owned(&self, number: usize, rank: u32) -> Result<Option<Owned>> {
        let mesh = self.sharings[number].map(|mesh| &self.meshes[mesh]);
        self.of_tensor(number, |shape, unit| Owned::of_rank(shape, unit, mesh, (rank, self.world), number as u64))
    }

    pub(super) fn of_tensor<T: Default>(
        &self,
        number: usize,
        owned: impl Fn(&[u64], (u64, u64)) -> Result<T>,
    ) -> Result<T> {
        let tensor = &self.tensors[number];
        let Stored::Plain(dtype) = tensor.stored else { return Ok(T::default()) };
        let per = elements_per_group(dtype);
        let unit = (per as u64, (per * dtype.bits() / 8) as u64);
        owned(&tensor.shape, unit).map_err(|error| match error {
            Error::Argument(cause) => Error::Argument(format!("tensor '{}': {cause}", text::shown(&tensor.name))),
            other => other,
        })
    }

    pub(super) fn tensors(&self) -> &[Declared] {
        &self.tensors
    }

    pub(super) fn world(&self) -> u32 {
        self.world
    }

    /// The file of a tensor, and its bytes there.
    pub(super) fn file(&self, number: usize) -> usize {
        self.places[number].0
    }

    pub(super) fn range(&self, number: usize) -> Range<u64> {
        let start = self.places[number].1;
        start..start + self.tensors[number].bytes().unwrap_or(0)
    }

    /// What a file begins with, and all of its bytes.
    pub(super) fn header(&self, file: usize) -> &[u8] {
        self.layouts[file].start()
    }

    pub(super) fn file_bytes(&self, file: usize) -> u64 {
        self.layouts[file].file_bytes()
    }

    pub(super) fn in_store(&self) -> Result<Option<InStore<'_>>> {
        let store = self.folder.to.store(&self.folder.path)?;
        Ok(store.map(|store| InStore { store, to: &self.folder.to, opened: &[] }))
    }

    /// Removes what a rank that is gone has left in the folder.
    pub fn remove_abandoned(&self) {
        if !is_url(&self.folder.path) {
            remove_abandoned(&self.folder.path);
        }
    }

    /// The files that they will be.
    pub(super) fn target(&self, file: usize) -> PathBuf {
        join(&self.folder.path, &self.shards.files[file].0)
    }
}
