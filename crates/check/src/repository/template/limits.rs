//! What the tags of a template may not have: attributes that lead into Python, however their names are composed, and endless loops.

use max_weights::rules::{self, Rule};
use max_weights::text::escape;

use super::names::{self, inside_in, inside_of_format, is_inside};
use super::origin::{Origins, TextOrigin, arguments, end_of_group, is, is_value, position};
use super::tokens::{PlacedToken, Tag, TemplateToken};
use super::{MAX_TAG_TOKENS, TemplateFault};

/// Items of a range that no chat template needs; Jinja's sandbox allows a tenth of it.
const MAX_ITEMS: f64 = 1_000_000.0;

/// Findings kept of one template; the first is reported.
const MAX_BROKEN: usize = 1000;

/// Looks through a tag.
pub(super) fn look(tag: &Tag<'_>, origins: &Origins<'_>, broken: &mut Vec<TemplateFault>) {
    // What is very long is looked at token by token only.
    let is_long = tag.tokens.len() > MAX_TAG_TOKENS;
    let mut look = Look { tokens: &tag.tokens, origins, broken };
    if let (true, Some(TemplateToken::Name(word @ ("import" | "include" | "extends" | "from")))) =
        (tag.is_block, look.token(0))
    {
        let sentence = format!("it would {word} another template");
        look.report(0, rules::REPOSITORY_TEMPLATE_INCLUDE, sentence);
    }
    let is_filter = tag.is_block && look.token(0) == Some(&TemplateToken::Name("filter"));
    for (at, placed) in tag.tokens.iter().enumerate() {
        match &placed.token {
            TemplateToken::Name(name) if look.has(at.wrapping_sub(1), ".") => {
                look.attribute(at, name, at.wrapping_sub(2));
            }
            TemplateToken::Name(name) if !is_long && (look.has(at.wrapping_sub(1), "|") || is_filter && at == 1) => {
                look.filter(at, name);
            }
            TemplateToken::Name(name) if inside_in(name).is_some() => {
                look.escape(at, format!("it has the name {}, a Python internal", escape(name)));
            }
            TemplateToken::Name(name) if look.has(at + 1, "=") && is_inside(name) => {
                look.escape(at, format!("the argument '{}' names a Python internal", escape(name)));
            }
            TemplateToken::Name("range") if look.has(at + 1, "(") && !is_long => look.range(at + 1),
            TemplateToken::Text(text) => look.text(at, text),
            TemplateToken::Sign("[") if !is_long && is_value(&tag.tokens, at) => look.item(at),
            TemplateToken::Sign("(") if !is_long => look.format(at),
            TemplateToken::Sign("*" | "**") => look.product(at),
            _ => {}
        }
    }
}

struct Look<'l, 't> {
    tokens: &'l [PlacedToken<'t>],
    origins: &'l Origins<'t>,
    broken: &'l mut Vec<TemplateFault>,
}

impl<'t> Look<'_, 't> {
    fn token(&self, at: usize) -> Option<&TemplateToken<'t>> {
        self.tokens.get(at).map(|placed| &placed.token)
    }

    fn has(&self, at: usize, sign: &str) -> bool {
        self.tokens.get(at).is_some_and(|placed| is(placed, sign))
    }

    fn report(&mut self, at: usize, rule: &'static Rule, sentence: impl Into<String>) {
        let Some(placed) = self.tokens.get(at).filter(|_| self.broken.len() < MAX_BROKEN) else { return };
        let (first, last) = (at.saturating_sub(3), (at + 3).min(self.tokens.len().saturating_sub(1)));
        let start = self.tokens.get(first).map_or(placed.start, |first| first.start);
        let end = self.tokens.get(last).map_or(placed.end, |last| last.end);
        self.broken.push(TemplateFault { rule, sentence: sentence.into(), line: placed.line, start, end });
    }

    fn escape(&mut self, at: usize, sentence: impl Into<String>) {
        self.report(at, rules::REPOSITORY_TEMPLATE_ESCAPE, sentence);
    }

    /// An attribute or item of this name (empty: unknown) is taken of the expression that ends at `of`.
    fn attribute(&mut self, at: usize, name: &str, of: usize) {
        if is_inside(name) {
            return self.escape(at, format!("it reaches for {}, a Python internal", escape(name)));
        }
        let Some(TemplateToken::Name(base)) = self.token(of) else { return };
        let base = *base;
        if self.has(of.wrapping_sub(1), ".") || self.origins.is_bound(base) {
            return;
        }
        if names::OWN.contains(&base) {
            self.escape(at, format!("it looks into {base}, which Jinja gives every template"));
        } else if names::WEB.contains(&base) {
            let sentence = format!("it looks into {base}, which web frameworks give their templates");
            self.report(at, rules::REPOSITORY_TEMPLATE_GLOBAL, sentence);
        }
    }

    /// A text, with those that it is joined to.
    fn text(&mut self, at: usize, text: &str) {
        let (whole, _) = self.joined(at);
        if let Some(inside) = inside_in(text) {
            self.escape(at, format!("the string '{inside}' names a Python internal"));
        } else if let Some(inside) = inside_in(&whole) {
            self.escape(at, format!("'{inside}' is assembled from parts"));
        } else if let Some(inside) = inside_of_format(&whole) {
            self.escape(at, format!("a format string reaches for {inside}"));
        } else if text.contains("\\N{") {
            self.escape(at, "it has a character by its name, which hides what it says");
        }
    }

    /// The text from here on with those that follow it directly, with `~` or with `+`, and what is behind them.
    fn joined(&self, at: usize) -> (String, usize) {
        let (mut whole, mut at) = (String::new(), at);
        while let Some(text) = self.token(at).and_then(|token| self.origins.text(token)) {
            whole.push_str(text);
            let joins = self.has(at + 1, "~") || self.has(at + 1, "+");
            let is_text = |at: usize| self.token(at).is_some_and(|token| self.origins.text(token).is_some());
            at += if joins && is_text(at + 2) { 2 } else { 1 };
            if whole.len() > MAX_TAG_TOKENS {
                break;
            }
        }
        (whole, at)
    }

    /// An item is taken by a name: `x[…]`.
    fn item(&mut self, open: usize) {
        let end = end_of_group(self.tokens, open).saturating_sub(1);
        let inside = self.tokens.get(open + 1..end).unwrap_or_default();
        let (text, behind) = self.joined(open + 1);
        if behind == end {
            return self.attribute(open, &text, open.wrapping_sub(1));
        }
        let is_slice = position(inside, &TemplateToken::Sign(":")).is_some();
        if !is_slice && self.origins.of(inside) == TextOrigin::Computed {
            self.report(open, rules::REPOSITORY_TEMPLATE_COMPUTED, "it takes an item by a name that it computes");
        }
        self.attribute(open, "", open.wrapping_sub(1));
    }

    /// A filter, which may take attributes by their names.
    fn filter(&mut self, at: usize, name: &str) {
        let all = if self.has(at + 1, "(") { arguments(self.tokens, at + 1) } else { Vec::new() };
        let by_name = |requested: &str| {
            all.iter().find_map(|argument| match argument {
                [name, sign, value @ ..] if name.token == TemplateToken::Name(requested) && is(sign, "=") => {
                    Some(value)
                }
                _ => None,
            })
        };
        let by_place = |number: usize| all.get(number).copied();
        let text = |value: &[PlacedToken<'t>]| match value {
            [PlacedToken { token: TemplateToken::Text(text), .. }] => Some(text.clone()),
            _ => None,
        };
        let maps = || by_place(0).filter(|_| by_name("attribute").is_none());
        let attribute = match name {
            "map" if maps().and_then(text).as_deref() == Some("attr") => by_place(1),
            "map" if maps().is_some_and(|filter| text(filter).is_none()) => {
                return self.escape(at, "the filter 'map' takes a filter whose name is computed");
            }
            "map" | "sum" | "sort" | "groupby" | "unique" | "min" | "max" | "join" => by_name("attribute"),
            "attr" | "selectattr" | "rejectattr" => by_place(0),
            _ => None,
        };
        let Some(attribute) = attribute else {
            if name == "attr" {
                self.escape(at, "the filter 'attr' takes an attribute whose name cannot be known");
            }
            return;
        };
        match (text(attribute), attribute) {
            (Some(path), _) => {
                let of = at.wrapping_sub(2);
                path.split('.').for_each(|part| self.attribute(at, part, of));
            }
            (None, [PlacedToken { token: TemplateToken::Number(_), .. }]) => {}
            (None, _) => self.escape(at, format!("the filter '{name}' takes an attribute whose name is computed")),
        }
    }

    /// A string is filled in that may reach into what it is given: `x.format(…)`.
    fn format(&mut self, open: usize) {
        let is_format = matches!(
            open.checked_sub(1).and_then(|at| self.token(at)),
            Some(TemplateToken::Name("format" | "format_map"))
        );
        let Some(last) = open.checked_sub(3).filter(|at| is_format && self.has(at + 1, ".")) else { return };
        // From the bracket that this one closes, or the name or text itself.
        let mut depth = 0_usize;
        let first = (0..=last).rev().find(|at| {
            match self.token(*at) {
                Some(TemplateToken::Sign(")" | "]" | "}")) => depth += 1,
                Some(TemplateToken::Sign("(" | "[" | "{")) => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0
        });
        let pattern = self.tokens.get(first.unwrap_or(last)..=last).unwrap_or_default();
        if self.origins.of(pattern) == TextOrigin::Computed {
            self.report(open, rules::REPOSITORY_TEMPLATE_COMPUTED, "it fills in a string that it computes");
        }
    }

    fn exhausts(&mut self, at: usize) {
        let sentence = format!("it makes more than {MAX_ITEMS} of something");
        self.report(at, rules::REPOSITORY_TEMPLATE_EXHAUSTS, sentence);
    }

    /// `range(10**9)`, `range(1000 * 1000 * 1000)`.
    fn range(&mut self, open: usize) {
        let is_bound = self.origins.is_bound("range");
        let inside = self.tokens.get(open..end_of_group(self.tokens, open)).unwrap_or_default();
        let numbers = || inside.iter().filter_map(|placed| self.origins.number(&placed.token));
        let product: f64 = numbers().product();
        let multiplies = inside.iter().any(|placed| is(placed, "*") || is(placed, "**"));
        if !is_bound && (numbers().any(|number| number > MAX_ITEMS) || multiplies && product > MAX_ITEMS) {
            self.exhausts(open);
        }
    }

    /// `'a' * 10**9`, `[0] * 10**9`, `10 ** 10 ** 10`.
    fn product(&mut self, at: usize) {
        let number = |at: usize| self.token(at).and_then(|token| self.origins.number(token));
        let (left, right) = (at.checked_sub(1).and_then(number), number(at + 1));
        let is_list =
            |at: usize| matches!(self.token(at), Some(TemplateToken::Text(_) | TemplateToken::Sign("[" | "]")));
        let is_many = |number: Option<f64>| number.is_some_and(|number| number > MAX_ITEMS);
        let exhausts = if self.has(at, "**") {
            is_many(right) || is_many(left.zip(right).map(|(left, right)| left.powf(right)))
        } else {
            is_list(at.wrapping_sub(1)) && is_many(right) || is_list(at + 1) && is_many(left)
        };
        if exhausts {
            self.exhausts(at);
        }
    }
}
