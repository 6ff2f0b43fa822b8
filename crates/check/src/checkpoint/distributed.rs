//! Folders of torch.distributed.checkpoint: what `.metadata` says of the pieces of tensors, and whether the files of the ranks have them.

use max_weights::checkpoint;
use max_weights::format::distributed::{METADATA, SUFFIX};
use max_weights::{Diagnostic, Error, Result, rules};

use crate::folder::{FolderContext, FolderListing};
use crate::kind::Kind;
use crate::options::Level;

pub(super) fn check(folder: &FolderListing, context: &mut FolderContext<'_>) -> Result<()> {
    let of_ranks = folder.files.iter().find(|entry| entry.name().ends_with(SUFFIX));
    let mut metadata = folder.files.iter().filter(|entry| entry.name().ends_with(METADATA)).peekable();
    if let (Some(first), None, true) = (of_ranks, metadata.peek(), folder.is_whole) {
        let cause = "it is one file of a distributed checkpoint, but its folder has no .metadata that describes it";
        context.report(&first.path, Diagnostic::new(rules::DISTRIBUTED_NO_METADATA, cause));
    }
    for entry in metadata.filter(|entry| entry.kind == Kind::Pickle) {
        context.check_cancelled(&entry.path)?;
        let options = context.options.opening();
        let look = if context.options.level > Level::Header { checkpoint::check_items } else { checkpoint::check };
        let findings = match look(&[&entry.path], &options) {
            Ok(findings) => findings,
            // Findings of the pickle scan are not repeated.
            Err(Error::Format(fault) | Error::Unsupported(fault)) if fault.rule.id.starts_with("pickle.") => continue,
            Err(Error::Format(fault) | Error::Unsupported(fault)) => vec![*fault],
            Err(error) => return Err(error),
        };
        for finding in findings {
            let path = finding.path.clone().unwrap_or_else(|| entry.path.clone());
            context.report(&path, finding);
        }
    }
    Ok(())
}
