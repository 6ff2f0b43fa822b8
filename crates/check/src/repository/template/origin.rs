//! Where the texts of a template come from: from the data that it is rendered with, or from the template itself. A name that a template composes may
//! be any, including one that leads into Python.

use std::collections::HashMap;

use super::tokens::{PlacedToken, Tag, TemplateToken};

/// Passes that resolve names; the value of one may depend on another.
const MAX_PASSES: usize = 8;
/// Tokens of the model, which its author chooses.
const TOKENS: [&str; 7] = ["bos_token", "cls_token", "eos_token", "mask_token", "pad_token", "sep_token", "unk_token"];
/// Functions, methods and filters that return numbers and booleans for any argument.
const NUMBERS: [&str; 10] =
    ["abs", "count", "endswith", "float", "int", "length", "namespace", "range", "round", "startswith"];
/// Those that return unchanged elements of a list or an object.
const PARTS: [&str; 11] =
    ["dictsort", "first", "get", "items", "keys", "last", "list", "reverse", "sort", "unique", "values"];
/// Methods that take something from a text, of which their arguments are no part.
const CUTS: [&str; 5] = ["lstrip", "rsplit", "rstrip", "split", "strip"];
/// Functions of Jinja's own that make texts.
const MAKERS: [&str; 4] = ["caller", "cycler", "joiner", "lipsum"];
const KEYWORDS: [&str; 12] =
    ["and", "else", "false", "if", "in", "is", "none", "not", "or", "recursive", "true", "None"];

/// Where a text comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum TextOrigin {
    /// From the conversation or other data that the template is rendered with; or it is a number.
    #[default]
    Data,
    /// A literal of the template, which is examined there.
    Constant,
    /// It is put together of such texts.
    Computed,
}

/// What the names of a template refer to.
#[derive(Default)]
pub(super) struct Origins<'t> {
    variables: HashMap<&'t str, TextOrigin>,
    attributes: HashMap<&'t str, TextOrigin>,
    numbers: HashMap<&'t str, f64>,
    /// The only text of a name; `None` if it has several.
    texts: HashMap<&'t str, Option<String>>,
}

impl<'t> Origins<'t> {
    /// Resolves names; false if a few passes do not suffice.
    pub(super) fn learn(&mut self, tags: &[Tag<'t>]) -> bool {
        for _ in 0..MAX_PASSES {
            let mut is_new = false;
            for tag in tags.iter().filter(|tag| tag.is_block) {
                self.define(&tag.tokens, &mut is_new);
            }
            for tag in tags {
                self.namespaces(&tag.tokens, &mut is_new);
            }
            if !is_new {
                return true;
            }
        }
        false
    }

    pub(super) fn is_bound(&self, name: &str) -> bool {
        self.variables.contains_key(name)
    }

    /// What a tag gives names.
    fn define(&mut self, tokens: &[PlacedToken<'t>], is_new: &mut bool) {
        let Some((TemplateToken::Name(word), rest)) = tokens.split_first().map(|(first, rest)| (&first.token, rest))
        else {
            return;
        };
        let (targets, origin) = match *word {
            "set" => match position(rest, &TemplateToken::Sign("=")) {
                Some(at) => {
                    let (targets, value) = (rest.get(..at).unwrap_or_default(), rest.get(at + 1..).unwrap_or_default());
                    if let [PlacedToken { token: TemplateToken::Name(name), .. }] = targets {
                        self.constant(name, value);
                    }
                    (targets, self.of(value))
                }
                None => (rest, TextOrigin::Computed),
            },
            "for" => match position(rest, &TemplateToken::Name("in")) {
                Some(at) => (rest.get(..at).unwrap_or_default(), self.of(rest.get(at + 1..).unwrap_or_default())),
                None => return,
            },
            "with" => {
                let origin = self.of(rest);
                for (at, _) in rest.iter().enumerate().filter(|(_, sign)| is(sign, "=")) {
                    self.keep(rest.get(at.saturating_sub(1)..at).unwrap_or_default(), origin, is_new);
                }
                return;
            }
            // The arguments of a macro are literals of the template, or come from its data.
            "macro" | "call" => {
                let open = rest.iter().position(|sign| is(sign, "(")).unwrap_or(rest.len());
                let is_macro = *word == "macro";
                self.keep(rest.get(..open).filter(|_| is_macro).unwrap_or_default(), TextOrigin::Computed, is_new);
                for argument in arguments(rest, open).into_iter().filter(|_| is_macro || open == 0) {
                    self.keep(argument.get(..1).unwrap_or_default(), TextOrigin::Constant, is_new);
                }
                return;
            }
            _ => return,
        };
        self.keep(targets, origin, is_new);
    }

    fn constant(&mut self, name: &'t str, value: &[PlacedToken<'t>]) {
        let text = match value {
            [PlacedToken { token: TemplateToken::Text(text), .. }] => Some(text),
            [PlacedToken { token: TemplateToken::Number(number), .. }] => {
                self.numbers.insert(name, *number);
                None
            }
            _ => None,
        };
        let kept = self.texts.entry(name).or_insert_with(|| text.cloned());
        if kept.as_ref() != text {
            *kept = None;
        }
    }

    fn keep(&mut self, targets: &[PlacedToken<'t>], origin: TextOrigin, is_new: &mut bool) {
        for (at, target) in targets.iter().enumerate() {
            let TemplateToken::Name(name) = target.token else { continue };
            let is_attribute = at.checked_sub(1).and_then(|at| targets.get(at)).is_some_and(|sign| is(sign, "."));
            let map = if is_attribute { &mut self.attributes } else { &mut self.variables };
            let has_attribute = !is_attribute && targets.get(at + 1).is_some_and(|sign| is(sign, "."));
            let kept = map.entry(name).or_insert_with(|| {
                *is_new = true;
                TextOrigin::Data
            });
            if !has_attribute && *kept < origin {
                (*kept, *is_new) = (origin, true);
            }
        }
    }

    /// What `namespace(a='…')` gives its attributes.
    fn namespaces(&mut self, tokens: &[PlacedToken<'t>], is_new: &mut bool) {
        for at in 0..tokens.len() {
            let is_namespace = tokens.get(at).is_some_and(|name| name.token == TemplateToken::Name("namespace"));
            let Some(sign) = tokens.get(at + 1).filter(|_| is_namespace) else { continue };
            if !is(sign, "(") {
                continue;
            }
            for argument in arguments(tokens, at + 1) {
                let [name, sign, value @ ..] = argument else { continue };
                if let (TemplateToken::Name(name), true) = (&name.token, is(sign, "=")) {
                    let origin = self.of(value);
                    let kept = self.attributes.entry(name).or_default();
                    if *kept < origin {
                        (*kept, *is_new) = (origin, true);
                    }
                }
            }
        }
    }

    /// The number that a token is.
    pub(super) fn number(&self, token: &TemplateToken<'_>) -> Option<f64> {
        match token {
            TemplateToken::Number(number) => Some(*number),
            TemplateToken::Name(name) => self.numbers.get(name).copied(),
            _ => None,
        }
    }

    /// The text that a token is.
    pub(super) fn text<'l>(&'l self, token: &'l TemplateToken<'_>) -> Option<&'l str> {
        match token {
            TemplateToken::Text(text) => Some(text),
            TemplateToken::Name(name) => self.texts.get(name)?.as_deref(),
            _ => None,
        }
    }

    fn name(&self, tokens: &[PlacedToken<'_>], at: usize) -> TextOrigin {
        let before = at.checked_sub(1).and_then(|at| tokens.get(at));
        match tokens.get(at).map(|token| &token.token) {
            Some(TemplateToken::Text(_)) => TextOrigin::Constant,
            Some(TemplateToken::Name(name)) if before.is_some_and(|sign| is(sign, ".")) => {
                self.attributes.get(name).copied().unwrap_or_default()
            }
            Some(TemplateToken::Name(name)) => {
                let own = if TOKENS.contains(name) { TextOrigin::Computed } else { TextOrigin::Data };
                self.variables.get(name).copied().unwrap_or(own)
            }
            _ => TextOrigin::Data,
        }
    }

    /// Where the text that an expression makes comes from.
    pub(super) fn of(&self, tokens: &[PlacedToken<'_>]) -> TextOrigin {
        let (mut most, mut composes, mut at) = (TextOrigin::Data, false, 0);
        let sign_at = |at: usize, sign: &str| tokens.get(at).is_some_and(|token| is(token, sign));
        while let Some(placed) = tokens.get(at) {
            let before = |sign: &str| at.checked_sub(1).is_some_and(|before| sign_at(before, sign));
            let is_called = sign_at(at + 1, "(");
            match &placed.token {
                TemplateToken::Text(_) => {
                    most = most.max(TextOrigin::Constant);
                    composes |= matches!(
                        tokens.get(at + 1).map(|next| &next.token),
                        Some(TemplateToken::Text(_) | TemplateToken::Sign("["))
                    );
                }
                TemplateToken::Name(name) if KEYWORDS.contains(name) => {}
                TemplateToken::Name(name) if before("|") || is_called => {
                    let is_method = before(".") || before("|");
                    if NUMBERS.contains(name) || PARTS.contains(name) || CUTS.contains(name) && before(".") {
                        composes |= CUTS.contains(name);
                        at = if is_called { end_of_group(tokens, at + 1) } else { at + 1 };
                        continue;
                    }
                    composes |= !matches!(*name, "default" | "d");
                    if !is_method {
                        most =
                            most.max(if MAKERS.contains(name) { TextOrigin::Computed } else { self.name(tokens, at) });
                    }
                }
                // The name of an argument may become a text: `dict(a=1)|join`.
                TemplateToken::Name(_) if sign_at(at + 1, "=") => most = most.max(TextOrigin::Constant),
                TemplateToken::Name(_) => most = most.max(self.name(tokens, at)),
                // What an item is taken by is no part of it; a part of a text is another text.
                TemplateToken::Sign("[") if is_value(tokens, at) => {
                    let end = end_of_group(tokens, at);
                    let inside = tokens.get(at + 1..end.saturating_sub(1)).unwrap_or_default();
                    composes |= before(")") || position(inside, &TemplateToken::Sign(":")).is_some();
                    at = end;
                    continue;
                }
                TemplateToken::Sign("~" | "+" | "*" | "%") => composes |= self.joins(tokens, at),
                _ => {}
            }
            at += 1;
        }
        if composes && most == TextOrigin::Constant { TextOrigin::Computed } else { most }
    }

    /// Whether an operand may be a text of the template.
    fn joins(&self, tokens: &[PlacedToken<'_>], at: usize) -> bool {
        let may = |at: usize| match tokens.get(at).map(|placed| &placed.token) {
            Some(TemplateToken::Name(_) | TemplateToken::Text(_)) => self.name(tokens, at) > TextOrigin::Data,
            Some(TemplateToken::Sign(sign)) => *sign != ".",
            _ => false,
        };
        let is_chain = |at: &usize| {
            tokens.get(*at).is_some_and(|placed| is(placed, ".") || matches!(placed.token, TemplateToken::Name(_)))
        };
        let chain = (at + 1..).take_while(is_chain);
        let last = at.checked_sub(1);
        last.is_some_and(may) || may(at + 1) || chain.into_iter().any(may)
    }
}

/// Whether this is the sign.
pub(super) fn is(placed: &PlacedToken<'_>, sign: &str) -> bool {
    matches!(placed.token, TemplateToken::Sign(found) if found == sign)
}

/// The position of the first such token outside of brackets.
pub(super) fn position(tokens: &[PlacedToken<'_>], requested: &TemplateToken<'_>) -> Option<usize> {
    let mut depth = 0_usize;
    tokens.iter().position(|placed| {
        match placed.token {
            TemplateToken::Sign("(" | "[" | "{") => depth += 1,
            TemplateToken::Sign(")" | "]" | "}") => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && placed.token == *requested
    })
}

/// What follows the bracket that closes the one here.
pub(super) fn end_of_group(tokens: &[PlacedToken<'_>], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, placed) in tokens.iter().enumerate().skip(open) {
        match placed.token {
            TemplateToken::Sign("(" | "[" | "{") => depth += 1,
            TemplateToken::Sign(")" | "]" | "}") => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// The arguments of a call whose bracket is here.
pub(super) fn arguments<'a, 't>(tokens: &'a [PlacedToken<'t>], open: usize) -> Vec<&'a [PlacedToken<'t>]> {
    let end = end_of_group(tokens, open).saturating_sub(1).max(open + 1);
    let mut rest = tokens.get(open + 1..end).unwrap_or_default();
    let mut arguments = Vec::new();
    while !rest.is_empty() {
        let comma = position(rest, &TemplateToken::Sign(",")).unwrap_or(rest.len());
        arguments.push(rest.get(..comma).unwrap_or_default());
        rest = rest.get(comma + 1..).unwrap_or_default();
    }
    arguments
}

/// Whether a bracket follows a value, of which it takes an item.
pub(super) fn is_value(tokens: &[PlacedToken<'_>], at: usize) -> bool {
    match at.checked_sub(1).and_then(|before| tokens.get(before)).map(|placed| &placed.token) {
        Some(TemplateToken::Name(name)) => !KEYWORDS.contains(name),
        Some(TemplateToken::Text(_) | TemplateToken::Sign(")" | "]" | "}")) => true,
        _ => false,
    }
}
