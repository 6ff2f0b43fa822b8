//! JSON as text, for mutations that keep escapes, repeated keys and odd numbers unchanged.

use super::random::Random;

/// One value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Json {
    /// A number, a string with its quotes, a word; or what was put in the place of one.
    Scalar(String),
    /// A list.
    List(Vec<Json>),
    /// An object; each key has its quotes, and may be there twice.
    Object(Vec<(String, Json)>),
}

const DEEPEST: usize = 200;

impl Json {
    /// The value that a text begins with, read with leniency; none if it is broken.
    pub fn parse(text: &str) -> Option<Self> {
        Parser { rest: text }.value(DEEPEST)
    }

    /// A scalar.
    pub fn scalar(value: impl ToString) -> Self {
        Self::Scalar(value.to_string())
    }

    /// A list of scalars.
    pub fn list<T: ToString>(values: impl IntoIterator<Item = T>) -> Self {
        Self::List(values.into_iter().map(Self::scalar).collect())
    }

    /// The value of the first entry of this key.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(entries) = self else { return None };
        entries.iter().find(|(have, _)| have.trim_matches('"') == key).map(|(_, value)| value)
    }

    /// The value of the first entry of this key.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let Self::Object(entries) = self else { return None };
        entries.iter_mut().find(|(have, _)| have.trim_matches('"') == key).map(|(_, value)| value)
    }

    /// The scalar as a number.
    pub fn number(&self) -> Option<u64> {
        let Self::Scalar(text) = self else { return None };
        text.parse().ok()
    }

    /// Writes the value; with `spaced`, whitespace is inserted at random places.
    pub fn write(&self, out: &mut String, mut spaced: Option<&mut Random>) {
        fn space(out: &mut String, random: &mut Option<&mut Random>) {
            if let Some(random) = random
                && random.one_in(4)
            {
                out.push_str(random.pick(&[" ", "\n", "\t ", "\r\n"]));
            }
        }
        match self {
            Self::Scalar(text) => out.push_str(text),
            Self::List(values) => {
                out.push('[');
                for (i, value) in values.iter().enumerate() {
                    out.push_str(if i > 0 { "," } else { "" });
                    space(out, &mut spaced);
                    value.write(out, spaced.as_deref_mut());
                }
                space(out, &mut spaced);
                out.push(']');
            }
            Self::Object(entries) => {
                out.push('{');
                for (i, (key, value)) in entries.iter().enumerate() {
                    out.push_str(if i > 0 { "," } else { "" });
                    space(out, &mut spaced);
                    out.push_str(key);
                    out.push(':');
                    space(out, &mut spaced);
                    value.write(out, spaced.as_deref_mut());
                }
                out.push('}');
            }
        }
    }

    /// A random value inside this one, or this one itself.
    pub fn any_mut<'a>(&'a mut self, random: &mut Random) -> &'a mut Self {
        let below = match self {
            Self::Scalar(_) => 0,
            Self::List(values) => values.len(),
            Self::Object(entries) => entries.len(),
        };
        if below == 0 || random.one_in(4) {
            return self;
        }
        let which = random.below(below);
        match self {
            Self::List(values) => values[which].any_mut(random),
            Self::Object(entries) => entries[which].1.any_mut(random),
            Self::Scalar(_) => self,
        }
    }
}

struct Parser<'t> {
    rest: &'t str,
}

impl Parser<'_> {
    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, c: char) -> bool {
        self.skip_spaces();
        let rest = self.rest.strip_prefix(c);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        let depth = depth.checked_sub(1)?;
        if self.take('[') {
            let mut values = Vec::new();
            while !self.take(']') {
                values.push(self.value(depth)?);
                self.take(',');
            }
            return Some(Json::List(values));
        }
        if self.take('{') {
            let mut entries = Vec::new();
            while !self.take('}') {
                let key = self.scalar()?;
                self.take(':');
                entries.push((key, self.value(depth)?));
                self.take(',');
            }
            return Some(Json::Object(entries));
        }
        self.scalar().map(Json::Scalar)
    }

    fn scalar(&mut self) -> Option<String> {
        self.skip_spaces();
        let len = if self.rest.starts_with('"') {
            let mut escaped = true; // the opening quote does not close
            let closing = self.rest.char_indices().find(|(_, c)| {
                let closes = *c == '"' && !escaped;
                escaped = *c == '\\' && !escaped;
                closes
            });
            closing.map_or(self.rest.len(), |(at, _)| at + 1)
        } else {
            self.rest.find(|c: char| c.is_whitespace() || ",:[]{}\"".contains(c)).unwrap_or(self.rest.len())
        };
        let (scalar, rest) = self.rest.split_at(len);
        self.rest = rest;
        (len > 0).then(|| scalar.to_owned())
    }
}
