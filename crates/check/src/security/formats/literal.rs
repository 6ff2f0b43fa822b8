//! Literals of Python, as NumPy's headers have them: no names, no calls, nothing that has to be evaluated.

/// A literal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Literal {
    Text(String),
    Int(i64),
    Bool(bool),
    None,
    List(Vec<Literal>),
    Tuple(Vec<Literal>),
    Dict(Vec<(Literal, Literal)>),
}

/// Literals in literals.
const MAX_DEPTH: usize = 64;

impl Literal {
    /// The literal that the whole text is, but for space around it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parser = LiteralParser { rest: text };
        let value = parser.value(0)?;
        parser.space();
        parser.rest.is_empty().then_some(value)
    }
}

struct LiteralParser<'a> {
    rest: &'a str,
}

impl LiteralParser<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn eat(&mut self, what: &str) -> bool {
        self.space();
        let after = self.rest.strip_prefix(what);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn value(&mut self, depth: usize) -> Option<Literal> {
        if depth > MAX_DEPTH {
            return None;
        }
        for (word, value) in [("True", Literal::Bool(true)), ("False", Literal::Bool(false)), ("None", Literal::None)] {
            if self.eat(word) {
                return Some(value);
            }
        }
        if self.eat("{") {
            let mut pairs = Vec::new();
            while !self.eat("}") {
                let key = self.value(depth + 1)?;
                if !self.eat(":") {
                    return None;
                }
                pairs.push((key, self.value(depth + 1)?));
                if !self.eat(",") {
                    return self.eat("}").then_some(Literal::Dict(pairs));
                }
            }
            return Some(Literal::Dict(pairs));
        }
        if self.eat("[") {
            return self.list("]", depth).map(|(values, _)| Literal::List(values));
        }
        if self.eat("(") {
            let (mut values, has_comma) = self.list(")", depth)?;
            // One value in parentheses is that value.
            return if values.len() == 1 && !has_comma { values.pop() } else { Some(Literal::Tuple(values)) };
        }
        self.text().or_else(|| self.int())
    }

    /// Values up to `end`, and whether a comma is behind the last one.
    fn list(&mut self, end: &str, depth: usize) -> Option<(Vec<Literal>, bool)> {
        let mut values = Vec::new();
        while !self.eat(end) {
            values.push(self.value(depth + 1)?);
            if !self.eat(",") {
                return self.eat(end).then_some((values, false));
            }
        }
        Some((values, true))
    }

    /// A string without escapes, except those of quotes and backslashes.
    fn text(&mut self) -> Option<Literal> {
        self.space();
        // Python 2 wrote names as bytes or as Unicode.
        let start = self.rest.strip_prefix(['u', 'b']).unwrap_or(self.rest);
        let quote = start.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
        let mut value = String::new();
        let mut chars = start.char_indices().skip(1);
        while let Some((at, char)) = chars.next() {
            match char {
                '\\' => {
                    let escaped = chars.next().map(|(_, char)| char);
                    value.push(escaped.filter(|char| matches!(char, '\\' | '\'' | '"'))?);
                }
                '\n' => return None,
                _ if char == quote => {
                    self.rest = start.get(at + 1..)?;
                    return Some(Literal::Text(value));
                }
                _ => value.push(char),
            }
        }
        None
    }

    fn int(&mut self) -> Option<Literal> {
        let digits = self.rest.strip_prefix('-').unwrap_or(self.rest);
        let len = self.rest.len() - digits.trim_start_matches(|char: char| char.is_ascii_digit()).len();
        let value = self.rest.get(..len)?.parse().ok()?;
        let after = self.rest.get(len..)?;
        // Python 2 wrote long numbers with an L.
        self.rest = after.strip_prefix('L').unwrap_or(after);
        Some(Literal::Int(value))
    }
}
