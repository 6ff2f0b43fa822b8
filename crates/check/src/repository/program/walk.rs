//! The walk through a program's tree, twice: for what names stand for, and for what is called.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use max_weights::Result;
use max_weights::text::cut;
use max_weights::workers::Interrupt;
use tree_sitter::{Node, Tree, TreeCursor};

use super::danger::{self, Danger};
use super::names::Names;
use super::reach::{Place, Way, at_import};
use super::{Call, Program};

/// Calls that are kept of one program.
const MAX_CALLS: usize = 1000;
/// Bytes of arguments that are looked at for words.
const MAX_ARGUMENTS: usize = 64 << 10;
/// Characters of a call that are shown.
const SHOWN: usize = 120;

/// A node on the way to the one that is looked at.
struct Outer<'t> {
    kind: &'t str,
    /// The place in which what is in it stands.
    place: Rc<Place>,
}

/// Goes through all nodes, each after what it is in; the function is given the node, its field, and the kind of what it is in.
fn each<'t>(
    tree: &'t Tree,
    interrupt: Interrupt<'_>,
    mut visit: impl FnMut(Node<'t>, &str, &[Outer<'t>]) -> Rc<Place>,
) -> Result<()> {
    let mut cursor: TreeCursor<'t> = tree.walk();
    let mut outer: Vec<Outer<'t>> = Vec::new();
    for number in 0_usize.. {
        if number.is_multiple_of(4096) {
            interrupt()?;
        }
        let node = cursor.node();
        let place = visit(node, cursor.field_name().unwrap_or_default(), &outer);
        if cursor.goto_first_child() {
            outer.push(Outer { kind: node.kind(), place });
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return Ok(());
            }
            outer.pop();
        }
    }
    Ok(())
}

pub(super) fn walk(tree: &Tree, text: &str, interrupt: Interrupt<'_>) -> Result<Program> {
    let mut program = Program::default();
    let mut names = Names::new(text);
    let mut assignments = Vec::new();
    let nowhere = Rc::new(Place::default());
    each(tree, interrupt, |node, field, outer| {
        match node.kind() {
            "import_statement" | "import_from_statement" => {
                names.import(node);
                program.siblings.extend(siblings(node, &names));
            }
            "assignment" | "named_expression" | "keyword_argument" => {
                let [left, right] = if node.kind() == "assignment" { ["left", "right"] } else { ["name", "value"] };
                let pair = (node.child_by_field_name(left), node.child_by_field_name(right));
                if let ((Some(left), Some(right)), true) = (pair, node.kind() != "keyword_argument") {
                    assignments.push((left, right));
                    names.bound.insert(names.identifier(left));
                }
            }
            "class_definition" => {
                program.classes.extend(node.child_by_field_name("name").map(|name| names.identifier(name)));
            }
            "identifier" if outer.last().is_some_and(|outer| is_binding(outer.kind, field)) => {
                names.bound.insert(names.identifier(node));
            }
            "ERROR" => {
                program.broken.get_or_insert(node.start_position().row + 1);
            }
            _ if node.is_missing() => {
                program.broken.get_or_insert(node.start_position().row + 1);
            }
            _ => {}
        }
        nowhere.clone()
    })?;
    // What is assigned may be said in terms of what is assigned before, or after.
    for _ in 0..2 {
        for (number, (left, right)) in assignments.iter().enumerate() {
            if number.is_multiple_of(1024) {
                interrupt()?;
            }
            names.assign(*left, *right);
        }
    }
    let mut calls = Calls { names: &names, assigned: assigned(&assignments, &names), ..Calls::new(&names) };
    each(tree, interrupt, |node, field, outer| calls.visit(node, field, outer))?;
    let reached = at_import(&calls.functions, &calls.ways);
    let found = calls.found.into_iter();
    program.calls = found.map(|(call, place)| Call { at_import: reached.contains(&place), ..call }).collect();
    Ok(program)
}

/// Whether an identifier here is given a value.
fn is_binding(outer: &str, field: &str) -> bool {
    matches!(outer, "parameters" | "lambda_parameters" | "pattern_list" | "typed_parameter")
        || (matches!(outer, "default_parameter" | "typed_default_parameter" | "function_definition") && field == "name")
        || (matches!(outer, "for_statement" | "for_in_clause") && field == "left")
}

/// The modules beside the program that an import names.
fn siblings(node: Node<'_>, names: &Names<'_>) -> Vec<String> {
    let Some(module) = node.child_by_field_name("module_name") else { return Vec::new() };
    let Some(path) = names.of(module).strip_prefix('.') else { return Vec::new() };
    if !path.is_empty() {
        return vec![path.split('.').next().unwrap_or_default().to_owned()];
    }
    let mut cursor = node.walk();
    let imported = node.children_by_field_name("name", &mut cursor);
    imported.map(|name| names.of(name.child_by_field_name("name").unwrap_or(name)).to_owned()).collect()
}

/// The program's own text of what is assigned to each name.
fn assigned<'t>(assignments: &[(Node<'t>, Node<'t>)], names: &Names<'t>) -> HashMap<String, &'t str> {
    assignments.iter().map(|(left, right)| (names.identifier(*left), start_of(names.of(*right)))).collect()
}

fn start_of(text: &str) -> &str {
    let mut end = text.len().min(MAX_ARGUMENTS);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// The second walk.
struct Calls<'n, 't> {
    names: &'n Names<'t>,
    assigned: HashMap<String, &'t str>,
    found: Vec<(Call, Place)>,
    /// Where a call was found already: what is in it is not a second one.
    starts: HashSet<(usize, String)>,
    functions: HashSet<Place>,
    ways: HashMap<Place, Vec<Way>>,
}

impl<'n, 't> Calls<'n, 't> {
    fn new(names: &'n Names<'t>) -> Self {
        Self {
            names,
            assigned: HashMap::new(),
            found: Vec::new(),
            starts: HashSet::new(),
            functions: HashSet::new(),
            ways: HashMap::from([(Place::default(), Vec::new())]),
        }
    }

    /// Looks at a node, and says in which place stands what is in it.
    fn visit(&mut self, node: Node<'t>, field: &str, outer: &[Outer<'t>]) -> Rc<Place> {
        let (inside, place) = outer.last().map_or(("", Rc::default()), |outer| (outer.kind, outer.place.clone()));
        match node.kind() {
            "call" => self.call(node, &place),
            "exec_statement" => {
                let code = node.child_by_field_name("code");
                self.found(node, code, "exec", Danger::Execute, &place);
            }
            "attribute" | "subscript" => {
                let name = self.names.dotted(node, 0).map(|name| danger::plain(&name));
                if let Some((name, danger)) =
                    name.and_then(|name| danger::of_mention(&name).map(|danger| (name, danger)))
                {
                    self.found(node, None, &name, danger, &place);
                }
            }
            "identifier" => self.identifier(node, field, inside, &place),
            _ => {}
        }
        // From any value to all classes there are: `().__class__.__base__.__subclasses__()`.
        if node.kind() == "attribute"
            && node.child_by_field_name("attribute").is_some_and(|name| self.names.of(name) == "__subclasses__")
        {
            let of = node.child_by_field_name("object").map(|of| start_of(self.names.of(of))).unwrap_or_default();
            if ["__base", "__mro__", "mro()"].iter().any(|way| of.contains(way)) {
                self.found(node, None, "object.__subclasses__", Danger::Execute, &place);
            }
        }
        self.place_in(node, field, outer, place)
    }

    fn place_in(&mut self, node: Node<'t>, field: &str, outer: &[Outer<'t>], mut place: Rc<Place>) -> Rc<Place> {
        let inside = outer.last().map_or("", |outer| outer.kind);
        let parent = || node.parent();
        let name = |node: Option<Node<'t>>| {
            node.and_then(|node| node.child_by_field_name("name")).map(|name| self.names.identifier(name))
        };
        match (inside, field) {
            ("class_definition", "body") if place.function.is_none() => Rc::make_mut(&mut place).class = name(parent()),
            ("function_definition", "body") if place.function.is_none() => {
                Rc::make_mut(&mut place).function = name(parent());
                self.functions.insert((*place).clone());
            }
            ("if_statement", "consequence") => {
                let condition = parent().and_then(|node| node.child_by_field_name("condition"));
                let condition: String =
                    condition.map(|node| self.names.of(node)).unwrap_or_default().split_whitespace().collect();
                if ["__name__=='__main__'", "__name__==\"__main__\""].contains(&condition.as_str()) {
                    Rc::make_mut(&mut place).is_main = true;
                }
            }
            _ => {}
        }
        place
    }

    fn call(&mut self, node: Node<'t>, place: &Place) {
        let Some(function) = node.child_by_field_name("function") else { return };
        let arguments = node.child_by_field_name("arguments");
        let written = arguments.map(|arguments| start_of(self.names.of(arguments))).unwrap_or_default();
        self.follow(function, arguments, place);
        let Some(name) = self.names.dotted(function, 0).map(|name| danger::plain(&name)) else { return };
        if ["getattr", "vars", "globals"].contains(&name.as_str()) {
            let first = arguments.and_then(|arguments| arguments.named_child(0));
            let of = first.and_then(|first| self.names.dotted(first, 0));
            let root = of.filter(|of| danger::ROOTS.contains(&of.as_str()));
            let known = self.names.dotted(node, 0).map(|name| danger::plain(&name));
            match (root, known) {
                (_, Some(known)) => {
                    if let Some(danger) = danger::of_mention(&known) {
                        self.found(node, None, &known, danger, place);
                    }
                }
                (Some(root), None) if name == "getattr" => {
                    self.found(node, None, &format!("getattr({root}, …)"), Danger::Execute, place);
                }
                _ => {}
            }
            return;
        }
        let starred = || {
            let mut from = self.names.stars.iter().map(|module| danger::plain(&format!("{module}.{name}")));
            from.find_map(|name| danger::of_call(&name, written).map(|danger| (name, danger)))
        };
        let found = danger::of_call(&name, written).map(|danger| (name.clone(), danger)).or_else(starred);
        let Some((name, mut danger)) = found else { return };
        let first = arguments.and_then(|arguments| arguments.named_child(0));
        if matches!(name.as_str(), "__import__" | "importlib.import_module") {
            // A name that is written out is an import like any other.
            if first.is_some_and(|first| self.names.folded(first, 0).is_some()) {
                return;
            }
            if name == "__import__" {
                danger = Danger::Execute;
            }
        }
        self.found(node, first, &name, danger, place);
    }

    /// Notes which functions of the program this may call.
    fn follow(&mut self, function: Node<'t>, arguments: Option<Node<'t>>, place: &Place) {
        let ways = self.ways.entry(place.clone()).or_default();
        match function.kind() {
            "identifier" => ways.push(Way::Called(self.names.identifier(function))),
            "attribute" => {
                let object = function.child_by_field_name("object");
                let of_module = object.is_some_and(|object| self.names.imported.contains(self.names.of(object)));
                if let (Some(name), false) = (function.child_by_field_name("attribute"), of_module) {
                    ways.push(Way::Method(self.names.identifier(name)));
                }
            }
            _ => {}
        }
        let Some(arguments) = arguments else { return };
        let mut cursor = arguments.walk();
        for argument in arguments.named_children(&mut cursor) {
            let value = argument.child_by_field_name("value").filter(|_| argument.kind() == "keyword_argument");
            let value = value.unwrap_or(argument);
            if value.kind() == "identifier" {
                ways.push(Way::Passed(self.names.identifier(value)));
            }
        }
    }

    /// A name by itself: a decorator, or a dangerous function that is handed on.
    fn identifier(&mut self, node: Node<'t>, field: &str, inside: &str, place: &Place) {
        if inside == "decorator" {
            let way = Way::Called(self.names.identifier(node));
            self.ways.entry(place.clone()).or_default().push(way);
        }
        let named = matches!(field, "name" | "attribute" | "left" | "alias" | "module_name" | "function");
        let declared = matches!(inside, "dotted_name" | "aliased_import" | "global_statement" | "nonlocal_statement");
        if named || declared || is_binding(inside, field) {
            return;
        }
        let written = self.names.identifier(node);
        if self.names.bound.contains(&written) && !self.names.imported.contains(&written) {
            return;
        }
        let name = self.names.dotted(node, 0).map(|name| danger::plain(&name)).unwrap_or_default();
        if let Some(danger) = danger::of_mention(&name) {
            self.found(node, None, &name, danger, place);
        }
    }

    fn found(&mut self, node: Node<'t>, argument: Option<Node<'t>>, name: &str, danger: Danger, place: &Place) {
        if self.found.len() >= MAX_CALLS || !self.starts.insert((node.start_byte(), name.to_owned())) {
            return;
        }
        let mut danger = danger;
        if danger == Danger::Execute && argument.is_some_and(|argument| self.decodes(argument)) {
            danger = Danger::Hidden;
        }
        let call = Call {
            name: name.to_owned(),
            danger,
            line: node.start_position().row + 1,
            at_import: false,
            text: cut(start_of(self.names.of(node)), SHOWN).into_owned(),
        };
        self.found.push((call, place.clone()));
    }

    /// Whether what code is made of is decoded or fetched.
    fn decodes(&self, argument: Node<'t>) -> bool {
        let decodes = |text: &str| danger::DECODES.iter().any(|word| text.contains(word));
        let text = start_of(self.names.of(argument));
        if decodes(text) {
            return true;
        }
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).take(64);
        words.filter_map(|word| self.assigned.get(word)).any(|text| decodes(text))
    }
}
