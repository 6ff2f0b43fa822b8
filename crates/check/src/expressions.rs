//! Regular expressions in configurations, tried in time that grows with the length of a name and no faster.

use regex_lite::{Error, Regex, RegexBuilder};

/// Expressions that are tried on every layer.
pub(crate) const MAX_EXPRESSIONS: usize = 64;
/// The longest one.
const MAX_LEN: usize = 4096;
/// What one may take when it is compiled.
const MAX_BYTES: usize = 1 << 20;

/// An expression for whole names; `None` for one that is too long, or that has what only Python's have.
pub(crate) fn whole(expression: &str) -> Option<Regex> {
    Regex::new(&format!("^(?:{expression})$")).ok().filter(|_| expression.len() <= MAX_LEN)
}

/// An expression that has to fit the start of a name, as Python's `re.match`.
pub(crate) fn at_start(expression: &str) -> Result<Regex, Error> {
    RegexBuilder::new(&format!("^(?:{expression})")).size_limit(MAX_BYTES).build()
}
