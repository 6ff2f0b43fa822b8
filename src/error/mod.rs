//! The one error type of the project.
//!
//! Every error says where (path, tensor, byte offset), what was expected and found, and what to do. A parser knows neither its file nor, often, its
//! tensor: it fills a [`Diagnostic`] with what it knows, and the layers above add the rest ([`Error::at_path`]). The fields have texts of the file
//! unchanged, or as [`text::escape`] returns them; a printed error is safe whatever it contains.

mod diagnostic;
mod diagnostics;
mod not_a_path;

pub use diagnostic::Diagnostic;
pub use diagnostics::{Diagnostics, MAX_FINDINGS, Policy};
pub(crate) use not_a_path::{is_url, not_a_path, urls_are_opened};

use std::fmt;
use std::path::{Path, PathBuf};

use crate::rules::{self, Severity};
use crate::text;

/// The most characters of a cause or of advice in a message: quoted lists of names may be long.
const SENTENCE: usize = 10_000;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong. Each variant is one Python exception class.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Bytes that break the rules of their format.
    #[error("{0}")]
    Format(Box<Diagnostic>),
    /// Legal, but not supported.
    #[error("{0}")]
    Unsupported(Box<Diagnostic>),
    /// The file is no longer the one that was opened.
    #[error("{0}")]
    FileChanged(Box<Diagnostic>),
    /// All findings in order, if they are collected: at least one is an error.
    #[error("{}", several(.0))]
    Diagnostics(Vec<Diagnostic>),
    /// No weight of this name.
    #[error("no weight named '{}'{}", text::escape(name), suggestion(near, *below, note.as_deref()))]
    NotFound {
        /// The name asked for.
        name: String,
        /// Up to three names that are near it.
        near: Vec<String>,
        /// How many weights have the name as a prefix.
        below: usize,
        /// Why a weight may be missing here.
        note: Option<String>,
    },
    /// A path that does not exist.
    #[error("{}: no such file or directory{}", text::path(path), instead_of(path, near))]
    MissingFile {
        /// The path asked for.
        path: PathBuf,
        /// Up to three similar paths, printable, if they were searched for.
        near: Vec<String>,
    },
    /// A folder of a server that cannot be listed, and has none of the usual file names of checkpoints.
    #[error("{}: {}", text::path(folder), not_served(tried))]
    NotServed {
        /// The URL asked for.
        folder: PathBuf,
        /// The names that were tried in it.
        tried: Vec<String>,
    },
    /// The name of a model that is not in the local cache, or not in this revision.
    #[error("{}: {cause}; download it with `{command}`", text::escape(name))]
    NotInCache {
        /// The name asked for.
        name: String,
        /// What is missing, and where.
        cause: String,
        /// The command that downloads it.
        command: String,
    },
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", text::path(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The failed action, such as `read 4096 bytes at 128`.
        action: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// An invalid argument.
    #[error("{}", text::cut(.0, SENTENCE))]
    Argument(String),
    /// An index beyond an axis.
    #[error("{}", text::cut(.0, SENTENCE))]
    Index(String),
    /// The checkpoint was closed.
    #[error(
        "{}: the checkpoint was closed; tensors already taken from it stay valid, new ones need it open",
        text::path(path)
    )]
    Closed {
        /// The (first) file.
        path: PathBuf,
    },
    /// The caller has cancelled.
    #[error("stopped")]
    Interrupted,
    /// A device that is absent, or cannot do what was requested.
    #[error("{0}")]
    Device(String),
}

impl fmt::Debug for Error {
    /// Like `Display`: a `main` that returns the error prints this.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Names the file in an error that does not name one yet.
    #[must_use]
    pub fn at_path(mut self, path: &Path) -> Self {
        let faults = match &mut self {
            Self::Format(fault) | Self::Unsupported(fault) | Self::FileChanged(fault) => {
                std::slice::from_mut(&mut **fault)
            }
            Self::Diagnostics(list) => list,
            _ => &mut [],
        };
        for fault in faults {
            fault.path.get_or_insert_with(|| path.into());
        }
        self
    }

    /// Names the tensor in an error of a file that does not name one yet.
    #[must_use]
    pub(crate) fn at_tensor(mut self, name: &str) -> Self {
        match &mut self {
            Self::Format(fault) | Self::Unsupported(fault) | Self::FileChanged(fault) => {
                fault.tensor.get_or_insert_with(|| name.into());
            }
            Self::Io { action, .. } => *action = format!("{action}, of '{}'", text::escape(name)),
            _ => {}
        }
        self
    }

    /// Names several tensors that were read together: the first and the last in their file.
    #[must_use]
    pub(crate) fn at_tensors(mut self, first: &str, last: &str) -> Self {
        let names = format!("'{}' to '{}'", text::escape(first), text::escape(last));
        match &mut self {
            Self::Format(fault) | Self::Unsupported(fault) | Self::FileChanged(fault) if fault.tensor.is_none() => {
                fault.message = format!("{}, seen while {names} were read", fault.message);
            }
            Self::Io { action, .. } => *action = format!("{action}, of {names}"),
            _ => {}
        }
        self
    }

    /// An operating-system error, with the file and the failed action.
    pub fn io(path: &Path, action: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), action: action.into(), source }
    }

    /// The broken rule, if any; of several, the first that is an error, or the last if none is.
    pub fn diagnostic(&self) -> Option<&Diagnostic> {
        match self {
            Self::Diagnostics(list) => list.iter().find(|fault| fault.rule.severity == Severity::Error).or(list.last()),
            Self::Format(fault) | Self::Unsupported(fault) | Self::FileChanged(fault) => Some(fault),
            _ => None,
        }
    }
}

/// Errors of the numerics, with the rule that the arguments break.
impl From<max_weights_kernels::Error> for Error {
    fn from(error: max_weights_kernels::Error) -> Self {
        use max_weights_kernels::Error as Refused;
        let (rule, message) = match error {
            Refused::CastPair(message) => (rules::CAST_PAIR, message),
            Refused::CastScale(message) => (rules::CAST_SCALE, message),
            Refused::QuantizationTarget(message) => (rules::QUANTIZATION_TARGET, message),
            Refused::QuantizationEncode(message) => (rules::QUANTIZATION_ENCODE, message),
            Refused::Argument(message) => return Self::Argument(message),
        };
        Diagnostic::new(rule, message).unsupported()
    }
}

fn several(list: &[Diagnostic]) -> String {
    list.iter().map(Diagnostic::to_string).collect::<Vec<_>>().join("\n")
}

/// The part of a message that suggests similar paths, which are printable.
pub fn did_you_mean(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(", ")) }
}

/// The message for a folder of a server that serves none of these names.
pub fn not_served(tried: &[String]) -> String {
    format!(
        "this server does not list folders, and has none of the files that were tried there: {}; give the URL of the checkpoint's file or index",
        tried.join(", ")
    )
}

/// The advice in a message about a path that does not exist.
pub fn instead_of(path: &Path, near: &[String]) -> String {
    not_a_path(path).map_or_else(|| did_you_mean(near), |hint| format!("; {hint}"))
}

fn suggestion(near: &[String], below: usize, note: Option<&str>) -> String {
    let mut text = String::new();
    if below > 0 {
        let (verb, noun) = if below == 1 { ("is", "weight") } else { ("are", "weights") };
        text.push_str(&format!("; it is a prefix: there {verb} {below} {noun} below it (items() walks them)"));
    }
    let quoted: Vec<String> = near.iter().map(|name| format!("'{}'", text::escape(name))).collect();
    text.push_str(&did_you_mean(&quoted));
    if let Some(note) = note {
        text.push_str(&format!(" ({note})"));
    }
    text
}
