//! Texts and numbers that a template puts together, as far as they can be known without rendering it.

use std::cell::Cell;
use std::collections::HashMap;

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Slice, UnaryOpKind};

/// Texts that are put together get no longer than this.
const MAX_TEXT: usize = 256;
/// Names whose texts are kept: with their lengths a limit on memory.
const MAX_NAMES: usize = 1000;
/// Parts of a number in one another.
const MAX_DEPTH: usize = 40;

/// Parts that are looked at in all texts of a template together: a hundred times of what the longest ones have.
const MAX_STEPS: usize = 500_000;

/// What a template gives a value: a name, or an attribute of this name, of whatever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Name<'a> {
    Variable(&'a str),
    Attribute(&'a str),
}

/// What names stand for.
#[derive(Default)]
pub(super) struct Texts<'a> {
    known: HashMap<Name<'a>, String>,
    steps: Cell<usize>,
}

impl<'a> Texts<'a> {
    /// Keeps the text of a name, or that it is not known; tells whether that is new.
    pub(super) fn keep(&mut self, name: Name<'a>, text: Option<String>) -> bool {
        let text = text.filter(|text| text.len() <= MAX_TEXT);
        if self.known.get(&name) == text.as_ref() {
            return false;
        }
        match text {
            Some(text) if self.known.len() < MAX_NAMES => {
                self.known.insert(name, text);
                true
            }
            Some(_) => false,
            None => self.known.remove(&name).is_some(),
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
            Expr::Var(name) => self.known.get(&Name::Variable(name.id))?.parse().ok(),
            Expr::GetAttr(get) => self.known.get(&Name::Attribute(get.name))?.parse().ok(),
            Expr::UnaryOp(operation) if matches!(operation.op, UnaryOpKind::Neg) => {
                self.number(&operation.expr, depth + 1).map(|number| -number)
            }
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
            Expr::Filter(filter) if ["length", "count"].contains(&filter.name) => {
                let of = filter.expr.as_ref()?;
                let list = self.list(of).map(|list| list.len());
                list.or_else(|| Some(self.of(of)?.chars().count())).map(|len| len as f64)
            }
            _ => None,
        }
    }

    fn whole(&self, expression: &Expr<'a>) -> Option<i64> {
        let number = self.number(expression, 0)?;
        (number.fract() == 0.0 && number.abs() <= MAX_STEPS as f64).then_some(number as i64)
    }

    /// The text that this is, as far as it can be known without rendering.
    pub(super) fn of(&self, expression: &Expr<'a>) -> Option<String> {
        self.step()?;
        let text = match expression {
            Expr::Const(constant) => match constant.value.as_str() {
                Some(text) => text.to_owned(),
                None => constant.value.to_string(),
            },
            Expr::Var(name) => self.known.get(&Name::Variable(name.id))?.clone(),
            Expr::GetAttr(get) => self.known.get(&Name::Attribute(get.name))?.clone(),
            Expr::BinOp(operation) => match operation.op {
                BinOpKind::Add | BinOpKind::Concat => self.of(&operation.left)? + &self.of(&operation.right)?,
                BinOpKind::Rem => filled(&self.of(&operation.left)?, &self.texts_of(&operation.right)?)?,
                BinOpKind::Mul => {
                    let times = self.whole(&operation.right).map(|times| (&operation.left, times));
                    let (text, times) = times.or_else(|| Some((&operation.right, self.whole(&operation.left)?)))?;
                    let (text, times) = (self.of(text)?, usize::try_from(times).unwrap_or(0));
                    (text.len().checked_mul(times)? <= MAX_TEXT).then(|| text.repeat(times))?
                }
                _ => return None,
            },
            Expr::Slice(slice) => {
                self.sliced(slice, &self.of(&slice.expr)?.chars().collect::<Vec<_>>())?.iter().collect()
            }
            Expr::GetItem(get) => match (&get.expr, self.list(&get.expr)) {
                (Expr::Map(map), _) => {
                    let key = self.of(&get.subscript_expr)?;
                    let place = map.keys.iter().position(|each| self.of(each).as_deref() == Some(&key))?;
                    self.of(map.values.get(place)?)?
                }
                (_, Some(list)) => item(&list, self.whole(&get.subscript_expr)?)?.clone(),
                (of, None) => {
                    let letters: Vec<char> = self.of(of)?.chars().collect();
                    item(&letters, self.whole(&get.subscript_expr)?)?.to_string()
                }
            },
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

    fn arguments(&self, arguments: &[CallArg<'a>]) -> Option<Vec<String>> {
        let text = |argument: &CallArg<'a>| match argument {
            CallArg::Pos(value) => self.of(value),
            _ => None,
        };
        arguments.iter().map(text).collect()
    }

    /// What a filter, or a method of the same name, makes of a text or a list.
    fn filtered(&self, name: &str, of: &Expr<'a>, arguments: &[CallArg<'a>]) -> Option<String> {
        let values = self.arguments(arguments)?;
        let text = || self.of(of);
        let letters = || -> Option<Vec<char>> { Some(values.first()?.chars().collect()) };
        Some(match (name, values.as_slice()) {
            ("join", separator) => self.texts_of(of)?.join(separator.first().map_or("", String::as_str)),
            ("lower" | "casefold", []) => text()?.to_lowercase(),
            ("upper", []) => text()?.to_uppercase(),
            ("trim" | "strip" | "string" | "safe" | "escape" | "e", []) => text()?.trim().to_owned(),
            ("lstrip", []) => text()?.trim_start().to_owned(),
            ("rstrip", []) => text()?.trim_end().to_owned(),
            ("strip" | "trim", [_]) => text()?.trim_matches(&*letters()?).to_owned(),
            ("lstrip", [_]) => text()?.trim_start_matches(&*letters()?).to_owned(),
            ("rstrip", [_]) => text()?.trim_end_matches(&*letters()?).to_owned(),
            ("removeprefix", [start]) => text().map(|text| text.strip_prefix(&**start).unwrap_or(&text).to_owned())?,
            ("removesuffix", [end]) => text().map(|text| text.strip_suffix(&**end).unwrap_or(&text).to_owned())?,
            ("reverse", []) => text()?.chars().rev().collect(),
            ("first", []) => self.texts_of(of)?.first()?.clone(),
            ("last", []) => self.texts_of(of)?.last()?.clone(),
            ("replace", [old, new]) if !old.is_empty() && new.len() <= MAX_TEXT => text()?.replace(old, new),
            ("format", values) => filled(&text()?, values)?,
            _ => return None,
        })
    }

    /// The texts that are taken one by one: the items of a list, or the letters of a text.
    fn texts_of(&self, list: &Expr<'a>) -> Option<Vec<String>> {
        self.list(list).or_else(|| Some(self.of(list)?.chars().map(String::from).collect()))
    }

    /// The items of a list of texts.
    fn list(&self, expression: &Expr<'a>) -> Option<Vec<String>> {
        self.step()?;
        let list: Vec<String> = match expression {
            Expr::List(list) => list.items.iter().map(|item| self.of(item)).collect::<Option<_>>()?,
            Expr::Tuple(tuple) => tuple.items.iter().map(|item| self.of(item)).collect::<Option<_>>()?,
            Expr::Slice(slice) => self.sliced(slice, &self.list(&slice.expr)?)?,
            Expr::BinOp(operation) if matches!(operation.op, BinOpKind::Add) => {
                [self.list(&operation.left)?, self.list(&operation.right)?].concat()
            }
            Expr::Filter(filter) => match filter.name {
                "list" => self.texts_of(filter.expr.as_ref()?)?,
                "reverse" => self.list(filter.expr.as_ref()?)?.into_iter().rev().collect(),
                _ => return None,
            },
            Expr::Call(call) => match &call.expr {
                Expr::GetAttr(method) if ["split", "rsplit"].contains(&method.name) => {
                    let text = self.of(&method.expr)?;
                    match self.arguments(&call.args)?.as_slice() {
                        [] => text.split_whitespace().map(str::to_owned).collect(),
                        [separator] if !separator.is_empty() => text.split(&**separator).map(str::to_owned).collect(),
                        _ => return None,
                    }
                }
                _ => return None,
            },
            _ => return None,
        };
        (list.len() <= MAX_TEXT).then_some(list)
    }

    /// A slice as Python cuts it.
    fn sliced<T: Clone>(&self, slice: &Slice<'a>, items: &[T]) -> Option<Vec<T>> {
        let number = |part: &Option<Expr<'a>>| match part {
            None | Some(Expr::Const(_)) if part.as_ref().is_none_or(is_none) => Some(None),
            Some(part) => self.whole(part).map(Some),
            None => Some(None),
        };
        let (start, stop, step) = (number(&slice.start)?, number(&slice.stop)?, number(&slice.step)?.unwrap_or(1));
        let len = items.len() as i64;
        let (low, high) = if step < 0 { (-1, len - 1) } else { (0, len) };
        let bound = |at: i64| if at < 0 { (at + len).max(low) } else { at.min(high) };
        let (first, end) = if step < 0 { (len - 1, -1) } else { (0, len) };
        let (mut at, end) = (start.map_or(first, bound), stop.map_or(end, bound));
        let mut taken = Vec::new();
        while step != 0 && (step > 0 && at < end || step < 0 && at > end) {
            taken.extend(usize::try_from(at).ok().and_then(|at| items.get(at)).cloned());
            at += step;
        }
        (step != 0).then_some(taken)
    }
}

fn is_none(expression: &Expr<'_>) -> bool {
    matches!(expression, Expr::Const(constant) if constant.value.is_none())
}

/// An item by its number, from the end where that is negative.
fn item<T>(items: &[T], number: i64) -> Option<&T> {
    let at = if number < 0 { number + items.len() as i64 } else { number };
    items.get(usize::try_from(at).ok()?)
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
