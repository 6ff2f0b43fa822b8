//! Which tensors are the ones that a manifest has.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use max_weights::error::{Diagnostics, MAX_FINDINGS, Policy};
use max_weights::{Diagnostic, rules, text};

use super::checked::{Checked, TensorCounts, place};
use super::{Manifest, ManifestTensor};

/// Compares the tensors that are there with those of a manifest.
pub(super) fn compare(manifest: &Manifest, existing: &[ManifestTensor], root: &Path, checked: &mut Checked) {
    let mut counts = TensorCounts::default();
    let mut by_name: HashMap<&str, Vec<&ManifestTensor>> = HashMap::new();
    for tensor in existing {
        by_name.entry(&tensor.name).or_default().push(tensor);
    }
    let mut known: HashMap<&str, Vec<&ManifestTensor>> = HashMap::new();
    for tensor in &manifest.tensors {
        known.entry(&tensor.name).or_default().push(tensor);
    }
    let new: Vec<&ManifestTensor> = existing.iter().filter(|tensor| !known.contains_key(&*tensor.name)).collect();
    // What is new by its elements, to find out what a missing one is called now.
    let mut new_by_elements: HashMap<(&str, &[u64], &str), &ManifestTensor> = HashMap::new();
    for tensor in &new {
        if let Some(sha256) = &tensor.sha256 {
            new_by_elements.entry((&tensor.dtype, &tensor.shape, sha256)).or_insert(tensor);
        }
    }
    let mut found = Diagnostics::new(Policy::CollectAll, MAX_FINDINGS);
    let mut report = |rule, of: &ManifestTensor, message: String| {
        found.note(rule, |rule| Diagnostic::new(rule, message).tensor(&of.name).path(place(root, &of.file)));
    };
    let mut moved: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut reported: HashSet<(&str, &str)> = HashSet::new();
    for tensor in &manifest.tensors {
        let here = by_name.get(&*tensor.name).map_or(&[][..], Vec::as_slice);
        let same_file = here.iter().find(|found| found.file == tensor.file);
        let same = |found: &&&ManifestTensor| is_same(tensor, found);
        match (same_file, here.first()) {
            (Some(found), _) if is_same(tensor, found) => counts.same += 1,
            _ if here.iter().any(|found| is_same(tensor, found)) => {
                counts.moved += 1;
                let file = here.iter().find(same).map_or("", |found| &found.file);
                *moved.entry((&tensor.file, file)).or_default() += 1;
            }
            (Some(found), _) | (None, Some(found)) => {
                counts.changed += 1;
                reported.insert((&found.file, &found.name));
                report(rules::MANIFEST_CHANGED_TENSOR, found, difference(tensor, found));
            }
            (None, None) => {
                counts.missing += 1;
                let sha256 = tensor.sha256.as_deref().unwrap_or_default();
                let called = new_by_elements.get(&(&*tensor.dtype, &*tensor.shape, sha256));
                let called = called.map(|found| format!("; '{}' has its elements", text::escape(&found.name)));
                let message = format!("it is not in any file{}", called.unwrap_or_default());
                report(rules::MANIFEST_MISSING_TENSOR, tensor, message);
            }
        }
    }
    // A loader may take another version of a known name from a second file.
    let is_other = |tensor: &&ManifestTensor| {
        let declared = known.get(&*tensor.name);
        declared.is_some_and(|declared| !declared.iter().any(|declared| is_same(declared, tensor)))
            && !reported.contains(&(&*tensor.file, &*tensor.name))
    };
    let others =
        existing.iter().filter(is_other).map(|tensor| (tensor, "the manifest has a different tensor with this name"));
    for (tensor, message) in new.into_iter().map(|tensor| (tensor, "it is not in the manifest")).chain(others) {
        counts.new += 1;
        report(rules::MANIFEST_NEW_TENSOR, tensor, message.to_owned());
    }
    let mut list = found.close();
    list.sort_by_key(|finding| finding.rule.code);
    for finding in list {
        let path = finding.path.clone().unwrap_or_else(|| root.into());
        checked.report(&path, finding);
    }
    for ((from, to), count) in moved {
        let (from, tensors) = (text::escape(from), text::plural(count, "tensor"));
        let message =
            format!("{tensors} that the manifest lists in '{from}' {} here", if count == 1 { "is" } else { "are" });
        checked.report(&place(root, to), Diagnostic::new(rules::MANIFEST_MOVED, message));
    }
    checked.tensors = counts;
}

fn is_same(one: &ManifestTensor, other: &ManifestTensor) -> bool {
    let digits = match (&one.sha256, &other.sha256) {
        (Some(one), Some(other)) => one.eq_ignore_ascii_case(other),
        (one, other) => one.is_none() && other.is_none(),
    };
    digits && one.dtype == other.dtype && one.shape == other.shape
}

/// What is another, the first of it.
fn difference(declared: &ManifestTensor, found: &ManifestTensor) -> String {
    if declared.dtype != found.dtype {
        return format!("it is {}, and the manifest has {}", text::escape(&found.dtype), text::escape(&declared.dtype));
    }
    if declared.shape != found.shape {
        return format!(
            "its shape is {}, and the manifest has {}",
            text::shape(&found.shape),
            text::shape(&declared.shape)
        );
    }
    let digest = |tensor: &ManifestTensor| tensor.sha256.clone().unwrap_or_else(|| "none".into());
    format!("its elements have SHA-256 {}, and the manifest has {}", digest(found), digest(declared))
}
