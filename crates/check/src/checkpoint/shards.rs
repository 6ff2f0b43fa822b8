//! Sets of shards that no index names, files by themselves, and whether the shards of a set are alike.

use std::collections::{BTreeMap, HashSet};

use max_weights::checkpoint::ShardName;
use max_weights::dtype::DType;
use max_weights::format::gguf::split::{Shard, check_set};
use max_weights::names::NameIndex;
use max_weights::rules;
use max_weights::tensor::{Element, TensorTable};
use max_weights::text::{escape, listed, plural};
use max_weights::{Catalog, Diagnostic, Result};

use super::sets::{CheckpointSet, FolderNames, SetTensors, Sharded, is_weights, stem, suffix};
use crate::folder::{FolderContext, ListedFile};
use crate::quantized::is_float;

/// What hubs and browsers call a download that is not complete.
const PARTIAL: [&str; 3] = [".incomplete", ".part", ".crdownload"];
const GGUF: &str = ".gguf";

/// Files of downloads that have not ended.
pub(super) fn partial(names: &FolderNames<'_>, context: &mut FolderContext<'_>) {
    for entry in &names.folder.files {
        if let Some(end) = PARTIAL.iter().find(|end| entry.name().ends_with(*end)) {
            let cause = format!("the name ends in {end}: this is an incomplete download");
            context.report(&entry.path, Diagnostic::new(rules::FILE_PARTIAL, cause));
        }
    }
}

/// The sets of shards that their names make, without those that an index has `taken`.
pub(super) fn by_name<'f>(
    names: &FolderNames<'f>,
    sharded: &Sharded<'f>,
    taken: &HashSet<&'f str>,
    context: &mut FolderContext<'_>,
) -> Result<Vec<CheckpointSet<'f>>> {
    let mut sets = Vec::new();
    for ((stem, count, suffix), shards) in sharded {
        (context.interrupt)()?;
        let shards: BTreeMap<usize, &'f ListedFile> =
            shards.iter().filter(|(_, entry)| !taken.contains(entry.name())).map(|(n, entry)| (*n, *entry)).collect();
        let Some(first) = shards.values().next().filter(|first| is_weights(first)) else { continue };
        let is_gguf = *suffix == GGUF;
        let is_present = shards.len() == *count;
        let are_read = shards.values().all(|entry| entry.catalog.is_some());
        if !is_present && names.folder.is_whole && !(is_gguf && are_read) {
            let cause = missing(stem, *count, suffix, &shards);
            context.report(&first.path, Diagnostic::new(rules::DIRECTORY_MISSING_SHARDS, cause));
        }
        let files: Vec<Option<&ListedFile>> = shards.values().map(|entry| Some(*entry)).collect();
        let mut table = TensorTable::default();
        for (number, entry) in shards.values().enumerate() {
            if let Some(catalog) = &entry.catalog {
                table.append(catalog.table(), number as u32)?;
            }
        }
        if is_gguf && are_read && (is_present || names.folder.is_whole) {
            split_set(&files, &table, context);
        }
        if !is_gguf && is_present && are_read && *count > 1 && names.folder.is_whole {
            let cause =
                format!("{} of {stem} are there, but no index says what is in them", plural(*count as u64, "shard"));
            context.report(&first.path, Diagnostic::new(rules::SET_NO_INDEX, cause));
        }
        let sorted = match NameIndex::new(&table) {
            Ok(sorted) => sorted,
            Err(pairs) => {
                // GGUF sets have a separate rule for this.
                let pairs = if is_gguf { Vec::new() } else { pairs };
                duplicates(&files, &table, &pairs, context);
                continue;
            }
        };
        let tensors = SetTensors::Joined(table, sorted);
        let is_complete = is_present && are_read;
        sets.push(CheckpointSet { stem: (*stem).to_owned(), path: first.path.clone(), files, tensors, is_complete });
    }
    Ok(sets)
}

/// The files that are checkpoints by themselves.
pub(super) fn single<'f>(
    names: &FolderNames<'f>,
    taken: &HashSet<&'f str>,
    context: &mut FolderContext<'_>,
) -> Vec<CheckpointSet<'f>> {
    let mut sets = Vec::new();
    for entry in &names.folder.files {
        let Some(catalog) = entry.catalog.as_ref().filter(|_| !taken.contains(entry.name())) else { continue };
        if ShardName::of(entry.name()).is_some() {
            continue;
        }
        let files = vec![Some(entry)];
        if names.folder.is_whole && catalog.gguf().is_some_and(|gguf| gguf.split.is_some()) {
            split_set(&files, catalog.table(), context);
        }
        let (stem, path) = (stem(entry.name()).to_owned(), entry.path.clone());
        sets.push(CheckpointSet { stem, path, files, tensors: SetTensors::File(catalog.clone()), is_complete: true });
    }
    sets
}

fn missing(stem: &str, count: usize, suffix: &str, shards: &BTreeMap<usize, &ListedFile>) -> String {
    let missing = (1..=count).filter(|number| !shards.contains_key(number));
    let names = missing.map(|number| escape(&format!("{stem}-{number:05}-of-{count:05}{suffix}")));
    format!("{} of {count} shards are there; missing: {}", shards.len(), listed(names))
}

/// What the files of a GGUF set say of each other.
fn split_set(files: &[Option<&ListedFile>], table: &TensorTable, context: &mut FolderContext<'_>) {
    let shards: Vec<Shard<'_>> = files
        .iter()
        .flatten()
        .map(|entry| Shard {
            path: &entry.path,
            number: ShardName::of(entry.name()).map(|shard| shard.number - 1),
            split: entry.catalog.as_ref().and_then(|catalog| catalog.gguf()?.split),
        })
        .collect();
    for fault in check_set(&shards, table) {
        let path = fault.path.clone().or_else(|| files.iter().flatten().next().map(|entry| entry.path.clone()));
        if let Some(path) = path {
            context.report(&path, fault);
        }
    }
}

fn duplicates(
    files: &[Option<&ListedFile>],
    table: &TensorTable,
    pairs: &[(usize, usize)],
    context: &mut FolderContext<'_>,
) {
    for (a, b) in pairs {
        let (former, latter) = (table.get(*a.min(b)), table.get(*a.max(b)));
        let entry = |file: u32| files.get(file as usize).copied().flatten();
        if let (Some(one), Some(other)) = (entry(former.file), entry(latter.file)) {
            let cause = format!("the same name is in {} and in {}", escape(one.name()), escape(other.name()));
            let finding = Diagnostic::new(rules::CHECKPOINT_DUPLICATE, cause).tensor(latter.name);
            context.report(&other.path, finding.offset(latter.span.start()));
        }
    }
}

/// Whether the shards of a set were written in one way: by their metadata, and by the dtype of most of their bytes.
pub(super) fn are_alike(set: &CheckpointSet<'_>, context: &mut FolderContext<'_>) {
    let read: Vec<(&ListedFile, &Catalog)> =
        set.files.iter().flatten().filter_map(|entry| Some((*entry, &**entry.catalog.as_ref()?))).collect();
    let Some(((first, of_first), others)) = read.split_first().filter(|(_, others)| !others.is_empty()) else { return };
    let format = |catalog: &Catalog| {
        let pairs = catalog.files().first()?.metadata.as_ref()?;
        pairs.iter().find(|(key, _)| key == "format").map(|(_, value)| value.clone())
    };
    if suffix(first.name()) == ".safetensors" {
        let declared =
            |format: &Option<String>| format.as_ref().map_or("none".to_owned(), |text| format!("'{}'", escape(text)));
        let expected = format(of_first);
        if let Some((entry, found)) =
            others.iter().map(|(entry, catalog)| (entry, format(catalog))).find(|(_, found)| *found != expected)
        {
            let (found, expected) = (declared(&found), declared(&expected));
            let cause =
                format!("its metadata gives the format as {found}, and that of {} as {expected}", escape(first.name()));
            context.report(&entry.path, Diagnostic::new(rules::SET_SHARD_METADATA, cause));
        }
    }
    let bytes: Vec<BTreeMap<DType, u64>> = read.iter().map(|(_, catalog)| float_bytes(catalog)).collect();
    let mut sum: BTreeMap<DType, u64> = BTreeMap::new();
    for (dtype, count) in bytes.iter().flatten() {
        let sum = sum.entry(*dtype).or_default();
        *sum = sum.saturating_add(*count);
    }
    let Some(main) = most(&sum) else { return };
    for ((entry, _), bytes) in read.iter().zip(&bytes) {
        if let Some(own) = most(bytes).filter(|_| !bytes.contains_key(&main)) {
            let cause = format!("its tensors are {own}, those of the other shards {main}");
            context.report(&entry.path, Diagnostic::new(rules::SET_SHARD_DTYPE, cause));
        }
    }
}

/// Bytes of the tensors of each of the dtypes that unpacked weights have; none if others have more, as in what is quantized.
fn float_bytes(catalog: &Catalog) -> BTreeMap<DType, u64> {
    let mut bytes = BTreeMap::new();
    let mut others = 0u64;
    for info in catalog.table().iter() {
        let sum = match info.element {
            Element::Plain(dtype) if is_float(&info) => bytes.entry(dtype).or_default(),
            _ => &mut others,
        };
        // What strides repeat has more bytes than any file.
        *sum = sum.saturating_add(info.bytes());
    }
    let all = bytes.values().fold(0, |all: u64, sum| all.saturating_add(*sum));
    if others > all { BTreeMap::new() } else { bytes }
}

fn most(bytes: &BTreeMap<DType, u64>) -> Option<DType> {
    bytes.iter().max_by_key(|(_, count)| **count).map(|(dtype, _)| *dtype)
}
