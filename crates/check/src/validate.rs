//! The validation of files and folders: each file by itself, and then what they say of each other.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use max_weights::format::SNIFF_BYTES;
use max_weights::source::store;
use max_weights::workers::{Interrupt, WORKERS};
use max_weights::{Diagnostic, Error, Result};

use crate::bytes::{OpenFile, RandomRead};
use crate::context::{ByteSpan, FileContext, in_time};
use crate::folder::{FolderContext, FolderListing, FolderReport, ListedFile};
use crate::kind::Kind;
use crate::options::{Level, ValidateOptions};
use crate::progress::ValidateProgress;
use crate::report::{Depth, FileReport, Report, TensorSummary};
use crate::share;
use crate::walk::{AT_A_TIME, FileWalk, WalkedFile, open_each};
use crate::{checkpoint, content, repository, security};

/// Files up to this length are read once, as a whole: most files are this small, and most checks read both ends.
const SMALL: u64 = 128 << 10;

/// Looks at one file.
type FileCheck = fn(&ByteSpan<'_>, Kind, &mut FileContext<'_>) -> Result<()>;
/// Looks at what the files of a folder say of each other.
type FolderCheck = fn(&FolderListing, &mut FolderContext<'_>) -> Result<()>;

/// Looks at every file below these paths. One that cannot be read is a finding, and hides no other.
///
/// # Errors
/// The one path that is given is not there; Ctrl-C.
pub fn validate(
    paths: &[PathBuf],
    options: &ValidateOptions,
    progress: &ValidateProgress,
    interrupt: Interrupt<'_>,
) -> Result<Report> {
    let started = Instant::now();
    let deadline = options.timeout.and_then(|timeout| started.checked_add(timeout));
    let mut walk = walked(paths, interrupt)?;
    let all: HashSet<Arc<Path>> = walk.files.iter().map(|found| found.path.clone()).collect();
    let share = options.task.map(|task| {
        let requested =
            format!("validate, {}, {:?}, {}", options.level.name(), options.selection, options.severity.name());
        share::leave_own(task, &requested, &mut walk)
    });
    let done = Mutex::new(Vec::new());
    let mut numbered: Vec<(usize, WalkedFile)> = walk.files.into_iter().enumerate().collect();
    while !numbered.is_empty() {
        let of_servers = numbered.iter().any(|(_, found)| store::is_url(&found.at));
        let count = if of_servers { numbered.len().min(AT_A_TIME) } else { numbered.len() };
        let mut some: Vec<(usize, WalkedFile)> = numbered.drain(..count).collect();
        open_urls(&mut some, deadline, interrupt)?;
        WORKERS.each(some, interrupt, |(number, found), interrupt| {
            let mut outcome = one_file(found, options, deadline, progress, interrupt)?;
            if number >= AT_A_TIME {
                outcome.0.0.opened = None;
            }
            done.lock().unwrap_or_else(PoisonError::into_inner).push((number, outcome));
            Ok(())
        })?;
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(number, _)| *number);
    let mut report = Report {
        level: options.level,
        files: Vec::new(),
        findings: Vec::new(),
        omitted: 0,
        known: 0,
        ignored: 0,
        excepted: false,
        statistics: Vec::new(),
        elapsed: started.elapsed(),
        share,
    };
    for (folder, error) in walk.unlisted {
        let mut context = FolderContext::new(options, interrupt);
        context.report(&folder.into(), Diagnostic::from(&error));
        let found = context.finish();
        report.excepted |= !found.excepted.is_empty();
        report.findings.extend(found.findings);
    }
    let mut entries = Vec::new();
    for (_, (entry, file, findings, omitted, arrays)) in done {
        entries.push(entry);
        report.statistics.extend(arrays);
        report.files.push(file);
        report.findings.extend(findings);
        report.omitted += omitted;
    }
    let folders = folders(entries);
    let checks: &[FolderCheck] = match options.level {
        Level::Header => &[checkpoint::check_folder],
        Level::Structure | Level::Content => &[checkpoint::check_folder, repository::check],
    };
    progress.bytes.fetch_add(folders.iter().map(repository::program_bytes).sum(), Ordering::Relaxed);
    let looked = Mutex::new(Vec::new());
    WORKERS.each(folders.iter().enumerate().collect(), interrupt, |(number, folder), interrupt| {
        let cancel = || in_time(deadline, &folder.path).and_then(|()| interrupt());
        let context = FolderContext::new(options, &cancel).of(folder).among(&all).until(deadline).counting(progress);
        let outcome = one_folder(folder, checks, context)?;
        looked.lock().unwrap_or_else(PoisonError::into_inner).push((number, outcome));
        Ok(())
    })?;
    let mut looked = looked.into_inner().unwrap_or_else(PoisonError::into_inner);
    looked.sort_by_key(|(number, _)| *number);
    let places: HashMap<Arc<Path>, usize> =
        report.files.iter().enumerate().map(|(place, file)| (file.path.clone(), place)).collect();
    let mut take = |found: FolderReport| {
        report.omitted += found.omitted;
        report.excepted |= !found.excepted.is_empty();
        let mut change = |path: &Arc<Path>, change: &dyn Fn(&mut FileReport)| {
            if let Some(file) = places.get(path).and_then(|place| report.files.get_mut(*place)) {
                change(file);
            }
        };
        found.excepted.iter().for_each(|(path, rule)| change(path, &|file| file.except(rule)));
        found.depths.iter().for_each(|(path, depth)| change(path, &|file| file.depth = file.depth.max(*depth)));
        report.findings.extend(found.findings);
        report.statistics.extend(found.tensors);
    };
    for (_, found) in looked {
        take(found);
    }
    if options.level >= Level::Content {
        // Tensors are read on all threads, a file after the other.
        for folder in &folders {
            interrupt()?;
            let context = FolderContext::new(options, interrupt).of(folder).until(deadline).counting(progress);
            take(one_folder(folder, &[content::check], context)?);
        }
    }
    report.settle();
    report.elapsed = started.elapsed();
    Ok(report)
}

/// The files below these paths.
fn walked(paths: &[PathBuf], interrupt: Interrupt<'_>) -> Result<FileWalk> {
    let mut walk = FileWalk::default();
    for path in paths {
        // Without regard to the time: what there is no time for is listed, too.
        match walk.add(path, interrupt) {
            // Among others it hides none of them.
            Err(error) if paths.len() > 1 && !matches!(error, Error::Interrupted) => {
                walk.unlisted.push((path.clone(), error));
            }
            added => added?,
        }
    }
    Ok(walk)
}

fn one_folder(folder: &FolderListing, checks: &[FolderCheck], mut context: FolderContext<'_>) -> Result<FolderReport> {
    for check in checks {
        if let Err(error) = check(folder, &mut context) {
            match error {
                Error::Interrupted => return Err(error),
                error => context.report(&folder.path, Diagnostic::from(&error)),
            }
        }
        if in_time(context.deadline(), &folder.path).is_err() {
            // The others would say the same.
            break;
        }
    }
    Ok(context.finish())
}

/// The files by the folders that they are in; each with whether the folder was given.
fn folders(entries: Vec<(ListedFile, bool)>) -> Vec<FolderListing> {
    let mut numbers: HashMap<PathBuf, usize> = HashMap::new();
    let mut folders: Vec<FolderListing> = Vec::new();
    for (entry, in_folder) in entries {
        let path = entry.path.parent().unwrap_or(Path::new(""));
        let number = *numbers.entry(path.to_path_buf()).or_insert_with(|| {
            folders.push(FolderListing { path: path.into(), is_whole: false, files: Vec::new() });
            folders.len() - 1
        });
        folders[number].is_whole |= in_folder;
        folders[number].files.push(entry);
    }
    folders
}

type ValidateOutcome = ((ListedFile, bool), FileReport, Vec<Diagnostic>, u64, Vec<TensorSummary>);

/// Opens the files of servers that are not open yet, all at the same time.
fn open_urls(files: &mut [(usize, WalkedFile)], deadline: Option<Instant>, interrupt: Interrupt<'_>) -> Result<()> {
    let Some(store) = store::store() else { return Ok(()) };
    let mut closed: Vec<&mut WalkedFile> = files
        .iter_mut()
        .map(|(_, found)| found)
        .filter(|found| found.opened.is_none() && store::is_url(&found.at))
        .collect();
    let urls: Vec<PathBuf> = closed.iter().map(|found| found.at.to_path_buf()).collect();
    if urls.is_empty() {
        return Ok(());
    }
    let opened = match &deadline {
        Some(_) => {
            let cancel = || in_time(deadline, Path::new("")).and_then(|()| interrupt());
            match open_each(&**store, &urls, &cancel) {
                // Out of time, which is reported for each file.
                Err(Error::Io { .. }) => return Ok(()),
                opened => opened?,
            }
        }
        None => open_each(&**store, &urls, interrupt)?,
    };
    closed.iter_mut().zip(opened).for_each(|(found, opened)| found.opened = Some(opened));
    Ok(())
}

fn one_file(
    mut found: WalkedFile,
    options: &ValidateOptions,
    deadline: Option<Instant>,
    progress: &ValidateProgress,
    interrupt: Interrupt<'_>,
) -> Result<ValidateOutcome> {
    let opened = found.opened.take();
    let open = || opened.unwrap_or_else(|| store::open(&found.at, interrupt));
    let opened = in_time(deadline, &found.path).and_then(|()| open()).and_then(|source| {
        let file = OpenFile::new(source, interrupt);
        let is_small = RandomRead::len(&file) <= SMALL;
        let first = file.first(if is_small { SMALL as usize } else { SNIFF_BYTES })?;
        Ok((file, first, is_small))
    });
    let (file, first, is_small) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let mut context = FileContext::new(found.path.clone(), 0, Kind::Unknown, options, interrupt);
            context.file.depth = Depth::NotLookedAt;
            unreadable(error, &mut context)?;
            return Ok(outcome(found, Kind::Unknown, 0, context));
        }
    };
    let len = RandomRead::len(&file);
    progress.bytes.fetch_add(len, Ordering::Relaxed);
    let kind = Kind::of(first.get(..SNIFF_BYTES).unwrap_or(&first), len, &found.below);
    let mut context = FileContext::new(found.path.clone(), len, kind, options, interrupt);
    context.until(deadline);
    context.is_given = !found.in_folder;
    context.source = Some(file.source().clone());
    let bytes: &dyn RandomRead = if is_small { &first } else { &file };
    let piece = ByteSpan::file(bytes, &found.below);
    let checks: [FileCheck; 2] = [security::scan, checkpoint::check_file];
    for check in checks {
        if let Err(error) = context.check_cancelled().and_then(|()| check(&piece, kind, &mut context)) {
            unreadable(error, &mut context)?;
        }
    }
    progress.done.fetch_add(len, Ordering::Relaxed);
    Ok(outcome(found, kind, len, context))
}

fn outcome(found: WalkedFile, kind: Kind, bytes: u64, mut context: FileContext<'_>) -> ValidateOutcome {
    let catalog = context.catalog.take();
    let arrays = std::mem::take(&mut context.arrays.drawn);
    let opened = context.source.take().filter(|_| store::is_url(&found.at));
    let (file, findings, omitted) = context.finish();
    let WalkedFile { path, at, below, in_folder, .. } = found;
    let entry = ListedFile { path, at, opened, below, kind, bytes, catalog };
    ((entry, in_folder), file, findings, omitted, arrays)
}

/// What ends the look at one file is a finding about it, unless everything is to end.
fn unreadable(error: Error, context: &mut FileContext<'_>) -> Result<()> {
    if matches!(error, Error::Interrupted) {
        return Err(error);
    }
    let finding = Diagnostic::from(&error);
    context.file.note.get_or_insert_with(|| finding.message.clone());
    context.report_here(finding);
    Ok(())
}
