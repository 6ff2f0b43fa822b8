//! The tree of a template: every attribute that it takes of anything, with the names that it puts together.

use std::collections::HashSet;

use max_weights::rules::{self, Rule};
use max_weights::text::shown;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Stmt};

use super::origin::{Origin, Origins};
use super::texts::Texts;
use super::{Seen, names};

/// Items of a range that no chat template needs; Jinja's sandbox allows a tenth of it.
const MAX_MADE: f64 = 1_000_000.0;

/// Looks through a template; tells whether all texts in it could be put together.
pub(super) fn look(template: &Stmt<'_>, seen: &mut Vec<Seen>) -> bool {
    let mut look = Look { seen, texts: Texts::default(), origins: Origins::default(), bound: HashSet::new() };
    // What a name stands for may be said behind the place of its use, in a loop.
    let is_known = look.origins.learn(template, &mut look.texts);
    look.names(std::slice::from_ref(template));
    look.statements(std::slice::from_ref(template));
    is_known && !look.texts.gave_up()
}

struct Look<'s, 'a> {
    seen: &'s mut Vec<Seen>,
    /// What `{% set %}` gives a string that is known.
    texts: Texts<'a>,
    /// Where the texts come from that are not.
    origins: Origins<'a>,
    /// Names that the template gives a value.
    bound: HashSet<&'a str>,
}

impl<'a> Look<'_, 'a> {
    fn report(&mut self, rule: &'static Rule, span: Span, sentence: impl Into<String>) {
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        self.seen.push(Seen { rule, sentence: sentence.into(), line: usize::from(span.start_line).max(1), start, end });
    }

    fn escape(&mut self, span: Span, sentence: impl Into<String>) {
        self.report(rules::REPOSITORY_TEMPLATE_ESCAPE, span, sentence);
    }

    /// Collects what names are given values.
    fn names(&mut self, body: &[Stmt<'a>]) {
        for statement in body {
            match statement {
                Stmt::Set(set) => self.bind(&set.target),
                Stmt::SetBlock(set) => self.bind(&set.target),
                Stmt::ForLoop(each) => self.bind(&each.target),
                Stmt::WithBlock(with) => with.assignments.iter().for_each(|(target, _)| self.bind(target)),
                Stmt::Macro(made) => made.args.iter().for_each(|argument| self.bind(argument)),
                Stmt::CallBlock(call) => call.macro_decl.args.iter().for_each(|argument| self.bind(argument)),
                _ => {}
            }
            for body in bodies(statement) {
                self.names(body);
            }
        }
    }

    fn bind(&mut self, target: &Expr<'a>) {
        match target {
            Expr::Var(name) => {
                self.bound.insert(name.id);
            }
            Expr::List(list) => list.items.iter().for_each(|item| self.bind(item)),
            Expr::Tuple(tuple) => tuple.items.iter().for_each(|item| self.bind(item)),
            _ => {}
        }
    }

    fn statements(&mut self, body: &[Stmt<'a>]) {
        for statement in body {
            match statement {
                Stmt::EmitExpr(emit) => self.expression(&emit.expr),
                Stmt::ForLoop(each) => {
                    self.expression(&each.iter);
                    each.filter_expr.iter().for_each(|filter| self.expression(filter));
                }
                Stmt::IfCond(condition) => self.expression(&condition.expr),
                Stmt::WithBlock(with) => with.assignments.iter().for_each(|(_, value)| self.expression(value)),
                Stmt::Set(set) => {
                    self.expression(&set.target);
                    self.expression(&set.expr);
                }
                Stmt::SetBlock(set) => set.filter.iter().for_each(|filter| self.expression(filter)),
                Stmt::AutoEscape(escape) => self.expression(&escape.enabled),
                Stmt::FilterBlock(filter) => self.expression(&filter.filter),
                Stmt::Macro(made) => made.defaults.iter().for_each(|default| self.expression(default)),
                Stmt::CallBlock(call) => {
                    self.expression(&call.call.expr);
                    self.arguments(&call.call.args, call.call.span());
                    call.macro_decl.defaults.iter().for_each(|default| self.expression(default));
                }
                Stmt::Do(call) => {
                    self.expression(&call.call.expr);
                    self.arguments(&call.call.args, call.call.span());
                }
                Stmt::Import(import) => self.loads(import.span(), "import", &import.expr),
                Stmt::FromImport(import) => self.loads(import.span(), "import", &import.expr),
                Stmt::Extends(extends) => self.loads(extends.span(), "extend", &extends.name),
                Stmt::Include(include) => self.loads(include.span(), "include", &include.name),
                Stmt::Template(_) | Stmt::EmitRaw(_) | Stmt::Block(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
            }
            for body in bodies(statement) {
                self.statements(body);
            }
        }
    }

    fn loads(&mut self, span: Span, does: &str, name: &Expr<'a>) {
        let name =
            self.texts.of(name).map_or_else(|| "another template".to_owned(), |name| format!("'{}'", shown(&name)));
        self.report(rules::REPOSITORY_TEMPLATE_INCLUDE, span, format!("it would {does} {name}"));
    }

    fn expression(&mut self, expression: &Expr<'a>) {
        if let Some(inside) = self.put_together(expression) {
            self.escape(expression.span(), format!("'{inside}' is assembled from parts"));
        }
        if self.exhausts(expression) {
            let sentence = format!("it makes more than {MAX_MADE} of something");
            self.report(rules::REPOSITORY_TEMPLATE_EXHAUSTS, expression.span(), sentence);
        }
        match expression {
            Expr::Var(_) => {}
            Expr::Const(constant) => {
                if let Some(inside) = constant.value.as_str().and_then(names::inside_in) {
                    self.escape(constant.span(), format!("the string '{inside}' names a Python internal"));
                }
                if let Some(inside) = constant.value.as_str().and_then(names::inside_of_format) {
                    self.escape(constant.span(), format!("a format string reaches for {inside}"));
                }
            }
            Expr::Slice(slice) => {
                self.expression(&slice.expr);
                [&slice.start, &slice.stop, &slice.step].into_iter().flatten().for_each(|part| self.expression(part));
            }
            Expr::UnaryOp(operation) => self.expression(&operation.expr),
            Expr::BinOp(operation) => {
                self.expression(&operation.left);
                self.expression(&operation.right);
            }
            Expr::Compare(compare) => {
                self.expression(&compare.expr);
                compare.ops.iter().for_each(|operation| self.expression(&operation.expr));
            }
            Expr::IfExpr(choice) => {
                self.expression(&choice.test_expr);
                self.expression(&choice.true_expr);
                choice.false_expr.iter().for_each(|other| self.expression(other));
            }
            Expr::Filter(filter) => {
                self.filter(filter.name, filter.expr.as_ref(), &filter.args, filter.span());
                filter.expr.iter().for_each(|of| self.expression(of));
                self.arguments(&filter.args, filter.span());
            }
            Expr::Test(test) => {
                self.expression(&test.expr);
                self.arguments(&test.args, test.span());
            }
            Expr::GetAttr(get) => {
                self.attribute(&get.expr, get.name, get.span());
                self.expression(&get.expr);
            }
            Expr::GetItem(get) => {
                let name = self.texts.of(&get.subscript_expr);
                self.attribute(&get.expr, name.as_deref().unwrap_or_default(), get.span());
                if name.is_none() && self.origins.origin(&get.subscript_expr) == Origin::Computed {
                    self.computed(get.span(), "it takes an item by a name that it computes");
                }
                self.expression(&get.expr);
                self.expression(&get.subscript_expr);
            }
            Expr::Call(call) => {
                if let Expr::GetAttr(method) = &call.expr
                    && ["format", "format_map"].contains(&method.name)
                {
                    self.format(&method.expr, call.span());
                }
                self.expression(&call.expr);
                self.arguments(&call.args, call.span());
            }
            Expr::List(list) => list.items.iter().for_each(|item| self.expression(item)),
            Expr::Tuple(tuple) => tuple.items.iter().for_each(|item| self.expression(item)),
            Expr::Map(map) => map.keys.iter().chain(&map.values).for_each(|item| self.expression(item)),
        }
    }

    /// A string is filled in that may reach into what it is given.
    fn format(&mut self, pattern: &Expr<'a>, span: Span) {
        match self.texts.of(pattern) {
            Some(text) => {
                if let Some(inside) = names::inside_of_format(&text) {
                    self.escape(span, format!("a format string reaches for {inside}"));
                }
            }
            None if self.origins.origin(pattern) == Origin::Computed => {
                self.computed(span, "it fills in a string that it computes");
            }
            None => {}
        }
    }

    fn computed(&mut self, span: Span, sentence: &str) {
        self.report(rules::REPOSITORY_TEMPLATE_COMPUTED, span, sentence);
    }

    fn arguments(&mut self, arguments: &[CallArg<'a>], span: Span) {
        for argument in arguments {
            match argument {
                CallArg::Pos(value) | CallArg::PosSplat(value) | CallArg::KwargSplat(value) => self.expression(value),
                CallArg::Kwarg(name, value) => {
                    // `dict(__class__=x)|first` makes a text of a name.
                    if names::is_inside(name) {
                        self.escape(span, format!("the argument '{}' names a Python internal", shown(name)));
                    }
                    self.expression(value);
                }
            }
        }
    }

    /// An attribute or item of this name (empty: not known) is taken of a value.
    fn attribute(&mut self, of: &Expr<'a>, name: &str, span: Span) {
        if names::is_inside(name) {
            return self.escape(span, format!("it reaches for {}, a Python internal", shown(name)));
        }
        let Expr::Var(base) = of else { return };
        if self.bound.contains(base.id) {
            return;
        }
        if names::OWN.contains(&base.id) {
            self.escape(span, format!("it looks into {}, which Jinja gives every template", base.id));
        } else if names::WEB.contains(&base.id) {
            let sentence = format!("it looks into {}, which web frameworks give their templates", base.id);
            self.report(rules::REPOSITORY_TEMPLATE_GLOBAL, span, sentence);
        }
    }

    fn filter(&mut self, name: &str, of: Option<&Expr<'a>>, arguments: &[CallArg<'a>], span: Span) {
        let by_name = |wanted: &str| {
            arguments.iter().find_map(|argument| match argument {
                CallArg::Kwarg(name, value) if *name == wanted => Some(value),
                _ => None,
            })
        };
        let by_place = |number: usize| match arguments.get(number) {
            Some(CallArg::Pos(value)) => Some(value),
            _ => None,
        };
        let attribute = match name {
            "attr" => by_place(0).or_else(|| by_name("name")),
            "map" if by_place(0).and_then(|filter| self.texts.of(filter)).as_deref() == Some("attr") => by_place(1),
            "map" | "sum" | "sort" | "groupby" | "unique" | "min" | "max" | "join" => by_name("attribute"),
            "selectattr" | "rejectattr" => by_place(0),
            _ => None,
        };
        let Some(attribute) = attribute else {
            if name == "attr" || name == "map" && matches!(by_place(0), Some(filter) if self.texts.of(filter).is_none())
            {
                self.escape(span, format!("the filter '{name}' takes an attribute whose name cannot be known"));
            }
            return;
        };
        match (self.texts.of(attribute), of) {
            (None, _) => self.escape(span, format!("the filter '{name}' takes an attribute whose name is computed")),
            (Some(path), of) => {
                for part in path.split('.') {
                    match of {
                        Some(of) => self.attribute(of, part, span),
                        None if names::is_inside(part) => {
                            self.escape(span, format!("it reaches for {}, a Python internal", shown(part)));
                        }
                        None => {}
                    }
                }
            }
        }
    }

    /// Whether this is a range, a string or a number without end: `range(10**9)`, `'a' * 10**9`.
    fn exhausts(&self, expression: &Expr<'a>) -> bool {
        let many = |value: &Expr<'a>| self.texts.number(value, 0).is_some_and(|number| number > MAX_MADE);
        match expression {
            Expr::Call(call) => {
                matches!(&call.expr, Expr::Var(name) if name.id == "range" && !self.bound.contains(name.id))
                    && call.args.iter().any(|argument| matches!(argument, CallArg::Pos(value) if many(value)))
            }
            Expr::BinOp(operation) => match operation.op {
                BinOpKind::Mul => {
                    let is_text = |value: &Expr<'a>| {
                        matches!(value, Expr::List(_))
                            || matches!(value, Expr::Const(text) if text.value.as_str().is_some())
                    };
                    (is_text(&operation.left) && many(&operation.right))
                        || (is_text(&operation.right) && many(&operation.left))
                }
                BinOpKind::Pow => many(&operation.right),
                _ => false,
            },
            _ => false,
        }
    }

    /// The inside of Python whose name this makes of parts.
    fn put_together(&self, expression: &Expr<'a>) -> Option<&'static str> {
        let makes =
            matches!(expression, Expr::BinOp(_) | Expr::Filter(_) | Expr::Slice(_) | Expr::GetItem(_) | Expr::Call(_));
        names::inside_in(&makes.then(|| self.texts.of(expression)).flatten()?)
    }
}

/// The statements in a statement.
pub(super) fn bodies<'b, 'a>(statement: &'b Stmt<'a>) -> Vec<&'b [Stmt<'a>]> {
    match statement {
        Stmt::Template(template) => vec![&template.children],
        Stmt::ForLoop(each) => vec![&each.body, &each.else_body],
        Stmt::IfCond(condition) => vec![&condition.true_body, &condition.false_body],
        Stmt::WithBlock(with) => vec![&with.body],
        Stmt::SetBlock(set) => vec![&set.body],
        Stmt::AutoEscape(escape) => vec![&escape.body],
        Stmt::FilterBlock(filter) => vec![&filter.body],
        Stmt::Block(block) => vec![&block.body],
        Stmt::Macro(made) => vec![&made.body],
        Stmt::CallBlock(call) => vec![&call.macro_decl.body],
        _ => Vec::new(),
    }
}
