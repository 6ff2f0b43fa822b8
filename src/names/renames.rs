//! Renames of tensors: of one tensor, of a prefix, or by a pattern.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::near::nearest_to_pattern;
use crate::error::{Error, Result, did_you_mean};
use crate::text;

/// The most literal texts, separated by `*`, of a pattern: bounds the work of matching.
const MAX_STARS: usize = 16;
/// The most suggestions in a message.
const NEAR: usize = 3;

/// `FROM=TO`, where each `*` of FROM matches any text, which replaces the `*` of TO with the same number. Without a `*`, FROM is a name, or with a
/// dot at its end a prefix, which TO replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    from: Vec<String>,
    to: Vec<String>,
    text: String,
}

impl Pattern {
    /// Parses `FROM=TO`.
    ///
    /// # Errors
    /// It has no `=`, more `*` on one side than on the other, or too many.
    pub fn parse(pattern: &str) -> Result<Self> {
        match pattern.split_once('=') {
            Some((from, to)) if !from.is_empty() => Self::new(from, to),
            _ => Err(Error::Argument(format!("'{}': FROM=TO is needed", text::escape(pattern)))),
        }
    }

    /// A pattern from its two sides.
    ///
    /// # Errors
    /// Those of [`Self::parse`].
    pub fn new(from: &str, to: &str) -> Result<Self> {
        let pattern = format!("{from}={to}");
        let wrong = |why: &str| Err(Error::Argument(format!("'{}': {why}", text::escape(&pattern))));
        let parts = |text: &str| text.split('*').map(str::to_owned).collect::<Vec<_>>();
        let (mut from, mut to) = (parts(from), parts(to));
        if from.len() == 1 && from[0].ends_with('.') {
            from.push(String::new());
            to.push(String::new());
        }
        if from.len() != to.len() {
            return wrong("FROM and TO need the same number of *: each * in TO is the text that the * in FROM matched");
        }
        if from.len() > MAX_STARS {
            return wrong("there are too many *");
        }
        Ok(Self { from, to, text: pattern })
    }

    /// The name, if the pattern matches exactly one.
    fn exact(&self) -> Option<&str> {
        if let [name] = &*self.from { Some(name) } else { None }
    }

    /// The length of the prefix, if it is one.
    fn prefix(&self) -> Option<usize> {
        if let [prefix, rest] = &*self.from { rest.is_empty().then_some(prefix.len()) } else { None }
    }

    /// The new name, if the pattern matches.
    pub fn apply(&self, name: &str) -> Option<String> {
        let (first, rest) = self.from.split_first()?;
        let mut left = name.strip_prefix(first.as_str())?;
        let Some((last, middle)) = rest.split_last() else {
            return left.is_empty().then(|| self.to.concat());
        };
        left = left.strip_suffix(last.as_str())?;
        let mut made = self.to.first()?.clone();
        let mut ends = self.to.iter().skip(1);
        // Each star matches as little as possible, except for the last one, which matches the rest.
        for part in middle {
            let (taken, after) = left.split_once(part.as_str())?;
            made.push_str(taken);
            made.push_str(ends.next()?);
            left = after;
        }
        made.push_str(left);
        made.push_str(ends.next()?);
        Some(made)
    }
}

/// Several patterns. An exact name has priority over the longest prefix, and that over the first pattern that matches.
#[derive(Debug, Default)]
pub struct Renames {
    exact: HashMap<String, (usize, String)>,
    patterns: Vec<(usize, Pattern)>,
    texts: Vec<String>,
}

impl Renames {
    /// Patterns in their given order.
    pub fn new(patterns: Vec<Pattern>) -> Self {
        let mut made = Self::default();
        for (number, pattern) in patterns.into_iter().enumerate() {
            made.texts.push(pattern.text.clone());
            match pattern.exact() {
                Some(name) => {
                    made.exact.entry(name.to_owned()).or_insert_with(|| (number, pattern.to.concat()));
                }
                None => made.patterns.push((number, pattern)),
            }
        }
        // A stable sort: patterns that are not prefixes keep their order.
        made.patterns.sort_by_key(|(_, pattern)| Reverse(pattern.prefix()));
        made
    }

    /// The new name; none if no pattern matches.
    pub fn apply(&self, name: &str) -> Option<String> {
        if let Some((_, new)) = self.exact.get(name) {
            return Some(new.clone());
        }
        self.patterns.iter().find_map(|(_, pattern)| pattern.apply(name))
    }

    /// The new names of all.
    ///
    /// # Errors
    /// A pattern that matches none of them.
    pub fn apply_all(&self, names: &[&str]) -> Result<Vec<Option<String>>> {
        let mut used = vec![false; self.texts.len()];
        for name in names {
            if let Some((number, _)) = self.exact.get(*name) {
                used[*number] = true;
            }
            for (number, pattern) in &self.patterns {
                used[*number] = used[*number] || pattern.apply(name).is_some();
            }
        }
        match used.iter().position(|used| !used) {
            Some(number) => Err(self.unused(number, names)),
            None => Ok(names.iter().map(|name| self.apply(name)).collect()),
        }
    }

    fn unused(&self, number: usize, names: &[&str]) -> Error {
        let texts = &self.texts[number];
        let from = texts.split_once('=').map_or(&**texts, |(from, _)| from);
        let near: Vec<String> = nearest_to_pattern(names, from, NEAR);
        let near: Vec<String> = near.iter().map(|name| format!("'{}'", text::escape(name))).collect();
        let near = did_you_mean(&near);
        Error::Argument(format!("'{}' renames no tensor: no name matches it{near}", text::escape(texts)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(pattern: &str, name: &str) -> Option<String> {
        Pattern::parse(pattern).expect("a pattern").apply(name)
    }

    #[test]
    fn a_star_stands_for_the_same_text_on_both_sides() {
        assert_eq!(renamed("model.*=*", "model.norm.weight").as_deref(), Some("norm.weight"));
        assert_eq!(renamed("*=model.*", "norm").as_deref(), Some("model.norm"));
        let blocks = "blk.*.attn_q.*=model.layers.*.self_attn.q_proj.*";
        assert_eq!(renamed(blocks, "blk.12.attn_q.weight").as_deref(), Some("model.layers.12.self_attn.q_proj.weight"));
        assert_eq!(renamed(blocks, "blk.12.attn_k.weight"), None);
        assert_eq!(renamed("a*b*c=1*2*3", "axbybzc").as_deref(), Some("1x2ybz3"));
        assert_eq!(renamed("a=b", "a").as_deref(), Some("b"));
        assert_eq!(renamed("a=b", "a.c"), None);
        assert_eq!(renamed("ab*ba=*", "aba"), None, "what stands before a star and after it does not overlap");
        assert_eq!(renamed("größe*=*", "größe.é").as_deref(), Some(".é"));
    }

    #[test]
    fn a_dot_at_the_end_stands_for_all_names_that_begin_so() {
        assert_eq!(renamed("model.=", "model.norm.weight").as_deref(), Some("norm.weight"));
        assert_eq!(renamed("model.=a.", "model.norm").as_deref(), Some("a.norm"));
        assert_eq!(renamed("model.=a.", "models.norm"), None);
    }

    #[test]
    fn a_pattern_that_is_none_says_what_is_needed() {
        assert_eq!(Pattern::parse("a").expect_err("no =").to_string(), "'a': FROM=TO is needed");
        assert!(Pattern::parse("=a").is_err());
        assert!(Pattern::parse("a*=b").expect_err("a star is lost").to_string().contains("the same number of *"));
        assert!(Pattern::parse(&format!("{0}={0}", "*".repeat(99))).is_err());
    }

    #[test]
    fn the_name_itself_counts_before_the_longest_prefix_and_that_before_the_first_pattern() {
        let texts = ["*.x=1.*", "a.=2.", "a.b.=3.", "a.b.x=4"];
        let patterns = texts.map(|text| Pattern::parse(text).expect("a pattern")).to_vec();
        let names = ["a.b.x", "a.b.y", "a.x", "c.x", "d"];
        let new = Renames::new(patterns).apply_all(&names).expect("each is used");
        let texts: Vec<&str> = new.iter().map(|name| name.as_deref().unwrap_or("-")).collect();
        assert_eq!(texts, ["4", "3.y", "2.x", "1.c", "-"]);
    }

    #[test]
    fn what_renames_nothing_is_an_error_with_near_names() {
        let failed = |text: &str| {
            let names = ["embed.weight", "layers.0.attn.weight", "head.bias"];
            let renames = Renames::new(vec![Pattern::parse(text).expect("a pattern")]);
            renames.apply_all(&names).expect_err("nothing matches").to_string()
        };
        assert_eq!(failed("emb.*=x.*"), "'emb.*=x.*' renames no tensor: no name matches it; did you mean 'embed'?");
        assert!(failed("layer.=x.").ends_with("did you mean 'layers'?"));
        assert!(failed("head.biass=x").ends_with("did you mean 'head.bias'?"));
        assert!(failed("visual.*=*").ends_with("no name matches it"));
    }
}
