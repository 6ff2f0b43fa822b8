//! Every rule that a file can break: one entry for each id, with what it means, why files break it and what to do.
//!
//! A fault names its rule and says what was found; the registry says the rest. An id is never reworded once released.

mod checkpoint;
mod files;
mod gguf;
mod pickle;
mod safetensors;
mod tensor;
mod torch;
mod torch_zip;

use std::fmt;

pub use checkpoint::*;
pub use files::*;
pub use gguf::*;
pub use pickle::*;
pub use safetensors::*;
pub use tensor::*;
pub use torch::*;
pub use torch_zip::*;

/// What a broken rule means for the one who opens the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Nothing is lost: something is there that no writer makes on purpose, or that other readers decide differently.
    Warning,
    /// The file is not opened, or what was asked for is not done.
    Error,
}

/// One rule.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rule {
    /// The stable id, such as `safetensors.overlap`.
    pub id: &'static str,
    /// What a broken rule means.
    pub severity: Severity,
    /// What is wrong, in one line.
    pub meaning: &'static str,
    /// Why files are like that.
    pub cause: &'static str,
    /// What to do.
    pub cure: &'static str,
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
        pickle::RULES,
        checkpoint::RULES,
        tensor::RULES,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// The rule of this id.
pub fn find(id: &str) -> Option<&'static Rule> {
    all().find(|rule| rule.id == id)
}

/// Makes a constant of each rule, and the list of them: name, id and severity, and then meaning, cause and cure in a line each.
macro_rules! rules {
    ($($name:ident $id:literal $severity:ident: $meaning:literal; $cause:expr; $cure:expr;)*) => {
        $(
            #[doc = concat!("`", $id, "`: ", $meaning)]
            pub const $name: &$crate::rules::Rule = &$crate::rules::Rule {
                id: $id,
                severity: $crate::rules::Severity::$severity,
                meaning: $meaning,
                cause: $cause,
                cure: $cure,
            };
        )*
        pub(super) const RULES: &[&$crate::rules::Rule] = &[$($name),*];
    };
}
use rules;

// What holds for rules of several formats.

const CUT: &str = "the download was cut or is not complete, or a copy ran out of space";
const DAMAGED: &str =
    "the file was written by a program of somebody's own, changed with an editor, or damaged on the way";
const MADE: &str = "no program writes this: a file like it is made to mislead or to exhaust its reader";
const TWO_IN_ONE: &str = "something was put into the file that its format does not have: by accident, or to make a file of two formats at once";
const MANY: &str = "one thing was done wrongly throughout the file";

const FETCH_AGAIN: &str =
    "is it still downloading? Otherwise fetch it again, and compare its size with that of the source";
const TORCH_AGAIN: &str = "the file was not written by torch.save, or was changed since; save it again from its source";
const APPENDED: &str =
    "something was appended (a file can be two formats at once that way); save it again from its source";
const HEADER_LIMIT: &str = "if the file is meant to be like this, raise the limit on header bytes";
const MEMORY_CURE: &str = "what is made of a file, its tensors aside, may take a multiple of its length; a file that needs more is not to be trusted";
const MORE_CURE: &str = "mend what is listed and open the file again, or raise the limit on findings";
