//! Texts and numbers that a template puts together, as far as they can be known without rendering it.

use std::cell::Cell;
use std::collections::HashMap;

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr};

/// Texts that are put together get no longer than this.
const MAX_TEXT: usize = 256;
/// Names whose texts are kept: with their lengths a limit on memory.
const MAX_NAMES: usize = 1000;
/// Parts of a number in one another.
const MAX_DEPTH: usize = 40;

/// Parts that are looked at in all texts of a template together: a hundred times of what the longest ones have.
const MAX_STEPS: usize = 500_000;

/// What names stand for.
#[derive(Default)]
pub(super) struct Texts<'a> {
    known: HashMap<&'a str, String>,
    steps: Cell<usize>,
}

impl<'a> Texts<'a> {
    /// Keeps the text of a name.
    pub(super) fn keep(&mut self, name: &'a str, text: String) {
        if text.len() <= MAX_TEXT && self.known.len() < MAX_NAMES {
            self.known.insert(name, text);
        }
    }

    /// Whether some texts and numbers were not put together, as there were too many parts.
    pub(super) fn gave_up(&self) -> bool {
        self.steps.get() > MAX_STEPS
    }

    fn step(&self) -> Option<()> {
        self.steps.set(self.steps.get().saturating_add(1));
        (!self.gave_up()).then_some(())
    }

    /// The number that this is.
    pub(super) fn number(&self, expression: &Expr<'a>, depth: usize) -> Option<f64> {
        self.step()?;
        match expression {
            _ if depth > MAX_DEPTH => None,
            Expr::Const(constant) if constant.value.as_str().is_none() => constant.value.to_string().parse().ok(),
            Expr::Var(name) => self.known.get(name.id)?.parse().ok(),
            Expr::BinOp(operation) => {
                let left = self.number(&operation.left, depth + 1)?;
                let right = self.number(&operation.right, depth + 1)?;
                match operation.op {
                    BinOpKind::Mul => Some(left * right),
                    BinOpKind::Pow => Some(left.powf(right)),
                    BinOpKind::Add => Some(left + right),
                    BinOpKind::Sub => Some(left - right),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The text that this is, as far as it can be known without rendering.
    pub(super) fn of(&self, expression: &Expr<'a>) -> Option<String> {
        self.step()?;
        let text = match expression {
            Expr::Const(constant) => match constant.value.as_str() {
                Some(text) => text.to_owned(),
                None => constant.value.to_string(),
            },
            Expr::Var(name) => self.known.get(name.id)?.clone(),
            Expr::BinOp(operation) => match operation.op {
                BinOpKind::Add | BinOpKind::Concat => self.of(&operation.left)? + &self.of(&operation.right)?,
                BinOpKind::Rem => filled(&self.of(&operation.left)?, &self.texts_of(&operation.right)?)?,
                _ => return None,
            },
            Expr::Slice(slice) => {
                let backwards = slice.step.as_ref().and_then(|step| self.of(step)).as_deref() == Some("-1");
                let all = slice.start.is_none() && slice.stop.is_none();
                (backwards && all).then(|| self.of(&slice.expr)).flatten()?.chars().rev().collect()
            }
            Expr::UnaryOp(operation) => format!("-{}", self.of(&operation.expr)?),
            Expr::Filter(filter) => self.filtered(filter.name, filter.expr.as_ref()?, &filter.args)?,
            Expr::Call(call) => match &call.expr {
                Expr::GetAttr(method) => match (method.name, call.args.as_slice()) {
                    ("join", [CallArg::Pos(list)]) => self.texts_of(list)?.join(&self.of(&method.expr)?),
                    (name, arguments) => self.filtered(name, &method.expr, arguments)?,
                },
                _ => return None,
            },
            _ => return None,
        };
        (text.len() <= MAX_TEXT).then_some(text)
    }

    fn filtered(&self, name: &str, of: &Expr<'a>, arguments: &[CallArg<'a>]) -> Option<String> {
        let values: Option<Vec<String>> = arguments
            .iter()
            .map(|argument| match argument {
                CallArg::Pos(value) => self.of(value),
                _ => None,
            })
            .collect();
        let values = values?;
        Some(match (name, values.as_slice()) {
            ("join", separator) => self.texts_of(of)?.join(separator.first().map_or("", String::as_str)),
            ("lower", []) => self.of(of)?.to_lowercase(),
            ("upper", []) => self.of(of)?.to_uppercase(),
            ("trim" | "strip" | "string" | "safe" | "escape" | "e", []) => self.of(of)?.trim().to_owned(),
            ("reverse", []) => self.of(of)?.chars().rev().collect(),
            ("replace", [old, new]) if !old.is_empty() && new.len() <= MAX_TEXT => self.of(of)?.replace(old, new),
            ("format", values) => filled(&self.of(of)?, values)?,
            _ => return None,
        })
    }

    fn texts_of(&self, list: &Expr<'a>) -> Option<Vec<String>> {
        match list {
            Expr::List(list) => list.items.iter().map(|item| self.of(item)).collect(),
            Expr::Tuple(tuple) => tuple.items.iter().map(|item| self.of(item)).collect(),
            other => Some(vec![self.of(other)?]),
        }
    }
}

/// A string with `%s`, `%c` and `{}` replaced by these, in their order; `None` where it has other marks.
fn filled(pattern: &str, values: &[String]) -> Option<String> {
    let (mut text, mut rest, mut values) = (String::new(), pattern, values.iter());
    while let Some(at) = rest.find(['%', '{']) {
        text.push_str(rest.get(..at)?);
        let mark = rest.get(at..at + 2)?;
        match mark {
            "%s" | "%d" | "{}" => text.push_str(values.next()?),
            "%c" => {
                let value = values.next()?;
                let code = value.parse::<u32>().ok().filter(|_| value.chars().count() > 1);
                text.push(code.and_then(char::from_u32).or_else(|| value.chars().next())?);
            }
            "%%" => text.push('%'),
            _ => return None,
        }
        rest = rest.get(at + 2..)?;
        if text.len() > MAX_TEXT {
            return None;
        }
    }
    Some(text + rest)
}
