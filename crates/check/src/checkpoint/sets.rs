//! The files of a folder as what they are together: sets of shards, and files by themselves.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use max_weights::checkpoint::ShardName;
use max_weights::names::NameIndex;
use max_weights::rules::Rule;
use max_weights::tensor::{TensorInfo, TensorTable};
use max_weights::{Catalog, Diagnostic};

use crate::folder::{FolderContext, FolderListing, ListedFile};
use crate::kind::Kind;

/// Stems of the files that libraries load without being told which.
const USUAL_STEMS: [&str; 4] = ["model", "pytorch_model", "diffusion_pytorch_model", "adapter_model"];

/// The tensors of a set.
pub(crate) enum SetTensors {
    /// Those of one file.
    File(Arc<Catalog>),
    /// Those of several, joined.
    Joined(TensorTable, NameIndex),
}

/// Files that are one checkpoint.
pub(crate) struct CheckpointSet<'f> {
    /// The stem of their names.
    pub(crate) stem: String,
    /// Where what concerns all of them is reported: the index, or the first file.
    pub(crate) path: Arc<Path>,
    /// By the numbers of files in the table; `None` for one that is not in the folder.
    pub(crate) files: Vec<Option<&'f ListedFile>>,
    /// Their tensors.
    pub(crate) tensors: SetTensors,
    /// Whether every tensor is known: no shard is missing or broken.
    pub(crate) is_complete: bool,
}

impl CheckpointSet<'_> {
    pub(crate) fn table(&self) -> &TensorTable {
        match &self.tensors {
            SetTensors::File(catalog) => catalog.table(),
            SetTensors::Joined(table, _) => table,
        }
    }

    /// The tensor of this name.
    pub(crate) fn find(&self, name: &str) -> Option<TensorInfo<'_>> {
        let number = match &self.tensors {
            SetTensors::File(catalog) => catalog.find(name),
            SetTensors::Joined(table, names) => names.find(table, name),
        };
        number.map(|number| self.table().get(number))
    }

    /// The file that a tensor is in.
    pub(crate) fn path_of(&self, info: &TensorInfo<'_>) -> Arc<Path> {
        let entry = self.files.get(info.file as usize).copied().flatten();
        entry.map_or_else(|| self.path.clone(), |entry| entry.path.clone())
    }

    /// Reports what is wrong with one of its tensors.
    pub(crate) fn report(
        &self,
        info: &TensorInfo<'_>,
        rule: &'static Rule,
        message: String,
        context: &mut FolderContext<'_>,
    ) {
        let finding = Diagnostic::new(rule, message).tensor(info.name).offset(info.span.start());
        context.report(&self.path_of(info), finding);
    }

    /// Whether a library loads it from the folder without being told.
    pub(crate) fn is_usual(&self) -> bool {
        USUAL_STEMS.contains(&self.stem.as_str())
    }
}

/// The files of a folder by their names.
pub(crate) struct FolderNames<'f> {
    pub(crate) folder: &'f FolderListing,
    by_name: HashMap<&'f str, &'f ListedFile>,
}

impl<'f> FolderNames<'f> {
    pub(crate) fn new(folder: &'f FolderListing) -> Self {
        Self { folder, by_name: folder.files.iter().map(|entry| (entry.name(), entry)).collect() }
    }

    pub(crate) fn file(&self, name: &str) -> Option<&'f ListedFile> {
        self.by_name.get(name).copied()
    }
}

/// Whether a file is one of weights, broken or not.
pub(crate) fn is_weights(entry: &ListedFile) -> bool {
    matches!(entry.kind, Kind::Safetensors | Kind::Gguf | Kind::TorchLegacy)
        || entry.kind == Kind::Zip && entry.catalog.is_some()
}

/// What ends a name, from its last dot on.
pub(crate) fn suffix(name: &str) -> &str {
    name.rfind('.').and_then(|dot| name.get(dot..)).unwrap_or_default()
}

/// The stem of a file that is a checkpoint by itself.
pub(crate) fn stem(name: &str) -> &str {
    name.strip_suffix(suffix(name)).unwrap_or(name)
}

/// Shards of one set, by what their names say: stem, how many, suffix; and number.
pub(crate) type Sharded<'f> = BTreeMap<(&'f str, usize, &'f str), BTreeMap<usize, &'f ListedFile>>;

/// The files that have the names of shards, by set.
pub(crate) fn sharded(folder: &FolderListing) -> Sharded<'_> {
    let mut sets = Sharded::new();
    for entry in &folder.files {
        if let Some(shard) = ShardName::of(entry.name()) {
            let key = (shard.stem, shard.count, suffix(entry.name()));
            sets.entry(key).or_default().insert(shard.number, entry);
        }
    }
    sets
}
