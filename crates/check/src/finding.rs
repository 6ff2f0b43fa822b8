//! One finding: a broken rule, and where it was broken.

use std::path::Path;
use std::sync::Arc;

use max_weights::Error;
use max_weights::error::Fault;
use max_weights::rules::{self, Rule};
use max_weights::text::cut;

/// Characters of what is there that a finding shows: a line may be as long as the file.
const MAX_EVIDENCE: usize = 1000;

/// A broken rule, where it was broken, and what shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule: &'static Rule,
    /// What was found, with expected against actual: a sentence without a full stop, texts of the file made printable by
    /// [`max_weights::text::shown`].
    pub message: String,
    /// What to do: the rule's cure, unless more is known.
    pub help: String,
    /// The file.
    pub path: Arc<Path>,
    /// The member of an archive, or of an archive in it: `inner.zip!/archive/data.pkl`.
    pub member: Option<String>,
    /// The tensor.
    pub tensor: Option<String>,
    /// The byte in the file, or in the member if there is one.
    pub offset: Option<u64>,
    /// What is there, such as the call as Python would write it.
    pub evidence: Option<String>,
    /// The class or function that it is about, `os.system`: what tells two findings of a rule in one member apart wherever they stand.
    pub global: Option<String>,
    /// The SHA-256 of the bytes that it is about, the member's or the file's, where they run code: another call in their place is another finding.
    pub code: Option<[u8; 32]>,
}

impl Finding {
    /// A finding of which only the rule and the sentence are known; the [`Context`](crate::Context) adds file and member.
    pub fn new(rule: &'static Rule, message: impl Into<String>) -> Self {
        Self {
            rule,
            message: message.into(),
            help: rule.cure.to_owned(),
            path: Path::new("").into(),
            member: None,
            tensor: None,
            offset: None,
            evidence: None,
            global: None,
            code: None,
        }
    }

    /// Keeps no more of what is there than a report shows.
    pub(crate) fn shorten(&mut self) {
        if let Some(evidence) = self.evidence.as_mut().filter(|evidence| evidence.len() > MAX_EVIDENCE) {
            *evidence = cut(evidence, MAX_EVIDENCE).into_owned();
        }
    }

    /// Says better than the rule's cure what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    /// Adds the tensor's name.
    #[must_use]
    pub fn tensor(mut self, name: impl Into<String>) -> Self {
        self.tensor = Some(name.into());
        self
    }

    /// Adds the byte.
    #[must_use]
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
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

    /// Adds what is there.
    #[must_use]
    pub fn evidence(mut self, evidence: impl Into<String>) -> Self {
        self.evidence = Some(evidence.into());
        self
    }
}

impl From<Fault> for Finding {
    fn from(fault: Fault) -> Self {
        Self {
            rule: fault.rule,
            message: fault.cause,
            help: fault.help.into_owned(),
            path: fault.path.unwrap_or_default().into(),
            member: None,
            tensor: fault.tensor,
            offset: fault.offset,
            evidence: None,
            global: None,
            code: None,
        }
    }
}

/// What ends the look at a file.
impl From<&Error> for Finding {
    fn from(error: &Error) -> Self {
        match error {
            Error::Format(fault) | Error::Unsupported(fault) | Error::FileChanged(fault) => {
                Self::from((**fault).clone())
            }
            other => Self::new(rules::FILE_UNREADABLE, other.to_string()),
        }
    }
}
