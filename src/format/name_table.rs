//! The names of a file: their positions, and duplicates, among a quarter of a million at eight bytes each.

use std::cmp::Ordering;

use crate::budget::{self, Short};

const POSITION: u64 = u32::MAX as u64;

/// The positions of names, sorted by 32 bits of hash and then by name, so that a file full of collisions costs no more than a sort.
#[derive(Debug, Clone, Default)]
pub(super) struct NameTable {
    keys: Vec<u64>,
}

impl NameTable {
    pub(super) fn new<'a>(count: usize, name: impl Fn(usize) -> &'a str) -> Result<Self, Short> {
        let mut keys = budget::collected((0..count).map(|position| hash(name(position)) | position as u64))?;
        keys.sort_unstable();
        for run in keys.chunk_by_mut(|a, b| a & !POSITION == b & !POSITION).filter(|run| run.len() > 1) {
            run.sort_unstable_by(|a, b| compare(name(position(*a)), name(position(*b))).then(a.cmp(b)));
        }
        Ok(Self { keys })
    }

    /// The position of this name.
    pub(super) fn find<'a>(&self, requested: &str, name: impl Fn(usize) -> &'a str) -> Option<usize> {
        let hash = hash(requested);
        let order = |key: &u64| (key & !POSITION).cmp(&hash).then_with(|| compare(name(position(*key)), requested));
        self.keys.binary_search_by(order).ok().and_then(|found| self.keys.get(found)).map(|key| position(*key))
    }

    /// The pairs of positions whose names are `alike` (equal, or equal except for case), sorted by the later position.
    pub(super) fn pairs<'a>(
        &self,
        name: impl Fn(usize) -> &'a str,
        alike: impl Fn(&str, &str) -> bool,
    ) -> Result<Vec<(usize, usize)>, Short> {
        let same_hash = self.keys.windows(2).filter(|pair| matches!(pair, [a, b] if a & !POSITION == b & !POSITION));
        let pairs = same_hash.filter_map(|pair| Some((position(*pair.first()?), position(*pair.last()?))));
        let mut found = Vec::new();
        for (a, b) in pairs.filter(|&(a, b)| alike(name(a), name(b))) {
            budget::reserve(&mut found, 1)?;
            found.push((a.min(b), a.max(b)));
        }
        found.sort_unstable_by_key(|pair| pair.1);
        Ok(found)
    }
}

/// Those of `count` names that were there before: (the former position, its own position).
pub(super) fn duplicates<'a>(count: usize, name: impl Fn(usize) -> &'a str) -> Result<Vec<(usize, usize)>, Short> {
    // Most writers sort the names.
    if (1..count).all(|position| name(position - 1) < name(position)) {
        return Ok(Vec::new());
    }
    NameTable::new(count, &name)?.pairs(name, |a, b| a == b)
}

/// A fast hash in the upper half, case-insensitive. It need not resist an attacker: see [`NameTable`].
fn hash(name: &str) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 divided by the golden ratio: odd, and without a pattern in its bits
    const CASE: u8 = 0x20;
    let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(MULTIPLIER);
    let (words, rest) = name.as_bytes().as_chunks::<8>();
    let fold = u64::from_le_bytes([CASE; 8]);
    let hash = words.iter().fold(name.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word) | fold));
    let hash = mix(hash, rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte | CASE)));
    mix(hash, hash >> 32) & !POSITION
}

const fn position(key: u64) -> usize {
    (key & POSITION) as usize
}

/// Case-insensitive first, so that names that differ only in case are adjacent.
fn compare(a: &str, b: &str) -> Ordering {
    let folded = |byte: u8| byte.to_ascii_lowercase();
    a.bytes().map(folded).cmp(b.bytes().map(folded)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_told_from_names_whose_hashes_are_equal() {
        // Of this many names, about ten pairs share their 32 bits of hash.
        let mut names: Vec<String> = (0..300_000).rev().map(|i| format!("layers.{i}.weight")).collect();
        assert_eq!(duplicates(names.len(), |i| &names[i]), Ok(Vec::new()));
        names[200_000] = names[7].clone();
        names[250_000] = names[7].clone();
        names[240_000] = names[100_000].clone();
        assert_eq!(
            duplicates(names.len(), |i| &names[i]),
            Ok(vec![(7, 200_000), (100_000, 240_000), (200_000, 250_000)])
        );
    }

    #[test]
    fn every_name_is_found_among_names_whose_hashes_are_equal() {
        let names: Vec<String> = (0..300_000).map(|i| format!("archive/data/{i}")).collect();
        let table = NameTable::new(names.len(), |i| &names[i]).expect("memory");
        assert_eq!(table.pairs(|i| &names[i], str::eq_ignore_ascii_case), Ok(Vec::new()));
        assert!((0..names.len()).all(|i| table.find(&names[i], |i| &names[i]) == Some(i)));
        assert_eq!(table.find("archive/data/300000", |i| &names[i]), None);
        assert_eq!(table.find("archive/DATA/7", |i| &names[i]), None);
    }

    #[test]
    fn names_of_different_case_are_told_apart() {
        let names = ["a/x", "a/data.pkl", "a/y", "a/DATA.pkl"];
        let table = NameTable::new(4, |i| names[i]).expect("memory");
        assert_eq!(table.pairs(|i| names[i], |a, b| a == b), Ok(Vec::new()));
        assert_eq!(table.pairs(|i| names[i], str::eq_ignore_ascii_case), Ok(vec![(1, 3)]));
    }
}
