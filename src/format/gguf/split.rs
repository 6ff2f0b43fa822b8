//! Files of one set: the position of each in the set, and whether they agree.

use std::fmt::Display;
use std::path::Path;

use super::cursor::CursorStep;
use super::metadata::KeyTable;
use crate::error::{Diagnostic, Diagnostics, MAX_FINDINGS, Policy};
use crate::format::escape;
use crate::format::name_table::duplicates;
use crate::rules;
use crate::tensor::TensorTable;
use crate::text;

const COUNT_KEY: &str = "split.count";
const NO_KEY: &str = "split.no";
const TENSORS_KEY: &str = "split.tensors.count";

/// A file's place in a set of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitInfo {
    /// The number of the file, from 0.
    pub no: u16,
    /// The number of files; at least 2.
    pub count: u16,
    /// The number of tensors in all files together, if the file has it.
    pub tensors_count: Option<u32>,
}

impl SplitInfo {
    /// The position in the metadata; `None` for a file that is complete on its own.
    pub(super) fn from_keys(keys: &KeyTable, header: &[u8]) -> CursorStep<Option<Self>> {
        let count = number(keys, header, COUNT_KEY, u16::MAX)?.unwrap_or_default();
        let no = number(keys, header, NO_KEY, u16::MAX)?;
        let tensors_count = number(keys, header, TENSORS_KEY, u32::MAX / 2)?;
        if count < 2 {
            return Ok(None);
        }
        match no {
            Some(no) if no < count => Ok(Some(Self { no, count, tensors_count })),
            no => {
                let found = no.map_or("is missing".into(), |no| format!("is {no}"));
                let cause = format!("{NO_KEY} {found} in a file of a set of {count}, which are numbered from 0");
                let offset = keys.offset(header, NO_KEY).or_else(|| keys.offset(header, COUNT_KEY));
                let fault = Diagnostic::new(rules::GGUF_SPLIT_NO, cause);
                Err(fault.offset(offset.unwrap_or_default()).into())
            }
        }
    }
}

/// The number of a key, from 0 to `most`.
fn number<N: TryFrom<u64> + PartialOrd + Display>(
    keys: &KeyTable,
    header: &[u8],
    key: &str,
    most: N,
) -> CursorStep<Option<N>> {
    let Some(value) = keys.get(header, key) else { return Ok(None) };
    let number = value.as_u64().and_then(|number| N::try_from(number).ok()).filter(|number| *number <= most);
    let refuse = || {
        let cause = format!("{key} is {}; it must be a whole number from 0 to {most}", escape(&format!("{value:?}")));
        Diagnostic::new(rules::GGUF_SPLIT_KEYS, cause).offset(keys.offset(header, key).unwrap_or_default())
    };
    Ok(Some(number.ok_or_else(refuse)?))
}

/// A file that is opened as part of a set.
#[derive(Debug, Clone, Copy)]
pub struct Shard<'a> {
    /// Its path, for messages.
    pub path: &'a Path,
    /// The number in its name, from 0, if it has the name of a shard.
    pub number: Option<usize>,
    /// The position in its metadata.
    pub split: Option<SplitInfo>,
}

/// Compares the metadata of the files of a set; `tensors` has the tensors of all of them, whose `file` is the position in `shards`. A complete and
/// consistent set has no findings.
pub fn check_set(shards: &[Shard<'_>], tensors: &TensorTable) -> Vec<Diagnostic> {
    let mut faults = Vec::new();
    let mut holders: Vec<Option<&Shard<'_>>> = Vec::new();
    let mut first: Option<(&Shard<'_>, SplitInfo)> = None;
    for shard in shards {
        let mut add = |rule, cause: String| {
            faults.push(Diagnostic::new(rule, cause).path(shard.path));
        };
        let Some(split) = shard.split else {
            add(rules::GGUF_SPLIT_KEYS, format!("it has no {COUNT_KEY}: it is not part of a set of files"));
            continue;
        };
        let (first_shard, of_first) = *first.get_or_insert((shard, split));
        if split.count != of_first.count {
            let (ours, theirs) = (split.count, of_first.count);
            add(
                rules::GGUF_SPLIT_COUNT,
                format!("{COUNT_KEY} is {ours}, but {theirs} in {}", first_shard.path.display()),
            );
            continue;
        }
        if let Some(number) = shard.number.filter(|number| *number != usize::from(split.no)) {
            let cause =
                format!("{NO_KEY} is {}, but by its name the file is number {number}, counted from 0", split.no);
            add(rules::GGUF_SPLIT_NO, cause);
        }
        if holders.is_empty() {
            holders.resize(of_first.count.into(), None);
        }
        match holders.get_mut(usize::from(split.no)) {
            Some(Some(other)) => {
                add(rules::GGUF_SPLIT_NO, format!("{NO_KEY} is {}, as in {}", split.no, other.path.display()));
            }
            Some(holder) => *holder = Some(shard),
            None => add(rules::GGUF_SPLIT_NO, format!("{NO_KEY} is {} in a set of {}", split.no, split.count)),
        }
    }
    let Some((first, of_first)) = first else { return faults };
    let missing: Vec<String> = (0..holders.len())
        .filter(|no| holders.get(*no).is_some_and(Option::is_none))
        .map(|no| (no + 1).to_string())
        .collect();
    if !missing.is_empty() {
        let listed = text::listed(&missing);
        let cause =
            format!("of the {} files of the set, {} are missing: number {listed}", of_first.count, missing.len());
        let fault = Diagnostic::new(rules::GGUF_SPLIT_MISSING, cause).path(first.path);
        faults.push(fault);
    }
    faults.extend(check_totals(shards, tensors, missing.is_empty()));
    faults.extend(check_names(shards, tensors));
    faults
}

/// The numbers of tensors that the files claim for the whole set.
fn check_totals(shards: &[Shard<'_>], tensors: &TensorTable, complete: bool) -> Option<Diagnostic> {
    let claims = || shards.iter().filter_map(|shard| Some((shard, shard.split?.tensors_count?)));
    let (first, claimed) = claims().next()?;
    if let Some((other, count)) = claims().find(|(_, count)| *count != claimed) {
        let cause = format!("{TENSORS_KEY} is {count}, but {claimed} in {}", first.path.display());
        return Some(Diagnostic::new(rules::GGUF_SPLIT_TOTAL, cause).path(other.path));
    }
    let found = tensors.len();
    let wrong = if complete { found != claimed as usize } else { found > claimed as usize };
    wrong.then(|| {
        let cause = format!("{TENSORS_KEY} is {claimed}; the files of the set have {found} tensors in total");
        Diagnostic::new(rules::GGUF_SPLIT_TOTAL, cause).path(first.path)
    })
}

/// Tensors that are in two files.
fn check_names(shards: &[Shard<'_>], tensors: &TensorTable) -> Vec<Diagnostic> {
    let mut found = Diagnostics::new(Policy::CollectAll, MAX_FINDINGS);
    // If memory is short for this, it is short for the index of all names, too, which is made next.
    for (former, latter) in duplicates(tensors.len(), |i| tensors.name(i)).unwrap_or_default() {
        let (former, latter) = (tensors.get(former), tensors.get(latter));
        let path = |file: u32| shards.get(file as usize).map_or(Path::new(""), |shard| shard.path);
        found.note(rules::GGUF_SPLIT_DUPLICATE, |rule| {
            let cause = format!("it is also in {}", text::path(path(former.file)));
            Diagnostic::new(rule, cause).tensor(latter.name).path(path(latter.file)).offset(latter.span.start())
        });
    }
    found.close()
}
