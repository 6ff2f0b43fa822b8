//! Every rule that a file can break: per id its meaning, why files break it, and what to do.
//!
//! A fault names its rule and its finding; the registry has the rest. A released id never changes.

mod adapter;
mod archive;
mod checkpoint;
mod code;
mod comparison;
mod delta;
mod distributed;
mod files;
mod gguf;
mod manifest;
mod pickle;
mod quantized;
mod repository;
mod safetensors;
mod set;
mod tensor;
mod torch;
mod torch_zip;
mod values;

use std::fmt;

pub use adapter::*;
pub use archive::*;
pub use checkpoint::*;
pub use code::*;
pub use comparison::*;
pub use delta::*;
pub use distributed::*;
pub use files::*;
pub use gguf::*;
pub use manifest::*;
pub use pickle::*;
pub use quantized::*;
pub use repository::*;
pub use safetensors::*;
pub use set::*;
pub use tensor::*;
pub use torch::*;
pub use torch_zip::*;
pub use values::*;

/// What a broken rule means for the caller who opens the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Information, not a fault.
    Note,
    /// Nothing is lost: a defect that no writer makes on purpose, or that other readers treat differently.
    Warning,
    /// The file is not opened, or the operation fails.
    Error,
}

/// The verdict on a file, a validation, or a broken rule; the worst is last. Exit status, `ok` and the forms of a report all derive from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Examined, with nothing worse than a note.
    Clean,
    /// Not examined: only the kinds of the files are known, or there were none.
    Unknown,
    /// All findings are excluded by options, settings or a baseline.
    Accepted,
    /// A warning that does not concern integrity or safety.
    Faulty,
    /// Damaged, or not readable.
    Broken,
    /// Loading it runs code, or may do so.
    NeedsTrust,
    /// Loading it does harm, or it was made to mislead.
    Malicious,
}

impl Verdict {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Unknown => "unknown",
            Self::Accepted => "accepted",
            Self::Faulty => "faulty",
            Self::Broken => "broken",
            Self::NeedsTrust => "needs-trust",
            Self::Malicious => "malicious",
        }
    }

    /// The words in a sentence.
    pub fn words(self) -> &'static str {
        if self == Self::NeedsTrust { "needs trust" } else { self.name() }
    }

    /// Whether nothing was found that is worse than a note.
    pub fn is_ok(self) -> bool {
        self < Self::Faulty
    }
}

impl Severity {
    /// All severities, the mildest first.
    pub const ALL: [Self; 3] = [Self::Note, Self::Warning, Self::Error];

    /// The severity of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|severity| severity.name() == name)
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A rule.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rule {
    /// The name, such as `safetensors.overlap`, which errors print.
    pub id: &'static str,
    /// The code, such as `MW-ST-014`, which reports print; rules are selected by the start of their codes.
    pub code: &'static str,
    /// What a broken rule means.
    pub severity: Severity,
    /// The verdict on a file that breaks it.
    pub verdict: Verdict,
    /// The fault, in one line.
    pub meaning: &'static str,
    /// The usual causes.
    pub cause: &'static str,
    /// The remedy.
    pub help: &'static str,
}

impl Rule {
    /// A rule outside the registry: for tests of how rules are shown, which must not depend on the texts.
    #[doc(hidden)]
    pub const fn unregistered(
        code: &'static str,
        id: &'static str,
        severity: Severity,
        verdict: Verdict,
        [meaning, cause, help]: [&'static str; 3],
    ) -> Self {
        Self { id, code, severity, verdict, meaning, cause, help }
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Rule {}

impl PartialEq<str> for Rule {
    fn eq(&self, other: &str) -> bool {
        self.id == other
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id)
    }
}

/// All rules, sorted by subject.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    [
        files::RULES,
        safetensors::RULES,
        gguf::RULES,
        torch_zip::RULES,
        torch::RULES,
        distributed::RULES,
        pickle::RULES,
        checkpoint::RULES,
        set::RULES,
        quantized::RULES,
        adapter::RULES,
        values::RULES,
        comparison::RULES,
        delta::RULES,
        manifest::RULES,
        code::RULES,
        archive::RULES,
        repository::RULES,
        tensor::RULES,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// The rule of this id or code.
pub fn find(id: &str) -> Option<&'static Rule> {
    all().find(|rule| rule.id == id || rule.code.eq_ignore_ascii_case(id))
}

/// Declares a constant for each rule, and the list of them: name, code, id and severity, and then meaning, cause and help in a line each. Instead of
/// a severity, `NeedsTrust` (a warning) or `Malicious` (an error) tell what loading the file does.
macro_rules! rules {
    ($($name:ident $code:literal $id:literal $severity:ident: $meaning:literal; $cause:expr; $help:expr;)*) => {
        $(
            #[doc = concat!("`", $id, "`: ", $meaning)]
            pub const $name: &$crate::rules::Rule = &$crate::rules::Rule {
                id: $id,
                code: $code,
                severity: $crate::rules::severity_and_verdict!($severity).0,
                verdict: $crate::rules::severity_and_verdict!($severity).1,
                meaning: $meaning,
                cause: $cause,
                help: $help,
            };
        )*
        pub(super) const RULES: &[&$crate::rules::Rule] = &[$($name),*];
    };
}
use rules;

/// The severity and verdict of a rule.
macro_rules! severity_and_verdict {
    (Note) => {
        ($crate::rules::Severity::Note, $crate::rules::Verdict::Clean)
    };
    (Warning) => {
        ($crate::rules::Severity::Warning, $crate::rules::Verdict::Faulty)
    };
    (Error) => {
        ($crate::rules::Severity::Error, $crate::rules::Verdict::Broken)
    };
    (NeedsTrust) => {
        ($crate::rules::Severity::Warning, $crate::rules::Verdict::NeedsTrust)
    };
    (Malicious) => {
        ($crate::rules::Severity::Error, $crate::rules::Verdict::Malicious)
    };
}
use severity_and_verdict;

// Texts for rules of several formats.

const CUT: &str = "the download was cut short or is incomplete, or a copy ran out of space";
const DAMAGED: &str = "the file was written by a custom program, changed in an editor, or damaged in transit";
const MADE: &str = "no program writes this: such a file is made to mislead or exhaust its reader";
const TWO_IN_ONE: &str = "something that its format does not have was put into the file, by accident or to make a file of two formats at once";

const FETCH_AGAIN: &str =
    "is it still downloading? Otherwise fetch it again, and compare its size with that of the source";
const TORCH_AGAIN: &str = "the file was not written by torch.save, or was changed since; save it again from its source";
const APPENDED: &str =
    "something was appended (a file can be two formats at once that way); save it again from its source";
const HEADER_LIMIT: &str = "if the file is meant to be like this, raise the limit on header bytes";
const MEMORY_HELP: &str = "what is built from a file, apart from its tensors, may take a multiple of its length; do not trust a file that needs more";
