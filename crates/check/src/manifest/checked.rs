//! What a check against a manifest found.

use std::path::{Path, PathBuf};

use max_weights::source::store;
use max_weights::{Diagnostic, rules};
use serde::Serialize;

/// How files compare.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FileCounts {
    /// Those that are what they were.
    pub same: u64,
    /// Those that are something else now.
    pub changed: u64,
    /// Those that are not there.
    pub missing: u64,
    /// Those that were not there.
    pub new: u64,
}

/// How tensors compare.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TensorCounts {
    /// Those that are what they were, and in the same file.
    pub same: u64,
    /// Those that are what they were, in another file.
    pub moved: u64,
    /// Those whose dtype, shape or elements are others now.
    pub changed: u64,
    /// Those that are in no file.
    pub missing: u64,
    /// Those that were not there.
    pub new: u64,
}

/// What a check against a manifest found.
#[derive(Debug, Default)]
pub struct Checked {
    /// The findings.
    pub findings: Vec<Diagnostic>,
    /// How files compare.
    pub files: FileCounts,
    /// How tensors compare.
    pub tensors: TensorCounts,
}

impl Checked {
    /// Whether any finding is more than a note.
    pub fn differs(&self) -> bool {
        self.findings.iter().any(|finding| finding.rule.severity > rules::Severity::Note)
    }

    pub(super) fn report(&mut self, path: &Path, mut finding: Diagnostic) {
        finding.path = Some(path.into());
        self.findings.push(finding);
    }
}

/// Where a file of a manifest would be.
pub(super) fn place(root: &Path, below: &str) -> PathBuf {
    if store::is_url(root) {
        let is_file = Path::new(&store::name(root)).extension().is_some();
        let folder = if is_file { store::parent(root) } else { root.to_path_buf() };
        return store::redacted(&store::join(&folder, below));
    }
    let folder = if root.is_dir() { root } else { root.parent().unwrap_or(root) };
    folder.strip_prefix(".").unwrap_or(folder).join(below)
}
