//! Tensors of a PyTorch file that are one: tied weights.

use std::collections::{BTreeMap, HashMap, HashSet};

use clap::ValueEnum;
use max_weights::checkpoint::Catalog;
use max_weights::text;
use max_weights::write::ConvertItem;

use crate::failure::CommandFailure;

/// What is done with names for one tensor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Tied {
    // Write each of them.
    #[default]
    Copy,
    // Write the first, and the others in the metadata.
    Alias,
    // Write nothing.
    Refuse,
}

/// The groups of names for one tensor, the first by name in front: the same elements of a storage, in the same order, that become the same.
fn groups(catalog: &Catalog, items: &[ConvertItem]) -> Vec<Vec<usize>> {
    let mut groups: HashMap<_, Vec<usize>> = HashMap::new();
    for (at, item) in items.iter().enumerate() {
        let info = catalog.table().get(item.number);
        if let Some(view) = info.view
            && info.bytes() > 0
        {
            let place =
                (info.file, view.storage.start(), view.start, view.strides, info.shape, info.element.to_string());
            groups.entry(place).or_default().push(at);
        }
    }
    let mut groups: Vec<Vec<usize>> = groups.into_values().filter(|group| group.len() > 1).collect();
    for group in &mut groups {
        group.sort_unstable_by_key(|at| &*items[*at].tensor.name);
    }
    groups.sort_unstable_by_key(|group| &*items[group[0]].tensor.name);
    groups
}

/// The items that remain, and the metadata for the others: `{other: first}`. A note where tensors are written more than once.
///
/// # Errors
/// There are some, and that is refused.
pub(super) fn resolve(
    tied: Tied,
    catalog: &Catalog,
    items: &mut Vec<ConvertItem>,
    notes: &mut Vec<String>,
) -> Result<BTreeMap<String, String>, CommandFailure> {
    let groups = groups(catalog, items);
    let Some(first) = groups.first() else { return Ok(BTreeMap::new()) };
    let name = |at: usize| &items[at].tensor.name;
    let example = format!("'{}' is '{}'", text::escape(name(first[1])), text::escape(name(first[0])));
    let more = groups.iter().map(|group| group.len() - 1).sum::<usize>();
    match tied {
        Tied::Refuse => Err(CommandFailure::Usage(format!("--tied refuse: {example}: one tensor has several names"))),
        Tied::Copy => {
            let bytes = groups.iter().flat_map(|group| &group[1..]).filter_map(|at| items[*at].tensor.bytes().ok());
            let (bytes, tensors) = (text::size(bytes.sum()), text::plural(more as u64, "tied tensor"));
            notes.push(format!("{tensors} written again, {bytes} more: {example}; --tied alias writes one of each"));
            Ok(BTreeMap::new())
        }
        Tied::Alias => {
            let pairs = groups.iter().flat_map(|group| group[1..].iter().map(|other| (*other, group[0])));
            let excluded: HashSet<usize> = pairs.clone().map(|(other, _)| other).collect();
            let noted = pairs.map(|(other, first)| (name(other).clone(), name(first).clone())).collect();
            let mut at = 0..;
            items.retain(|_| !at.next().is_some_and(|at| excluded.contains(&at)));
            Ok(noted)
        }
    }
}
