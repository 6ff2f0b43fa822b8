//! Paths that lead out of the folder: in the index of a sharded checkpoint, and by links.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use max_weights::source::store;
use max_weights::text::{escape, listed, path as shown_path};
use max_weights::{Diagnostic, rules};

use crate::folder::{FolderListing, ListedFile};
use crate::walk::{lies_in, links};

/// Looks at the files that an index names.
pub(super) fn of_index(files: &BTreeSet<String>, report: &mut dyn FnMut(Diagnostic)) {
    for file in files {
        let found = leads_out(file).map(|why| (rules::REPOSITORY_INDEX_PATH, why)).or_else(|| {
            file.contains('\\').then_some((
                rules::REPOSITORY_INDEX_BACKSLASH,
                "has backslashes, which separate folders on Windows only",
            ))
        });
        if let Some((rule, why)) = found {
            report(
                Diagnostic::new(rule, format!("weight_map names '{}', which {why}", escape(file)))
                    .evidence(escape(file)),
            );
        }
    }
}

/// Why a path of an index leads out of its folder, on any system.
fn leads_out(file: &str) -> Option<&'static str> {
    let bytes = file.as_bytes();
    let drive = matches!(bytes, [letter, b':', ..] if letter.is_ascii_alphabetic());
    if file.starts_with(['/', '\\', '~']) || drive || file.contains("://") {
        return Some("is not a path below the folder");
    }
    if file
        .split(['/', '\\'])
        .any(|part| part == ".." || part.trim_end_matches([' ', '.']).is_empty() && part.starts_with(".."))
    {
        return Some("leads to a folder above");
    }
    file.contains('\0').then_some("has a NUL byte, where some programs end the path")
}

/// Looks at links of files to elsewhere.
pub(super) fn of_links(folder: &FolderListing, report: &mut dyn FnMut(&ListedFile, Diagnostic)) {
    let mut twins = Vec::new();
    // Servers have no links.
    for entry in folder.files.iter().filter(|entry| !store::is_url(&entry.at)) {
        let Ok(meta) = fs::symlink_metadata(&entry.path) else { continue };
        if meta.is_symlink() {
            if let Some(target) = outside(entry) {
                let sentence = format!("the file is a link to {}, outside the folder", shown_path(&target));
                report(entry, Diagnostic::new(rules::REPOSITORY_LINK_OUTSIDE, sentence).evidence(shown_path(&target)));
            }
        } else if links(&meta) > 1 {
            twins.push(entry);
        }
    }
    if let Some(first) = twins.first() {
        let names = listed(twins.iter().map(|entry| escape(entry.name())));
        let sentence =
            format!("the same bytes have another name elsewhere, through which they can be changed: {names}");
        report(first, Diagnostic::new(rules::REPOSITORY_HARD_LINK, sentence));
    }
}

/// Where a link leads, if that is outside what was given, and not the store of the hub's cache.
fn outside(entry: &ListedFile) -> Option<PathBuf> {
    let target = fs::canonicalize(&entry.path).ok()?;
    // What was given is as far above the file as its path below that has parts.
    let above = entry.below.split('/').count();
    let root = entry.path.ancestors().nth(above)?;
    let root = if root.as_os_str().is_empty() { Path::new(".") } else { root };
    let root = fs::canonicalize(root).ok()?;
    (!lies_in(&target, &root)).then_some(target)
}
