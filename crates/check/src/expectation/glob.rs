//! Patterns of names, as `ls --filter` has them: `*` is any text, `?` any character, `[ab]` and `[a-c]` one of these, `[!a]` another one.

/// A name, or a pattern of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob {
    text: String,
    /// None for a name.
    parts: Option<Vec<Part>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(char),
    /// Any one character.
    One,
    /// Any number of characters.
    Any,
    /// One of these ranges, or none of them.
    Set(Vec<(char, char)>, bool),
}

impl Glob {
    /// This name and no other, whatever characters it has.
    pub(super) fn exact(name: &str) -> Self {
        Self { text: name.to_owned(), parts: None }
    }

    /// A pattern, if the text has one of `*?[`, else a name. None if a `[` has no end.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if !text.contains(['*', '?', '[']) {
            return Some(Self::exact(text));
        }
        let mut parts = Vec::new();
        let mut left = text.chars().peekable();
        while let Some(c) = left.next() {
            parts.push(match c {
                '*' if parts.last() == Some(&Part::Any) => continue,
                '*' => Part::Any,
                '?' => Part::One,
                '[' => {
                    let others = left.next_if_eq(&'!').is_some();
                    let mut ranges = Vec::new();
                    loop {
                        let first = left.next()?;
                        if first == ']' && !ranges.is_empty() {
                            break;
                        }
                        let mut after = left.clone();
                        let is_range = after.next() == Some('-') && after.peek().is_some_and(|last| *last != ']');
                        if is_range {
                            left = after;
                            ranges.push((first, left.next()?));
                        } else {
                            ranges.push((first, first));
                        }
                    }
                    Part::Set(ranges, others)
                }
                c => Part::Text(c),
            });
        }
        Some(Self { text: text.to_owned(), parts: Some(parts) })
    }

    /// As it was written.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The name, if it is no pattern.
    pub(super) fn name(&self) -> Option<&str> {
        self.parts.is_none().then_some(&*self.text)
    }

    /// Whether the whole name matches.
    pub(super) fn matches(&self, name: &str) -> bool {
        let Some(parts) = &self.parts else { return self.text == name };
        // Where the last star was, and what it had taken: if what follows does not match, it takes one character more.
        let (mut parts, mut left) = (parts.as_slice(), name);
        let mut star: Option<(&[Part], &str)> = None;
        loop {
            let (first, after) = (parts.first(), left.chars().next());
            if let (Some(Part::Any), _) = (first, after) {
                parts = parts.get(1..).unwrap_or_default();
                star = Some((parts, left));
                continue;
            }
            match (first, after) {
                (None, None) => return true,
                (Some(part), Some(c)) if part.is(c) => {
                    parts = parts.get(1..).unwrap_or_default();
                    left = left.get(c.len_utf8()..).unwrap_or_default();
                }
                _ => {
                    let Some((behind, taken)) = star else { return false };
                    let Some(c) = taken.chars().next() else { return false };
                    left = taken.get(c.len_utf8()..).unwrap_or_default();
                    (parts, star) = (behind, Some((behind, left)));
                }
            }
        }
    }
}

impl Part {
    fn is(&self, c: char) -> bool {
        match self {
            Self::Text(text) => *text == c,
            Self::One => true,
            Self::Any => false,
            Self::Set(ranges, others) => ranges.iter().any(|(from, to)| (*from..=*to).contains(&c)) != *others,
        }
    }
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
        for (pattern, name) in
            [("a", "a.b"), ("a*", "ba"), ("*.w", "a.w.b"), ("[a-c]", "d"), ("?", ""), ("?", "ab"), ("[!a]", "a")]
        {
            assert!(!is(pattern, name), "{pattern} {name}");
        }
        assert_eq!(Glob::parse("a[b"), None);
        assert!(Glob::exact("a[b").matches("a[b"));
    }

    #[test]
    fn a_pattern_of_many_stars_is_matched_in_bounded_time() {
        let pattern = Glob::parse(&"a*".repeat(1000)).expect("a pattern");
        assert!(!pattern.matches(&format!("{}b", "a".repeat(900))));
    }
}
