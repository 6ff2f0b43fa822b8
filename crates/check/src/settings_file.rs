//! Settings that are in a file of the repository: `[validate]` of `max-weights.toml`, or `[tool.max-weights.validate]` of `pyproject.toml`.
//!
//! The file is looked for where the program runs and above, never in the folders that are validated: a model is not to say how it is looked at. The
//! command line is stronger than the file.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::glob::Pattern;
use max_weights::rules::Severity;
use max_weights::workers::stopped_here;
use max_weights::{Error, Result, text};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::amount;
use crate::bytes::read_file;
use crate::glob::fits_path;
use crate::options::{Level, RuleSelection};
use crate::output::{Format, ReportPaths};
use crate::report::Report;

/// The names of the files, the stronger one first.
const FILES: [&str; 2] = ["max-weights.toml", PROJECT];
const PROJECT: &str = "pyproject.toml";
/// The largest file that is read.
const MAX_BYTES: u64 = 4 << 20;
/// Characters of a message about it.
const MAX_MESSAGE: usize = 500;

/// What a file says; what it does not say is none, or empty. Paths are those from where the program runs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct SettingsFile {
    /// The file itself.
    #[serde(skip)]
    pub path: PathBuf,
    /// Rules that count.
    pub select: Vec<String>,
    /// Rules that do not.
    pub ignore: Vec<String>,
    /// Findings below this are left out.
    #[serde(deserialize_with = "severity")]
    pub severity: Option<Severity>,
    /// Findings from here on fail; the inner one is none where nothing does.
    #[serde(deserialize_with = "fail_on")]
    pub fail_on: Option<Option<Severity>>,
    /// How deep files are looked into.
    #[serde(deserialize_with = "level")]
    pub level: Option<Level>,
    /// Globs of paths, seen from the file's folder, and the rules that do not count there.
    #[serde(deserialize_with = "globs")]
    pub per_path_ignores: Vec<(Pattern, Vec<String>)>,
    /// Reports, and the files that they are written to; none: standard output.
    #[serde(deserialize_with = "outputs")]
    pub output: Vec<(Format, Option<PathBuf>)>,
    /// Files to check at the same time.
    pub jobs: Option<NonZero<usize>>,
    /// Bytes of memory.
    #[serde(deserialize_with = "size")]
    pub max_memory: Option<u64>,
    /// The longest that it may take.
    #[serde(deserialize_with = "time")]
    pub timeout: Option<Duration>,
    /// The file of known findings.
    pub baseline: Option<PathBuf>,
    /// What the checkpoint is expected to be.
    pub expect: Option<PathBuf>,
    /// The category of SARIF reports.
    pub category: Option<String>,
}

/// `max-weights.toml`, and what `pyproject.toml` has in `tool.max-weights`, where other programs may have more.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProjectSettings {
    validate: Option<SettingsFile>,
}

#[derive(Deserialize)]
struct Project {
    tool: Option<Tool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Tool {
    max_weights: Option<InProject>,
}

#[derive(Deserialize)]
struct InProject {
    validate: Option<SettingsFile>,
}

impl SettingsFile {
    /// The settings for a program that runs in this folder: of the first file in it or above that has any, up to the root of the repository.
    ///
    /// # Errors
    /// As of [`SettingsFile::read`].
    pub fn find(folder: &Path) -> Result<Option<Self>> {
        for folder in folder.ancestors() {
            for name in FILES {
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
        let content = read_file(path, MAX_BYTES, &stopped_here).map_err(failed)?;
        let content = content.ok_or_else(|| wrong(path, &format!("it has more than {}", text::size(MAX_BYTES))))?;
        let content = String::from_utf8(content).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            wrong(path, &format!("TOML is UTF-8, but the byte at {at} is not"))
        })?;
        Self::parse(&content, path)
    }

    fn parse(content: &str, path: &Path) -> Result<Option<Self>> {
        let is_project = path.file_name().is_some_and(|name| name == PROJECT);
        let parsed = if is_project {
            let in_project = |project: Project| project.tool?.max_weights?.validate;
            toml::from_str::<Project>(content).map(in_project)
        } else {
            toml::from_str::<ProjectSettings>(content).map(|own| own.validate)
        };
        let Some(mut settings) = parsed.map_err(|error| wrong(path, &not_settings(&error, content)))? else {
            return Ok(None);
        };
        let in_paths = settings.per_path_ignores.iter().flat_map(|(_, rules)| rules);
        let selection = RuleSelection {
            select: settings.select.clone(),
            ignore: settings.ignore.iter().chain(in_paths).cloned().collect(),
        };
        if let Some(word) = selection.unknown() {
            return Err(wrong(path, &format!("there is no rule '{}'", text::escape(word))));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let files = settings.output.iter_mut().filter_map(|(_, file)| file.as_mut());
        for file in files.chain(&mut settings.baseline).chain(&mut settings.expect) {
            *file = folder.join(&*file);
        }
        Ok(Some(Self { path: path.to_path_buf(), ..settings }))
    }

    /// Takes the findings out of a report that do not count where they are; they are counted in it. What is malicious is left out only where its rule is
    /// named by itself, not by a group such as `security`.
    pub fn apply(&self, report: &mut Report) {
        if self.per_path_ignores.is_empty() {
            return;
        }
        let rules: Vec<(&Pattern, RuleSelection)> = self
            .per_path_ignores
            .iter()
            .map(|(pattern, rules)| (pattern, RuleSelection { select: rules.clone(), ignore: Vec::new() }))
            .filter(|(_, selection)| !selection.select.is_empty())
            .collect();
        let mut places = ReportPaths::new(self.path.parent().unwrap_or(Path::new("")));
        let which: Vec<bool> = report
            .findings
            .iter()
            .map(|finding| {
                let name = places.name(finding.file());
                let counts = |selection: &RuleSelection| selection.excepts(finding.rule);
                rules.iter().any(|(pattern, selection)| counts(selection) && fits_path(pattern, name))
            })
            .collect();
        let ignored = report.leave_out(&which);
        report.ignored += ignored;
    }
}

/// The value of a word or a number; `expected` describes it.
fn word<'de, T, D: Deserializer<'de>>(
    deserializer: D,
    expected: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> std::result::Result<Option<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a number or a string was expected")]
    enum SettingWord {
        Number(f64),
        Text(String),
    }
    let text = match SettingWord::deserialize(deserializer)? {
        SettingWord::Number(number) => number.to_string(),
        SettingWord::Text(text) => text,
    };
    let parsed = parse(&text).map(Some);
    parsed.ok_or_else(|| D::Error::custom(format!("'{}' is not {expected}", text::escape(&text))))
}

type Parsed<'de, T, D> = std::result::Result<T, <D as Deserializer<'de>>::Error>;

fn severity<'de, D: Deserializer<'de>>(deserializer: D) -> Parsed<'de, Option<Severity>, D> {
    word(deserializer, "a severity: note, warning or error", Severity::from_name)
}

#[allow(clippy::option_option)] // the inner one is none where nothing fails
fn fail_on<'de, D: Deserializer<'de>>(deserializer: D) -> Parsed<'de, Option<Option<Severity>>, D> {
    word(deserializer, "a severity or never: note, warning, error or never", |word| {
        if word == "never" { Some(None) } else { Severity::from_name(word).map(Some) }
    })
}

fn level<'de, D: Deserializer<'de>>(deserializer: D) -> Parsed<'de, Option<Level>, D> {
    word(deserializer, "a level: header, structure or content", Level::from_name)
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Parsed<'de, Option<u64>, D> {
    word(deserializer, "a size, such as 2GB", amount::bytes)
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Parsed<'de, Option<Duration>, D> {
    word(deserializer, "a time, such as 10min", amount::time)
}

fn globs<'de, D: Deserializer<'de>>(deserializer: D) -> Parsed<'de, Vec<(Pattern, Vec<String>)>, D> {
    let pattern = |(glob, rules): (String, Vec<String>)| match Pattern::new(&glob) {
        Ok(pattern) => Ok((pattern, rules)),
        Err(error) => Err(D::Error::custom(format!("'{}' is not a valid glob: {error}", text::escape(&glob)))),
    };
    BTreeMap::deserialize(deserializer)?.into_iter().map(pattern).collect()
}

fn outputs<'de, D: Deserializer<'de>>(deserializer: D) -> Parsed<'de, Vec<(Format, Option<PathBuf>)>, D> {
    let output = |(format, file): (String, PathBuf)| {
        let format = format.parse::<Format>().map_err(D::Error::custom)?;
        Ok((format, (file.as_os_str() != "-").then_some(file)))
    };
    BTreeMap::deserialize(deserializer)?.into_iter().map(output).collect()
}

/// What is wrong with a string that has no settings, and where; the line itself may be long, or steer a terminal.
fn not_settings(error: &toml::de::Error, content: &str) -> String {
    let before = error.span().and_then(|span| content.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    format!("line {line}, column {column}: {}", text::cut(error.message(), MAX_MESSAGE))
}

fn wrong(path: &Path, cause: &str) -> Error {
    Error::Argument(format!("{}: {cause}", text::path(path)))
}
