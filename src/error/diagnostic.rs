//! A fault of a file: the broken rule, and where it was broken. Parsers and reports share this type.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Error, SENTENCE};
use crate::rules::{self, Rule, Severity};
use crate::text;

/// The most characters of evidence that a diagnostic keeps: a line may be as long as the file.
const MAX_EVIDENCE: usize = 1000;

/// A broken rule, where it was broken, and the evidence. Used for errors and, as data, for findings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The rule, such as `safetensors.overlap`, which says how severe it is.
    pub rule: &'static Rule,
    /// What is wrong, with expected against actual: a sentence without a full stop.
    pub message: String,
    /// What to do: the rule's help, unless the place of the fault has more specific advice.
    pub help: Cow<'static, str>,
    /// The file.
    pub path: Option<Arc<Path>>,
    /// The member of an archive, or of an archive in it: `inner.zip!/archive/data.pkl`.
    pub member: Option<String>,
    /// The tensor's full name.
    pub tensor: Option<String>,
    /// The byte offset in the file, or in the member if there is one.
    pub offset: Option<u64>,
    /// The content at fault, such as the call as Python would write it.
    pub evidence: Option<String>,
    /// The class or function at fault, `os.system`: it distinguishes two faults of a rule in one member, wherever they are.
    pub global: Option<String>,
    /// The SHA-256 of the bytes at fault, the member's or the file's, if they run code: a changed call is another fault.
    pub code: Option<[u8; 32]>,
    /// How many further ones of its rule it represents, which exceeded the limit of a list; 0 for a single one.
    pub more: usize,
}

impl Diagnostic {
    /// A diagnostic with only a rule and a message so far.
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

    /// Replaces the rule's help by more specific advice.
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

    /// Adds the class or function at fault.
    #[must_use]
    pub fn global(mut self, name: impl Into<String>) -> Self {
        self.global = Some(name.into());
        self
    }

    /// Adds the digest of the code that runs.
    #[must_use]
    pub fn code(mut self, digest: [u8; 32]) -> Self {
        self.code = Some(digest);
        self
    }

    /// Adds the evidence, cut to the length that a report shows.
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
            write!(f, "tensor '{}': ", text::escape(tensor))?;
        }
        f.write_str(&text::cut(&self.message, SENTENCE))?;
        if let Some(offset) = self.offset {
            write!(f, " (at byte {offset})")?;
        }
        write!(f, " [{}]. {}", self.rule, text::cut(&text::sentence(&self.help), SENTENCE))
    }
}

/// The fault that ends the check of a file.
impl From<&Error> for Diagnostic {
    fn from(error: &Error) -> Self {
        match error.diagnostic() {
            Some(diagnostic) => diagnostic.clone(),
            None => Self::new(rules::FILE_UNREADABLE, error.to_string()),
        }
    }
}
