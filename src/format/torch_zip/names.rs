//! Which entry has a name: a quarter of a million storages are looked up in a row.

use std::cmp::Ordering;

use crate::budget::{self, Short};
use crate::format::duplicates::hash;

const POSITION: u64 = u32::MAX as u64;
/// The bit in which the two cases of an ASCII letter differ.
const CASE: u8 = 0x20;

/// The numbers of the entries, sorted by 32 bits of hash, then by name: eight bytes each, and no file makes it slow.
#[derive(Debug, Clone, Default)]
pub(super) struct NameIndex {
    keys: Vec<u64>,
    /// Two entries whose names differ in the case of letters only.
    pub(super) twins: Option<(usize, usize)>,
}

impl NameIndex {
    /// The index of these names, or two entries of one name.
    pub(super) fn new<'a>(
        count: usize,
        name: impl Fn(usize) -> &'a str,
    ) -> Result<Result<Self, (usize, usize)>, Short> {
        let mut keys = budget::collected((0..count).map(|number| key_of(name(number)) | number as u64))?;
        keys.sort_unstable();
        let mut twins = None;
        for run in keys.chunk_by_mut(|a, b| hash_of(*a) == hash_of(*b)).filter(|run| run.len() > 1) {
            run.sort_unstable_by(|a, b| compare(name(number_of(*a)), name(number_of(*b))).then(a.cmp(b)));
            for pair in run.windows(2) {
                let &[a, b] = pair else { continue };
                let (first, second) = (name(number_of(a)), name(number_of(b)));
                if first == second {
                    return Ok(Err((number_of(a), number_of(b))));
                }
                if first.eq_ignore_ascii_case(second) {
                    twins = Some((number_of(a).min(number_of(b)), number_of(a).max(number_of(b))));
                }
            }
        }
        Ok(Ok(Self { keys, twins }))
    }

    /// The number of the entry of this name.
    pub(super) fn find<'a>(&self, wanted: &str, name: impl Fn(usize) -> &'a str) -> Option<usize> {
        let hash = key_of(wanted);
        let order = |key: &u64| hash_of(*key).cmp(&hash).then_with(|| compare(name(number_of(*key)), wanted));
        let found = self.keys.binary_search_by(order).ok()?;
        self.keys.get(found).map(|key| number_of(*key))
    }
}

fn key_of(name: &str) -> u64 {
    hash_of(hash(name, CASE))
}

const fn hash_of(key: u64) -> u64 {
    key & !POSITION
}

const fn number_of(key: u64) -> usize {
    (key & POSITION) as usize
}

/// Without regard to case first, so that twins stand side by side.
fn compare(a: &str, b: &str) -> Ordering {
    let folded = |text: &str| text.bytes().map(|byte| byte.to_ascii_lowercase()).collect::<Vec<_>>();
    if a == b { Ordering::Equal } else { folded(a).cmp(&folded(b)).then_with(|| a.cmp(b)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_among_names_whose_hashes_are_equal() {
        // Among so many names about ten pairs share their 32 bits of hash.
        let names: Vec<String> = (0..300_000).map(|i| format!("archive/data/{i}")).collect();
        let index = NameIndex::new(names.len(), |i| &names[i]).expect("memory").expect("no duplicates");
        assert_eq!(index.twins, None);
        assert!((0..names.len()).all(|i| index.find(&names[i], |i| &names[i]) == Some(i)));
        assert_eq!(index.find("archive/data/300000", |i| &names[i]), None);
        assert_eq!(index.find("archive/DATA/7", |i| &names[i]), None);
    }

    #[test]
    fn equal_names_and_names_of_different_case_are_told_apart() {
        let names = ["a/x", "a/data.pkl", "a/y", "a/DATA.pkl"];
        assert_eq!(NameIndex::new(4, |i| names[i]).expect("memory").expect("two names").twins, Some((1, 3)));
        let names = ["a/x", "a/data.pkl", "a/y", "a/data.pkl"];
        assert_eq!(NameIndex::new(4, |i| names[i]).expect("memory").err(), Some((1, 3)));
    }
}
