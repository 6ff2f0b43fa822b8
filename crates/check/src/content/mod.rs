//! Every byte of the weights, in one pass: what the values are like, whether checksums hold, and which tensors are the same.
//!
//! Tensors are hashed where there is another of the same dtype and shape that they could be the same as. The SHA-256 of all tensors and of whole files,
//! of which a core can make only one file's at a time, are of [manifests](crate::manifest).

mod duplicates;
mod read;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use max_weights::check::Wanted;
use max_weights::tensor::Element;
use max_weights::{Checkpoint, Diagnostic, Error, OpenOptions, Result, rules};

use crate::context::in_time;
use crate::folder::{Entry, Folder, FolderContext};
use crate::kind::Kind;
use crate::report::{Depth, TensorSummary};
use crate::values::{BINS, judge};
use duplicates::Duplicates;

pub(crate) use read::read;
pub use read::{TensorStatistics, stats};

/// Of each rule, so many findings are kept for one file; the last of them says how many there are more.
const MAX_FINDINGS: usize = 100;

/// Reads all tensors of the weights in a folder.
pub fn check(folder: &Folder, context: &mut FolderContext<'_>) -> Result<()> {
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
        let Some(checkpoint) = open(entry) else { continue };
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

/// A file of weights; `None` if it is something else, or cannot be opened, which is not said here but where its structure is looked at.
pub(crate) fn open(entry: &Entry) -> Option<Checkpoint> {
    let open = || Checkpoint::open(&[&entry.path], &OpenOptions::default().strict(false)).ok();
    holds_weights(entry).then(open).flatten()
}

fn holds_weights(entry: &Entry) -> bool {
    matches!(entry.kind, Kind::Safetensors | Kind::Gguf | Kind::Zip | Kind::TorchLegacy)
}

fn check_file(
    entry: &Entry,
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
    let go_on = || in_time(deadline, &entry.path).and_then(|()| interrupt());
    let threads = context.options.jobs.map(std::num::NonZero::get);
    let mut alike: HashMap<(Element<'_>, &[u64]), usize> = HashMap::new();
    table.iter().for_each(|info| *alike.entry((info.element, info.shape)).or_default() += 1);
    let wanted = |number: usize| {
        let info = table.get(number);
        let hash = !is_alone || alike.get(&(info.element, info.shape)).is_some_and(|count| *count > 1);
        Wanted { hash, values: true }
    };
    let found = read(checkpoint, &wanted, BINS, threads, done, &go_on)?;
    let mut findings = Findings::default();
    match checkpoint.verify_checksums_while(&go_on) {
        Err(error @ Error::Format(_)) => findings.add(Diagnostic::from(&error)),
        verified => drop(verified?),
    }
    let mut is_whole = true;
    for (info, found) in table.iter().zip(found) {
        match found {
            Ok(contents) => {
                judge::judge(checkpoint, &info, &contents, &mut |finding| findings.add(finding));
                context.summarise(TensorSummary::new(&entry.path, &info, contents.statistics.as_ref()));
                duplicates.add(entry, &info, &contents);
            }
            Err(error) => {
                let is_no_array = error.diagnostic().is_some_and(|fault| fault.rule == rules::TORCH_NO_ARRAY);
                // The arrays that it is made of are tensors of their own.
                if !is_no_array {
                    is_whole = false;
                    findings.add(Diagnostic::from(&error).tensor(info.name));
                }
            }
        }
    }
    if is_whole {
        context.looked(&entry.path, Depth::Content);
    }
    findings.finish(|finding| context.report(&entry.path, finding));
    Ok(())
}

/// The findings about one file, not too many of each rule.
#[derive(Default)]
struct Findings {
    kept: Vec<Diagnostic>,
    counts: Vec<(&'static str, usize)>,
}

impl Findings {
    fn add(&mut self, finding: Diagnostic) {
        let id = finding.rule.id;
        let at = self.counts.iter().position(|(counted, _)| *counted == id).unwrap_or_else(|| {
            self.counts.push((id, 0));
            self.counts.len() - 1
        });
        self.counts[at].1 += 1;
        if self.counts[at].1 <= MAX_FINDINGS {
            self.kept.push(finding);
        }
    }

    fn finish(self, mut report: impl FnMut(Diagnostic)) {
        let mut last: Vec<&'static str> = Vec::new();
        let Self { kept, counts } = self;
        let mut finished: Vec<Diagnostic> = Vec::with_capacity(kept.len());
        for mut finding in kept.into_iter().rev() {
            let id = finding.rule.id;
            if !last.contains(&id) {
                last.push(id);
                let more = counts.iter().find(|(counted, _)| *counted == id).map_or(0, |(_, count)| *count);
                if more > MAX_FINDINGS {
                    finding.message += &format!("; {} more tensors have findings of this rule", more - MAX_FINDINGS);
                }
            }
            finished.push(finding);
        }
        finished.into_iter().rev().for_each(&mut report);
    }
}
