//! What a name in a program stands for: through imports, assignments, `getattr`, and texts that are put together.

use std::collections::{HashMap, HashSet};

use tree_sitter::Node;
use unicode_normalization::UnicodeNormalization as _;

use super::danger;

/// Attributes of one another that are followed, and parts of a string. Nobody writes longer ones by hand.
const MAX_DEPTH: usize = 16;
const MAX_PARTS: usize = 40;
/// Names and texts that are put together get no longer than this.
const MAX_TEXT: usize = 256;
/// Names whose values are kept: with their lengths a limit on memory.
const MAX_NAMES: usize = 20_000;

/// The names of a program.
pub(super) struct Names<'t> {
    text: &'t str,
    /// What imports and assignments make of a name.
    known: HashMap<String, String>,
    /// Texts that are assigned.
    texts: HashMap<String, String>,
    /// Modules whose names are all imported.
    pub(super) stars: Vec<String>,
    /// Names that the program gives a value by itself.
    pub(super) bound: HashSet<String>,
    /// Names that come from imports.
    pub(super) imported: HashSet<String>,
}

impl<'t> Names<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self {
            text,
            known: HashMap::new(),
            texts: HashMap::new(),
            stars: Vec::new(),
            bound: HashSet::new(),
            imported: HashSet::new(),
        }
    }

    /// The program's own text of a node.
    pub(super) fn of(&self, node: Node<'t>) -> &'t str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }

    /// The name that an identifier is for Python, which takes a letter in bold for the letter.
    pub(super) fn identifier(&self, node: Node<'t>) -> String {
        let name = self.of(node);
        if name.is_ascii() { name.to_owned() } else { name.nfkc().collect() }
    }

    /// Takes in an import.
    pub(super) fn import(&mut self, node: Node<'t>) {
        let module = node.child_by_field_name("module_name");
        let from = module.map(|module| self.of(module).to_owned());
        let mut cursor = node.walk();
        for child in node.children(&mut cursor) {
            let (path, alias) = match child.kind() {
                "wildcard_import" => {
                    self.stars.extend(from.clone());
                    continue;
                }
                "dotted_name" if Some(child) != module => (self.identifier(child), None),
                "aliased_import" => {
                    let part = |field| child.child_by_field_name(field).map(|part| self.identifier(part));
                    (part("name").unwrap_or_default(), part("alias"))
                }
                _ => continue,
            };
            let path: String = path.split_whitespace().collect();
            let (name, value) = match (&from, alias) {
                (Some(from), alias) => (alias.unwrap_or_else(|| path.clone()), format!("{from}.{path}")),
                (None, Some(alias)) => (alias, path),
                (None, None) => {
                    let first = path.split('.').next().unwrap_or_default().to_owned();
                    (first.clone(), first)
                }
            };
            self.imported.insert(name.clone());
            self.learn(name, value);
        }
    }

    /// Takes in `left = right`.
    pub(super) fn assign(&mut self, left: Node<'t>, right: Node<'t>) {
        if left.kind() != "identifier" {
            return;
        }
        let name = self.identifier(left);
        if let Some(value) = self.dotted(right, 0).filter(|value| *value != name) {
            let root = value.split('.').next().unwrap_or_default();
            let leads =
                danger::ROOTS.contains(&root) || value.contains('.') || ["exec", "eval", "compile"].contains(&root);
            if leads {
                self.learn(name.clone(), value);
            }
        }
        if let Some(text) = self.folded(right, 0).filter(|_| self.texts.len() < MAX_NAMES) {
            self.texts.insert(name, text);
        }
    }

    /// A name that is given several values keeps the one that is dangerous.
    fn learn(&mut self, name: String, value: String) {
        let root = value.split('.').next().unwrap_or_default();
        let fits = value.len() <= MAX_TEXT && self.known.len() < MAX_NAMES;
        if fits && (danger::ROOTS.contains(&root) || !self.known.contains_key(&name)) {
            self.known.insert(name, value);
        }
    }

    /// The full name of what an expression stands for: `os.system` for `getattr(__import__("os"), "sys" + "tem")`.
    pub(super) fn dotted(&self, node: Node<'t>, depth: usize) -> Option<String> {
        if depth > MAX_DEPTH {
            return None;
        }
        let field = |name| node.child_by_field_name(name);
        let name = match node.kind() {
            "identifier" => {
                let name = self.identifier(node);
                self.known.get(&name).cloned().unwrap_or(name)
            }
            "attribute" => {
                let of = self.dotted(field("object")?, depth + 1)?;
                let name = self.identifier(field("attribute")?);
                if name == "__dict__" { of } else { format!("{of}.{name}") }
            }
            "parenthesized_expression" => self.dotted(node.named_child(0)?, depth + 1)?,
            "named_expression" => self.dotted(field("value")?, depth + 1)?,
            "subscript" => {
                let of = self.dotted(field("value")?, depth + 1)?;
                let key = self.folded(field("subscript")?, depth + 1)?;
                self.item(&of, &key)?
            }
            "call" => {
                let function = danger::plain(&self.dotted(field("function")?, depth + 1)?);
                let argument = |number| field("arguments").and_then(|arguments| arguments.named_child(number));
                let text = |number| argument(number).and_then(|argument| self.folded(argument, depth + 1));
                match function.as_str() {
                    "__import__" | "importlib.import_module" | "importlib.__import__" => text(0)?,
                    "pydoc.locate" | "pkgutil.resolve_name" => text(0)?.replace(':', "."),
                    "getattr" | "object.__getattribute__" => {
                        format!("{}.{}", self.dotted(argument(0)?, depth + 1)?, text(1)?)
                    }
                    "vars" => self.dotted(argument(0)?, depth + 1)?,
                    "globals" | "locals" => "globals()".to_owned(),
                    "operator.attrgetter" => return None,
                    other => {
                        // `os.__dict__.get("system")`, `os.__getattribute__("system")`, `sys.modules.get("os")`
                        let (of, method) = other.rsplit_once('.')?;
                        if !["get", "__getitem__", "__getattribute__", "pop"].contains(&method) {
                            return None;
                        }
                        self.item(of, &text(0)?)?
                    }
                }
            }
            _ => return None,
        };
        (name.len() <= MAX_TEXT).then_some(name)
    }

    /// What an item of a dict of names stands for.
    fn item(&self, of: &str, key: &str) -> Option<String> {
        let of = of.strip_suffix(".__globals__").map_or(of, |_| "globals()");
        match of {
            "sys.modules" | "os.sys.modules" => Some(key.to_owned()),
            "globals()" => Some(self.known.get(key).cloned().unwrap_or_else(|| key.to_owned())),
            of if danger::ROOTS.contains(&of) => Some(format!("{of}.{key}")),
            _ => None,
        }
    }

    /// The text that an expression makes, as far as that can be known without running it.
    pub(super) fn folded(&self, node: Node<'t>, depth: usize) -> Option<String> {
        if depth > MAX_PARTS {
            return None;
        }
        let field = |name| node.child_by_field_name(name);
        let text = match node.kind() {
            "string" => self.literal(node)?,
            "concatenated_string" => {
                let mut cursor = node.walk();
                let parts: Option<Vec<String>> = node
                    .named_children(&mut cursor)
                    .filter(|part| part.kind() == "string")
                    .map(|part| self.literal(part))
                    .collect();
                parts?.concat()
            }
            "identifier" => self.texts.get(&self.identifier(node))?.clone(),
            "parenthesized_expression" => self.folded(node.named_child(0)?, depth + 1)?,
            "binary_operator" if self.of(field("operator")?) == "+" => {
                self.folded(field("left")?, depth + 1)? + &self.folded(field("right")?, depth + 1)?
            }
            "subscript" if self.of(field("subscript")?).split_whitespace().collect::<String>() == "::-1" => {
                self.folded(field("value")?, depth + 1)?.chars().rev().collect()
            }
            "call" => {
                let (function, arguments) = (field("function")?, field("arguments")?);
                let first = arguments.named_child(0);
                if function.kind() == "identifier" && self.identifier(function) == "chr" {
                    let number = self.of(first?).trim().parse::<u32>().ok().and_then(char::from_u32)?;
                    number.to_string()
                } else if function.kind() == "attribute"
                    && self.of(function.child_by_field_name("attribute")?) == "join"
                {
                    let separator = self.folded(function.child_by_field_name("object")?, depth + 1)?;
                    let list = first.filter(|list| matches!(list.kind(), "list" | "tuple"))?;
                    let mut cursor = list.walk();
                    let parts: Option<Vec<String>> =
                        list.named_children(&mut cursor).map(|part| self.folded(part, depth + 1)).collect();
                    parts?.join(&separator)
                } else {
                    return None;
                }
            }
            _ => return None,
        };
        (text.len() <= MAX_TEXT).then_some(text)
    }

    /// The value of a literal text; `None` where it is put together as the program runs.
    fn literal(&self, node: Node<'t>) -> Option<String> {
        let mut text = String::new();
        let mut cursor = node.walk();
        for part in node.children(&mut cursor) {
            match part.kind() {
                "string_content" => text.push_str(self.of(part)),
                "interpolation" => return None,
                _ => {}
            }
        }
        if text.contains('\\') { unescaped(&text) } else { Some(text) }
    }
}

/// A string with `\x6f`, `\u006f` and `\157` as the characters that they stand for; `None` where one is called by its name.
fn unescaped(text: &str) -> Option<String> {
    if text.contains("\\N{") {
        return None;
    }
    // A line that is continued in a text ends there without a trace.
    let text = text.replace("\\\n", "");
    let (mut out, mut rest) = (String::new(), text.as_str());
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let digits = |skip: usize, len: usize, base: u32| {
            let code = u32::from_str_radix(after.get(skip..skip + len)?, base).ok()?;
            Some((char::from_u32(code)?, skip + len))
        };
        let (c, len) = match after.bytes().next() {
            Some(b'x') => digits(1, 2, 16),
            Some(b'u') => digits(1, 4, 16),
            Some(b'U') => digits(1, 8, 16),
            Some(b'0'..=b'7') => digits(0, 3, 8).or_else(|| digits(0, 2, 8)).or_else(|| digits(0, 1, 8)),
            _ => None,
        }
        .unwrap_or(('\\', 0));
        out.push(c);
        rest = after.get(len..).unwrap_or_default();
    }
    Some(out + rest)
}
