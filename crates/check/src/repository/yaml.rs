//! YAML: the names that Hydra, OmegaConf, NeMo and Lightning call, and the tags of PyYAML that make objects.
//!
//! The events of the parser are examined one by one. Aliases are never expanded: the text of an anchor was examined at its
//! definition.

use std::collections::HashMap;

use max_weights::text::escape;
use max_weights::{Diagnostic, rules};
use saphyr_parser::{Event, Parser, Tag};

use super::{remote_code, targets, template};
use crate::words;

/// Mappings and lists in one another. PyYAML gives up before a thousand.
const MAX_NESTING: usize = 1000;
/// The longest name of a class that is looked at.
const MAX_NAME: usize = 1024;
/// Texts with anchors.
const MAX_ANCHORS: usize = 10_000;
/// MLflow's key for the module that loads a model.
const LOADER: &str = "loader_module";

/// Classes that training programs write by PyYAML's tags, and that do no more than hold a value.
const PLAIN_OBJECTS: &str = "
    argparse.Namespace collections.OrderedDict collections.defaultdict datetime. numpy.core.multiarray.scalar numpy._core.multiarray.scalar
    numpy.dtype pathlib. torch.device";
/// Tags of PyYAML for values that YAML has no own word for.
const PLAIN_TAGS: &str = "tuple str unicode none bool int long float list dict complex";

/// A mapping or a list that is open.
struct Open {
    is_mapping: bool,
    /// The key whose value comes next; `None` where a key comes next.
    key: Option<String>,
    /// Whether all texts in it are templates, by the key that it is the value of.
    is_template: bool,
    /// The keys that make another key name a class.
    keys: Vec<String>,
    /// The keys with texts that may name one.
    texts: Vec<(String, String, usize)>,
}

/// Examines the documents of a YAML file, and reports its findings.
pub fn check_yaml(bytes: &[u8], report: &mut dyn FnMut(Diagnostic)) {
    // PyYAML tells UTF-16 by its mark.
    let has_mark = bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff");
    let decoded = if has_mark { crate::json::decoded(bytes) } else { Vec::new() };
    let text = String::from_utf8_lossy(if has_mark { &decoded } else { bytes });
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let (mut open, mut anchors): (Vec<Open>, HashMap<usize, String>) = (Vec::new(), HashMap::new());
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = match event {
            Ok(event) => event,
            Err(error) => {
                unreadable(text, &error.to_string(), report);
                break;
            }
        };
        let line = span.start.line();
        match event {
            Event::StreamEnd => break,
            Event::Scalar(value, _, anchor, tag) => {
                if let Some(tag) = tag {
                    of_tag(&tag, Some(&value), line, report);
                }
                if anchor > 0 && anchors.len() < MAX_ANCHORS {
                    anchors.insert(anchor, value.to_string());
                }
                place(&mut open, Some(value.into_owned()), line, report);
            }
            Event::Alias(anchor) => place(&mut open, anchors.get(&anchor).cloned(), line, report),
            Event::SequenceStart(_, tag) | Event::MappingStart(_, tag) if open.len() >= MAX_NESTING => {
                drop(tag);
                unreadable(text, "its values are nested too deep", report);
                break;
            }
            Event::SequenceStart(_, tag) => {
                if let Some(tag) = tag {
                    of_tag(&tag, None, line, report);
                }
                open_one(&mut open, false);
            }
            Event::MappingStart(_, tag) => {
                if let Some(tag) = tag {
                    of_tag(&tag, None, line, report);
                }
                open_one(&mut open, true);
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(ended) = open.pop() {
                    of_mapping(&ended, report);
                }
                place(&mut open, None, line, report);
            }
            _ => {}
        }
    }
    // What broke off has mappings that are still open.
    for open in &open {
        of_mapping(open, report);
    }
}

/// Opens a mapping or a list.
fn open_one(open: &mut Vec<Open>, is_mapping: bool) {
    let is_template =
        open.last().is_some_and(|outer| outer.is_template || outer.key.as_deref().is_some_and(names_template));
    open.push(Open { is_mapping, key: None, is_template, keys: Vec::new(), texts: Vec::new() });
}

/// Whether the value of this key is a template: `chat_template`, `instruction_template`, `chat_templates`.
fn names_template(key: &str) -> bool {
    key.ends_with("template") || key.ends_with("templates")
}

/// Puts a value into what is open: a key, or the value of one.
fn place(open: &mut [Open], value: Option<String>, line: usize, report: &mut dyn FnMut(Diagnostic)) {
    let Some(open) = open.last_mut() else { return };
    let key = if open.is_mapping { open.key.take() } else { Some(String::new()) };
    match key {
        None => open.key = Some(value.unwrap_or_default()),
        Some(key) => {
            if open.is_template || names_template(&key) {
                let source = if key.is_empty() { "a template".to_owned() } else { escape(&key) };
                let mut of_template = |mut finding: Diagnostic| {
                    finding.message = format!("the value at line {line}: {}", finding.message);
                    report(finding);
                };
                if let Some(text) = &value {
                    template::check(text, &source, None, &mut of_template);
                }
            }
            if !open.is_mapping {
                return;
            }
            if targets::tells(&key) {
                open.keys.push(key.clone());
            }
            let may = targets::may_name(&key) || key == remote_code::TRUST_KEY || key == LOADER;
            open.texts.extend(value.filter(|value| may && value.len() <= MAX_NAME).map(|value| (key, value, line)));
        }
    }
}

fn of_mapping(open: &Open, report: &mut dyn FnMut(Diagnostic)) {
    for (key, value, line) in &open.texts {
        let others = open.keys.iter().map(String::as_str);
        if key == remote_code::TRUST_KEY && matches!(value.as_str(), "true" | "True" | "TRUE" | "yes" | "on") {
            report(remote_code::trusts(Some(*line)));
        }
        let dotted = value.contains('.') && !value.contains('/');
        let hydra = key.starts_with('_') || key.starts_with("py/");
        let may = ["class_path", "target"].contains(&key.as_str()) && dotted && targets::is_dangerous(value);
        // MLflow imports this module.
        let mlflow = key == LOADER && !value.starts_with("mlflow.");
        if !value.is_empty() && (mlflow || targets::names_target(key, others) && (hydra || dotted) || may) {
            report(targets::finding(key, value, Some(*line)));
        }
    }
}

/// PyYAML's tags: `!!python/object/apply:os.system`.
fn of_tag(tag: &Tag, value: Option<&str>, line: usize, report: &mut dyn FnMut(Diagnostic)) {
    let whole = format!("{}{}", tag.handle, tag.suffix);
    let Some((_, python)) = whole.split_once("python/") else { return };
    let python = percent_decoded(python);
    let (kind, name) = python.split_once(':').unwrap_or((&python, ""));
    if words::has(PLAIN_TAGS, kind) || kind == "bytes" || kind == "bytearray" {
        return;
    }
    let name = if name.is_empty() { value.unwrap_or_default() } else { name };
    let evidence = format!("!!python/{}", escape(&python));
    let plain = words::each(PLAIN_OBJECTS)
        .any(|plain| if plain.ends_with('.') { name.starts_with(plain) } else { name == plain });
    let calls = kind.starts_with("object/");
    let (rule, does) = if (calls && !plain) || targets::is_dangerous(name) {
        (rules::REPOSITORY_YAML_CALL, "makes PyYAML's unsafe loader call")
    } else {
        (rules::REPOSITORY_YAML_OBJECT, "makes PyYAML's unsafe loader import")
    };
    report(Diagnostic::new(rule, format!("line {line}: the tag {does} {}", escape(name))).evidence(evidence));
}

/// A tag may be written with `%6f` for a letter.
fn percent_decoded(text: &str) -> String {
    let (mut decoded, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| *first == b'%');
        decoded.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The parser gives up, where PyYAML may not: the words themselves are looked for.
fn unreadable(text: &str, why: &str, report: &mut dyn FnMut(Diagnostic)) {
    for (number, line) in text.lines().enumerate() {
        if let Some((_, tag)) = line.split_once("!!python/") {
            let suffix = tag.split_whitespace().next().unwrap_or_default();
            let tag = Tag { handle: "!!".to_owned(), suffix: format!("python/{suffix}") };
            of_tag(&tag, None, number + 1, report);
        }
        if let Some((_, target)) = line.split_once("_target_") {
            let name = target.trim_start_matches(['"', '\'', ' ', ':']).split(['"', '\'', ' ', ',', '}']).next();
            if let Some(name) = name.filter(|name| !name.is_empty()) {
                report(targets::finding("_target_", name, Some(number + 1)));
            }
        }
    }
    template::check_tags(text, "a text of it", report);
    report(Diagnostic::new(rules::REPOSITORY_YAML_UNREADABLE, format!("the YAML cannot be read: {}", escape(why))));
}
