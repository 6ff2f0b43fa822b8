//! Regular expressions in configurations.

use regex_lite::Regex;

/// Expressions that are tried on every layer.
pub(super) const MAX_EXPRESSIONS: usize = 64;
/// The longest one.
const MAX_LEN: usize = 4096;

/// An expression for whole names; `None` for one that is too long, or that has what only Python's have.
pub(super) fn whole(expression: &str) -> Option<Regex> {
    Regex::new(&format!("^(?:{expression})$")).ok().filter(|_| expression.len() <= MAX_LEN)
}
