//! `max-weights manifest` and `max-weights bom`: what files and tensors were, whether they still are, and a bill of materials.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueHint};
use max_weights::checkpoint::{ModelCache, with_near_paths};
use max_weights::source::store;
use max_weights::write::TaskNumber;
use max_weights::{Diagnostic, Error, Result as Read, text, uninterrupted};
use max_weights_check::ValidateProgress;
use max_weights_check::manifest::{Checked, FileCounts, TensorCounts, bom as bill, check, create};
use serde::Serialize;

use crate::failure::CommandFailure;
use crate::file;
use crate::screen::Screen;
use crate::{CLEAN, FINDINGS};

/// Record what files and tensors are; report what changed.
#[derive(Debug, Args)]
pub(crate) struct ManifestArguments {
    #[command(subcommand)]
    action: ManifestCommand,
}

#[derive(Debug, Subcommand)]
enum ManifestCommand {
    Create(ManifestCreate),
    Check(ManifestCheck),
}

impl ManifestArguments {
    /// Whether nothing but JSON is to be on standard output.
    pub(crate) fn wants_json(&self) -> bool {
        match &self.action {
            ManifestCommand::Create(_) => true,
            ManifestCommand::Check(options) => options.json,
        }
    }
}

/// Write SHA-256 of every file and every tensor, as JSON.
#[derive(Debug, Args)]
struct ManifestCreate {
    /// A file, a folder, an index with its shards, a URL, or ORG/MODEL[@REVISION] in the local Hugging Face cache.
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Add fingerprints, which other layouts of the same tensors have, too; reads them twice.
    #[arg(long)]
    fingerprints: bool,
    /// Only this task's files, as 3/16; `report merge` joins what all write.
    #[arg(long, value_name = "I/N")]
    task: Option<TaskNumber>,
}

/// Report which files and tensors differ from a manifest.
#[derive(Debug, Args)]
#[command(after_help = "Exit status 1 if anything differs.")]
struct ManifestCheck {
    /// What `manifest create` wrote.
    #[arg(value_name = "MANIFEST", value_hint = ValueHint::FilePath)]
    manifest: PathBuf,
    /// What to compare; without it, the manifest's folder.
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    path: Option<PathBuf>,
    /// Compare only tensors, in any files and formats.
    #[arg(long)]
    tensors: bool,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// Write a bill of materials of a model, as CycloneDX 1.7 JSON.
#[derive(Debug, Args)]
#[command(
    after_help = "It has what the bytes prove, and what the model's files say about it. The same files give the same document."
)]
pub(crate) struct Bom {
    /// A file, a folder, a URL, or ORG/MODEL[@REVISION] in the local Hugging Face cache.
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct ManifestJson<'a> {
    schema: &'static str,
    files: FileCounts,
    tensors: TensorCounts,
    findings: Vec<ManifestFinding<'a>>,
}

/// A finding.
#[derive(Serialize)]
struct ManifestFinding<'a> {
    rule: &'static str,
    code: &'static str,
    severity: &'static str,
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<&'a str>,
    message: &'a str,
    help: &'a str,
}

impl<'a> ManifestFinding<'a> {
    fn new(finding: &'a Diagnostic) -> Self {
        Self {
            rule: finding.rule.id,
            code: finding.rule.code,
            severity: finding.rule.severity.name(),
            file: finding.file().to_string_lossy().into_owned(),
            tensor: finding.tensor.as_deref(),
            message: &finding.message,
            help: &finding.help,
        }
    }
}

pub(crate) fn run(options: &ManifestArguments, screen: &mut Screen) -> Result<u8, CommandFailure> {
    match &options.action {
        ManifestCommand::Create(options) => {
            let path = resolved(&options.path)?;
            let read = [options.path.clone(), path.clone()];
            options.output.as_deref().map_or(Ok(()), |out| file::prepare(out, &read))?;
            // It may lie in the folder already.
            let leave_out: Vec<PathBuf> = options.output.iter().cloned().collect();
            let made = with_bar(|progress| {
                create(&path, &leave_out, options.fingerprints, options.task, progress, &uninterrupted)
            })?;
            write(&made, options.output.as_deref(), screen)?;
            Ok(CLEAN)
        }
        ManifestCommand::Check(options) => {
            let path = options.path.as_deref().map(resolved).transpose()?;
            let checked = with_bar(|progress| {
                check(&options.manifest, path.as_deref(), options.tensors, progress, &uninterrupted)
            })?;
            screen.status = if checked.differs() { FINDINGS } else { CLEAN };
            if options.json {
                let findings = checked.findings.iter().map(ManifestFinding::new).collect();
                let (files, tensors) = (checked.files, checked.tensors);
                let object = ManifestJson { schema: "max-weights.manifest-check/1", files, tensors, findings };
                serde_json::to_writer_pretty(&mut *screen, &object)?;
                screen.line("")?;
            } else {
                print(&checked, !options.tensors, screen)?;
            }
            Ok(screen.status)
        }
    }
}

pub(crate) fn bom(options: &Bom, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let path = resolved(&options.path)?;
    let read = [options.path.clone(), path.clone()];
    options.output.as_deref().map_or(Ok(()), |out| file::prepare(out, &read))?;
    let made = with_bar(|progress| bill(&path, progress, &uninterrupted))?;
    write(&made, options.output.as_deref(), screen)?;
    Ok(CLEAN)
}

fn resolved(path: &Path) -> Result<PathBuf, CommandFailure> {
    let found = ModelCache::from_environment().resolve(path)?;
    if store::is_url(&found) && store::store().is_some() {
        return Ok(found);
    }
    match std::fs::metadata(&found) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(with_near_paths(Error::MissingFile { path: found, near: Vec::new() }).into())
        }
        _ => Ok(found),
    }
}

/// Does work that counts how far it is, with a bar.
fn with_bar<T>(work: impl FnOnce(&ValidateProgress) -> Read<T>) -> Result<T, CommandFailure> {
    let progress = ValidateProgress::default();
    let _bar = crate::progress::CommandProgress::growing(&progress.done, &progress.bytes);
    Ok(work(&progress)?)
}

/// Writes JSON to a file, or to standard output.
fn write(made: &impl Serialize, output: Option<&Path>, screen: &mut Screen) -> Result<(), CommandFailure> {
    let Some(path) = output else {
        serde_json::to_writer_pretty(&mut *screen, made)?;
        return Ok(screen.line("")?);
    };
    file::write(path, |out| {
        serde_json::to_writer_pretty(&mut *out, made)?;
        out.write_all(b"\n")
    })
}

fn print(checked: &Checked, with_files: bool, screen: &mut Screen) -> Result<(), CommandFailure> {
    let paint = screen.paint;
    for finding in &checked.findings {
        let style = match finding.rule.severity.name() {
            "error" => paint.error,
            "warning" => paint.warning,
            _ => paint.dim,
        };
        let path = text::path(finding.file());
        let tensor = finding.tensor.as_ref().map_or_else(String::new, |name| format!(" '{}'", text::escape(name)));
        let (severity, rule, message) = (finding.rule.severity.name(), finding.rule, &finding.message);
        screen.line(&format!("{style}{severity}{style:#}  {path}{tensor}: {message} [{rule}]"))?;
    }
    if !checked.findings.is_empty() {
        screen.line("")?;
    }
    let FileCounts { same, changed, missing, new } = checked.files;
    if with_files {
        let files = text::plural(same, "file");
        screen
            .line(&format!("{0}{files} the same, {changed} changed, {missing} missing, {new} new{0:#}", paint.bold))?;
    }
    let TensorCounts { same, moved, changed, missing, new } = checked.tensors;
    let tensors = text::plural(same, "tensor");
    let counts = format!("{tensors} the same, {moved} moved, {changed} changed, {missing} missing, {new} new");
    screen.line(&format!("{0}{counts}{0:#}", paint.bold))?;
    Ok(())
}
