//! No cycles between files: of two files of a crate, at most one uses definitions of the other, directly or through others. What a file uses is
//! read from its imports and paths; a name that another file re-exports belongs to the file that defines it. Shared definitions of a folder may be
//! in its `mod.rs`, which may use the folder's files, too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use super::architecture::{code_of, sources};

type Segments = Vec<String>;

/// A file, as its code names others.
#[derive(Default)]
struct File {
    /// Paths by the names that they have here, `*` for all names of a module.
    imports: HashMap<String, Segments>,
    globs: Vec<Segments>,
    /// Names that are only passed on.
    passed_on: BTreeSet<String>,
    /// The paths in its code, but for those of imports.
    paths: BTreeSet<Segments>,
}

/// The files of a crate by the paths of their modules.
type Crate = BTreeMap<Segments, File>;

fn segments(path: &str) -> Segments {
    path.split("::").map(|segment| segment.trim().to_owned()).collect()
}

/// Each path of `a::{b, c::{self, d as e}}`, with the name that it gets.
fn expand(before: &[String], tree: &str, found: &mut Vec<(Segments, String)>) {
    let (path, list) = tree.split_once('{').map_or((tree, None), |(path, list)| (path, Some(list)));
    let (path, alias) = path.split_once(" as ").map_or((path, None), |(path, alias)| (path, Some(alias.trim())));
    let mut whole = before.to_vec();
    whole.extend(segments(path.trim().trim_end_matches("::")).into_iter().filter(|segment| !segment.is_empty()));
    let Some(list) = list else {
        if whole.last().is_some_and(|last| last == "self") {
            whole.pop();
        }
        let name = alias.or(whole.last().map(String::as_str)).unwrap_or_default().to_owned();
        return found.push((whole, name));
    };
    let (mut depth, mut start) = (0, 0);
    let list = &list[..list.rfind('}').expect("an end")];
    for (at, c) in list.char_indices().chain([(list.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !list[start..at].trim().is_empty() {
                    expand(&whole, list[start..at].trim(), found);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// A path from the root of the crate; none for one that leads elsewhere.
fn absolute(module: &[String], path: &[String], is_known: impl Fn(&[String]) -> bool) -> Option<Segments> {
    let mut base = match path.first()?.as_str() {
        "crate" => return Some(path[1..].to_vec()),
        "super" | "self" => module.to_vec(),
        child => {
            let inside = [module, &[child.to_owned()]].concat();
            return is_known(&inside).then(|| [module, path].concat());
        }
    };
    let mut rest = path;
    while let Some((first, after)) = rest.split_first().filter(|(first, _)| matches!(first.as_str(), "super" | "self"))
    {
        if first == "super" {
            base.pop()?;
        }
        rest = after;
    }
    Some([&base, rest].concat())
}

/// Statements that import, and the code without them.
fn imports_of(code: &str) -> (Vec<(bool, String)>, String) {
    let (mut imports, mut rest) = (Vec::new(), String::new());
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let bare = line.trim_start();
        let is_public = bare.starts_with("pub");
        let after = if is_public { bare.split_once(" use ").filter(|(before, _)| !before.contains(' ')) } else { None };
        match bare.strip_prefix("use ").or(after.map(|(_, after)| after)) {
            Some(first) => {
                let mut statement = first.to_owned();
                while !statement.contains(';') {
                    statement.push_str(lines.next().expect("the end of an import"));
                }
                imports.push((is_public, statement.split(';').next().unwrap_or_default().to_owned()));
            }
            None => rest.extend([line, "\n"]),
        }
    }
    (imports, rest)
}

/// The words and paths of code.
fn paths_of(code: &str) -> BTreeSet<Segments> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    code.split(|c: char| !is_path(c))
        .map(|path| path.trim_matches(':'))
        .filter(|path| path.starts_with(|first: char| first.is_alphabetic()))
        .map(segments)
        .collect()
}

fn read(folder: &Path) -> Crate {
    let mut files = Vec::new();
    sources(folder, &mut files);
    let module_of = |path: &Path| -> Segments {
        let inside = path.strip_prefix(folder).expect("inside").with_extension("");
        let mut module: Segments = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if module.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
            module.pop();
        }
        module
    };
    let modules: BTreeSet<Segments> = files.iter().map(|path| module_of(path)).collect();
    let mut all = Crate::new();
    for path in files {
        let (module, code) = (module_of(&path), code_of(&fs::read_to_string(&path).expect("a source file")));
        let (imports, rest) = imports_of(&code);
        let file = all.entry(module.clone()).or_default();
        let paths = paths_of(&rest);
        let words: BTreeSet<&String> = paths.iter().filter_map(|path| path.first()).collect();
        for (is_public, statement) in imports {
            let mut found = Vec::new();
            expand(&[], &statement, &mut found);
            for (path, name) in found {
                let Some(mut path) = absolute(&module, &path, |path| modules.contains(path)) else { continue };
                if name == "*" {
                    path.pop();
                    file.globs.push(path);
                    continue;
                }
                if is_public && !words.contains(&name) {
                    file.passed_on.insert(name.clone());
                }
                file.imports.insert(name, path);
            }
        }
        file.paths.extend(paths);
    }
    all
}

/// The module that defines what a path names; none for a module, or something of another crate.
fn defined_in(all: &Crate, path: &[String]) -> Option<Segments> {
    let inside = (0..=path.len()).rev().find(|len| all.contains_key(&path[..*len]))?;
    let (module, rest) = path.split_at(inside);
    let name = rest.first()?;
    let file = &all[module];
    match file.imports.get(name) {
        Some(from) if from != path => defined_in(all, &[from.as_slice(), &rest[1..]].concat()),
        _ => Some(module.to_vec()),
    }
}

/// Which modules each uses.
fn uses(all: &Crate) -> BTreeMap<&Segments, BTreeSet<&Segments>> {
    let uses_of = |(module, file): (&Segments, &File)| {
        let imported = file.imports.iter().filter(|(name, _)| !file.passed_on.contains(*name));
        let named =
            file.paths.iter().filter(|path| path.len() > 1).filter_map(|path| match file.imports.get(&path[0]) {
                Some(from) => Some([from.as_slice(), &path[1..]].concat()),
                None => absolute(module, path, |path| all.contains_key(path)),
            });
        let all_paths: Vec<Segments> = imported.map(|(_, path)| path.clone()).chain(named).collect();
        let targets = all_paths.iter().filter_map(|path| defined_in(all, path)).chain(file.globs.iter().cloned());
        targets.filter(|target| !module.starts_with(target)).collect::<BTreeSet<_>>()
    };
    let mut uses = BTreeMap::new();
    for (module, file) in all {
        let targets = uses_of((module, file));
        uses.insert(
            module,
            targets.iter().filter_map(|target| all.get_key_value(target)).map(|(key, _)| key).collect(),
        );
    }
    uses
}

/// All that a module uses, directly or through others.
fn reached<'a>(uses: &BTreeMap<&'a Segments, BTreeSet<&'a Segments>>, from: &'a Segments) -> BTreeSet<&'a Segments> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        open.extend(uses[module].iter().filter(|next| seen.insert(**next)));
    }
    seen
}

/// The groups of modules that each reach all others of their group.
fn circles(uses: &BTreeMap<&Segments, BTreeSet<&Segments>>) -> BTreeSet<Vec<String>> {
    let reach: BTreeMap<_, _> = uses.keys().map(|module| (*module, reached(uses, module))).collect();
    let circle = |module: &&Segments| -> Vec<String> {
        let mutual = reach[module].iter().filter(|other| reach[**other].contains(module));
        mutual.map(|module| module.join("::")).collect()
    };
    uses.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

fn assert_no_circles(folder: &str) {
    let all = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
    let uses = uses(&all);
    let arrows: usize = uses.values().map(BTreeSet::len).sum();
    assert!(arrows > all.len(), "{folder}: {arrows} arrows between {} files", all.len());
    let mut message = String::new();
    for circle in circles(&uses) {
        message += &format!("{folder}, a circle of {}:\n", circle.len());
        for (module, targets) in &uses {
            let inside = targets.iter().map(|target| target.join("::")).filter(|target| circle.contains(target));
            if circle.contains(&module.join("::")) {
                message += &format!("  {} uses {}\n", module.join("::"), inside.collect::<Vec<_>>().join(", "));
            }
        }
    }
    assert!(message.is_empty(), "{message}");
}

#[test]
fn no_file_of_the_core_uses_one_that_uses_it() {
    assert_no_circles("src");
}

#[test]
fn no_file_of_the_numerics_uses_one_that_uses_it() {
    assert_no_circles("crates/kernels/src");
}

#[test]
fn no_file_of_validation_uses_one_that_uses_it() {
    assert_no_circles("crates/check/src");
}

#[test]
fn no_file_of_the_command_line_uses_one_that_uses_it() {
    assert_no_circles("crates/cli/src");
}

#[test]
fn no_file_of_the_binding_uses_one_that_uses_it() {
    assert_no_circles("crates/python/src");
}

#[test]
fn no_file_of_the_fault_server_uses_one_that_uses_it() {
    assert_no_circles("tests/fault_server/src");
}

#[test]
fn no_file_of_the_fuzz_targets_uses_one_that_uses_it() {
    assert_no_circles("fuzz/src");
}

#[test]
fn a_circle_is_seen_by_whichever_way_it_is_written() {
    let circle_of = |files: &[(&str, &str)]| {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, code) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, code).expect("written");
        }
        circles(&uses(&read(folder.path())))
    };
    let circle = |names: &[&str]| BTreeSet::from([names.iter().map(ToString::to_string).collect::<Vec<_>>()]);
    let root = ("lib.rs", "mod a;\nmod b;\n");
    let uses_b = ("a.rs", "use crate::b::B;\npub struct A(B);\n");
    assert_eq!(circle_of(&[root, uses_b, ("b.rs", "pub struct B;\n")]), BTreeSet::new());
    for back in [
        "use crate::a::A;\npub struct B;\n",
        "use super::{a::{self, A as Other}, c};\npub struct B;\n",
        "pub struct B(Box<super::a::A>);\n",
        "use super::a;\npub struct B(Box<a::A>);\n",
        "use crate::a::*;\npub struct B;\n",
        "pub(crate) use crate::a::A;\npub struct B(A);\n",
    ] {
        assert_eq!(circle_of(&[root, uses_b, ("b.rs", back)]), circle(&["a", "b"]), "{back}");
    }
    let passed_on = ("b/mod.rs", "mod inner;\npub(crate) use inner::B;\n");
    assert_eq!(circle_of(&[root, uses_b, passed_on, ("b/inner.rs", "pub struct B;\n")]), BTreeSet::new());
    let inner = ("b/inner.rs", "use crate::a::A;\npub struct B;\n");
    assert_eq!(circle_of(&[root, uses_b, passed_on, inner]), circle(&["a", "b::inner"]));
    let shares = ("b/mod.rs", "mod inner;\npub struct B;\npub fn f() { inner::g() }\n");
    assert_eq!(circle_of(&[root, uses_b, shares, ("b/inner.rs", "use super::B;\npub fn g() {}\n")]), BTreeSet::new());
}
