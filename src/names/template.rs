//! Names with places for what differs between them: `*` for any text, and `#` for the number of one of several.

use std::fmt::Write as _;

use crate::error::{Error, Result};
use crate::text;

/// The most `*` of a template.
const MAX_STARS: usize = 8;
/// The most digits of a number.
const MAX_DIGITS: usize = 9;

/// A name in which each `*` stands for any text, and one `#`, if it is there, for a number: `*.experts.#.w1.weight`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// What stands before, between and behind the stars.
    segments: Vec<Segment>,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Text(String),
    /// A number, with what stands before it and behind it.
    Number(String, String),
}

/// What the places of a template stand for in a name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Captures<'a> {
    /// For each star.
    pub stars: Vec<&'a str>,
    /// For `#`.
    pub number: Option<u32>,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// It is empty, has more than one `#` or too many `*`, or no text between `*` and `#`.
    pub fn parse(template: &str) -> Result<Self> {
        let wrong = |why: &str| Err(Error::Argument(format!("'{}': {why}", text::shown(template))));
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
            Some((before, behind)) => Segment::Number(before.to_owned(), behind.to_owned()),
            None => Segment::Text(part.to_owned()),
        };
        Ok(Self { segments: template.split('*').map(segment).collect(), text: template.to_owned() })
    }

    /// One that stands for this name alone, whatever is in it.
    pub fn exact(name: &str) -> Self {
        Self { segments: vec![Segment::Text(name.to_owned())], text: name.to_owned() }
    }

    /// Whether it stands for its text alone.
    pub fn is_exact(&self) -> bool {
        matches!(&*self.segments, [Segment::Text(_)])
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How many `*` it has.
    pub fn stars(&self) -> usize {
        self.segments.len() - 1
    }

    /// Whether it has a `#`.
    pub fn is_numbered(&self) -> bool {
        self.segments.iter().any(|segment| matches!(segment, Segment::Number(..)))
    }

    /// What its places stand for in this name, if it matches; `captures` is memory for that. A star takes as little as it can, but for the last one,
    /// which takes what is left. Numbers are written without zeros before them.
    pub fn matches<'a>(&self, name: &'a str, captures: &mut Captures<'a>) -> bool {
        captures.stars.clear();
        captures.number = None;
        let Some((last, rest)) = self.segments.split_last() else { return false };
        // What most names do not end with is looked at first.
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

    /// The name with this in its places.
    pub fn fill(&self, stars: &[&str], number: u32) -> String {
        let mut name = String::with_capacity(self.text.len() + stars.iter().map(|star| star.len()).sum::<usize>());
        for (at, segment) in self.segments.iter().enumerate() {
            match segment {
                Segment::Text(text) => name.push_str(text),
                Segment::Number(before, behind) => {
                    let _ = write!(name, "{before}{number}{behind}"); // a String takes everything
                }
            }
            name.push_str(stars.get(at).copied().filter(|_| at + 1 < self.segments.len()).unwrap_or_default());
        }
        name
    }
}

impl Segment {
    /// What follows it in a text that begins with it.
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

    /// What stands before it in a text that ends with it.
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

    /// What stands before its first place in a text, and behind that.
    fn find<'a>(&self, text: &'a str, number: &mut Option<u32>) -> Option<(&'a str, &'a str)> {
        match self {
            Self::Text(own) => text.split_once(own.as_str()),
            Self::Number(before, _) => text
                .match_indices(before.as_str())
                .find_map(|(at, _)| Some((&text[..at], self.begins(&text[at..], number)?))),
        }
    }
}

/// As `strip_suffix`. Most names do not end so, and have another byte behind the first separator: that is faster to see than by a call.
fn without_suffix<'a>(text: &'a str, suffix: &str) -> Option<&'a str> {
    let second = text.len().checked_sub(suffix.len()).and_then(|start| text.as_bytes().get(start + 1));
    if suffix.len() > 1 && second != suffix.as_bytes().get(1) { None } else { text.strip_suffix(suffix) }
}

/// The number that digits stand for; none if they begin with a zero that says nothing, or are too many.
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
