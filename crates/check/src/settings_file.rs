//! Settings that are in a file of the repository: `[validate]` of `max-weights.toml`, or `[tool.max-weights.validate]` of `pyproject.toml`.
//!
//! The file is looked for where the program runs and above, never in the folders that are validated: a model is not to say how it is looked at. The
//! command line is stronger than the file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use glob::{MatchOptions, Pattern};
use max_weights::rules::Severity;
use max_weights::{Error, Result, names, text};
use serde::Deserialize;
use toml::{Table, Value};

use crate::amount;
use crate::options::{Level, Selection};
use crate::output::{Format, Places};
use crate::report::Report;

/// The names of the files, the stronger one first, and where in them the settings stand.
const FILES: [(&str, &[&str]); 2] =
    [("max-weights.toml", &["validate"]), ("pyproject.toml", &["tool", "max-weights", "validate"])];
/// The largest file that is read.
const MAX_BYTES: u64 = 4 << 20;
/// Keys that are proposed in place of an unknown one.
const NEAR: usize = 2;
/// All keys.
const KEYS: [&str; 13] = [
    "select",
    "ignore",
    "severity",
    "fail-on",
    "level",
    "per-path-ignores",
    "output",
    "jobs",
    "max-memory",
    "timeout",
    "baseline",
    "expect",
    "category",
];

/// What a file says; what it does not say is none, or empty. Paths are those from where the program runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SettingsFile {
    /// The file itself.
    pub path: PathBuf,
    /// Rules that count.
    pub select: Vec<String>,
    /// Rules that do not.
    pub ignore: Vec<String>,
    /// Findings below this are left out.
    pub severity: Option<Severity>,
    /// Findings from here on fail; the inner one is none where nothing does.
    pub fail_on: Option<Option<Severity>>,
    /// How deep files are looked into.
    pub level: Option<Level>,
    /// Globs of paths, seen from the file's folder, and the rules that do not count there.
    pub per_path_ignores: Vec<(Pattern, Vec<String>)>,
    /// Reports, and the files that they are written to; none: standard output.
    pub output: Vec<(Format, Option<PathBuf>)>,
    /// Files to check at the same time.
    pub jobs: Option<NonZero<usize>>,
    /// Bytes of memory.
    pub max_memory: Option<u64>,
    /// The longest that it may take.
    pub timeout: Option<Duration>,
    /// The file of known findings.
    pub baseline: Option<PathBuf>,
    /// What the checkpoint is expected to be.
    pub expect: Option<PathBuf>,
    /// The category of SARIF reports.
    pub category: Option<String>,
}

/// The keys as they are in the file.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Raw {
    #[serde(default)]
    select: Vec<String>,
    #[serde(default)]
    ignore: Vec<String>,
    severity: Option<String>,
    fail_on: Option<String>,
    level: Option<String>,
    #[serde(default)]
    per_path_ignores: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    output: BTreeMap<String, PathBuf>,
    jobs: Option<NonZero<usize>>,
    max_memory: Option<Amount>,
    timeout: Option<Amount>,
    baseline: Option<PathBuf>,
    expect: Option<PathBuf>,
    category: Option<String>,
}

/// A number, or one with a unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum Amount {
    Number(f64),
    Text(String),
}

impl SettingsFile {
    /// The settings for a program that runs in this folder: of the first file in it or above that has any, up to the root of the repository.
    ///
    /// # Errors
    /// As of [`SettingsFile::read`].
    pub fn find(folder: &Path) -> Result<Option<Self>> {
        for folder in folder.ancestors() {
            for (name, _) in FILES {
                let path = folder.join(name);
                if path.is_file()
                    && let Some(settings) = Self::read(&path)?
                {
                    return Ok(Some(settings));
                }
            }
            if folder.join(".git").exists() {
                break;
            }
        }
        Ok(None)
    }

    /// The settings of this file; `None` if it has no part for them.
    ///
    /// # Errors
    /// A file that cannot be read or is not TOML; a key that is none, or a value that it cannot have.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let failed = |error| wrong(path, &format!("the settings cannot be read: {error}"));
        let mut content = Vec::new();
        // Its size may not be known before: it may be a pipe.
        File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut content)).map_err(failed)?;
        if content.len() as u64 > MAX_BYTES {
            return Err(wrong(path, &format!("it has more than {}", text::size(MAX_BYTES))));
        }
        let content = String::from_utf8(content).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            wrong(path, &format!("TOML is UTF-8, but the byte at {at} is not"))
        })?;
        Self::parse(&content, path)
    }

    fn parse(content: &str, path: &Path) -> Result<Option<Self>> {
        let table: Table = toml::from_str(content).map_err(|error| wrong(path, &no_toml(&error, content)))?;
        let is_project = path.file_name().is_some_and(|name| name == "pyproject.toml");
        let (_, way) = FILES[usize::from(is_project)];
        let mut value = Value::Table(table);
        for key in way {
            let Value::Table(mut table) = value else {
                return Err(wrong(path, &format!("'{key}' is not in any table")));
            };
            if !is_project && let Some(other) = table.keys().find(|other| other != key) {
                let other = text::shown(other);
                return Err(wrong(path, &format!("'{other}' is not one of its tables: settings go into [{key}]")));
            }
            match table.remove(*key) {
                Some(inner) => value = inner,
                None => return Ok(None),
            }
        }
        let Value::Table(table) = value else {
            return Err(wrong(path, &format!("'{}' is not a table", way.join("."))));
        };
        for key in table.keys() {
            if !KEYS.contains(&key.as_str()) {
                return Err(wrong(path, &unknown("key", key, &KEYS)));
            }
        }
        let raw: Raw = table
            .try_into()
            .map_err(|error: toml::de::Error| wrong(path, &text::shown(error.to_string().trim_end())))?;
        Self::checked(raw, path).map(Some)
    }

    fn checked(raw: Raw, path: &Path) -> Result<Self> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let severity = |key: &str, word: &str, others: &[&str]| {
            let all = [Severity::Note, Severity::Warning, Severity::Error];
            let names = [&all.map(Severity::name), others].concat();
            let found = all.into_iter().find(|severity| severity.name() == word);
            found.ok_or_else(|| wrong(path, &format!("{key}: {}", unknown("severity", word, &names))))
        };
        let fail_on = |word: String| match word.as_str() {
            "never" => Ok(None),
            word => severity("fail-on", word, &["never"]).map(Some),
        };
        let level = |word: String| {
            let found = Level::ALL.into_iter().find(|level| level.name() == word);
            found.ok_or_else(|| {
                wrong(path, &format!("level: {}", unknown("level", &word, &Level::ALL.map(Level::name))))
            })
        };
        let selection = Selection {
            select: raw.select.clone(),
            ignore: raw.ignore.iter().chain(raw.per_path_ignores.values().flatten()).cloned().collect(),
        };
        if let Some(word) = selection.unknown() {
            return Err(wrong(path, &format!("there is no rule '{}'", text::shown(word))));
        }
        let pattern = |(glob, rules): (String, Vec<String>)| match Pattern::new(&glob) {
            Ok(pattern) => Ok((pattern, rules)),
            Err(error) => Err(wrong(path, &format!("'{}' is not a valid glob: {error}", text::shown(&glob)))),
        };
        let output = |(format, file): (String, PathBuf)| match format.parse::<Format>() {
            Ok(format) => Ok((format, (file.as_os_str() != "-").then(|| folder.join(file)))),
            Err(message) => Err(wrong(path, &format!("output: {message}"))),
        };
        let bytes = |amount: Amount| {
            amount.parsed(amount::bytes).ok_or_else(|| wrong(path, "max-memory: a size such as '2GB' is needed"))
        };
        let time = |amount: Amount| {
            amount.parsed(amount::time).ok_or_else(|| wrong(path, "timeout: a time such as '10min' is needed"))
        };
        Ok(Self {
            path: path.to_owned(),
            severity: raw.severity.map(|word| severity("severity", &word, &[])).transpose()?,
            fail_on: raw.fail_on.map(fail_on).transpose()?,
            level: raw.level.map(level).transpose()?,
            per_path_ignores: raw.per_path_ignores.into_iter().map(pattern).collect::<Result<_>>()?,
            output: raw.output.into_iter().map(output).collect::<Result<_>>()?,
            jobs: raw.jobs,
            max_memory: raw.max_memory.map(bytes).transpose()?,
            timeout: raw.timeout.map(time).transpose()?,
            baseline: raw.baseline.map(|file| folder.join(file)),
            expect: raw.expect.map(|file| folder.join(file)),
            category: raw.category,
            select: raw.select,
            ignore: raw.ignore,
        })
    }

    /// Takes the findings out of a report that do not count where they are; they are counted in it. What is malicious is left out only where its rule is
    /// named by itself, not by a group such as `security`.
    pub fn apply(&self, report: &mut Report) {
        if self.per_path_ignores.is_empty() {
            return;
        }
        let rules: Vec<(&Pattern, Selection)> = self
            .per_path_ignores
            .iter()
            .map(|(pattern, rules)| (pattern, Selection { select: rules.clone(), ignore: Vec::new() }))
            .filter(|(_, selection)| !selection.select.is_empty())
            .collect();
        let mut places = Places::new(self.path.parent().unwrap_or(Path::new("")));
        let which: Vec<bool> = report
            .findings
            .iter()
            .map(|finding| {
                let name = places.name(finding.file());
                let counts = |selection: &Selection| selection.excepts(finding.rule);
                rules.iter().any(|(pattern, selection)| counts(selection) && fits(pattern, name))
            })
            .collect();
        let ignored = report.leave_out(&which);
        report.ignored += ignored;
    }
}

/// Whether a path, a folder that it is in, or its name fits a glob; `*` goes no deeper than a folder, and `**` does.
fn fits(pattern: &Pattern, path: &str) -> bool {
    let options =
        MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };
    let is_name = !pattern.as_str().contains('/');
    let name = path.rsplit('/').next().unwrap_or(path);
    Path::new(path).ancestors().any(|folder| pattern.matches_path_with(folder, options))
        || is_name && pattern.matches_with(name, options)
}

impl Amount {
    fn parsed<T>(&self, parse: fn(&str) -> Option<T>) -> Option<T> {
        match self {
            Self::Number(number) => parse(&number.to_string()),
            Self::Text(text) => parse(text),
        }
    }
}

/// What is wrong with a string that is not TOML, and where; the line itself may be long, or steer a terminal.
fn no_toml(error: &toml::de::Error, content: &str) -> String {
    let before = error.span().and_then(|span| content.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    format!("it is not valid TOML at line {line}, column {column}: {}", text::shown(error.message()))
}

fn unknown(noun: &str, word: &str, all: &[&str]) -> String {
    let all: Vec<String> = all.iter().map(|name| (*name).to_owned()).collect();
    let mut sorted = all.clone();
    sorted.sort();
    let near = names::nearest_of(&sorted, &[word.to_owned()], NEAR).unwrap_or_default().into_iter().flatten();
    let near: Vec<String> = near.map(|name| format!("'{name}'")).collect();
    let proposal = if near.is_empty() {
        format!("there are {}", all.join(", "))
    } else {
        format!("did you mean {}?", near.join(" or "))
    };
    format!("there is no {noun} '{}'; {proposal}", text::shown(word))
}

fn wrong(path: &Path, cause: &str) -> Error {
    Error::Argument(format!("{}: {cause}", text::path(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Option<SettingsFile>> {
        SettingsFile::parse(text, Path::new("/r/max-weights.toml"))
    }

    #[test]
    fn globs_are_of_paths_of_folders_and_of_names() {
        let fits = |glob: &str, path: &str| super::fits(&Pattern::new(glob).expect("a glob"), path);
        assert!(fits("models/*.bin", "models/a.bin"));
        assert!(!fits("models/*.bin", "models/b/a.bin"));
        assert!(fits("models/**/*.bin", "models/b/c/a.bin"));
        assert!(fits("models", "models/b/c/a.bin") && fits("models/b", "models/b/c/a.bin"));
        assert!(fits("*.bin", "models/b/a.bin") && !fits("*.bin", "models/b/a.pt"));
    }

    #[test]
    fn every_key_is_read() {
        let all = r#"
            [validate]
            select = ["MW-FI"]
            ignore = ["format.json"]
            severity = "note"
            fail-on = "error"
            level = "content"
            per-path-ignores = { "old/**" = ["security"] }
            output = { sarif = "out/a.sarif", html = "b.html", github = "-" }
            jobs = 2
            max-memory = "1GB"
            timeout = 60
            baseline = "known.json"
            expect = "spec.json"
            category = "models"
        "#;
        let read = parsed(all).expect("settings").expect("a table");
        assert_eq!((read.select, read.ignore), (vec!["MW-FI".to_owned()], vec!["format.json".to_owned()]));
        assert_eq!(
            (read.severity, read.fail_on, read.level),
            (Some(Severity::Note), Some(Some(Severity::Error)), Some(Level::Content))
        );
        assert_eq!(
            read.output,
            [
                (Format::Github, None),
                (Format::Html, Some("/r/b.html".into())),
                (Format::Sarif, Some("/r/out/a.sarif".into()))
            ]
        );
        assert_eq!((read.jobs, read.max_memory), (NonZero::new(2), Some(1_000_000_000)));
        assert_eq!(read.timeout, Some(Duration::from_secs(60)));
        assert_eq!((read.baseline, read.expect), (Some("/r/known.json".into()), Some("/r/spec.json".into())));
        assert_eq!((read.category.as_deref(), read.per_path_ignores.len()), (Some("models"), 1));
        assert!(KEYS.iter().all(|key| all.contains(key)), "the test has all keys");
    }

    #[test]
    fn what_cannot_be_meant_is_an_error_that_names_it() {
        for (text, part) in [
            ("[validate]\nselct = []", "there is no key 'selct'; did you mean 'select'"),
            ("[validate]\nlevel = \"contents\"", "there is no level 'contents'; did you mean 'content'"),
            ("[validate]\nseverity = \"never\"", "severity: there is no severity 'never'"),
            ("[validate]\nfail-on = \"nevr\"", "fail-on: there is no severity 'nevr'; did you mean 'never'"),
            ("[validate]\nselect = [\"MW-ZZ\"]", "there is no rule 'MW-ZZ'"),
            ("[validate]\nper-path-ignores = { \"[\" = [\"security\"] }", "'[' is not a valid glob"),
            ("[validate]\nper-path-ignores = { \"a\" = [\"nothing.like-it\"] }", "there is no rule 'nothing.like-it'"),
            ("[validate]\noutput = { pdf = \"a.pdf\" }", "'pdf' is not a report format"),
            ("[validate]\njobs = 0", "jobs"),
            ("[validate]\nmax-memory = \"much\"", "max-memory: a size"),
            ("[validate]\ntimeout = \"soon\"", "timeout: a time"),
            ("[validation]\n", "'validation' is not one of its tables: settings go into [validate]"),
            ("validate = 1", "'validate' is not a table"),
            ("[validate", "TOML"),
        ] {
            let message = parsed(text).expect_err(text).to_string();
            assert!(message.contains("/r/max-weights.toml: ") && message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn nothing_needs_to_fail() {
        let read = parsed("[validate]\nfail-on = \"never\"").expect("settings").expect("a table");
        assert_eq!(read.fail_on, Some(None));
    }

    #[test]
    fn whatever_stands_in_a_file_it_is_read_or_a_mistake_of_whoever_names_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("max-weights.toml");
        let deep = |open: &str, close: &str| [open.repeat(100_000), close.repeat(100_000)].concat();
        for (content, part) in [
            (&b"[validate]\nselect = [\"\xff\"]"[..], "the byte at 22 is not"),
            (b"[validate]\nselect = \x1b[31m", "line 2, column 1"),
            (b"a = [", "not valid TOML"),
            (deep("a.", "").as_bytes(), "not valid TOML"),
            (format!("{}b = 1", deep("a.", "")).as_bytes(), "not valid TOML"),
            (format!("a = {}", deep("[", "]")).as_bytes(), "not valid TOML"),
            (format!("a = {}1{}", "{a=".repeat(100_000), "}".repeat(100_000)).as_bytes(), "not valid TOML"),
            (format!("{}a{}", "[".repeat(100_000), "]".repeat(100_000)).as_bytes(), "not valid TOML"),
            (b"[validate]\nselect = 1", "select"),
            (b"[validate]\nmax-memory = [1]", "max-memory"),
            (b"[validate]\njobs = 99999999999999999999999", "TOML"),
            (b"[validate]\ntimeout = -1", "timeout: a time"),
            (b"[validate]\ntimeout = 1e300", "timeout: a time"),
            (b"[validate]\nmax-memory = nan", "max-memory: a size"),
            (b"[validate]\n[validate]", "not valid TOML"),
            (b"[validate]\nselct\\u0007 = 1", "not valid TOML"),
            (b"[validate]\n\"sel\\u001bct\" = 1", "there is no key"),
            (&vec![b'#'; 5 << 20], "more than"),
        ] {
            std::fs::write(&path, content).expect("written");
            let error = SettingsFile::read(&path).expect_err(part);
            let message = error.to_string();
            assert!(matches!(error, Error::Argument(_)) && message.contains(part), "{message}");
            assert!(message.len() < 1000 && !message.contains(char::is_control), "{message:?}");
        }
        for path in [folder.path(), &folder.path().join("none.toml"), Path::new("/dev/zero")] {
            assert!(matches!(SettingsFile::read(path), Err(Error::Argument(_))), "{path:?}");
        }
    }

    #[test]
    fn other_tables_of_a_project_are_none_of_its_business() {
        let project = Path::new("pyproject.toml");
        let read = |text: &str| SettingsFile::parse(text, project).expect("TOML");
        assert_eq!(read("[tool.other]\nselct = 1\n[project]\nname = \"a\""), None);
        assert_eq!(read("[tool.max-weights.other]\na = 1"), None);
        assert_eq!(read("[tool.max-weights.validate]\njobs = 3").and_then(|read| read.jobs), NonZero::new(3));
    }
}
