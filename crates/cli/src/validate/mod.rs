//! `max-weights validate`, `scan` and `explain`: the rules that files break.

mod arguments;
mod expect;
mod explain;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use max_weights::checkpoint::ModelCache;
use max_weights::rules::{Severity, Verdict};
use max_weights::{Error, text, uninterrupted, workers};
use max_weights_check::output::{self, Format, Settings};
use max_weights_check::settings_file::SettingsFile;
use max_weights_check::{Level, Report, RuleSelection, ValidateOptions, ValidateProgress, baseline, expectation};

pub(crate) use arguments::{Explain, ScanArguments, Validate};

use self::arguments::{CheckArguments, FailOn, ReportOutput};
use crate::failure::CommandFailure;
use crate::file as files;
use crate::host::Host;
use crate::screen::Screen;
use crate::stdin::{STDIN, with_stdin};
use crate::{CLEAN, FINDINGS, MALICIOUS, NEEDS_TRUST, UNREADABLE};

pub(crate) fn run(options: &Validate, host: &Host, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let level = options.level.map(Level::from);
    let file = settings_file(&options.checking)?;
    let expectations = Expectations { read: options.expect.as_deref(), write: options.write_spec.as_deref() };
    validate(&options.checking, &file, level, options.select.clone(), &expectations, host, screen)
}

pub(crate) fn scan(options: &ScanArguments, host: &Host, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let file = SettingsFile { expect: None, ..settings_file(&options.checking)? };
    let expectations = Expectations::default();
    validate(&options.checking, &file, Some(Level::Structure), vec!["security".to_owned()], &expectations, host, screen)
}

pub(crate) fn explain(options: &Explain, screen: &mut Screen) -> Result<u8, CommandFailure> {
    explain::run(options, screen)
}

/// The files of an expected checkpoint.
#[derive(Default)]
struct Expectations<'a> {
    /// What to compare it with.
    read: Option<&'a Path>,
    /// What it is, is written here.
    write: Option<&'a Path>,
}

/// `level` and `select` are what the command line says; the file of settings says the rest.
fn validate(
    checking: &CheckArguments,
    file: &SettingsFile,
    level: Option<Level>,
    select: Vec<String>,
    expectations: &Expectations<'_>,
    host: &Host,
    screen: &mut Screen,
) -> Result<u8, CommandFailure> {
    let outputs = outputs(checking, file);
    let options = ValidateOptions {
        level: level.or(file.level).unwrap_or_default(),
        selection: RuleSelection {
            select: if select.is_empty() { file.select.clone() } else { select },
            ignore: [&checking.ignore[..], &file.ignore].concat(),
        },
        severity: checking.severity.or(file.severity).unwrap_or(Severity::Note),
        jobs: checking.jobs.or(file.jobs),
        max_memory: checking.max_memory.or(file.max_memory),
        timeout: checking.timeout.or(file.timeout),
        task: checking.task,
        histograms: outputs.iter().any(|output| output.format == Format::Json),
        ..ValidateOptions::default()
    };
    check_rules(&options.selection)?;
    workers::set_threads(options.jobs);
    let settings = Settings {
        fail_on: checking.fail_on.map(FailOn::severity).or(file.fail_on).unwrap_or(Settings::default().fail_on),
        width: screen.width().unwrap_or(Settings::default().width),
        color: screen.paint.is_painted(),
        category: checking.category.clone().or(file.category.clone()).unwrap_or(Settings::default().category),
        config: (!file.path.as_os_str().is_empty()).then(|| file.path.clone()),
        step_summary: std::env::var_os("GITHUB_STEP_SUMMARY").map(PathBuf::from),
        root: root(),
        ..Settings::default()
    };
    let mut written = outputs.iter().filter_map(|output| output.file.as_ref()).chain(&checking.write_baseline);
    let known = checking.baseline.as_ref().or(file.baseline.as_ref());
    let known = known.map(|path| Ok::<_, Error>((path, baseline::read(path)?))).transpose()?;
    let inputs = ValidateInputs::new(&checking.paths)?;
    written.try_for_each(|path| files::prepare_with_folders(path, &inputs.paths))?;
    if checking.task.is_some() && (expectations.read.is_some() || file.expect.is_some() || expectations.write.is_some())
    {
        return Err(CommandFailure::Usage(
            "--task: what a checkpoint is expected to be is for one run without --task".into(),
        ));
    }
    let expected =
        expectations.read.or(file.expect.as_deref()).map(|path| expect::read(path, host, screen)).transpose()?;
    if let Some(path) = expectations.write {
        files::prepare(path, &inputs.paths)?;
        let checkpoint = expect::open(&inputs.paths)?;
        files::write(path, |out| expectation::write(checkpoint.catalog(), out))?;
    }
    let progress = ValidateProgress::default();
    let mut report = {
        let _bar = crate::progress::CommandProgress::growing(&progress.done, &progress.bytes);
        max_weights_check::validate(&inputs.paths, &options, &progress, &uninterrupted)?
    };
    if let Some(expected) = &expected {
        report.findings.extend(expect::check(&inputs.paths, expected, &options)?);
        report.settle();
    }
    let mut report = inputs.renamed(report);
    file.apply(&mut report);
    report.settle();
    // What a file is does not depend on what is known of it already.
    if let Some(path) = &checking.write_baseline {
        let mut omitted = 0;
        files::write(path, |out| {
            omitted = baseline::write(&report, &settings.root, checking.accept_malicious, out)?;
            Ok(())
        })?;
        let findings = text::plural(omitted as u64, "malicious finding");
        let message = format!("{}: {findings} not written: --accept-malicious writes them, too", text::path(path));
        screen.warn((omitted > 0).then_some(message))?;
    }
    if let Some((path, known)) = known {
        let stale = baseline::apply(&mut report, &known, &settings.root, &options.selection);
        // The others may have it.
        let stale = if checking.task.is_some() { Vec::new() } else { stale };
        screen.warn(stale.iter().map(|known| format!("{}: no longer there: {}", text::path(path), known.line())))?;
    }
    screen.status = settings.fail_on.map_or(CLEAN, |fail_on| status(&report, fail_on));
    write(&report, &outputs, &settings, screen)?;
    Ok(screen.status)
}

/// The root of the repository that this runs in, or else the working folder: what reports name files from.
fn root() -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    here.ancestors().find(|folder| folder.join(".git").exists()).unwrap_or(&here).to_path_buf()
}

/// The settings of the given file, or of one found in the working folder or above; the defaults without a file.
fn settings_file(checking: &CheckArguments) -> Result<SettingsFile, CommandFailure> {
    let found = match &checking.config {
        Some(path) => SettingsFile::read(path)?.map_or_else(
            || Err(CommandFailure::Usage(format!("{}: it has no [validate] table", text::path(path)))),
            |settings| Ok(Some(settings)),
        )?,
        None if checking.no_config => None,
        None => SettingsFile::find(&std::env::current_dir().unwrap_or_default())?,
    };
    Ok(found.unwrap_or_default())
}

/// The requested reports, and the text on standard output, if no other report goes there.
fn outputs(checking: &CheckArguments, file: &SettingsFile) -> Vec<ReportOutput> {
    let mut outputs = checking.outputs.clone();
    if outputs.is_empty() {
        outputs.extend(file.output.iter().map(|(format, file)| ReportOutput { format: *format, file: file.clone() }));
    }
    if checking.json {
        outputs.push(ReportOutput { format: Format::Json, file: None });
    }
    if outputs.iter().all(|output| output.file.is_some()) {
        outputs.insert(0, ReportOutput { format: Format::Text, file: None });
    }
    outputs
}

/// Writes the files first: the reader of standard output may close it early.
fn write(
    report: &Report,
    outputs: &[ReportOutput],
    settings: &Settings,
    screen: &mut Screen,
) -> Result<(), CommandFailure> {
    let of_files = Settings { color: false, width: Settings::default().width, ..settings.clone() };
    for (format, path) in outputs.iter().filter_map(|output| Some((output.format, output.file.as_ref()?))) {
        files::write(path, |out| output::write(report, format, &of_files, out))?;
    }
    for ReportOutput { format, .. } in outputs.iter().filter(|output| output.file.is_none()) {
        if *format == Format::Text {
            let mut text = Vec::new();
            output::write(report, *format, settings, &mut text)?;
            screen.text(&String::from_utf8_lossy(&text))?;
        } else {
            output::write(report, *format, settings, screen.raw())?;
        }
    }
    Ok(())
}

/// The exit status: the worst verdict among findings of the given severity or above.
fn status(report: &Report, fail_on: Severity) -> u8 {
    match report.failing(fail_on) {
        None => CLEAN,
        Some(Verdict::Malicious) => MALICIOUS,
        Some(Verdict::NeedsTrust) => NEEDS_TRUST,
        Some(Verdict::Broken) => UNREADABLE,
        Some(_) => FINDINGS,
    }
}

/// An unknown rule is an error of the command line.
fn check_rules(selection: &RuleSelection) -> Result<(), CommandFailure> {
    match selection.unknown() {
        None => Ok(()),
        Some(word) => {
            Err(CommandFailure::Usage(format!("there is no rule '{word}'; `max-weights explain` lists them all")))
        }
    }
}

/// The given paths, with models of the cache and standard input resolved to files.
pub(crate) struct ValidateInputs {
    pub(crate) paths: Vec<PathBuf>,
    /// The file that standard input was written to.
    stdin: Option<tempfile::TempDir>,
}

impl ValidateInputs {
    pub(crate) fn new(given: &[PathBuf]) -> Result<Self, CommandFailure> {
        let cache = ModelCache::from_environment();
        let (given, stdin) = with_stdin(given)?;
        let is_stdin = |path: &PathBuf| stdin.as_ref().is_some_and(|folder| path.starts_with(folder.path()));
        let resolved = given.into_iter().map(|path| if is_stdin(&path) { Ok(path) } else { cache.resolve(&path) });
        let paths = resolved.collect::<Result<Vec<_>, Error>>()?;
        Ok(Self { paths, stdin })
    }

    /// The report with standard input under its name.
    pub(crate) fn renamed(&self, mut report: Report) -> Report {
        let Some(folder) = &self.stdin else { return report };
        let name: Arc<Path> = Path::new(STDIN).into();
        let file = folder.path().join(STDIN);
        report.files.iter_mut().filter(|entry| *entry.path == *file).for_each(|entry| entry.path = name.clone());
        let about = report.findings.iter_mut().filter(|finding| finding.file().starts_with(folder.path()));
        about.for_each(|finding| finding.path = Some(name.clone()));
        report
    }
}
