//! One thing that is wrong with a file: the broken rule, and where it was broken. From the parser to the report it is this.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Error, SENTENCE};
use crate::rules::{self, Rule, Severity};
use crate::text;

/// Characters of what is there that a diagnostic keeps: a line may be as long as the file.
const MAX_EVIDENCE: usize = 1000;

/// A broken rule, where it was broken, and what shows it. Used for errors and, as data, for findings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The rule, such as `safetensors.overlap`, which says how severe it is.
    pub rule: &'static Rule,
    /// What is wrong, with expected against actual: a sentence without a full stop.
    pub message: String,
    /// What to do about it: the rule's help, unless more is known at the place where it was broken.
    pub help: Cow<'static, str>,
    /// The file.
    pub path: Option<Arc<Path>>,
    /// The member of an archive, or of an archive in it: `inner.zip!/archive/data.pkl`.
    pub member: Option<String>,
    /// The tensor's full name.
    pub tensor: Option<String>,
    /// The byte offset in the file, or in the member if there is one.
    pub offset: Option<u64>,
    /// What is there, such as the call as Python would write it.
    pub evidence: Option<String>,
    /// The class or function that it is about, `os.system`: what tells two of a rule in one member apart wherever they stand.
    pub global: Option<String>,
    /// The SHA-256 of the bytes that it is about, the member's or the file's, where they run code: another call in their place is something else.
    pub code: Option<[u8; 32]>,
    /// How many more of its rule it stands for, which a list had no room for; 0 for one by itself.
    pub more: usize,
}

impl Diagnostic {
    /// One of which only the rule and the message are known yet.
    pub fn new(rule: &'static Rule, message: impl Into<String>) -> Self {
        Self {
            rule,
            message: message.into(),
            help: rule.help.into(),
            path: None,
            member: None,
            tensor: None,
            offset: None,
            evidence: None,
            global: None,
            code: None,
            more: 0,
        }
    }

    /// How severe it is.
    pub fn severity(&self) -> Severity {
        self.rule.severity
    }

    /// The file; an empty path if that is not known.
    pub fn file(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new(""))
    }

    /// Says better than the rule's help what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<Cow<'static, str>>) -> Self {
        self.help = help.into();
        self
    }

    /// Adds the tensor's name.
    #[must_use]
    pub fn tensor(mut self, name: impl Into<String>) -> Self {
        self.tensor = Some(name.into());
        self
    }

    /// Adds the byte offset.
    #[must_use]
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Adds the path.
    #[must_use]
    pub fn path(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = Some(path.into().into());
        self
    }

    /// Adds the class or function that it is about.
    #[must_use]
    pub fn global(mut self, name: impl Into<String>) -> Self {
        self.global = Some(name.into());
        self
    }

    /// Adds the digest of what runs.
    #[must_use]
    pub fn code(mut self, digest: [u8; 32]) -> Self {
        self.code = Some(digest);
        self
    }

    /// Adds what is there, as much of it as a report shows.
    #[must_use]
    pub fn evidence(mut self, evidence: impl Into<String>) -> Self {
        let evidence = evidence.into();
        let is_long = evidence.len() > MAX_EVIDENCE;
        self.evidence = Some(if is_long { text::cut(&evidence, MAX_EVIDENCE).into_owned() } else { evidence });
        self
    }

    /// As a format error.
    pub fn format(self) -> Error {
        Error::Format(Box::new(self))
    }

    /// As an error about something that is legal but not supported.
    pub fn unsupported(self) -> Error {
        Error::Unsupported(Box::new(self))
    }
}

impl fmt::Display for Diagnostic {
    /// `PATH: tensor 'NAME': MESSAGE (at byte N) [rule]. HELP`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", text::path(path))?;
        }
        if let Some(tensor) = &self.tensor {
            write!(f, "tensor '{}': ", text::shown(tensor))?;
        }
        f.write_str(&text::cut(&self.message, SENTENCE))?;
        if let Some(offset) = self.offset {
            write!(f, " (at byte {offset})")?;
        }
        write!(f, " [{}]. {}", self.rule, text::cut(&text::sentence(&self.help), SENTENCE))
    }
}

/// What ends the look at a file.
impl From<&Error> for Diagnostic {
    fn from(error: &Error) -> Self {
        match error.diagnostic() {
            Some(diagnostic) => diagnostic.clone(),
            None => Self::new(rules::FILE_UNREADABLE, error.to_string()),
        }
    }
}
