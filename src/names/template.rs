//! Names with placeholders: `*` for any text, and `#` for the number of one of several.

use std::fmt::Write as _;

use crate::error::{Error, Result};
use crate::text;

/// The most `*` of a template.
const MAX_STARS: usize = 8;
/// The most digits of a number.
const MAX_DIGITS: usize = 9;

/// A name in which each `*` matches any text, and at most one `#` a number: `*.experts.#.w1.weight`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The text before, between and after the stars.
    segments: Vec<TemplateSegment>,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplateSegment {
    Text(String),
    /// A number, with the text before and after it.
    Number(String, String),
}

/// What the placeholders of a template match in a name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Captures<'a> {
    /// One for each star.
    pub stars: Vec<&'a str>,
    /// The match of `#`.
    pub number: Option<u32>,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// It is empty, has more than one `#` or too many `*`, or no text between `*` and `#`.
    pub fn parse(template: &str) -> Result<Self> {
        let wrong = |why: &str| Err(Error::Argument(format!("'{}': {why}", text::escape(template))));
        if template.is_empty() {
            return wrong("a name is needed");
        }
        if template.split('*').count() > MAX_STARS + 1 {
            return wrong("there are too many *");
        }
        if template.matches('#').count() > 1 {
            return wrong("there may be one #, for the number of one of several");
        }
        if template.contains("*#") || template.contains("#*") {
            return wrong("text is needed between * and #");
        }
        let segment = |part: &str| match part.split_once('#') {
            Some((before, behind)) => TemplateSegment::Number(before.to_owned(), behind.to_owned()),
            None => TemplateSegment::Text(part.to_owned()),
        };
        Ok(Self { segments: template.split('*').map(segment).collect(), text: template.to_owned() })
    }

    /// A template that matches only this name, with all of its characters literal.
    pub fn exact(name: &str) -> Self {
        Self { segments: vec![TemplateSegment::Text(name.to_owned())], text: name.to_owned() }
    }

    /// Whether it has no placeholders.
    pub fn is_exact(&self) -> bool {
        matches!(&*self.segments, [TemplateSegment::Text(_)])
    }

    /// Its source text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The number of `*`.
    pub fn stars(&self) -> usize {
        self.segments.len() - 1
    }

    /// Whether it has a `#`.
    pub fn is_numbered(&self) -> bool {
        self.segments.iter().any(|segment| matches!(segment, TemplateSegment::Number(..)))
    }

    /// What its placeholders match in this name, if it matches; `captures` is reused memory for the result. Each star matches as little as possible,
    /// except for the last one, which matches the rest. Numbers have no leading zeros.
    pub fn matches<'a>(&self, name: &'a str, captures: &mut Captures<'a>) -> bool {
        captures.stars.clear();
        captures.number = None;
        let Some((last, rest)) = self.segments.split_last() else { return false };
        // The suffix is compared first: it rules out most names.
        let mut left = name;
        if rest.is_empty() {
            return last.begins(left, &mut captures.number).is_some_and(str::is_empty);
        }
        match last.ends(left, &mut captures.number) {
            Some(before) => left = before,
            None => return false,
        }
        let Some((first, middle)) = rest.split_first() else { return false };
        match first.begins(left, &mut captures.number) {
            Some(after) => left = after,
            None => return false,
        }
        for segment in middle {
            match segment.find(left, &mut captures.number) {
                Some((taken, after)) => {
                    captures.stars.push(taken);
                    left = after;
                }
                None => return false,
            }
        }
        captures.stars.push(left);
        true
    }

    /// The name with these texts for its placeholders.
    pub fn fill(&self, stars: &[&str], number: u32) -> String {
        let mut name = String::with_capacity(self.text.len() + stars.iter().map(|star| star.len()).sum::<usize>());
        for (at, segment) in self.segments.iter().enumerate() {
            match segment {
                TemplateSegment::Text(text) => name.push_str(text),
                TemplateSegment::Number(before, behind) => {
                    let _ = write!(name, "{before}{number}{behind}"); // a String takes everything
                }
            }
            name.push_str(stars.get(at).copied().filter(|_| at + 1 < self.segments.len()).unwrap_or_default());
        }
        name
    }
}

impl TemplateSegment {
    /// The rest of a text that begins with it.
    fn begins<'a>(&self, text: &'a str, number: &mut Option<u32>) -> Option<&'a str> {
        match self {
            Self::Text(own) => text.strip_prefix(own.as_str()),
            Self::Number(before, behind) => {
                let text = text.strip_prefix(before.as_str())?;
                let digits = text.bytes().take_while(u8::is_ascii_digit).count();
                *number = Some(number_of(&text[..digits])?);
                text[digits..].strip_prefix(behind.as_str())
            }
        }
    }

    /// The front of a text that ends with it.
    fn ends<'a>(&self, text: &'a str, number: &mut Option<u32>) -> Option<&'a str> {
        match self {
            Self::Text(own) => without_suffix(text, own),
            Self::Number(before, behind) => {
                let text = without_suffix(text, behind)?;
                let digits = text.bytes().rev().take_while(u8::is_ascii_digit).count();
                let (text, digits) = text.split_at(text.len() - digits);
                *number = Some(number_of(digits)?);
                text.strip_suffix(before.as_str())
            }
        }
    }

    /// The text before its first occurrence, and the text after it.
    fn find<'a>(&self, text: &'a str, number: &mut Option<u32>) -> Option<(&'a str, &'a str)> {
        match self {
            Self::Text(own) => text.split_once(own.as_str()),
            Self::Number(before, _) => text
                .match_indices(before.as_str())
                .find_map(|(at, _)| Some((&text[..at], self.begins(&text[at..], number)?))),
        }
    }
}

/// Like `strip_suffix`. Most names differ in the second byte of a suffix, the one after a separator: comparing that first is faster than a call.
fn without_suffix<'a>(text: &'a str, suffix: &str) -> Option<&'a str> {
    let second = text.len().checked_sub(suffix.len()).and_then(|start| text.as_bytes().get(start + 1));
    if suffix.len() > 1 && second != suffix.as_bytes().get(1) { None } else { text.strip_suffix(suffix) }
}

/// The value of digits; none if they have leading zeros, or are too many.
fn number_of(digits: &str) -> Option<u32> {
    let is_plain = !digits.is_empty() && digits.len() <= MAX_DIGITS && (digits == "0" || !digits.starts_with('0'));
    if is_plain { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captures<'a>(template: &str, name: &'a str) -> Option<(Vec<&'a str>, Option<u32>)> {
        let mut captures = Captures::default();
        let matches = Template::parse(template).expect("a template").matches(name, &mut captures);
        matches.then_some((captures.stars, captures.number))
    }

    #[test]
    fn a_star_is_any_text_and_a_number_sign_a_number() {
        let name = "model.layers.3.mlp.experts.12.w1.weight";
        assert_eq!(captures("*.experts.#.w1.weight", name), Some((vec!["model.layers.3.mlp"], Some(12))));
        assert_eq!(captures("*.experts.#.*.weight", name), Some((vec!["model.layers.3.mlp", "w1"], Some(12))));
        assert_eq!(captures("model.layers.#.*", name), Some((vec!["mlp.experts.12.w1.weight"], Some(3))));
        assert_eq!(captures("*.weight#", "fc1.weight7"), Some((vec!["fc1"], Some(7))));
        assert_eq!(captures("a.#", "a.0"), Some((vec![], Some(0))));
        assert_eq!(captures("norm", "norm"), Some((vec![], None)));
        let twice = captures("*.experts.#.*", "experts.x.experts.1.experts.2.a");
        assert_eq!(twice, Some((vec!["experts.x", "experts.2.a"], Some(1))));
        for (template, name) in [
            ("*.experts.#.w1.weight", "model.experts.w1.weight"),
            ("*.experts.#.w1.weight", "model.experts.one.w1.weight"),
            ("*.experts.#.w1.weight", "model.experts.01.w1.weight"),
            ("*.experts.#.w1.weight", "model.experts.1234567890.w1.weight"),
            ("a.#", "a."),
            ("norm", "norm.weight"),
            ("ab*ba", "aba"),
        ] {
            assert_eq!(captures(template, name), None, "{template} {name}");
        }
    }

    #[test]
    fn a_template_is_filled_with_what_another_captured() {
        let filled = |template: &str, stars: &[&str]| Template::parse(template).expect("a template").fill(stars, 5);
        assert_eq!(filled("decoder.*.fc1.weight#", &["layers.0"]), "decoder.layers.0.fc1.weight5");
        assert_eq!(filled("*.experts.gate_up.*", &["mlp", "scale"]), "mlp.experts.gate_up.scale");
    }

    #[test]
    fn what_is_no_template_says_why() {
        let wrong = |template: &str| Template::parse(template).expect_err("none").to_string();
        assert!(wrong("").contains("a name is needed"));
        assert!(wrong("a.#.b.#").contains("one #"));
        assert!(wrong("*#.a").contains("between * and #"));
        assert!(wrong(&"*.".repeat(9)).contains("too many *"));
    }
}
