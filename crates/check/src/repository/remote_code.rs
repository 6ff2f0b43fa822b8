//! Configurations that make loaders run code: `auto_map` and its relatives, of Transformers, Diffusers, PEFT and sentence-transformers.

use std::collections::HashMap;
use std::path::Path;

use max_weights::source::store;
use max_weights::text::escape;
use max_weights::{Diagnostic, rules};
use serde_json::{Map, Value};

use super::program::Program;
use super::targets;
use crate::json;

/// The key by which a configuration asks its loader to run code without asking its user.
pub(super) const TRUST_KEY: &str = "trust_remote_code";
/// Classes that a message names.
const NAMED: usize = 6;
/// Findings about the targets of one configuration.
const MAX_TARGETS: usize = 50;
/// Distinct classes of remote code in one configuration; models have a handful.
const MAX_REFERENCES: usize = 1000;

/// Keys whose value may be the repository of kernels; the third is meant for Transformers itself, which takes it from files as well
/// (CVE-2026-4372).
const KERNELS: [&str; 5] = [
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_internal",
    "experts_implementation",
    "_experts_implementation",
];

/// Where code that a configuration names comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    /// The other repository; none: this one.
    pub(super) repository: Option<String>,
    /// The module, with dots: `modeling_x`.
    pub(super) module: String,
    /// The class in it.
    pub(super) class: String,
    /// The key that names it: `auto_map.AutoModel`.
    pub(super) key: String,
}

/// The known files in the folder of a configuration.
#[derive(Default)]
pub(super) struct ConfigCompanions<'a> {
    /// The folder.
    pub(super) folder: Option<&'a Path>,
    /// The programs in it, by their names.
    pub(super) programs: HashMap<&'a str, Program>,
}

impl ConfigCompanions<'_> {
    /// Whether there is a program of this module: `modeling_x` or `unet.my_blocks`.
    fn has_module(&self, module: &str) -> bool {
        let plain = !module.is_empty() && module.split('.').all(|part| !part.is_empty() && !part.contains(['/', '\\']));
        let file = format!("{}.py", module.replace('.', "/"));
        self.programs.contains_key(file.as_str())
            || plain && self.folder.is_some_and(|folder| !store::is_url(folder) && folder.join(file).is_file())
    }

    /// The module in the same folder that defines a class of this name.
    fn module_of_class(&self, class: &str) -> Option<String> {
        let defining = self.programs.iter().filter(|(_, program)| program.classes.contains(class));
        defining.map(|(name, _)| *name).min().map(|name| name.strip_suffix(".py").unwrap_or(name).to_owned())
    }
}

/// Searches a configuration for keys that make loaders run code, and returns the code that it names.
pub(super) fn look(
    text: &[u8],
    value: &Value,
    name: &str,
    companions: &ConfigCompanions<'_>,
    report: &mut dyn FnMut(Diagnostic),
) -> Vec<Reference> {
    let mut references = Vec::new();
    let (mut left, mut trusted) = (MAX_TARGETS, false);
    objects(value, &mut |object| {
        of_object(object, companions, &mut references);
        for (key, target) in targets::of_object(object) {
            if left > 0 {
                left -= 1;
                let line = line_of(text, &quoted(&target));
                report(targets::finding(&key, &target, line));
            }
        }
        if object.get(TRUST_KEY).is_some_and(|value| *value == Value::Bool(true) || value.as_str() == Some("true")) {
            // Each would be reported at the line of the first.
            if !std::mem::replace(&mut trusted, true) {
                report(trusts(line_of(text, TRUST_KEY)));
            }
        }
    });
    if name == "model_index.json" || name == "modular_model_index.json" {
        of_model_index(text, value, companions, &mut references, report);
    }
    if name == "modules.json" || name == "router_config.json" {
        of_modules(text, value, companions, &mut references, report);
    }
    for finding in findings(text, &references, companions) {
        report(finding);
    }
    references
}

/// The finding about a configuration that trusts code by itself.
pub(super) fn trusts(line: Option<usize>) -> Diagnostic {
    let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
    let sentence =
        format!("{place}the configuration sets {TRUST_KEY}, with which loaders run a repository's code without asking");
    Diagnostic::new(rules::REPOSITORY_TRUST_KEY, sentence).evidence(format!("{TRUST_KEY}: true"))
}

/// The line of the first occurrence.
fn line_of(text: &[u8], requested: &str) -> Option<usize> {
    json::line_of(text, requested).map(|(line, _)| line)
}

fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// All objects in a value, each before what is in it. Its depth is bounded by the reader's.
pub(super) fn objects(value: &Value, visit: &mut dyn FnMut(&Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            visit(object);
            object.values().for_each(|value| objects(value, visit));
        }
        Value::Array(list) => list.iter().for_each(|value| objects(value, visit)),
        _ => {}
    }
}

fn of_object(object: &Map<String, Value>, companions: &ConfigCompanions<'_>, references: &mut Vec<Reference>) {
    if references.len() >= MAX_REFERENCES {
        return;
    }
    match object.get("auto_map") {
        Some(Value::Object(map)) => {
            for (auto, classes) in map {
                add(&format!("auto_map.{auto}"), classes, references);
            }
        }
        Some(other) => add("auto_map", other, references),
        None => {}
    }
    if let Some(Value::Object(pipelines)) = object.get("custom_pipelines") {
        for (task, pipeline) in pipelines {
            pipeline
                .get("impl")
                .into_iter()
                .for_each(|class| add(&format!("custom_pipelines.{task}"), class, references));
        }
    }
    if let Some(pipeline) = object.get("custom_pipeline").and_then(Value::as_str) {
        // Diffusers takes the name of a repository, or of one of its community's programs, where no program is here.
        let here = pipeline.trim_end_matches(".py");
        let repository = (!companions.has_module(here)).then(|| pipeline.to_owned());
        let module = if repository.is_some() { "pipeline" } else { here };
        let (module, class) = (module.to_owned(), String::new());
        references.push(Reference { repository, module, class, key: "custom_pipeline".to_owned() });
    }
    // The name of a repository with kernels, which are libraries that are loaded.
    for key in KERNELS {
        // By itself, or one for each part of the model.
        let value = object.get(key);
        let parts = value.and_then(Value::as_object).into_iter().flat_map(Map::values);
        let texts = value.into_iter().chain(parts).filter_map(Value::as_str);
        references.extend(texts.filter(|name| name.contains('/')).map(|name| Reference {
            repository: Some(name.to_owned()),
            module: "kernels".to_owned(),
            class: String::new(),
            key: key.to_owned(),
        }));
    }
    // A class of an unknown name that a program in the same folder defines.
    for key in [
        "tokenizer_class",
        "processor_class",
        "image_processor_type",
        "feature_extractor_type",
        "_class_name",
        "_blocks_class_name",
    ] {
        let Some(Value::String(class)) = object.get(key) else { continue };
        if let Some(module) = companions.module_of_class(class) {
            references.push(Reference { repository: None, module, class: class.clone(), key: key.to_owned() });
        }
    }
}

/// The classes of one entry of `auto_map`: a string, or a list of a slow and a fast one.
fn add(key: &str, classes: &Value, references: &mut Vec<Reference>) {
    let texts: Vec<&str> = match classes {
        Value::String(text) => vec![text],
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
        Value::Object(map) => map.values().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for text in texts.into_iter().take(MAX_REFERENCES) {
        let (repository, path) = match text.split_once("--") {
            Some((repository, path)) => (Some(repository.to_owned()), path),
            None => (None, text),
        };
        let (module, class) = path.rsplit_once('.').unwrap_or((path, ""));
        let reference =
            Reference { repository, module: module.to_owned(), class: class.to_owned(), key: key.to_owned() };
        if references.len() < MAX_REFERENCES && !references.contains(&reference) {
            references.push(reference);
        }
    }
}

/// Diffusers: `"unet": ["my_blocks", "MyUNet"]`, where `my_blocks.py` is in the folder or in `unet/`; otherwise the library is imported. Pipelines of
/// blocks have a third value, in which the same pair is the hint of a type.
fn of_model_index(
    text: &[u8],
    value: &Value,
    companions: &ConfigCompanions<'_>,
    references: &mut Vec<Reference>,
    report: &mut dyn FnMut(Diagnostic),
) {
    let Value::Object(object) = value else { return };
    // The class of the pipeline itself has a module where it is none of Diffusers' own.
    let components = object.iter().filter(|(key, _)| !key.starts_with('_') || *key == "_class_name");
    let hint =
        |entry: &Value| entry.as_array().and_then(|list| list.get(2)).and_then(|more| more.get("type_hint")).cloned();
    let hints = components.clone().filter_map(|(key, entry)| Some((key.as_str(), hint(entry)?)));
    let pairs = components.map(|(key, entry)| (key.as_str(), entry.clone())).chain(hints);
    let mut left = MAX_TARGETS;
    for (key, entry) in pairs {
        let Some([Value::String(library), Value::String(class), ..]) = entry.as_array().map(Vec::as_slice) else {
            continue;
        };
        let mut modules = [library.clone(), format!("{key}.{library}")].into_iter();
        let here = modules.find(|module| companions.has_module(module) || key == "_class_name");
        if let Some(module) = here {
            references.push(Reference { repository: None, module, class: class.clone(), key: key.to_owned() });
        } else if !targets::is_part_of_diffusers(library) || targets::is_dangerous(&format!("{library}.{class}")) {
            let line = line_of(text, &quoted(library));
            if left > 0 {
                left -= 1;
                report(targets::finding(key, &format!("{library}.{class}"), line));
            }
        }
    }
}

/// Sentence-transformers: the types of `modules.json`, and of a router, are imported.
fn of_modules(
    text: &[u8],
    value: &Value,
    companions: &ConfigCompanions<'_>,
    references: &mut Vec<Reference>,
    report: &mut dyn FnMut(Diagnostic),
) {
    let modules = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let types = modules.iter().filter_map(|module| module.get("type"));
    let routed = value.get("types").and_then(Value::as_object).into_iter().flat_map(Map::values);
    for name in types.chain(routed).filter_map(Value::as_str) {
        if name.starts_with("sentence_transformers.") && !targets::is_dangerous(name) {
            continue;
        }
        let (file, class) = name.rsplit_once('.').unwrap_or((name, ""));
        if companions.has_module(file) {
            let (module, class, key) = (file.to_owned(), class.to_owned(), "type".to_owned());
            references.push(Reference { repository: None, module, class, key });
        } else {
            report(targets::finding("type", name, line_of(text, &quoted(name))));
        }
    }
}

/// The findings about the code that a configuration names: one for code in this folder, and one for each other repository.
fn findings(text: &[u8], references: &[Reference], companions: &ConfigCompanions<'_>) -> Vec<Diagnostic> {
    let mut findings = Vec::new();
    let mut repositories: Vec<&Option<String>> = references.iter().map(|reference| &reference.repository).collect();
    repositories.sort();
    repositories.dedup();
    for repository in repositories.into_iter().take(MAX_TARGETS) {
        let of: Vec<&Reference> = references.iter().filter(|reference| reference.repository == *repository).collect();
        let Some(first) = of.first() else { continue };
        let key = first.key.split('.').next().unwrap_or_default();
        let (line, offset) = json::line_of(text, &format!("\"{key}\"")).unzip();
        let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        let mut named: Vec<String> = of.iter().map(|reference| described(reference, companions)).collect();
        named.dedup();
        let more = named.len().saturating_sub(NAMED);
        named.truncate(NAMED);
        let (list, more) = (named.join(", "), if more > 0 { format!(", and {more} more") } else { String::new() });
        let (rule, sentence) = match repository {
            None => (
                rules::REPOSITORY_REMOTE_CODE,
                format!("{place}{} makes loaders run code that is here: {list}{more}", escape(key)),
            ),
            Some(other) => (
                rules::REPOSITORY_REMOTE_CODE_ELSEWHERE,
                format!(
                    "{place}{} makes loaders fetch and run code from another repository, {}, which may change at any time: {list}{more}",
                    escape(key),
                    escape(other)
                ),
            ),
        };
        let mut finding = Diagnostic::new(rule, sentence);
        finding.offset = offset;
        findings.push(finding.evidence(evidence(first)));
    }
    findings
}

fn evidence(reference: &Reference) -> String {
    let repository =
        reference.repository.as_ref().map(|repository| format!("{}--", escape(repository))).unwrap_or_default();
    format!("{}: {repository}{}.{}", escape(&reference.key), escape(&reference.module), escape(&reference.class))
}

fn described(reference: &Reference, companions: &ConfigCompanions<'_>) -> String {
    let file = format!("{}.py", reference.module.replace('.', "/"));
    let missing = reference.repository.is_none() && !companions.has_module(&reference.module);
    let missing = if missing { " (which is not here)" } else { "" };
    match reference.class.as_str() {
        "" => format!("{}{missing}", escape(&file)),
        class => format!("{} of {}{missing}", escape(class), escape(&file)),
    }
}

/// PEFT: a base model that is a path, or a URL. A path that leads out of the folder opens files of the machine that loads the adapter.
pub(super) fn base_model(text: &[u8], value: &Value) -> Option<Diagnostic> {
    let base = value.get("base_model_name_or_path")?.as_str()?;
    let is_address = base.contains("://");
    let is_drive = matches!(base.as_bytes(), [letter, b':', b'/' | b'\\', ..] if letter.is_ascii_alphabetic());
    let climbs = base.split(['/', '\\']).any(|part| part == "..");
    let leads_out = climbs || !is_address && (base.starts_with(['/', '\\', '~']) || is_drive);
    let is_path = leads_out || base.starts_with('.') || base.contains('\\');
    if !is_path && !is_address {
        return None;
    }
    let (rule, what) = match (leads_out, is_address) {
        (true, _) => (rules::REPOSITORY_ADAPTER_BASE_PATH, "a path that leads out of its folder"),
        (_, true) => (rules::REPOSITORY_ADAPTER_BASE, "an address"),
        _ => (rules::REPOSITORY_ADAPTER_BASE, "a path"),
    };
    let line = line_of(text, "base_model_name_or_path").unwrap_or(1);
    let sentence = format!("line {line}: the base model of the adapter is {what}: '{}'", escape(base));
    Some(Diagnostic::new(rule, sentence).evidence(escape(base)))
}
