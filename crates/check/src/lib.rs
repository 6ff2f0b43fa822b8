//! Validation of checkpoints: whether what is in a folder is whole, safe, and what it claims to be. Nothing of it is ever executed.
//!
//! [`validate`] looks at every file below some paths and returns a [`Report`]: each file with what it is and how deep it was looked into, and all
//! findings. The rules are in the registry of the core, [`max_weights::rules`]. What is in which room, and which may import which, says
//! `docs/architecture.md`; `tests/project/architecture.rs` of the core enforces it.

pub mod amount;
pub mod baseline;
mod bytes;
pub mod checkpoint;
mod code_digest;
pub mod content;
mod context;
mod dangerous;
pub mod difference;
pub mod expectation;
mod expressions;
mod folder;
mod glob;
mod json;
mod kind;
pub mod manifest;
pub mod merge;
mod options;
pub mod output;
mod progress;
pub mod quantized;
mod report;
pub mod repository;
pub mod security;
pub mod settings_file;
mod share;
mod validate;
mod values;
mod walk;
mod words;

pub use bytes::{ByteSlice, RandomRead};
pub use context::{ByteSpan, CheckPace, FileContext};
pub use folder::{FolderContext, FolderListing, FolderReport, ListedFile};
pub use kind::Kind;
pub use max_weights::Diagnostic;
pub use max_weights::rules::Verdict;
pub use options::{Level, RuleSelection, ValidateOptions};
pub use progress::ValidateProgress;
pub use report::{Depth, FileReport, Global, Report, TensorSummary};
pub use share::Share;
pub use validate::validate;
