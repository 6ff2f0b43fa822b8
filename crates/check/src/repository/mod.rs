//! What a repository makes its loaders run: remote code, templates, targets of configurations, programs, and paths that lead elsewhere.
//!
//! `check` examines all files of a folder together: whether a program is dangerous depends on a configuration that makes loaders run
//! it. `check_yaml` and its siblings examine one text, for members of archives. Nothing is imported, rendered or called.

mod paths;
mod preference;
mod program;
mod programs;
mod remote_code;
mod targets;
mod template;
mod templates;
mod yaml;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::Ordering;

use max_weights::rules;
use max_weights::text::escape;
use max_weights::{Diagnostic, Result};
use serde_json::Value;

use crate::bytes::RandomRead;
use crate::folder::{FolderContext, FolderListing, ListedFile};
use crate::json;
use crate::kind::{Kind, has_suffix};
use crate::options::Level;
use crate::report::Depth;
use crate::words;
use program::Program;
use remote_code::{ConfigCompanions, Reference};
pub use yaml::check_yaml;

/// Longer configurations are not read. The longest that are written have the vocabulary of a tokenizer in them.
pub(crate) const MAX_CONFIG_BYTES: u64 = 32 << 20;
/// Longer files of JSON whose names are those of no configuration are read only if a word in them asks for it.
const MAX_PLAIN_BYTES: usize = 1 << 20;
/// Longer programs are not read.
const MAX_PROGRAM_BYTES: u64 = program::MAX_BYTES as u64;
/// A longer index is not read.
const MAX_INDEX_BYTES: u64 = 256 << 20;
/// JSON files that hold data, often many megabytes, and that no loader takes code from.
const DATA: &str = "
    added_tokens.json merges.json tekken.json tokenizer.json trainer_state.json vocab.json all_results.json";

/// Words that make any JSON file relevant, so that it is reported if it cannot be read.
const WORDS: [&str; 5] = ["\"auto_map\"", "\"trust_remote_code\"", "\"_target_\"", "\"chat_template\"", "__class__"];

/// Looks at the configurations, templates and programs of a folder.
pub fn check(folder: &FolderListing, context: &mut FolderContext<'_>) -> Result<()> {
    if context.options.level < Level::Structure {
        return Ok(());
    }
    let mut companions = ConfigCompanions { folder: Some(&folder.path), ..ConfigCompanions::default() };
    for entry in folder.files.iter().filter(|entry| is_program(entry)) {
        context.check_cancelled(&entry.path)?;
        let Some(bytes) = read(entry, MAX_PROGRAM_BYTES, context)? else { continue };
        if let Some(progress) = context.progress() {
            progress.done.fetch_add(entry.bytes, Ordering::Relaxed);
        }
        companions.programs.insert(entry.name(), Program::read(&bytes, false));
    }
    let mut referenced: Vec<(String, String)> = Vec::new();
    for entry in &folder.files {
        context.check_cancelled(&entry.path)?;
        let named = one_file(entry, &companions, context)?;
        let module = |reference: Reference| (reference.module, entry.name().to_owned());
        referenced.extend(named.into_iter().map(module));
    }
    let run_by = run_by(referenced, &companions.programs);
    for entry in folder.files.iter().filter(|entry| is_program(entry)) {
        context.check_cancelled(&entry.path)?;
        let Some(program) = companions.programs.get(entry.name()) else { continue };
        let module = module_of(entry.name());
        let by_name = || programs::run_by_name(entry.name(), &entry.path).map(str::to_owned);
        let why = run_by.get(module).cloned().or_else(by_name);
        programs::findings(program, why.as_deref(), &mut |finding| context.report(&entry.path, finding));
    }
    // Git has samples of those that it would run itself.
    let is_script = |entry: &&ListedFile| entry.kind == Kind::Script && !has_suffix(entry.name(), "sample");
    for entry in folder.files.iter().filter(is_script) {
        let sentence = "a script, which only runs by hand; what it runs was not looked at";
        context.report(&entry.path, Diagnostic::new(rules::REPOSITORY_PROGRAM, sentence));
    }
    for entry in folder.files.iter().filter(|entry| is_compiled(entry.name(), entry.kind)) {
        let sentence =
            "the folder of the model has compiled code; programs imported from here run it instead of the source";
        context.report(&entry.path, Diagnostic::new(rules::REPOSITORY_COMPILED_CODE, sentence));
    }
    preference::look(folder, &mut |entry, finding| context.report(&entry.path, finding));
    paths::of_links(folder, &mut |entry, finding| context.report(&entry.path, finding));
    Ok(())
}

/// The bytes of the programs of a folder that are examined beyond a plain read.
pub(crate) fn program_bytes(folder: &FolderListing) -> u64 {
    folder.files.iter().filter(|entry| is_program(entry)).map(|entry| entry.bytes).sum()
}

/// What a text is to those who load it, by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Program,
    Index,
    Config,
    Notebook,
    Yaml,
    Template,
    Requirements,
}

impl Role {
    fn of(name: &str) -> Option<Self> {
        let lower = name.to_ascii_lowercase();
        let named = |suffixes: &str| has_suffix(name, suffixes);
        Some(if named("py pyw") {
            Self::Program
        } else if lower.ends_with(".index.json") {
            Self::Index
        } else if named("json") {
            return (!words::has(DATA, name)).then_some(Self::Config);
        } else if named("ipynb") {
            Self::Notebook
        } else if named("yaml yml") || name == "MLmodel" {
            Self::Yaml
        } else if named("jinja jinja2 j2 template") || name == "chat_template" || name.starts_with("chat_template.") {
            Self::Template
        } else if named("txt") && lower.contains("requirements") {
            Self::Requirements
        } else {
            return None;
        })
    }

    /// The most bytes that are looked at.
    fn most(self) -> u64 {
        match self {
            Self::Program => MAX_PROGRAM_BYTES,
            Self::Index => MAX_INDEX_BYTES,
            _ => MAX_CONFIG_BYTES,
        }
    }

    /// Looks at a text without regard to what runs it, and returns the code that it names.
    fn look(
        self,
        name: &str,
        bytes: &[u8],
        companions: &ConfigCompanions<'_>,
        report: &mut dyn FnMut(Diagnostic),
    ) -> Vec<Reference> {
        match self {
            Self::Program => {}
            Self::Index => paths::of_index(&json::files_of_index(bytes), report),
            // What is long and by its name no configuration is data, unless a word in it says otherwise.
            Self::Config if bytes.len() > MAX_PLAIN_BYTES && !is_config(name) && !has_word(bytes) => {}
            Self::Config => return config(name, bytes, companions, report),
            Self::Notebook => json::read(bytes).iter().for_each(|value| programs::notebook(value, report)),
            Self::Yaml => check_yaml(bytes, report),
            Self::Template => templates::of_file(bytes, report),
            Self::Requirements => programs::requirements(bytes, report),
        }
        Vec::new()
    }
}

/// Whether a member of an archive of this name is looked at as a file of a repository, and the most bytes that are.
pub(crate) fn looks_at(name: &str) -> Option<u64> {
    Role::of(last(name)).map(Role::most)
}

/// Examines a member of an archive by its name, like a file of a repository; other members are not considered.
pub(crate) fn check_member(path: &str, bytes: &[u8], report: &mut dyn FnMut(Diagnostic)) {
    let name = last(path);
    match Role::of(name) {
        Some(Role::Program) => check_program(bytes, programs::run_by_name(name, Path::new(path)), report),
        Some(role) => drop(role.look(name, bytes, &ConfigCompanions::default(), report)),
        None => {}
    }
}

/// The name without folders.
fn last(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// Looks at one program in Python, such as a member of an archive, that its loader runs (`run_by` says which).
pub fn check_program(bytes: &[u8], run_by: Option<&str>, report: &mut dyn FnMut(Diagnostic)) {
    programs::findings(&Program::read(bytes, false), run_by, report);
}

fn is_program(entry: &ListedFile) -> bool {
    let is_named = has_suffix(entry.name(), "py pyw") && !matches!(entry.kind, Kind::LfsPointer | Kind::Empty);
    is_named || entry.kind == Kind::Python && !has_suffix(entry.name(), "pyi")
}

/// Whether a file is bytecode of Python, or a library or program of an operating system.
pub(crate) fn is_compiled(name: &str, kind: Kind) -> bool {
    has_suffix(name, "pyc pyo") && kind != Kind::Empty || kind == Kind::Executable
}

/// Looks at one file by itself, and returns the code that it names.
fn one_file(
    entry: &ListedFile,
    companions: &ConfigCompanions<'_>,
    context: &mut FolderContext<'_>,
) -> Result<Vec<Reference>> {
    let (name, path) = (entry.name(), &entry.path);
    // Names decide and not bytes: a text may begin as a file of weights does, and its loader goes by its name.
    let is_text = !matches!(entry.kind, Kind::LfsPointer | Kind::Empty | Kind::Zeros);
    match Role::of(name).filter(|_| is_text) {
        Some(Role::Program) => {}
        Some(Role::Config) if entry.bytes > MAX_CONFIG_BYTES && !is_config(name) => {}
        Some(role) => {
            if let Some(bytes) = read(entry, role.most(), context)? {
                return Ok(role.look(name, &bytes, companions, &mut |finding| context.report(path, finding)));
            }
        }
        None => {
            // The check of the file itself reports its own faults.
            if let (Kind::Safetensors | Kind::Gguf, Some(catalog)) = (entry.kind, &entry.catalog) {
                templates::of_weights(catalog, &mut |finding| context.report(path, finding));
            }
        }
    }
    Ok(Vec::new())
}

/// The bytes of a file; `None` if it is too long, or cannot be read, which is reported.
fn read(entry: &ListedFile, most: u64, context: &mut FolderContext<'_>) -> Result<Option<Vec<u8>>> {
    if entry.bytes > most {
        let sentence = format!("{} bytes are too many to look for code in them; {most} are looked at", entry.bytes);
        context.report(&entry.path, Diagnostic::new(rules::REPOSITORY_TOO_LONG, sentence));
        return Ok(None);
    }
    let read = entry.open(context.interrupt).and_then(|file| file.first(most as usize));
    match read {
        Ok(bytes) => {
            context.looked(&entry.path, Depth::Structure);
            Ok(Some(bytes))
        }
        Err(error @ max_weights::Error::Interrupted) => Err(error),
        // The check of the file itself reports that it cannot be opened.
        Err(_) => Ok(None),
    }
}

fn config(
    name: &str,
    bytes: &[u8],
    companions: &ConfigCompanions<'_>,
    report: &mut dyn FnMut(Diagnostic),
) -> Vec<Reference> {
    let value: Value = match json::read(bytes) {
        Ok(value) => value,
        // A file of another name may hold lines of JSON, or what only its own program reads.
        Err(_) if !is_config(name) && !has_word(bytes) => return Vec::new(),
        Err(why) => {
            let sentence = format!(
                "the configuration is not valid JSON, so what it makes loaders run is unknown: {}",
                escape(&why)
            );
            report(Diagnostic::new(rules::REPOSITORY_CONFIG_UNREADABLE, sentence));
            return Vec::new();
        }
    };
    templates::of_config(&value, report);
    if name.starts_with("adapter_config") {
        remote_code::base_model(bytes, &value).into_iter().for_each(&mut *report);
    }
    remote_code::look(bytes, &value, name, companions, report)
}

/// Whether loaders read a JSON file of this name as a configuration.
pub(crate) fn is_config(name: &str) -> bool {
    let name = last(name);
    name.ends_with("config.json")
        || ["chat_template.json", "model_index.json", "modular_model_index.json", "modules.json"].contains(&name)
}

/// The last place between two characters that is not behind this one.
fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Whether a text has one of the words that make any JSON file relevant.
fn has_word(bytes: &[u8]) -> bool {
    WORDS.iter().any(|word| memchr::memmem::find(bytes, word.as_bytes()).is_some())
}

/// The module that a program of this name is.
fn module_of(name: &str) -> &str {
    name.strip_suffix(".py").unwrap_or(name)
}

/// By whom each module is run as a model is loaded: the configurations that name it, and the programs that import it.
fn run_by(referenced: Vec<(String, String)>, programs: &HashMap<&str, Program>) -> HashMap<String, String> {
    let mut run_by: HashMap<String, String> = HashMap::new();
    let mut seen = HashSet::new();
    let mut waiting: Vec<(String, String)> = referenced
        .into_iter()
        .map(|(module, config)| (module, format!("{} makes loaders run it", escape(&config))))
        .collect();
    while let Some((module, why)) = waiting.pop() {
        // `folder.module` is in a subfolder, whose check reports the same by its name.
        let module = module.rsplit('.').next().unwrap_or(&module).to_owned();
        if !seen.insert(module.clone()) {
            continue;
        }
        let program = programs.get(format!("{module}.py").as_str());
        let siblings = program.map(|program| program.siblings.as_slice()).unwrap_or_default();
        waiting.extend(
            siblings.iter().map(|name| (name.clone(), format!("{}.py imports it, which loaders run", escape(&module)))),
        );
        run_by.insert(module, why);
    }
    run_by
}
