//! Hierarchical names: one sorted index over a table of tensors.
//!
//! Names are compared with `.` below every other byte. So everything below a component is one range, and the ranges of two components never
//! interleave (in plain byte order `a-b` would stand between `a` and `a.c`).

mod near;
mod renames;
mod sort;
mod template;

use std::cmp::Ordering;
use std::ops::Range;

pub use near::{nearest, nearest_of, nearest_to_pattern};
pub use renames::{Pattern, Renames};
pub use template::{Captures, Template};

use crate::budget::{self, Short};
use crate::tensor::TensorTable;

/// What separates the components of a name.
pub const SEPARATOR: char = '.';

/// The positions of a table's names in sorted order.
#[derive(Debug, Clone, Default)]
pub struct NameIndex {
    sorted: Vec<u32>,
}

/// One child of a prefix: a component, and the range of the index that it covers (itself, if it is a weight, first).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child<'a> {
    /// The component, such as `0` below `model.layers`.
    pub component: &'a str,
    /// The positions in the index.
    pub range: Range<usize>,
}

impl NameIndex {
    /// Checks that memory is available for the index of `table`, its sort and the list of duplicates, whose allocations cannot fail gracefully.
    pub fn probe(table: &TensorTable) -> Result<(), Short> {
        budget::probe(table.len().saturating_mul(size_of::<u32>() + 2 * size_of::<(u64, u32)>()))
    }

    /// Sorts the names of `table`; the error has the pairs of entries with equal names.
    pub fn new(table: &TensorTable) -> Result<Self, Vec<(usize, usize)>> {
        let sorted = sort::sorted(table);
        let pairs = sorted.windows(2).map(|pair| (pair[0] as usize, pair[1] as usize));
        let twice: Vec<(usize, usize)> = pairs.filter(|(a, b)| table.name(*a) == table.name(*b)).collect();
        if twice.is_empty() { Ok(Self { sorted }) } else { Err(twice) }
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// True if there are no names.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The entry of this exact name.
    pub fn find(&self, table: &TensorTable, name: &str) -> Option<usize> {
        let found = self.sorted.binary_search_by(|&i| compare(table.name(i as usize), name)).ok()?;
        Some(self.sorted[found] as usize)
    }

    /// The entry at a position of the index.
    pub fn entry(&self, position: usize) -> usize {
        self.sorted[position] as usize
    }

    /// The positions of the weight of this name, if there is one, and of every weight below it. The empty prefix is everything.
    pub fn range(&self, table: &TensorTable, prefix: &str) -> Range<usize> {
        if prefix.is_empty() {
            return 0..self.sorted.len();
        }
        let start = self.sorted.partition_point(|&i| compare(table.name(i as usize), prefix) == Ordering::Less);
        let len = self.sorted[start..].partition_point(|&i| is_at_or_below(table.name(i as usize), prefix));
        start..start + len
    }

    /// The entries of a range, in file order, so that reads are sequential.
    pub fn in_file_order(&self, range: Range<usize>) -> Vec<u32> {
        if range == (0..self.len()) {
            return (0..self.len() as u32).collect();
        }
        let mut entries = self.sorted[range].to_vec();
        entries.sort_unstable();
        entries
    }

    /// The children of a prefix whose range is given, in sorted order. Costs O(log n) a child, whatever the number of weights below it.
    pub fn children<'a>(
        &'a self,
        table: &'a TensorTable,
        prefix: &str,
        range: Range<usize>,
    ) -> impl Iterator<Item = Child<'a>> {
        let skip = if prefix.is_empty() { 0 } else { prefix.len() + SEPARATOR.len_utf8() };
        let mut next = range.start;
        if next < range.end && table.name(self.entry(next)).len() == prefix.len() {
            next += 1; // the weight of the prefix's own name is no child
        }
        std::iter::from_fn(move || {
            if next >= range.end {
                return None;
            }
            let name = table.name(self.entry(next));
            let rest = name.get(skip..).unwrap_or_default();
            let (component, _) = if skip == 0 { split_root(rest) } else { split_first(rest) };
            let child = &name[..skip + component.len()];
            let within = |&i: &u32| is_at_or_below(table.name(i as usize), child);
            // Most children are short: galloping search for the end.
            let rest = &self.sorted[next..range.end];
            let most = (1..usize::BITS).map(|bit| 1 << bit).find(|&far| rest.get(far).is_none_or(|i| !within(i)));
            let len = rest[..most.unwrap_or(rest.len()).min(rest.len())].partition_point(within);
            let found = Child { component, range: next..next + len.max(1) };
            next = found.range.end;
            Some(found)
        })
    }
}

/// The first component, and what follows its separator, if there is one.
fn split_first(name: &str) -> (&str, Option<&str>) {
    name.split_once(SEPARATOR).map_or((name, None), |(first, rest)| (first, Some(rest)))
}

/// Like [`split_first`], for a whole name: a leading separator belongs to the first component, because an empty component would be the root.
fn split_root(name: &str) -> (&str, Option<&str>) {
    let Some(after) = name.strip_prefix(SEPARATOR) else { return split_first(name) };
    let (first, rest) = split_first(after);
    (name.get(..SEPARATOR.len_utf8() + first.len()).unwrap_or(name), rest)
}

/// Compares names with `.` below every other byte.
pub fn compare(a: &str, b: &str) -> Ordering {
    const DOT: u8 = SEPARATOR as u8;
    let (a, b) = (a.as_bytes(), b.as_bytes());
    match first_difference(a, b) {
        None => a.len().cmp(&b.len()),
        Some(i) if a[i] == DOT => Ordering::Less,
        Some(i) if b[i] == DOT => Ordering::Greater,
        Some(i) => a[i].cmp(&b[i]),
    }
}

/// The first position at which two names differ, if they differ before one of them ends. Names share long prefixes, so eight bytes at a time.
fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    let common = a.len().min(b.len());
    let (a_words, _) = a[..common].as_chunks::<8>();
    let (b_words, _) = b[..common].as_chunks::<8>();
    for (i, (a, b)) in a_words.iter().zip(b_words).enumerate() {
        let difference = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if difference != 0 {
            return Some(i * 8 + difference.trailing_zeros() as usize / 8);
        }
    }
    (a_words.len() * 8..common).find(|&i| a[i] != b[i])
}

/// True for the prefix itself and for names with whole components below it.
fn is_at_or_below(name: &str, prefix: &str) -> bool {
    match name.strip_prefix(prefix) {
        Some(rest) => rest.is_empty() || rest.starts_with(SEPARATOR),
        None => false,
    }
}

/// The natural sort key of a component: 10 after 9, and numbers before words.
pub(crate) fn natural(component: &str) -> (u64, &str) {
    (component.parse().unwrap_or(u64::MAX), component)
}

/// The child's name: the parent's, a dot and the key; a child of the root has just the key.
pub fn join(parent: &str, key: &str) -> String {
    if parent.is_empty() {
        return key.to_owned();
    }
    let mut name = String::with_capacity(parent.len() + 1 + key.len());
    name.push_str(parent);
    name.push(SEPARATOR);
    name.push_str(key);
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::tensor::{Element, Span, TensorInfo};
    use proptest::prelude::*;

    fn table(names: &[String]) -> TensorTable {
        let mut table = TensorTable::default();
        for name in names {
            let span = Span::within(0, 0, 0).expect("inside");
            let info =
                TensorInfo { name, element: Element::Plain(DType::UInt8), shape: &[0], file: 0, span, view: None };
            table.push(&info).expect("room");
        }
        table
    }

    fn below<'a>(names: &'a [String], prefix: &str) -> Vec<&'a str> {
        let dotted = format!("{prefix}.");
        let mut found: Vec<&str> = names
            .iter()
            .map(String::as_str)
            .filter(|name| prefix.is_empty() || *name == prefix || name.starts_with(&dotted))
            .collect();
        found.sort_unstable();
        found
    }

    proptest! {
        #[test]
        fn a_range_is_what_a_walk_over_all_names_finds(
            names in proptest::collection::hash_set("[ab.-]{1,7}", 0..40),
            prefix in "[ab.-]{0,4}",
        ) {
            let names: Vec<String> = names.into_iter().collect();
            let table = table(&names);
            let index = NameIndex::new(&table).expect("no duplicates");
            let range = index.range(&table, &prefix);
            let mut found: Vec<&str> = range.clone().map(|position| table.name(index.entry(position))).collect();
            found.sort_unstable();
            prop_assert_eq!(found, below(&names, &prefix));

            let mut children: Vec<(String, usize)> = index
                .children(&table, &prefix, range)
                .map(|child| (child.component.to_owned(), child.range.len()))
                .collect();
            children.sort();
            let mut expected = std::collections::BTreeMap::new();
            for name in below(&names, &prefix) {
                if name != prefix {
                    let (rest, from) = if prefix.is_empty() { (name, 1) } else { (&name[prefix.len() + 1..], 0) };
                    let len = rest[from..].find('.').map_or(rest.len(), |at| at + from);
                    *expected.entry(rest[..len].to_owned()).or_insert(0) += 1;
                }
            }
            prop_assert_eq!(children, expected.into_iter().collect::<Vec<_>>());
            for name in &names {
                prop_assert_eq!(index.find(&table, name).map(|entry| table.name(entry)), Some(name.as_str()));
            }
        }
    }

    #[test]
    fn one_component_never_matches_the_start_of_another() {
        let names: Vec<String> = ["layers.1.w", "layers.10.w", "layers.1", "layers.1-b.w"].map(String::from).to_vec();
        let table = table(&names);
        let index = NameIndex::new(&table).expect("no duplicates");
        let found: Vec<&str> =
            index.in_file_order(index.range(&table, "layers.1")).iter().map(|&i| table.name(i as usize)).collect();
        assert_eq!(found, ["layers.1.w", "layers.1"]);
    }

    #[test]
    fn a_name_that_begins_with_a_dot_is_below_the_root() {
        let names: Vec<String> = [".a.b", "..", "", "a"].map(String::from).to_vec();
        let table = table(&names);
        let index = NameIndex::new(&table).expect("no duplicates");
        let children: Vec<&str> = index.children(&table, "", 0..4).map(|child| child.component).collect();
        assert_eq!(children, [".", ".a", "a"], "the weight of no name is the root itself");
        let below = |prefix| {
            let range = index.range(&table, prefix);
            index.children(&table, prefix, range).map(|child| child.component).collect::<Vec<_>>()
        };
        assert_eq!((below(".a"), below(".")), (vec!["b"], vec![""]));
    }

    #[test]
    fn two_entries_of_one_name_are_reported() {
        let names: Vec<String> = ["b", "a", "b"].map(String::from).to_vec();
        assert_eq!(NameIndex::new(&table(&names)).err(), Some(vec![(0, 2)]));
    }
}
