//! `max-weights validate`, `scan` and `explain`: the rules that files break.

mod arguments;
mod explain;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use max_weights::checkpoint::ModelCache;
use max_weights::rules::{Answer, Severity};
use max_weights::{Error, uninterrupted, workers};
use max_weights_check::output::{self, Format, Settings};
use max_weights_check::{Level, Options, Progress, Report, Selection};

pub(crate) use arguments::{Explain, Scan, Validate};

use self::arguments::{Checking, Output};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::{CLEAN, FINDINGS, MALICIOUS, NEEDS_TRUST, UNREADABLE};

pub(crate) fn run(options: &Validate, screen: &mut Screen) -> Result<u8, Failure> {
    validate(&options.checking, options.level.into(), &options.select, screen)
}

pub(crate) fn scan(options: &Scan, screen: &mut Screen) -> Result<u8, Failure> {
    validate(&options.checking, Level::Structure, &["security".to_owned()], screen)
}

pub(crate) fn explain(options: &Explain, screen: &mut Screen) -> Result<u8, Failure> {
    explain::run(options, screen)
}

fn validate(checking: &Checking, level: Level, select: &[String], screen: &mut Screen) -> Result<u8, Failure> {
    let options = Options {
        level,
        selection: Selection { select: select.to_vec(), ignore: checking.ignore.clone() },
        severity: checking.severity.map_or(Severity::Note, Severity::from),
        jobs: checking.jobs,
        max_memory: checking.max_memory,
        timeout: checking.timeout.map(Duration::from_secs_f64),
        ..Options::default()
    };
    check_rules(&options.selection)?;
    workers::set_threads(options.jobs);
    let inputs = Inputs::new(&checking.paths)?;
    let progress = Progress::default();
    let report = {
        let _bar = crate::progress::Progress::growing(&progress.done, &progress.bytes);
        max_weights_check::validate(&inputs.paths, &options, &progress, &uninterrupted)
    };
    let report = inputs.renamed(report?);
    write(&report, &outputs(checking), screen)?;
    Ok(status(&report, checking.fail_on.map_or(Severity::Warning, Severity::from)))
}

/// The reports that are asked for: the text on standard output, if nothing else is to be there.
fn outputs(checking: &Checking) -> Vec<Output> {
    let mut outputs = checking.outputs.clone();
    if checking.json {
        outputs.push(Output { format: Format::Json, file: None });
    }
    if outputs.iter().all(|output| output.file.is_some()) {
        outputs.insert(0, Output { format: Format::Text, file: None });
    }
    outputs
}

fn write(report: &Report, outputs: &[Output], screen: &mut Screen) -> Result<(), Failure> {
    let settings = Settings::default();
    for output in outputs {
        match &output.file {
            None => output::write(report, output.format, &settings, screen.raw())?,
            Some(path) => write_file(path, |out| output::write(report, output.format, &settings, out))?,
        }
    }
    Ok(())
}

/// Writes a file whole or not at all: a report that is half there may be taken for a whole one.
fn write_file(path: &Path, write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> Result<(), Failure> {
    let failed = |error| Failure::Checkpoint(Error::io(path, "write the report", error));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    let mut out = io::BufWriter::new(file.as_file_mut());
    write(&mut out).and_then(|()| out.flush()).map_err(failed)?;
    drop(out);
    readable_by_all_who_may(file.as_file()).map_err(failed)?;
    file.persist(path).map(drop).map_err(|error| failed(error.error))
}

/// Temporary files are the user's alone; a report has the mode of any new file.
#[cfg(unix)]
fn readable_by_all_who_may(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn readable_by_all_who_may(_: &File) -> io::Result<()> {
    Ok(())
}

/// The exit status: the worst answer of what is severe enough.
fn status(report: &Report, fail_on: Severity) -> u8 {
    match report.verdict(fail_on) {
        None => CLEAN,
        Some(Answer::Malicious) => MALICIOUS,
        Some(Answer::NeedsTrust) => NEEDS_TRUST,
        Some(Answer::Broken) => UNREADABLE,
        Some(_) => FINDINGS,
    }
}

/// A rule that there is none of is a mistake of the command line.
fn check_rules(selection: &Selection) -> Result<(), Failure> {
    match selection.unknown() {
        None => Ok(()),
        Some(word) => Err(Failure::Usage(format!("no rule is called '{word}'; `max-weights explain` lists them all"))),
    }
}

/// The paths that were given, with what stands for models in the cache and for standard input.
struct Inputs {
    paths: Vec<PathBuf>,
    /// The file that standard input was written to.
    stdin: Option<tempfile::TempDir>,
}

/// How reports call standard input.
const STDIN: &str = "stdin";

impl Inputs {
    fn new(given: &[PathBuf]) -> Result<Self, Failure> {
        let cache = ModelCache::from_environment();
        let (mut paths, mut stdin) = (Vec::new(), None);
        for path in given {
            if path.as_os_str() != "-" {
                paths.push(cache.resolve(path)?);
            } else if stdin.is_none() {
                let failed = |error| Error::io(Path::new(STDIN), "copy it to a temporary file", error);
                let folder = tempfile::tempdir().map_err(failed)?;
                let path = folder.path().join(STDIN);
                let mut file = File::create(&path).map_err(failed)?;
                io::copy(&mut io::stdin().lock(), &mut file).map_err(failed)?;
                paths.push(path);
                stdin = Some(folder);
            }
        }
        Ok(Self { paths, stdin })
    }

    /// The report with standard input under its name.
    fn renamed(&self, mut report: Report) -> Report {
        let Some(folder) = &self.stdin else { return report };
        let name: Arc<Path> = Path::new(STDIN).into();
        let file = folder.path().join(STDIN);
        report.files.iter_mut().filter(|entry| *entry.path == *file).for_each(|entry| entry.path = name.clone());
        let about = report.findings.iter_mut().filter(|finding| finding.path.starts_with(folder.path()));
        about.for_each(|finding| finding.path = name.clone());
        report
    }
}
