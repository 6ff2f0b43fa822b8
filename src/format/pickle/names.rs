//! The classification of Python's modules, classes and functions: `names.tsv` is the only list, for pickles, configurations and models of other
//! formats. Nothing is imported, and nothing is called.
//!
//! A name without a row needs trust. Rows for code that runs only make the verdict more precise: without them, these names would need trust, too.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use super::python2::{LAST_PROTOCOL, renamed};

/// The rows.
const ROWS: &str = include_str!("names.tsv");
/// The reason of a row of the classes of distributed tensors.
pub(super) const DISTRIBUTED: &str = "distributed";

/// The classification of a class or function; the worst is last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Danger {
    /// Plain weights need it, and its code does nothing else.
    Harmless,
    /// A library's, which pickles of its objects have: its code runs.
    Library,
    /// On no list: loading it requires trust in the file.
    NeedsTrust,
    /// It runs code, starts programs, or reaches files, the network or memory when it is called; or it leads to such code.
    RunsCode,
}

impl Danger {
    /// Its name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Harmless => "harmless",
            Self::Library => "library",
            Self::NeedsTrust => "needs-trust",
            Self::RunsCode => "runs-code",
        }
    }
}

/// The entry of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameMeaning {
    /// The classification of its names.
    pub danger: Danger,
    /// Why, in a word that the head of the list explains.
    pub reason: &'static str,
}

#[derive(Default)]
struct NameMeanings {
    /// By module and name.
    exact: HashMap<(&'static str, &'static str), NameMeaning>,
    /// By module, for rows that cover a module and everything below it.
    below: HashMap<&'static str, NameMeaning>,
    attributes: HashSet<&'static str>,
}

static TABLE: OnceLock<NameMeanings> = OnceLock::new();

/// The table. It is built before the lock of the cell is taken, which a child that is forked meanwhile could never get.
fn table() -> &'static NameMeanings {
    TABLE.get().unwrap_or_else(|| {
        let made = made();
        TABLE.get_or_init(|| made)
    })
}

fn made() -> NameMeanings {
    // Capacity for all at once: every scan of a pickle begins with this.
    let mut table = NameMeanings { exact: HashMap::with_capacity(ROWS.len() / 8), ..NameMeanings::default() };
    for (module, entry, names) in rows() {
        for name in names.split(' ') {
            match (module, name) {
                ("*", _) => drop(table.attributes.insert(name)),
                (_, "*") => drop(table.below.insert(module, entry)),
                _ => drop(table.exact.insert((module, name), entry)),
            }
        }
    }
    table
}

fn rows() -> impl Iterator<Item = (&'static str, NameMeaning, &'static str)> {
    ROWS.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut cells = line.split('\t');
        let (module, danger, reason, names) = (cells.next()?, cells.next()?, cells.next()?, cells.next()?);
        let all = [Danger::Harmless, Danger::Library, Danger::RunsCode];
        let danger = all.into_iter().find(|known| known.name() == danger)?;
        Some((module, NameMeaning { danger, reason }, names))
    })
}

/// The entry for exactly this name of exactly this module.
pub fn exact(module: &str, name: &str) -> Option<NameMeaning> {
    // The keys live as long as the program, and those of a look-up need not.
    table().exact.get(&(module, name)).copied()
}

/// The entry for a name: for exactly this one, or for a module that it is in or below. Among modules, one that runs code has priority.
pub fn look_up(module: &str, name: &str) -> Option<NameMeaning> {
    let full = format!("{module}.{name}");
    let runs_code = || tops(&full).find(|entry| entry.danger == Danger::RunsCode);
    exact(module, name).or_else(runs_code).or_else(|| tops(module).next())
}

/// The rows of the modules that a dotted name is, or is below.
fn tops(full: &str) -> impl Iterator<Item = NameMeaning> {
    let ends = full.match_indices('.').map(|(at, _)| at).chain([full.len()]);
    ends.filter_map(|end| table().below.get(full.get(..end)?).copied())
}

/// Whether an attribute of this name leads to code that runs, on any object.
pub fn is_attribute(name: &str) -> bool {
    let is_module = || table().below.get(name).is_some_and(|entry| entry.danger == Danger::RunsCode);
    table().attributes.contains(name) || is_module() && !HARMLESS_AS_NAMES.contains(&name)
}

/// Modules whose names are also harmless attributes.
const HARMLESS_AS_NAMES: [&str; 10] =
    ["code", "test", "select", "this", "profile", "signal", "trace", "resource", "sh", "cmd"];

/// How dangerous a name is as a pickle imports it.
pub fn judge(module: &str, name: &str) -> Danger {
    if let Some(entry) = exact(module, name) {
        return entry.danger;
    }
    // A dotted name goes through the imports of its module, so that it may reach anything. No writer produces invalid names.
    let plain = |c: char| c == '_' || c == '<' || c == '>' || c.is_alphanumeric();
    if name.is_empty() || !name.chars().all(plain) || !module.chars().all(|c| c == '.' || c == '-' || plain(c)) {
        return Danger::RunsCode;
    }
    match look_up(module, name).map(|entry| entry.danger) {
        Some(Danger::RunsCode) => Danger::RunsCode,
        _ if is_attribute(name) => Danger::RunsCode,
        listed => listed.unwrap_or(Danger::NeedsTrust),
    }
}

/// The danger of a name as a pickle of this protocol spells it. Its danger under the other Python's spelling counts, too, because either Python may
/// read it.
pub fn judge_spelled(module: &str, name: &str, protocol: u8) -> Danger {
    let Some((new_module, new_name)) = renamed(module, name) else { return judge(module, name) };
    let now = judge(new_module, new_name);
    // In Python 2 the module of the old name was harmful where the new one is. Under its old name it is another module's, unless that is plainly
    // Python's own.
    if protocol <= LAST_PROTOCOL || now == Danger::RunsCode || module == "__builtin__" {
        return now;
    }
    judge(module, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted_and_says_nothing_twice() {
        let lines: Vec<&str> = ROWS.lines().collect();
        let (head, body) = lines.split_at(lines.iter().position(|line| !line.starts_with('#')).unwrap());
        assert_eq!(rows().count(), body.len(), "a line is no row");
        let keys: Vec<Vec<&str>> = body.iter().map(|line| line.split('\t').take(3).collect()).collect();
        assert!(keys.is_sorted(), "by module, danger and reason");
        let mut seen = HashSet::new();
        for (module, entry, names) in rows() {
            let names: Vec<&str> = names.split(' ').collect();
            assert!(names.is_sorted() && names.iter().all(|name| !name.is_empty()), "{module}: {names:?}");
            assert!(names == ["*"] || !names.contains(&"*"), "{module}");
            for name in names {
                assert!(seen.insert((module, name)), "{module}.{name} stands twice");
            }
            let explained = format!("#     {} ", entry.reason);
            assert!(head.iter().any(|line| line.starts_with(&explained)), "{}", entry.reason);
        }
    }

    #[test]
    fn the_list_keeps_the_four_answers_apart() {
        for (module, name, danger) in [
            ("collections", "OrderedDict", Danger::Harmless),
            ("torch._utils", "_rebuild_tensor_v2", Danger::Harmless),
            ("torch.nn.modules.linear", "Linear", Danger::Library),
            ("sklearn.svm._classes", "SVC", Danger::Library),
            ("sklearn.tree._tree", "Tree", Danger::Library),
            ("functools", "partial", Danger::Library),
            ("builtins", "getattr", Danger::Library),
            ("pathlib", "PosixPath", Danger::Library),
            ("__main__", "Model", Danger::NeedsTrust),
            ("models.yolo", "Detect", Danger::NeedsTrust),
            ("osmosis", "run", Danger::NeedsTrust),
            ("Torch", "Size", Danger::NeedsTrust),
        ] {
            assert_eq!(judge(module, name), danger, "{module}.{name}");
        }
    }

    #[test]
    fn what_runs_code_does_so_under_every_name_it_goes_by() {
        for (module, name) in [
            ("os", "system"),
            ("posix", "system"),
            ("nt", "system"),
            ("builtins", "eval"),
            ("builtins", "__import__"),
            ("__builtin__", "exec"),
            ("pkgutil", "resolve_name"),
            ("asyncio.unix_events", "_UnixSubprocessTransport._start"),
            ("os.path", "os.system"),
            ("torch", "os.system"),
            ("torch", "load"),
            ("torch", "_utils._rebuild_tensor_v2"),
            ("torch.serialization", "os"),
            ("torch.serialization", "os.system"),
            ("torch._utils", "_rebuild_tensor.__globals__"),
            ("torch.storage", "_load_from_bytes"),
            ("torch.jit.unsupported_tensor_ops", "execWrapper"),
            ("sklearn.utils", "sys"),
            ("sklearn.utils", "os"),
            ("numpy.testing._private.utils", "runstring"),
            ("collections", "OrderedDict.__base__"),
            ("operator", "attrgetter"),
            ("_operator", "methodcaller"),
            ("types", "CodeType"),
            ("logging", "FileHandler"),
            ("_io", "FileIO"),
            ("os\r", "system"),
        ] {
            assert_eq!(judge(module, name), Danger::RunsCode, "{module}.{name}");
        }
    }

    #[test]
    fn names_of_python_2_are_judged_by_what_they_are_now() {
        assert_eq!(judge_spelled("__builtin__", "set", 2), Danger::Harmless);
        assert_eq!(judge_spelled("commands", "Popen", 2), Danger::RunsCode);
        assert_eq!(judge_spelled("commands", "Popen", 4), Danger::RunsCode);
        assert_eq!(judge_spelled("copy_reg", "_reconstructor", 0), Danger::Harmless);
        // A module of this name next to the model is imported by it.
        assert_ne!(judge_spelled("UserDict", "OrderedDict", 4), Danger::Harmless);
    }
}
