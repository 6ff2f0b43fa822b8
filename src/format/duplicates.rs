//! Names that are given twice, found among a quarter of a million at eight bytes each.

use crate::budget::{self, Short};

/// A quick hash whose upper half is well mixed. It need not resist an attacker: see [`first_duplicate`].
/// The bits of `fold` are set in every byte, so that names which differ in these bits only have one hash.
pub(super) fn hash(name: &str, fold: u8) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 divided by the golden ratio: odd, and without a pattern in its bits
    let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(MULTIPLIER);
    let (words, rest) = name.as_bytes().as_chunks::<8>();
    let folds = u64::from_le_bytes([fold; 8]);
    let hash = words.iter().fold(name.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word) | folds));
    let last = rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte | fold));
    let hash = mix(hash, last);
    mix(hash, hash >> 32)
}

/// The first of `count` names that was there before: (the former position, its own position).
///
/// Positions are sorted by 32 bits of hash, which costs 8 bytes each; equal hashes are sorted by name, so that a file made of collisions
/// costs a sort and no more.
pub(super) fn first_duplicate<'a>(
    count: usize,
    name: impl Fn(usize) -> &'a str,
) -> Result<Option<(usize, usize)>, Short> {
    const POSITION: u64 = u32::MAX as u64;
    // Most writers sort the names.
    if (1..count).all(|position| name(position - 1) < name(position)) {
        return Ok(None);
    }
    let mut keys =
        budget::collected((0..count).map(|position| (hash(name(position), 0) & !POSITION) | position as u64))?;
    keys.sort_unstable();
    let name_of = |key: u64| name((key & POSITION) as usize);
    let mut first: Option<(usize, usize)> = None;
    for run in keys.chunk_by_mut(|a, b| a & !POSITION == b & !POSITION).filter(|run| run.len() > 1) {
        run.sort_unstable_by(|a, b| name_of(*a).cmp(name_of(*b)).then(a.cmp(b)));
        for same in run.chunk_by(|a, b| name_of(*a) == name_of(*b)) {
            if let [former, latter, ..] = same {
                let pair = ((former & POSITION) as usize, (latter & POSITION) as usize);
                if first.is_none_or(|(_, earliest)| pair.1 < earliest) {
                    first = Some(pair);
                }
            }
        }
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_told_from_names_whose_hashes_are_equal() {
        // Among so many names about ten pairs share their 32 bits of hash.
        let mut names: Vec<String> = (0..300_000).rev().map(|i| format!("layers.{i}.weight")).collect();
        assert_eq!(first_duplicate(names.len(), |i| &names[i]), Ok(None));
        names[200_000] = names[7].clone();
        names[250_000] = names[7].clone();
        names[240_000] = names[100_000].clone();
        assert_eq!(first_duplicate(names.len(), |i| &names[i]), Ok(Some((7, 200_000))));
    }
}
