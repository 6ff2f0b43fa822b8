//! Deltas of other libraries on opening: the patches of their files, and whether one builds on another.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Diagnostic, Error, Result};
use crate::format;
use crate::format::delta::DeltaHeader;
use crate::format::delta::dialects::{DeltaDialect, DialectChange, DialectForm, Sparse};
use crate::format::index::ShardIndex;
use crate::rules;
use crate::source::Source;
use crate::tensor::TensorTable;
use crate::text;

use super::patch::Patch;
use super::{Content, OpenedDelta, is_own};

/// Whether a safetensors file with these metadata and tensors is a delta.
pub(in super::super) fn is_delta(metadata: &[(String, String)], table: &TensorTable) -> bool {
    is_own(metadata, table) || Sparse::is_of_trl(metadata)
}

/// The reason why two deltas cannot form a chain, whatever their versions.
pub(super) fn mixed(before: &OpenedDelta, after: &OpenedDelta) -> Option<String> {
    let (one, other) = (before.dialect(), after.dialect());
    (!one.is_like(other)).then(|| {
        let path = text::path(before.source.path());
        format!("it is a delta of the form {other}, but '{path}', before it, has the form {one}: whether one builds on the other is unknown; fold one of them")
    })
}

/// The version as a number; 0 for other names.
pub(super) fn number(version: &str) -> u64 {
    version.parse().unwrap_or_default()
}

/// Whether a delta builds on another one. Without a base version, a higher version number decides.
pub(super) fn follows(before: &OpenedDelta, after: &OpenedDelta) -> bool {
    let (before, after) = (&before.header, &after.header);
    if after.base.is_empty() { number(&before.target) < number(&after.target) } else { before.target == after.base }
}

/// The source of a delta's description: an index of files in its folder, or the metadata or manifest of one file.
pub(super) enum DeclaredDialect<'a> {
    Folder(&'a DialectForm, &'a ShardIndex),
    Sparse(&'a Sparse),
}

/// Creates a delta from this description and its files, in order; the source may be one of them.
pub(super) fn of_files(
    source: Arc<dyn Source>,
    declared: &DeclaredDialect<'_>,
    files: Vec<(Arc<dyn Source>, format::FileHeader)>,
) -> Result<OpenedDelta> {
    let mut patches = BTreeMap::new();
    for (number, (file, header)) in files.into_iter().enumerate() {
        let changes = match declared {
            DeclaredDialect::Folder(form, index) => {
                form.changes(&header, |name| index.find(name).is_some_and(|(_, shard)| shard as usize == number))
            }
            DeclaredDialect::Sparse(sparse) => sparse.changes(&header.tensors),
        };
        let changes = changes.map_err(|error| error.at_path(file.path()))?;
        let patch = |(name, change): (String, DialectChange)| {
            (name.clone(), Arc::new(Patch { name, file: file.clone(), change }))
        };
        patches.extend(changes.into_iter().map(patch));
    }
    let (dialect, base, target) = match declared {
        DeclaredDialect::Folder(form, _) => (form.dialect, &form.base_version, &form.version),
        DeclaredDialect::Sparse(sparse) => (DeltaDialect::Sparse, &sparse.base, &sparse.target),
    };
    let header = DeltaHeader::new(base.clone(), target.clone());
    let delta = OpenedDelta { source, header, content: Content::Patches { dialect, patches } };
    match declared {
        DeclaredDialect::Folder(_, index) => match index.iter().find(|(name, _)| delta.patch(name).is_none()) {
            Some((name, _)) => {
                let cause = "the index names it, but it is in no file";
                Err(delta.fault(rules::DELTA_HEADER, cause).tensor(name).format())
            }
            None => Ok(delta),
        },
        DeclaredDialect::Sparse(_) => Ok(delta),
    }
}

/// Creates a delta from one safetensors file of another library; `None` if it is not a delta.
pub(super) fn of_file(
    source: Arc<dyn Source>,
    metadata: &[(String, String)],
    header: format::FileHeader,
) -> Result<Option<OpenedDelta>> {
    if !Sparse::is_of_trl(metadata) {
        return Ok(None);
    }
    let declared = Sparse::of_trl(metadata, header.tensors.iter().map(|info| info.name));
    let declared = declared.map_err(|error| error.at_path(source.path()))?;
    of_files(source.clone(), &DeclaredDialect::Sparse(&declared), vec![(source, header)]).map(Some)
}

/// The error for a chain that does not begin at the version of its base.
pub(super) fn wrong_version(first: &OpenedDelta, version: &str) -> Error {
    let cause = format!(
        "the base is the version {}, but the first delta changes {}",
        text::escape(version),
        text::escape(&first.header.base)
    );
    Diagnostic::new(rules::DELTA_BASE, cause).path(first.source.path()).format()
}
