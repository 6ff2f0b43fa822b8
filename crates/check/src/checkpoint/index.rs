//! The index of a set of shards, and the shards that it names.

use std::collections::HashSet;
use std::path::Path;

use max_weights::checkpoint::{IndexedShard, ShardName, compare_with_index};
use max_weights::error::Policy;
use max_weights::format::index::{IndexParser, ShardIndex};
use max_weights::format::{HeaderOptions, drive};
use max_weights::source::store;
use max_weights::text::{escape, listed};
use max_weights::workers::Interrupt;
use max_weights::{Diagnostic, rules};
use max_weights::{Error, Result};

use super::sets::{CheckpointSet, FolderNames, SetTensors, Sharded};
use crate::folder::{FolderContext, ListedFile};
use crate::kind::Kind;

/// What the names of indexes of shards that are read have in them.
const INDICES: [&str; 2] = [".safetensors.index.", ".bin.index."];
const JSON: &str = ".json";

/// Stem and suffix of the shards of an index, by its name.
fn of_shards(name: &str) -> Option<(&str, &'static str)> {
    let at = |infix: &str| name.ends_with(JSON).then(|| name.split_once(infix)).flatten();
    at(INDICES[0]).map(|(stem, _)| (stem, ".safetensors")).or_else(|| at(INDICES[1]).map(|(stem, _)| (stem, ".bin")))
}

/// All indices of a folder: the sets that they make. The files that belong to one are added to `taken`.
pub(super) fn check<'f>(
    names: &FolderNames<'f>,
    sharded: &Sharded<'f>,
    taken: &mut HashSet<&'f str>,
    context: &mut FolderContext<'_>,
) -> Result<Vec<CheckpointSet<'f>>> {
    let mut sets = Vec::new();
    let mut indices: Vec<(&'f ListedFile, &str, &str)> = Vec::new();
    for entry in &names.folder.files {
        // A pointer of git-LFS is reported as such.
        if let Some((stem, suffix)) = of_shards(entry.name()).filter(|_| entry.kind != Kind::LfsPointer) {
            indices.push((entry, stem, suffix));
        }
    }
    several(&indices, context);
    let mut read_indices = Vec::new();
    for (entry, stem, suffix) in indices {
        (context.interrupt)()?;
        let index = match read(entry, context.interrupt) {
            Ok(index) => index,
            Err(faults) => {
                faults?.into_iter().for_each(|fault| context.report(&entry.path, fault));
                // The index cannot be read, so its shards are not a set without an index either.
                for shards in sharded.iter().filter(|((of, _, end), _)| *of == stem && *end == suffix) {
                    taken.extend(shards.1.values().map(|shard| shard.name()));
                }
                continue;
            }
        };
        let whole = format!("{stem}{suffix}");
        if let Some(file) = names.file(&whole).filter(|_| !index.shards.contains(&whole)) {
            let cause = format!(
                "{} and {} are in the same folder: a loader takes one or the other, and they may differ",
                escape(&whole),
                escape(entry.name())
            );
            context.report(&file.path, Diagnostic::new(rules::SET_FILE_AND_INDEX, cause));
        }
        sets.push(compare(entry, stem, &index, names, taken, context)?);
        let named: HashSet<String> =
            index.shards.iter().filter_map(|name| Some(ShardName::of(name)?.stem.to_owned())).collect();
        read_indices.push((entry, suffix, named));
    }
    for (entry, suffix, stems) in read_indices {
        orphans(entry, suffix, &stems, sharded, taken, context);
    }
    Ok(sets)
}

/// What an index says, or why it cannot be read: an error in the error is none of the file.
fn read(entry: &ListedFile, interrupt: Interrupt<'_>) -> Result<ShardIndex, Result<Vec<Diagnostic>>> {
    let options = HeaderOptions { policy: Policy::CollectAll, ..HeaderOptions::default() };
    // The check of the file itself reports that it cannot be opened.
    let file = entry.open(interrupt).map_err(|error| match error {
        Error::Interrupted => Err(error),
        _ => Ok(Vec::new()),
    })?;
    let read = drive(IndexParser::new(entry.bytes, &options), &**file.source(), interrupt);
    read.map_err(|error| match error {
        Error::Diagnostics(faults) => Ok(faults),
        Error::Format(fault) | Error::Unsupported(fault) => Ok(vec![*fault]),
        Error::Interrupted => Err(Error::Interrupted),
        error => Ok(vec![Diagnostic::new(rules::FILE_UNREADABLE, error.to_string())]),
    })
}

fn compare<'f>(
    entry: &'f ListedFile,
    stem: &str,
    index: &ShardIndex,
    names: &FolderNames<'f>,
    taken: &mut HashSet<&'f str>,
    context: &mut FolderContext<'_>,
) -> Result<CheckpointSet<'f>> {
    let is_url = store::is_url(&entry.path);
    let folder = entry.path.parent().unwrap_or(Path::new(""));
    let files: Vec<Option<&ListedFile>> = index.shards.iter().map(|shard| names.file(shard)).collect();
    taken.extend(files.iter().flatten().map(|file| file.name()));
    let state = |(file, name): (Option<&'f ListedFile>, &String)| match file {
        Some(ListedFile { catalog: Some(catalog), .. }) => IndexedShard::ObjectHead(catalog.table()),
        Some(_) => IndexedShard::Unread,
        // In a subfolder, or not examined. On a server, all files of an index are examined.
        None if is_url && context.is_looked_at(&store::join(folder, name)) => IndexedShard::Unread,
        None if !is_url && folder.join(name).exists() => IndexedShard::Unread,
        None => IndexedShard::Missing,
    };
    let shards: Vec<IndexedShard<'_>> = files.iter().copied().zip(&index.shards).map(state).collect();
    let (table, sorted, faults) = compare_with_index(&entry.path, index, &shards)?;
    for fault in faults {
        let path = fault.path.clone().unwrap_or_else(|| entry.path.clone());
        // A missing shard has no report.
        let is_present = fault.rule != rules::INDEX_MISSING_SHARD;
        let mut finding = fault;
        if !is_present {
            finding.message =
                format!("{}: {}", escape(&path.file_name().unwrap_or_default().to_string_lossy()), finding.message);
        }
        context.report(if is_present { &path } else { &entry.path }, finding);
    }
    let is_complete = shards.iter().all(|shard| matches!(shard, IndexedShard::ObjectHead(_)));
    let tensors = SetTensors::Joined(table, sorted);
    Ok(CheckpointSet { stem: stem.to_owned(), path: entry.path.clone(), files, tensors, is_complete })
}

/// Files that have the names of shards as those of an index, which end in `end`, and that no index names.
fn orphans<'f>(
    index: &ListedFile,
    end: &str,
    stems: &HashSet<String>,
    sharded: &Sharded<'f>,
    taken: &mut HashSet<&'f str>,
    context: &mut FolderContext<'_>,
) {
    let of_the_set = sharded.iter().filter(|((stem, _, its_end), _)| stems.contains(*stem) && *its_end == end);
    for entry in of_the_set.flat_map(|(_, shards)| shards.values()) {
        if taken.insert(entry.name()) {
            let number = ShardName::of(entry.name()).map(|shard| format!("{} of {}", shard.number, shard.count));
            let cause = format!(
                "by its name it is shard {}, but {} does not name it",
                number.unwrap_or_default(),
                escape(index.name())
            );
            context.report(&entry.path, Diagnostic::new(rules::SET_ORPHAN_SHARD, cause));
        }
    }
}

fn several(indices: &[(&ListedFile, &str, &str)], context: &mut FolderContext<'_>) {
    for end in [".safetensors", ".bin"] {
        let of_this: Vec<&ListedFile> =
            indices.iter().filter(|(_, _, suffix)| *suffix == end).map(|(entry, ..)| *entry).collect();
        if let [first, _, ..] = of_this.as_slice() {
            let listed = listed(of_this.iter().map(|entry| escape(entry.name())));
            let cause = format!("the folder has {} indexes of {end} files: {}", of_this.len(), listed);
            context.report(&first.path, Diagnostic::new(rules::SET_INDEXES, cause));
        }
    }
}
