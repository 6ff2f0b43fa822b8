//! The file formats: from bytes to a table of tensors. Parsers do no I/O: they request the parts that they need ([`Parse`]). The same parser runs
//! under a fuzzer and on a remote file.

#![deny(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

pub mod delta;
pub mod distributed;
pub mod gguf;
pub mod index;
pub mod json;
mod name_table;
mod parse;
pub mod pickle;
pub mod safetensors;
mod sniff;
pub mod torch;
pub mod torch_legacy;
pub mod torch_zip;

pub use parse::{Parse, ParseProgress, drive};
pub use sniff::{FormatKind, SNIFF_BYTES, is_text, sniff};

use crate::error::{Diagnostic, Diagnostics, Error, MAX_FINDINGS, Policy, Result};
use crate::tensor::TensorTable;
pub(crate) use crate::text::{escape, shape as shown_shape};
use crate::workers::stopped_here;

/// The longest header that is read: the limit of the safetensors format itself.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// The most dimensions of a tensor; NumPy's limit, and far above any weight.
pub const MAX_RANK: usize = 64;
/// The most entries of a file's metadata. A header of the longest length would have room for millions, at a hundred bytes of memory each.
pub const MAX_METADATA_ENTRIES: usize = 1_000_000;
/// The most dtypes that a file may name and that this version does not know.
pub const MAX_UNKNOWN_DTYPES: usize = 64;

/// The limits of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderLimits {
    /// Bytes of the header.
    pub header_bytes: u64,
    /// Dimensions of one tensor.
    pub rank: usize,
    /// Entries of the metadata.
    pub metadata_entries: usize,
    /// Different dtypes of unknown name.
    pub unknown_dtypes: usize,
    /// Diagnostics of one rule that are kept with their text.
    pub findings: usize,
}

impl Default for HeaderLimits {
    fn default() -> Self {
        Self {
            header_bytes: MAX_HEADER_BYTES,
            rank: MAX_RANK,
            metadata_entries: MAX_METADATA_ENTRIES,
            unknown_dtypes: MAX_UNKNOWN_DTYPES,
            findings: MAX_FINDINGS,
        }
    }
}

/// How a header is read.
#[derive(Debug, Clone)]
pub struct HeaderOptions {
    /// What ends the reading.
    pub policy: Policy,
    /// The limits of the header.
    pub limits: HeaderLimits,
    /// Asked now and then, on the thread that opens or reads; an error ends it.
    pub interrupt: fn() -> Result<()>,
}

impl Default for HeaderOptions {
    fn default() -> Self {
        Self { policy: Policy::Strict, limits: HeaderLimits::default(), interrupt: stopped_here }
    }
}

impl HeaderOptions {
    /// A list for the findings of a file.
    pub fn findings(&self) -> Diagnostics {
        Diagnostics::new(self.policy, self.limits.findings)
    }

    /// The error of faults of one rule: the first, or all of them where errors are collected.
    pub(crate) fn error_of(&self, faults: impl IntoIterator<Item = Diagnostic>) -> Error {
        let mut findings = Diagnostics::new(self.policy, self.limits.findings);
        match faults.into_iter().try_for_each(|fault| findings.report(fault)) {
            Err(first) => Error::Format(first),
            Ok(()) => Error::Diagnostics(findings.close()),
        }
    }
}

/// The content of the header of one file.
#[derive(Debug, Clone, Default)]
pub struct FileHeader {
    /// The tensors, in the order of their offsets. They belong to file 0, and their spans count from the start of the file.
    pub tensors: TensorTable,
    /// The file's own key-value pairs, in its order; `None` where it has no place for them.
    pub metadata: Option<Vec<(String, String)>>,
    /// Where the data begins in the file.
    pub data_start: u64,
    /// Tolerated faults.
    pub findings: Vec<Diagnostic>,
}
