//! Where the texts of a template come from: from whoever renders it, or from the template itself. A name that a template computes in a way that is not
//! followed may be any, also one that leads into Python.

use std::collections::HashMap;

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Stmt};

use super::expressions::bodies;
use super::texts::{Name, Texts};

/// So often it is asked what names stand for, of which one may stand for another.
const MAX_PASSES: usize = 8;
/// Tokens of the model, which its author chooses.
const TOKENS: [&str; 7] = ["bos_token", "cls_token", "eos_token", "mask_token", "pad_token", "sep_token", "unk_token"];
/// Functions and filters that make numbers and truths, whatever they are given.
const NUMBERS: [&str; 9] = ["abs", "count", "float", "int", "length", "range", "round", "startswith", "endswith"];
/// Methods and filters that give what is in a list or an object as it is there.
const PARTS: [&str; 11] =
    ["dictsort", "first", "get", "items", "keys", "last", "list", "reverse", "sort", "unique", "values"];
/// Functions of Jinja's own that make texts.
const MAKERS: [&str; 4] = ["caller", "cycler", "joiner", "lipsum"];

/// Where a text comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Origin {
    /// From the conversation, and whatever else is given to the template; or it is a number.
    #[default]
    Data,
    /// It stands in the template as it is, where it is looked at.
    Constant,
    /// It is put together of such texts.
    Computed,
}

/// What a name is given.
enum Given<'t, 'a> {
    Value(&'t Expr<'a>),
    /// One after the other of what is in this.
    Each(&'t Expr<'a>),
    Raw(&'t str),
    Origin(Origin),
}

/// Where the texts of names come from.
#[derive(Default)]
pub(super) struct Origins<'a> {
    of: HashMap<Name<'a>, Origin>,
}

impl<'a> Origins<'a> {
    /// Finds out what names stand for; false if it cannot be told in a few passes.
    pub(super) fn learn(&mut self, template: &Stmt<'a>, texts: &mut Texts<'a>) -> bool {
        let mut given: Vec<(Name<'a>, Given<'_, 'a>)> = Vec::new();
        collect(std::slice::from_ref(template), &mut given);
        let mut by_name: HashMap<Name<'a>, Vec<Given<'_, 'a>>> = HashMap::new();
        let mut order = Vec::new();
        for (name, value) in given {
            let values = by_name.entry(name).or_default();
            if values.is_empty() {
                order.push(name);
            }
            values.push(value);
        }
        for _ in 0..MAX_PASSES {
            let mut is_new = false;
            for name in &order {
                let Some(values) = by_name.get(name) else { continue };
                let text = |value: &Given<'_, 'a>| match value {
                    Given::Value(value) => texts.of(value),
                    Given::Raw(text) => Some((*text).to_owned()),
                    Given::Each(_) | Given::Origin(_) => None,
                };
                // What stands for two texts stands for none that is known.
                let mut said = values.iter().map(text);
                let first = said.next().flatten();
                let known = first.filter(|first| said.all(|other| other.as_ref() == Some(first)));
                let origin = values.iter().map(|value| match value {
                    Given::Value(value) => self.origin(value),
                    Given::Each(list) => self.part(list),
                    Given::Raw(_) => Origin::Constant,
                    Given::Origin(origin) => *origin,
                });
                let origin = origin.max().unwrap_or_default();
                is_new |= texts.keep(*name, known) | (self.of.insert(*name, origin) != Some(origin));
            }
            if !is_new {
                return true;
            }
        }
        false
    }

    /// Where the text of this comes from.
    pub(super) fn origin(&self, expression: &Expr<'a>) -> Origin {
        let most = |parts: &[Expr<'a>]| parts.iter().map(|part| self.origin(part)).max().unwrap_or_default();
        match expression {
            Expr::Const(constant) if constant.value.as_str().is_some() => Origin::Constant,
            Expr::Const(_) | Expr::Compare(_) | Expr::Test(_) | Expr::UnaryOp(_) => Origin::Data,
            Expr::Var(name) => {
                let own = if TOKENS.contains(&name.id) { Origin::Computed } else { Origin::Data };
                self.of.get(&Name::Variable(name.id)).copied().unwrap_or(own)
            }
            Expr::GetAttr(get) => self.of.get(&Name::Attribute(get.name)).copied().unwrap_or_default(),
            Expr::List(list) => most(&list.items),
            Expr::Tuple(tuple) => most(&tuple.items),
            Expr::Map(map) => most(&map.values).max(most(&map.keys)),
            Expr::IfExpr(choice) => {
                let other = choice.false_expr.as_ref().map(|other| self.origin(other)).unwrap_or_default();
                self.origin(&choice.true_expr).max(other)
            }
            Expr::BinOp(operation) => {
                let either = self.origin(&operation.left).max(self.origin(&operation.right));
                match operation.op {
                    BinOpKind::ScAnd | BinOpKind::ScOr => either,
                    BinOpKind::Add | BinOpKind::Concat | BinOpKind::Mul | BinOpKind::Rem => computed(either),
                    _ => Origin::Data,
                }
            }
            // An item of a list is as it stands there; a letter of a text is not.
            Expr::GetItem(get) => self.part(&get.expr),
            Expr::Slice(slice) => self.part(&slice.expr),
            Expr::Filter(filter) if NUMBERS.contains(&filter.name) => Origin::Data,
            Expr::Filter(filter) if PARTS.contains(&filter.name) => {
                filter.expr.as_ref().map(|of| self.part(of)).unwrap_or_default()
            }
            Expr::Filter(filter) => {
                let of = filter.expr.as_ref().map(|of| self.origin(of)).unwrap_or_default();
                let all = of.max(self.arguments(&filter.args));
                if filter.name == "default" || filter.name == "d" { all } else { computed(all) }
            }
            Expr::Call(call) => match &call.expr {
                Expr::GetAttr(method) if NUMBERS.contains(&method.name) => Origin::Data,
                Expr::GetAttr(method) if PARTS.contains(&method.name) => self.part(&method.expr),
                Expr::GetAttr(method) => computed(self.origin(&method.expr).max(self.arguments(&call.args))),
                Expr::Var(function) if NUMBERS.contains(&function.id) => Origin::Data,
                Expr::Var(function) if MAKERS.contains(&function.id) => Origin::Computed,
                other => computed(self.origin(other).max(self.arguments(&call.args))),
            },
        }
    }

    fn part(&self, of: &Expr<'a>) -> Origin {
        match of {
            Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) | Expr::Var(_) | Expr::GetAttr(_) => self.origin(of),
            other => computed(self.origin(other)),
        }
    }

    fn arguments(&self, arguments: &[CallArg<'a>]) -> Origin {
        let origin = |argument: &CallArg<'a>| match argument {
            CallArg::Pos(value) | CallArg::PosSplat(value) | CallArg::KwargSplat(value) => self.origin(value),
            // `dict(__cla=1)|join` makes a text of a name.
            CallArg::Kwarg(_, value) => self.origin(value).max(Origin::Constant),
        };
        arguments.iter().map(origin).max().unwrap_or_default()
    }
}

fn computed(origin: Origin) -> Origin {
    if origin == Origin::Data { Origin::Data } else { Origin::Computed }
}

/// All that names are given in a template.
fn collect<'t, 'a>(body: &'t [Stmt<'a>], given: &mut Vec<(Name<'a>, Given<'t, 'a>)>) {
    for statement in body {
        match statement {
            Stmt::Set(set) => assign(&set.target, &set.expr, given),
            Stmt::WithBlock(with) => with.assignments.iter().for_each(|(target, value)| assign(target, value, given)),
            Stmt::SetBlock(set) => {
                if let Some(name) = name_of(&set.target) {
                    given.push((
                        name,
                        match (set.body.as_slice(), &set.filter) {
                            ([Stmt::EmitRaw(raw)], None) => Given::Raw(raw.raw),
                            _ => Given::Origin(Origin::Computed),
                        },
                    ));
                }
            }
            Stmt::ForLoop(each) => {
                let mut names = Vec::new();
                assign(&each.target, &each.iter, &mut names);
                given.extend(names.into_iter().map(|(name, _)| (name, Given::Each(&each.iter))));
            }
            Stmt::Macro(made) => {
                given.push((Name::Variable(made.name), Given::Origin(Origin::Computed)));
                of_macro(&made.args, given);
            }
            Stmt::CallBlock(call) => of_macro(&call.macro_decl.args, given),
            _ => {}
        }
        for body in bodies(statement) {
            collect(body, given);
        }
    }
}

/// What a macro is called with is written somewhere in the template, or comes from whoever renders it.
fn of_macro<'a>(arguments: &[Expr<'a>], given: &mut Vec<(Name<'a>, Given<'_, 'a>)>) {
    let names = arguments.iter().filter_map(name_of);
    given.extend(names.map(|name| (name, Given::Origin(Origin::Constant))));
}

fn assign<'t, 'a>(target: &'t Expr<'a>, value: &'t Expr<'a>, given: &mut Vec<(Name<'a>, Given<'t, 'a>)>) {
    if let Expr::Call(call) = value
        && matches!(&call.expr, Expr::Var(function) if function.id == "namespace")
    {
        for argument in &call.args {
            if let CallArg::Kwarg(name, value) = argument {
                given.push((Name::Attribute(name), Given::Value(value)));
            }
        }
        return;
    }
    match (items(target), items(value)) {
        (Some(targets), Some(values)) if targets.len() == values.len() => {
            targets.iter().zip(values).for_each(|(target, value)| assign(target, value, given));
        }
        (Some(targets), _) => targets.iter().for_each(|target| assign(target, value, given)),
        (None, _) => given.extend(name_of(target).map(|name| (name, Given::Value(value)))),
    }
}

fn items<'t, 'a>(list: &'t Expr<'a>) -> Option<&'t [Expr<'a>]> {
    match list {
        Expr::List(list) => Some(&list.items),
        Expr::Tuple(tuple) => Some(&tuple.items),
        _ => None,
    }
}

fn name_of<'a>(target: &Expr<'a>) -> Option<Name<'a>> {
    match target {
        Expr::Var(name) => Some(Name::Variable(name.id)),
        Expr::GetAttr(get) => Some(Name::Attribute(get.name)),
        _ => None,
    }
}
