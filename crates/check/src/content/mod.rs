//! Every byte of the weights, in one pass: what the values are like, whether checksums hold, and which tensors are the same.
//!
//! Tensors are hashed where there is another of the same dtype and shape that they could be the same as. The SHA-256 of all tensors and of whole files,
//! of which a core can make only one file's at a time, are of [manifests](crate::manifest).

mod duplicates;
mod read;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use max_weights::check::PassRequest;
use max_weights::tensor::Element;
use max_weights::{Checkpoint, Diagnostic, Error, Result, rules};

use crate::context::in_time;
use crate::folder::{FolderContext, FolderListing, ListedFile};
use crate::kind::Kind;
use crate::options::ValidateOptions;
use crate::report::{Depth, TensorSummary};
use crate::values::{BINS, judge};
use duplicates::Duplicates;

pub(crate) use read::read;
pub use read::{TensorStatistics, stats};

/// Reads all tensors of the weights in a folder.
pub fn check(folder: &FolderListing, context: &mut FolderContext<'_>) -> Result<()> {
    let mut duplicates = Duplicates::default();
    let mut kinds: HashMap<Kind, usize> = HashMap::new();
    folder.files.iter().for_each(|entry| *kinds.entry(entry.kind).or_default() += 1);
    for entry in &folder.files {
        let is_alone = kinds.get(&entry.kind) == Some(&1);
        let holds_weights = holds_weights(entry);
        if let Err(error) = in_time(context.deadline(), &entry.path) {
            if holds_weights {
                context.report(&entry.path, Diagnostic::from(&error));
            }
            continue;
        }
        let Some(checkpoint) = open(entry, context.options)? else { continue };
        match check_file(entry, is_alone, &checkpoint, &mut duplicates, context) {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => context.report(&entry.path, Diagnostic::from(&error)),
            Ok(()) => {}
        }
    }
    for (path, finding) in duplicates.findings() {
        context.report(&path, finding);
    }
    Ok(())
}

/// A file of weights; `None` if it is something else, or cannot be opened, which the structure check reports.
pub(crate) fn open(entry: &ListedFile, options: &ValidateOptions) -> Result<Option<Checkpoint>> {
    if !holds_weights(entry) {
        return Ok(None);
    }
    let options = options.opening().strict(false);
    let open = || match &entry.opened {
        Some(source) => Checkpoint::open_sources(vec![source.clone()], &options),
        None => Checkpoint::open(&[&entry.at], &options),
    };
    match open() {
        Err(Error::Interrupted) => Err(Error::Interrupted),
        opened => Ok(opened.ok()),
    }
}

fn holds_weights(entry: &ListedFile) -> bool {
    matches!(entry.kind, Kind::Safetensors | Kind::Gguf | Kind::Zip | Kind::TorchLegacy)
}

fn check_file(
    entry: &ListedFile,
    is_alone: bool,
    checkpoint: &Checkpoint,
    duplicates: &mut Duplicates,
    context: &mut FolderContext<'_>,
) -> Result<()> {
    let table = checkpoint.catalog().table();
    let bytes = table.iter().map(|info| info.bytes()).fold(0, u64::saturating_add);
    let (deadline, interrupt, nobodys) = (context.deadline(), context.interrupt, AtomicU64::new(0));
    let done = context.progress().map_or(&nobodys, |progress| {
        progress.bytes.fetch_add(bytes, Ordering::Relaxed);
        &progress.done
    });
    let cancel = || in_time(deadline, &entry.path).and_then(|()| interrupt());
    let threads = context.options.jobs.map(std::num::NonZero::get);
    let mut alike: HashMap<(Element<'_>, &[u64]), usize> = HashMap::new();
    table.iter().for_each(|info| *alike.entry((info.element, info.shape)).or_default() += 1);
    let requested = |number: usize| {
        let info = table.get(number);
        let hash = !is_alone || alike.get(&(info.element, info.shape)).is_some_and(|count| *count > 1);
        PassRequest { hash, values: true, rows: true }
    };
    let bins = if context.options.histograms { BINS } else { 0 };
    let found = read(checkpoint, &requested, bins, threads, done, &cancel)?;
    match checkpoint.verify_checksums_while(&cancel) {
        Err(error @ Error::Format(_)) => context.report(&entry.path, Diagnostic::from(&error)),
        verified => drop(verified?),
    }
    let mut is_whole = true;
    for (info, found) in table.iter().zip(found) {
        match found {
            Ok(contents) => {
                judge::judge(checkpoint, &info, &contents, &mut |finding| context.report(&entry.path, finding));
                context.summarise(TensorSummary::new(&entry.path, &info, contents.statistics.as_ref()));
                duplicates.add(entry, &info, &contents);
            }
            Err(error) => {
                let is_no_array = error.diagnostic().is_some_and(|fault| fault.rule == rules::TORCH_NO_ARRAY);
                // The component arrays are separate tensors.
                if !is_no_array {
                    is_whole = false;
                    context.report(&entry.path, Diagnostic::from(&error).tensor(info.name));
                }
            }
        }
    }
    if is_whole {
        context.looked(&entry.path, Depth::Content);
    }
    Ok(())
}
