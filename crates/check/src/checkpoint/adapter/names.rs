//! Names of modules as peft finds them: a list of names and endings, or expressions.

use std::collections::HashMap;

use regex_lite::Regex;

use crate::expressions::{MAX_EXPRESSIONS, whole};

/// Some names, each with its number.
pub(super) struct NamePatterns {
    plain: HashMap<String, usize>,
    expressions: Vec<(Regex, usize)>,
    /// Some patterns could not be read, so a name that matches none proves nothing.
    pub(super) has_unknown: bool,
}

impl NamePatterns {
    /// Whole names or endings of names.
    pub(super) fn of_names<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        let plain = names.into_iter().enumerate().map(|(number, name)| (name.to_owned(), number)).collect();
        Self { plain, expressions: Vec::new(), has_unknown: false }
    }

    /// One expression for whole names.
    pub(super) fn of_expression(expression: &str) -> Self {
        let mut patterns = Self::of_names([]);
        patterns.add(expression, 0);
        patterns
    }

    /// Expressions for whole names or endings of names; most of them are plain names.
    pub(super) fn of_endings<'n>(endings: impl IntoIterator<Item = &'n str>) -> Self {
        let mut patterns = Self::of_names([]);
        for (number, ending) in endings.into_iter().enumerate() {
            if ending.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')) {
                patterns.plain.insert(ending.to_owned(), number);
            } else {
                patterns.add(&format!(r"(?:.*\.)?(?:{ending})"), number);
            }
        }
        patterns
    }

    fn add(&mut self, expression: &str, number: usize) {
        match whole(expression).filter(|_| self.expressions.len() < MAX_EXPRESSIONS) {
            Some(expression) => self.expressions.push((expression, number)),
            None => self.has_unknown = true,
        }
    }

    /// The numbers of all that fit this name.
    pub(super) fn fitting<'p>(&'p self, name: &'p str) -> impl Iterator<Item = usize> + 'p {
        let endings = name.match_indices('.').filter_map(|(dot, _)| name.get(dot + 1..));
        let plain = std::iter::once(name).chain(endings).filter_map(|ending| self.plain.get(ending).copied());
        let expressions = self.expressions.iter().filter(move |(expression, _)| expression.is_match(name));
        plain.chain(expressions.map(|(_, number)| *number))
    }
}
