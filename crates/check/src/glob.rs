//! Patterns of names and of paths, as `ls --filter` has them: `*` is any text, `?` any character, `[ab]` and `[a-c]` one of these, `[!a]` another one.

use std::path::Path;

use ::glob::{MatchOptions, Pattern};

/// The most stars of a pattern: a step into another for each that a name has text for.
const MAX_STARS: usize = 256;

/// A name, or a pattern of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    text: String,
    /// None for a name.
    pattern: Option<Pattern>,
}

impl Glob {
    /// Exactly this name; no character has a special meaning.
    pub(crate) fn exact(name: &str) -> Self {
        Self { text: name.to_owned(), pattern: None }
    }

    /// A pattern, if the text has one of `*?[`, else a name; or why it is neither.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        if !text.contains(['*', '?', '[']) {
            return Ok(Self::exact(text));
        }
        let mut stars = text.to_owned();
        while stars.contains("**") {
            stars = stars.replace("**", "*"); // for the crate, two stand for folders
        }
        if stars.matches('*').count() > MAX_STARS {
            return Err("the pattern has too many *");
        }
        let pattern = Pattern::new(&stars).map_err(|_| "the pattern has a [ without its ]")?;
        Ok(Self { text: text.to_owned(), pattern: Some(pattern) })
    }

    /// As it was written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The name, if it is not a pattern.
    pub(crate) fn name(&self) -> Option<&str> {
        self.pattern.is_none().then_some(&*self.text)
    }

    /// Whether every name matches.
    pub(crate) fn is_all(&self) -> bool {
        self.pattern.as_ref().is_some_and(|pattern| pattern.as_str() == "*")
    }

    /// Whether the whole name matches.
    pub(crate) fn matches(&self, name: &str) -> bool {
        self.pattern.as_ref().map_or_else(|| self.text == name, |pattern| pattern.matches(name))
    }
}

/// Whether a path, a folder that it is in, or its name fits a glob; `*` goes no deeper than a folder, and `**` does.
pub(crate) fn fits_path(pattern: &Pattern, path: &str) -> bool {
    let options =
        MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };
    let is_name = !pattern.as_str().contains('/');
    let name = path.rsplit('/').next().unwrap_or(path);
    Path::new(path).ancestors().any(|folder| pattern.matches_path_with(folder, options))
        || is_name && pattern.matches_with(name, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        let is = |pattern: &str, name: &str| Glob::parse(pattern).expect("a pattern").matches(name);
        for (pattern, name) in [
            ("a.b", "a.b"),
            ("*", ""),
            ("*", "a/.b"),
            ("a*", "a"),
            ("model.layers.*.w", "model.layers.10.w"),
            ("*.w", "a.w.b.w"),
            ("a*b*c", "aXbYbZc"),
            ("layers.[0-9].w", "layers.7.w"),
            ("[!a]?", "重é"),
            ("[]]", "]"),
            ("a[*]", "a*"),
            ("**", "x"),
        ] {
            assert!(is(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("a", "a.b"),
            ("a*", "ba"),
            ("*.w", "a.w.b"),
            ("[a-c]", "d"),
            ("?", ""),
            ("?", "ab"),
            ("[!a]", "a"),
            ("A*", "a"),
        ] {
            assert!(!is(pattern, name), "{pattern} {name}");
        }
        assert!(Glob::parse("a[b").is_err());
        assert!(Glob::exact("a[b").matches("a[b"));
    }

    #[test]
    fn a_pattern_of_many_stars_is_matched_in_bounded_time_and_one_of_very_many_is_refused() {
        let pattern = Glob::parse(&"a*".repeat(200)).expect("a pattern");
        assert!(!pattern.matches(&format!("b{}", "a".repeat(90_000))));
        assert!(!Glob::parse(&format!("{}b", "a*".repeat(200))).expect("a pattern").matches(&"a".repeat(90_000)));
        assert_eq!(Glob::parse(&"a*".repeat(1000)), Err("the pattern has too many *"));
    }

    #[test]
    fn globs_are_of_paths_of_folders_and_of_names() {
        let fits = |glob: &str, path: &str| fits_path(&Pattern::new(glob).expect("a glob"), path);
        assert!(fits("models/*.bin", "models/a.bin"));
        assert!(!fits("models/*.bin", "models/b/a.bin"));
        assert!(fits("models/**/*.bin", "models/b/c/a.bin"));
        assert!(fits("models", "models/b/c/a.bin") && fits("models/b", "models/b/c/a.bin"));
        assert!(fits("*.bin", "models/b/a.bin") && !fits("*.bin", "models/b/a.pt"));
    }
}
