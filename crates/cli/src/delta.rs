//! `max-weights delta`: what changed between two versions of a checkpoint, as a file, and files that become what it says.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use clap::{Args, Subcommand, ValueHint};
use max_weights::checkpoint::OpenedDelta as File;
use max_weights::write::{DeltaSummary, DialectForm, FoldInto, VersionTensors, WriteOptions, delta, fold, update};
use max_weights::{Checkpoint, Error, OpenOptions, text, uninterrupted};
use serde::Serialize;

use crate::CLEAN;
use crate::failure::CommandFailure;
use crate::inputs::ReadArguments;
use crate::layers::{self, LayerChanges, layers, unit};
use crate::open::open;
use crate::progress::CommandProgress;
use crate::screen::Screen;

/// Write what changed between two versions, and apply it.
#[derive(Debug, Args)]
pub(crate) struct DeltaArguments {
    #[command(subcommand)]
    action: DeltaCommand,
}

#[derive(Debug, Subcommand)]
enum DeltaCommand {
    Create(DeltaCreate),
    Apply(Apply),
    Fold(Fold),
    Show(DeltaShow),
}

impl DeltaArguments {
    /// Whether nothing but JSON is to be on standard output.
    pub(crate) fn wants_json(&self) -> bool {
        match &self.action {
            DeltaCommand::Create(DeltaCreate { json, .. })
            | DeltaCommand::Apply(Apply { json, .. })
            | DeltaCommand::Fold(Fold { json, .. })
            | DeltaCommand::Show(DeltaShow { json, .. }) => *json,
        }
    }
}

/// Write what changed from one version of a checkpoint to another.
#[derive(Debug, Args)]
#[command(after_help = "\
`load_weights([BASE, OUT])` is the version after; so is PATH... of other commands.")]
struct DeltaCreate {
    /// The version before: a file, a folder, an index or a URL.
    #[arg(value_name = "BASE", value_hint = ValueHint::AnyPath)]
    base: PathBuf,
    /// The version after.
    #[arg(value_name = "NEW", value_hint = ValueHint::AnyPath)]
    new: PathBuf,
    /// The delta, a safetensors file; a URL, too.
    #[arg(value_name = "OUT", value_hint = ValueHint::AnyPath)]
    out: PathBuf,
    /// The form: this program's; xor or overwrite, a folder `weight_v000012`,
    /// which slime, miles, SkyRL and others read; or sparse, a file of TRL.
    #[arg(long, value_name = "NAME", default_value = "max-weights", value_parser = ["max-weights", "xor", "overwrite", "sparse"])]
    dialect: String,
    /// What another library calls the new version; that of the name of OUT.
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    /// What it calls the version before; one less.
    #[arg(long, value_name = "VERSION")]
    base_version: Option<String>,
    /// The checksums of the tensors in a folder.
    #[arg(long, value_name = "NAME", default_value = "xxh3-128", value_parser = ["xxh3-128", "blake3", "adler32"])]
    checksum: String,
    /// Do not wait until the bytes are on the disk.
    #[arg(long)]
    no_sync: bool,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

impl DeltaCreate {
    /// How another library's delta is written; none for this program's.
    fn form(&self) -> Result<Option<DialectForm>, Error> {
        DialectForm::new(
            &self.dialect,
            &self.out,
            self.version.as_deref(),
            self.base_version.as_deref(),
            &self.checksum,
        )
    }
}

/// Make the files of a checkpoint what deltas say.
#[derive(Debug, Args)]
#[command(after_help = "\
Files are replaced as wholes: whoever is killed leaves the version before or the
new one. What has the first deltas already gets the others.")]
struct Apply {
    /// A safetensors file, or a folder of several.
    #[arg(value_name = "TARGET", value_hint = ValueHint::AnyPath)]
    target: PathBuf,
    /// The deltas, in the order in which they build on each other; or a folder of them.
    #[arg(required = true, value_name = "DELTA", value_hint = ValueHint::AnyPath)]
    deltas: Vec<PathBuf>,
    /// Read back what was written, and compare it, before it replaces anything.
    #[arg(long)]
    verify: bool,
    /// Do not wait until the bytes are on the disk.
    #[arg(long)]
    no_sync: bool,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// Write one delta that does what a chain does.
#[derive(Debug, Args)]
#[command(after_help = "\
With --keep, the oldest deltas of a folder become one. It takes the place of the
newest of them in one step, and the others are removed then: a reader sees the
deltas before, or the folded one.")]
struct Fold {
    /// The version that the first delta changes.
    #[arg(value_name = "BASE", value_hint = ValueHint::AnyPath)]
    base: PathBuf,
    /// The deltas, in the order in which they build on each other, or a folder of
    /// them; and then, without --keep, the delta that is written.
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// Keep the newest N deltas, and fold all others into one where they are.
    #[arg(long, value_name = "N")]
    keep: Option<usize>,
    /// Do not wait until the bytes are on the disk.
    #[arg(long)]
    no_sync: bool,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// Print what a delta says of itself.
#[derive(Debug, Args)]
struct DeltaShow {
    /// The delta.
    #[arg(value_name = "DELTA", value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// Print how many elements of each layer change, of those tensors that do; of
    /// folders `weight_v000012`, how many bytes.
    #[arg(long)]
    layers: bool,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct DeltaJson<'a> {
    schema: &'static str,
    dialect: String,
    base: &'a str,
    target: &'a str,
    changed: Vec<&'a str>,
    whole: Vec<String>,
    removed: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    layers: Vec<LayerChanges>,
}

#[derive(Serialize)]
struct WrittenDelta<'a> {
    schema: &'static str,
    base: &'a str,
    target: &'a str,
    changed: usize,
    whole: usize,
    removed: usize,
    unchanged: usize,
    elements: u64,
    files: Vec<String>,
}

#[derive(Serialize)]
struct Updated<'a> {
    schema: &'static str,
    identity: &'a str,
    applied_before: usize,
    files: Vec<String>,
}

pub(crate) fn run(options: &DeltaArguments, screen: &mut Screen) -> Result<u8, CommandFailure> {
    match &options.action {
        DeltaCommand::Create(create) => {
            let DeltaCreate { base, new, out, no_sync, json, .. } = create;
            let (form, open) =
                (create.form()?, |path: &PathBuf| open(std::slice::from_ref(path), &ReadArguments::default()));
            write(&open(base)?, &open(new)?, out, form.as_ref(), (*no_sync, *json), screen)
        }
        DeltaCommand::Fold(options) => run_fold(options, screen),
        DeltaCommand::Apply(options) => apply(options, screen),
        DeltaCommand::Show(options) => show(options, screen),
    }
}

/// Writes what changed from one checkpoint to another.
fn write(
    base: &Checkpoint,
    new: &Checkpoint,
    out: &Path,
    form: Option<&DialectForm>,
    (no_sync, json): (bool, bool),
    screen: &mut Screen,
) -> Result<u8, CommandFailure> {
    let done = Arc::new(AtomicU64::new(0));
    let total = new.catalog().table().iter().map(|info| info.bytes()).sum();
    let written = {
        let _progress = CommandProgress::new(&done, total);
        let (base, new) = (VersionTensors::of_checkpoint(base)?, VersionTensors::of_checkpoint(new)?);
        let options = WriteOptions { sync: !no_sync, ..WriteOptions::default() };
        match form {
            Some(form) => form.write(&base, &new, out, options, &done, &uninterrupted)?,
            None => delta(&base, &new, Vec::new(), (out, options), &done, &uninterrupted)?,
        }
    };
    print(&written, json, screen)
}

fn run_fold(options: &Fold, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let Fold { base, paths, keep, no_sync, json } = options;
    let (deltas, into) = match (keep, &**paths) {
        (Some(keep), deltas) => (deltas, FoldInto::Place { keep: *keep }),
        (None, [deltas @ .., out]) if !deltas.is_empty() => (deltas, FoldInto::File(out.clone())),
        (None, _) => {
            let cause =
                "delta fold: give the deltas and then the file to write, or --keep N to fold them where they are";
            return Err(CommandFailure::Usage(cause.to_owned()));
        }
    };
    let (done, base) = (Arc::new(AtomicU64::new(0)), std::slice::from_ref(base));
    let reading = OpenOptions::default();
    let total = open(base, &ReadArguments::default())?.catalog().table().iter().map(|info| info.bytes()).sum();
    let written = {
        let _progress = CommandProgress::new(&done, total);
        let writing = WriteOptions { sync: !no_sync, ..WriteOptions::default() };
        fold(base, deltas, &into, &reading, writing, &done, &uninterrupted)?
    };
    match written {
        Some(written) => print(&written, *json, screen),
        None if *json => {
            screen.line("null")?;
            Ok(CLEAN)
        }
        None => {
            screen.line("nothing to fold: fewer than two deltas are older than those that are kept")?;
            Ok(CLEAN)
        }
    }
}

/// Prints what a delta has that was written.
fn print(written: &DeltaSummary, json: bool, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let DeltaSummary { base, target, changed, whole, removed, unchanged, elements, files } = written;
    let (changed, whole, removed, unchanged, elements) = (*changed, *whole, *removed, *unchanged, *elements);
    let files: Vec<String> = files.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    if json {
        let schema = "max-weights.delta-create/1";
        let object = WrittenDelta { schema, base, target, changed, whole, removed, unchanged, elements, files };
        serde_json::to_writer_pretty(&mut *screen, &object)?;
        screen.line("")?;
        return Ok(CLEAN);
    }
    for file in &files {
        screen.line(&format!("{0}{1}{0:#}", screen.paint.bold, text::printable(file)))?;
    }
    screen.line(&format!("{base} -> {target}"))?;
    let replaced = text::grouped(elements);
    screen.line(&format!(
        "{} changed in {replaced} elements, {whole} whole, {removed} removed, {unchanged} unchanged",
        text::plural(changed as u64, "tensor")
    ))?;
    Ok(CLEAN)
}

fn apply(options: &Apply, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let Apply { target, deltas, verify, no_sync, json } = options;
    let (done, reading) = (Arc::new(AtomicU64::new(0)), OpenOptions::default());
    let base = Checkpoint::open(&[target], &reading)?;
    // All bytes are compared, and then written.
    let total = 2 * base.catalog().table().iter().map(|info| info.bytes()).sum::<u64>();
    let updated = {
        let _progress = CommandProgress::new(&done, total);
        let writing = WriteOptions { sync: !no_sync, ..WriteOptions::default() };
        update(target, deltas, &reading, &writing, *verify, &done, &uninterrupted)?
    };
    let files: Vec<String> = updated.files.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    if *json {
        let (schema, identity, applied_before) = ("max-weights.delta-apply/1", &*updated.identity, updated.applied);
        serde_json::to_writer_pretty(&mut *screen, &Updated { schema, identity, applied_before, files })?;
        screen.line("")?;
        return Ok(CLEAN);
    }
    for file in &files {
        screen.line(&format!("{0}{1}{0:#}", screen.paint.bold, text::printable(file)))?;
    }
    let (all, before) = (text::plural(updated.deltas as u64, "delta"), updated.applied);
    screen.line(&format!("{} after {all}, of which {before} were in it before", updated.identity))?;
    Ok(CLEAN)
}

fn show(options: &DeltaShow, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let file = File::open(&options.path, &OpenOptions::default())?;
    let header = file.header();
    let whole: Vec<String> = file.whole().map(|info| info.name.to_owned()).collect();
    if options.json {
        let object = DeltaJson {
            schema: "max-weights.delta/1",
            dialect: file.dialect().to_string(),
            base: &header.base,
            target: &header.target,
            changed: file.changed().map(|(name, _)| name).collect(),
            whole,
            removed: header.removed.iter().map(String::as_str).collect(),
            unit: options.layers.then(|| unit(file.dialect())),
            layers: if options.layers { layers(&file.elements(&uninterrupted)?) } else { Vec::new() },
        };
        serde_json::to_writer_pretty(&mut *screen, &object)?;
        screen.line("")?;
        return Ok(CLEAN);
    }
    screen.line(&format!("{} -> {}", text::printable(&header.base), text::printable(&header.target)))?;
    if options.layers {
        layers::write(&layers(&file.elements(&uninterrupted)?), unit(file.dialect()), screen)?;
        return Ok(CLEAN);
    }
    for (name, declared) in file.changed() {
        let what = declared
            .map_or(String::new(), |(dtype, shape)| format!("  {}  {}", text::printable(dtype), text::shape(shape)));
        screen.line(&format!("changed  {}{what}", text::printable(name)))?;
    }
    for name in &whole {
        screen.line(&format!("whole    {}", text::printable(name)))?;
    }
    for name in &header.removed {
        screen.line(&format!("removed  {}", text::printable(name)))?;
    }
    Ok(CLEAN)
}
