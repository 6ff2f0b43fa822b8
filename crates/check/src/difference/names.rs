//! Other names for the tensors of a checkpoint, so that those of two schemes meet.

use std::collections::HashMap;

use max_weights::{Catalog, Error, Result, text};

/// The most names that a pattern of many stars is tried on by going back; one that needs more matches nothing.
const MAX_STARS: usize = 16;

/// What tensors are called instead.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Exact names, by the name in the file.
    pub exact: HashMap<String, String>,
    /// For names that are not among these: the first pattern that matches.
    pub patterns: Vec<Pattern>,
    /// By the name in the file: the heads whose rows are pairs in the file and halves in the other checkpoint, as with query and key matrices
    /// of llama in GGUF files.
    pub heads: HashMap<String, u64>,
}

/// `FROM=TO`, where each `*` of FROM is any text, which is in TO for its `*` of the same number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    from: Vec<String>,
    to: Vec<String>,
    text: String,
}

impl Pattern {
    /// Of `FROM=TO`.
    ///
    /// # Errors
    /// Without `=`, with more `*` on one side than on the other, or with very many.
    pub fn parse(pattern: &str) -> Result<Self> {
        let wrong = |why: &str| Err(Error::Argument(format!("'{}': {why}", text::shown(pattern))));
        let Some((from, to)) = pattern.split_once('=') else { return wrong("FROM=TO is needed") };
        let parts = |text: &str| text.split('*').map(str::to_owned).collect::<Vec<_>>();
        let (from, to) = (parts(from), parts(to));
        if from.len() != to.len() {
            return wrong("FROM and TO need the same number of *: each * in TO is the text that the * in FROM matched");
        }
        if from.len() > MAX_STARS {
            return wrong("there are too many *");
        }
        Ok(Self { from, to, text: pattern.to_owned() })
    }

    /// The other name, if this one matches.
    fn apply(&self, name: &str) -> Option<String> {
        let (first, rest) = self.from.split_first()?;
        let mut left = name.strip_prefix(first.as_str())?;
        let Some((last, middle)) = rest.split_last() else {
            return left.is_empty().then(|| self.to.concat());
        };
        left = left.strip_suffix(last.as_str())?;
        let mut made = self.to.first()?.clone();
        let mut ends = self.to.iter().skip(1);
        // A star takes as little as it can, but the last one, which takes what is left.
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

impl Names {
    /// The catalog with other names; `None` where all keep theirs.
    ///
    /// # Errors
    /// Two tensors that get one name; a pattern that matches none.
    pub(super) fn apply(&self, catalog: &Catalog) -> Result<Option<Catalog>> {
        if self.exact.is_empty() && self.patterns.is_empty() {
            return Ok(None);
        }
        let table = catalog.table();
        let mut new: HashMap<usize, String> = HashMap::new();
        let mut used = vec![false; self.patterns.len()];
        for (number, info) in table.iter().enumerate() {
            if let Some(name) = self.exact.get(info.name) {
                new.insert(number, name.clone());
                continue;
            }
            let found =
                self.patterns.iter().enumerate().find_map(|(at, pattern)| Some((at, pattern.apply(info.name)?)));
            if let Some((at, name)) = found {
                used[at] = true;
                new.insert(number, name);
            }
        }
        if let Some((pattern, _)) = self.patterns.iter().zip(used).find(|(_, used)| !used) {
            let pattern = text::shown(&pattern.text);
            return Err(Error::Argument(format!("'{pattern}' renames no tensor: no name in the file matches it")));
        }
        catalog.renamed(|number| new.get(&number).cloned()).map(Some)
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
    fn a_pattern_that_is_none_says_what_is_needed() {
        assert_eq!(Pattern::parse("a").expect_err("no =").to_string(), "'a': FROM=TO is needed");
        assert!(Pattern::parse("a*=b").expect_err("a star is lost").to_string().contains("the same number of *"));
        assert!(Pattern::parse(&format!("{0}={0}", "*".repeat(99))).is_err());
    }
}
