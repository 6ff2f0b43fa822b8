//! Compares a sharded checkpoint with its index: the six ways in which the two can disagree.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::error::{Diagnostic, Diagnostics, MAX_FINDINGS, Policy, Result};
use crate::format::index::ShardIndex;
use crate::names::NameIndex;
use crate::rules::{self, Rule};
use crate::tensor::{TensorInfo, TensorTable};

/// A shard that an index names.
#[derive(Debug, Clone, Copy)]
pub enum IndexedShard<'a> {
    /// It exists, with these tensors.
    ObjectHead(&'a TensorTable),
    /// It exists, with unknown contents.
    Unread,
    /// It is missing.
    Missing,
}

/// Compares an index at `path` with its shards, in the order of [`ShardIndex::shards`]. Returns the tensors of the checkpoint by shard number, their
/// names, and all disagreements.
pub fn compare_with_index(
    path: &Path,
    index: &ShardIndex,
    shards: &[IndexedShard<'_>],
) -> Result<(TensorTable, NameIndex, Vec<Diagnostic>)> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let paths: Vec<PathBuf> = index.shards.iter().map(|shard| folder.join(shard)).collect();
    let mut table = TensorTable::default();
    for (number, shard) in shards.iter().enumerate().take(paths.len()) {
        if let IndexedShard::ObjectHead(tensors) = shard {
            table.append(tensors, number as u32)?;
        }
    }
    let are = |missing: fn(&IndexedShard<'_>) -> bool| -> Vec<bool> {
        (0..paths.len()).map(|number| shards.get(number).is_none_or(missing)).collect()
    };
    let absent = are(|shard| matches!(shard, IndexedShard::Missing));
    let unread = are(|shard| !matches!(shard, IndexedShard::ObjectHead(_)));
    let mut disagreements = Disagreements::new();
    disagreements.missing_shards(&paths, index, &absent);
    NameIndex::probe(&table)?;
    let mut names = NameIndex::new(&table).ok().filter(|names| index.agrees(&table, names));
    if names.is_none() {
        disagreements.compare(&mut table, index, &paths, &unread);
        // The remaining tensors are entries of the index, so their names are unique.
        names = NameIndex::new(&table).ok();
    }
    if !unread.contains(&true) {
        disagreements.total_size(path, index, &table);
    }
    Ok((table, names.unwrap_or_default(), disagreements.finish(Policy::CollectAll)?))
}

/// Disagreements between an index and its shards.
pub(super) struct Disagreements(Diagnostics);

impl Disagreements {
    pub(super) fn new() -> Self {
        // All are collected: even a strict open reports their number.
        Self(Diagnostics::new(Policy::Lenient, MAX_FINDINGS))
    }

    /// `place` is the path, and the tensor if the finding concerns one.
    fn add(&mut self, rule: &'static Rule, place: (&Path, Option<&str>), cause: String) {
        let (path, tensor) = (place.0, place.1.map(str::to_owned));
        self.0.note(rule, |rule| Diagnostic { tensor, ..Diagnostic::new(rule, cause).path(path) });
    }

    /// Reports the missing shards.
    pub(super) fn missing_shards(&mut self, paths: &[PathBuf], index: &ShardIndex, missing: &[bool]) {
        let mut tensors = vec![0usize; paths.len()];
        for (_, shard) in index.iter() {
            tensors[shard as usize] += 1;
        }
        for ((path, count), _) in paths.iter().zip(tensors).zip(missing).filter(|(_, missing)| **missing) {
            let noun = if count == 1 { "tensor" } else { "tensors" };
            let cause = format!("the shard is missing; the index puts {count} {noun} into it");
            self.add(rules::INDEX_MISSING_SHARD, (path, None), cause);
        }
    }

    /// Compares the tensors of the shards with the index; `paths` are those of the index's shards, and `missing` marks the missing ones. Only tensors
    /// in the index stay in the table. Of a tensor in two shards, the one in the right shard stays.
    pub(super) fn compare(&mut self, table: &mut TensorTable, index: &ShardIndex, paths: &[PathBuf], missing: &[bool]) {
        const NOWHERE: u32 = u32::MAX;
        // For each tensor of the index, its number in the table.
        let mut found = vec![NOWHERE; index.len()];
        let mut elsewhere = Vec::new();
        for (number, info) in table.iter().enumerate() {
            match index.find(info.name) {
                Some((entry, shard)) if shard == info.file => found[entry] = number as u32,
                Some((entry, shard)) => elsewhere.push((number, entry, shard)),
                None => {
                    let place = (paths[info.file as usize].as_path(), Some(info.name));
                    self.add(rules::INDEX_UNINDEXED_TENSOR, place, "it is in the shard, but not in the index".into());
                }
            }
        }
        for (number, entry, shard) in elsewhere {
            let info = table.get(number);
            let place = (paths[info.file as usize].as_path(), Some(info.name));
            let expected = &index.shards[shard as usize];
            if found[entry] == NOWHERE {
                found[entry] = number as u32;
                self.add(
                    rules::INDEX_OTHER_SHARD,
                    place,
                    format!("it is in this shard; the index puts it into {expected}"),
                );
            } else {
                let cause = format!("it is also in a second shard; the index puts it into {expected}");
                self.add(rules::INDEX_DUPLICATE_TENSOR, place, cause);
            }
        }
        for ((name, shard), _) in index.iter().zip(&found).filter(|(_, number)| **number == NOWHERE) {
            if !missing[shard as usize] {
                let cause = "the index puts it into this shard, but it is missing there".to_owned();
                self.add(rules::INDEX_MISSING_TENSOR, (&paths[shard as usize], Some(name)), cause);
            }
        }
        let mut kept = vec![false; table.len()];
        for number in found.into_iter().filter(|number| *number != NOWHERE) {
            kept[number as usize] = true;
        }
        table.retain(|number| kept[number]);
    }

    /// Compares the bytes of all tensors with the index.
    pub(super) fn total_size(&mut self, path: &Path, index: &ShardIndex, table: &TensorTable) {
        let found: u64 = table.iter().map(|info| info.bytes()).sum();
        let Some(expected) = index.total_size.filter(|size| *size != found) else { return };
        // Some writers count tensors that share a storage once.
        let mut seen = HashSet::new();
        let mut is_first = |info: &TensorInfo<'_>| {
            info.view.is_none_or(|view| seen.insert((info.file, view.storage.start(), view.storage.len())))
        };
        let once: u64 = table.iter().filter(|info| is_first(info)).map(|info| info.bytes()).sum();
        if expected != once {
            let cause = format!("the index says {expected} bytes in total; the tensors have {found}");
            self.add(rules::INDEX_TOTAL_SIZE, (path, None), cause);
        }
    }

    /// All findings; with a strict policy, an error for the first.
    pub(super) fn finish(self, policy: Policy) -> Result<Vec<Diagnostic>> {
        self.0.tolerated(policy)
    }
}
