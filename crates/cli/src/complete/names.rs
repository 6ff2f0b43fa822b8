//! What a shell is offered after `max-weights show FILE`: names of weights and keys of the metadata, a component at a time.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap_complete::CompletionCandidate;
use max_weights::Catalog;

use crate::inputs::ReadArguments;
use crate::open::open;

/// Maximum number of candidates; more are not readable.
const MAX_CANDIDATES: usize = 500;
/// Keys of the metadata that are looked at, and children of one component: those of a hostile file have no end.
const LOOKED_AT: usize = 100_000;

/// The file that `show` was given in the words before the one that is being completed.
pub(super) fn file(words: &[OsString]) -> Option<PathBuf> {
    let matches = crate::command().ignore_errors(true).try_get_matches_from(words).ok()?;
    let (_, show) = matches.subcommand().filter(|(name, _)| *name == "show")?;
    show.try_get_one::<PathBuf>("path").ok()?.cloned()
}

/// The next component of the names and keys of this file that begin so. A file that cannot be read offers nothing.
pub(super) fn candidates(file: &PathBuf, incomplete: &OsStr) -> Vec<CompletionCandidate> {
    let Some(incomplete) = incomplete.to_str() else { return Vec::new() };
    let reading = ReadArguments { no_strict: true, ..ReadArguments::default() };
    let Ok(checkpoint) = open(std::slice::from_ref(file), &reading) else { return Vec::new() };
    let catalog = checkpoint.catalog();
    let mut found = weights(catalog, incomplete);
    found.extend(keys(catalog, incomplete));
    found.sort_by_cached_key(|name| in_order(name));
    found.dedup();
    found.truncate(MAX_CANDIDATES);
    let candidate = |(position, name)| CompletionCandidate::new(name).display_order(Some(position));
    found.into_iter().enumerate().map(candidate).collect()
}

/// Unchanged names of weights; prefixes that are no weight get a dot, so that the next key press continues there.
fn weights(catalog: &Catalog, incomplete: &str) -> Vec<String> {
    let (parent, _) = incomplete.rsplit_once('.').unwrap_or_default();
    let children = catalog.children(parent).take(LOOKED_AT);
    let names = children.map(|child| if parent.is_empty() { child.to_owned() } else { format!("{parent}.{child}") });
    let fitting = names.filter(|name| name.starts_with(incomplete) && super::is_plain(name));
    fitting.map(|name| if catalog.find(&name).is_some() { name } else { name + "." }).take(MAX_CANDIDATES).collect()
}

/// Keys of the metadata, cut after the next dot.
fn keys(catalog: &Catalog, incomplete: &str) -> Vec<String> {
    let next = |key: &str| {
        let rest = key.strip_prefix(incomplete)?;
        let end = rest.find('.').map_or(key.len(), |dot| incomplete.len() + dot + 1);
        super::is_plain(key).then(|| key[..end].to_owned())
    };
    match catalog.gguf() {
        Some(gguf) => gguf.metadata.keys().take(LOOKED_AT).filter_map(next).take(MAX_CANDIDATES).collect(),
        None => catalog.metadata().take(LOOKED_AT).filter_map(|(key, _)| next(key)).take(MAX_CANDIDATES).collect(),
    }
}

/// Layer 2 comes before layer 10.
fn in_order(name: &str) -> (Option<u64>, String) {
    let last = name.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    (last.parse().ok(), name.to_owned())
}
