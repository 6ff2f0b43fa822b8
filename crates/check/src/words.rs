//! Lists of words, each one string: what other programs call things is data, and no code.

/// The words of a list.
pub(crate) fn each(list: &str) -> impl Iterator<Item = &str> {
    list.split_ascii_whitespace()
}

/// Whether a word is on a list.
pub(crate) fn has(list: &str, word: &str) -> bool {
    each(list).any(|listed| listed == word)
}
