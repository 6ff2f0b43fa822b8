//! `max-weights convert`, `merge` and `split`: a checkpoint written again, in another format, dtype, number of files or with other names.

mod companions;
mod hugging_face;
mod items;
mod layouts;
mod quantized;
mod report;
mod target;
mod tied;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use clap::{Args, ValueEnum, ValueHint};
use max_weights::source::store::IfExists;
use max_weights::write::{self, DeclaredTensor, SaveDestination, TaskNumber, WriteInputs};
use max_weights::{Catalog, Checkpoint, DType, Encoding, text, uninterrupted};

use crate::CLEAN;
use crate::failure::CommandFailure;
use crate::host::Host;
use crate::inputs::{ReadArguments, dtype, memory};
use crate::open::open;
use crate::progress::CommandProgress;
use crate::screen::Screen;
use target::ConvertTarget;
use tied::Tied;

/// Convert a checkpoint: format, dtype, names, number of files.
#[derive(Debug, Args)]
#[command(after_help = "\
OUT is FILE.safetensors, FILE.gguf, or a folder of safetensors files with an
index; or the URL of one in an object store (s3://, gs://, az://). It is written
completely or not at all. To replace the input itself, give --if-exists replace.")]
pub(crate) struct ConvertArguments {
    #[command(flatten)]
    places: ConvertPaths,
    /// Convert all floats to this dtype; packed weights become bfloat16 in safetensors files without it.
    #[arg(long, value_name = "DTYPE", value_parser = dtype, conflicts_with = "quantize")]
    dtype: Option<DType>,
    /// Decode quantized weights, to bfloat16 or --dtype.
    #[arg(long, conflicts_with = "quantize")]
    dequantize: bool,
    /// Keep quantized weights packed.
    #[arg(long, value_enum, value_name = "keep", hide_possible_values = true, conflicts_with_all = ["dequantize", "quantize"])]
    packed: Option<Packed>,
    /// Pack matrices as q8_0, q4_0, q4_1, q5_0 or q5_1.
    #[arg(long, value_name = "ENCODING", value_parser = encoding)]
    quantize: Option<Encoding>,
    /// New names, repeatable. FROM is a weight, a prefix that ends with a dot, or has * for any string, as TO has. Or a layout: `hf` for the Hugging Face names of a GGUF file, transformers5, vllm or megatron.
    #[arg(long, value_name = "FROM=TO")]
    rename: Vec<String>,
    /// Only names that match (*, ?, [ab]); repeatable.
    #[arg(long, value_name = "GLOB")]
    select: Vec<String>,
    /// Tensors of a PyTorch file that are one: copy each, write one and name the others in the metadata (alias), or refuse.
    #[arg(long, value_enum, value_name = "HOW", default_value_t, hide_possible_values = true)]
    tied: Tied,
    /// A string of the metadata; repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Several files of at most this size, such as 5GB.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    max_shard_size: Option<u64>,
    #[command(flatten)]
    writing: Writing,
}

/// Write all shards of a checkpoint as one file.
#[derive(Debug, Args)]
pub(crate) struct MergeArguments {
    #[command(flatten)]
    places: ConvertPaths,
    #[command(flatten)]
    writing: Writing,
}

/// Write a checkpoint as several files with an index.
#[derive(Debug, Args)]
pub(crate) struct SplitArguments {
    #[command(flatten)]
    places: ConvertPaths,
    /// The most bytes of tensors in a file, such as 5GB or 500MiB.
    #[arg(long, value_name = "SIZE", value_parser = memory, default_value = "5GB")]
    max_shard_size: u64,
    #[command(flatten)]
    writing: Writing,
}

/// The inputs and the output.
#[derive(Debug, Default, Args)]
struct ConvertPaths {
    /// A file, a folder, an index, a URL, or ORG/MODEL[@REVISION] in the local Hugging Face cache; several files are one checkpoint.
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// The output; a URL, too.
    #[arg(required = true, value_name = "OUT", value_hint = ValueHint::AnyPath)]
    out: PathBuf,
    #[command(flatten)]
    reading: ReadArguments,
}

/// How it is written.
#[derive(Debug, Clone, Copy, Default, Args)]
#[allow(clippy::struct_excessive_bools)] // each is an option that is there or not
struct Writing {
    /// Report what would be written, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Read back what was written, and compare it.
    #[arg(long)]
    verify: bool,
    /// An existing file: replace it, the default, fail, or keep it if it is the same. An input is only replaced if this is given.
    #[arg(long, value_enum, value_name = "HOW", hide_possible_values = true)]
    if_exists: Option<IfThere>,
    /// Write only this task's files of a folder, as 3/16.
    #[arg(long, value_name = "I/N", conflicts_with = "if_exists")]
    task: Option<TaskNumber>,
    /// Do not wait until the bytes are on the disk.
    #[arg(long)]
    no_sync: bool,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// What becomes of quantized weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Packed {
    /// Nothing.
    Keep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum IfThere {
    Replace,
    Fail,
    Same,
}

impl Writing {
    /// Where files go.
    fn destination(self) -> SaveDestination {
        let if_exists = match self.if_exists {
            None | Some(IfThere::Replace) => IfExists::Replace,
            Some(IfThere::Fail) => IfExists::Fail,
            Some(IfThere::Same) => IfExists::Same,
        };
        // Of tasks, one that is run again finds what it wrote.
        let if_exists = if self.task.is_some() { IfExists::Same } else { if_exists };
        SaveDestination { store: None, if_exists, task: self.task }
    }
}

impl ConvertArguments {
    pub(crate) fn wants_json(&self) -> bool {
        self.writing.json
    }
}

impl MergeArguments {
    pub(crate) fn wants_json(&self) -> bool {
        self.writing.json
    }
}

impl SplitArguments {
    pub(crate) fn wants_json(&self) -> bool {
        self.writing.json
    }
}

/// The request, from any command.
struct ConvertRequest<'a> {
    places: &'a ConvertPaths,
    dtype: Option<DType>,
    dequantize: bool,
    packed: Option<Packed>,
    quantize: Option<Encoding>,
    /// The layout of a library that they come in, before other names are given.
    layout: Option<&'a str>,
    rename: &'a [String],
    select: &'a [String],
    tied: Tied,
    metadata: &'a [String],
    max_shard_size: Option<u64>,
    writing: Writing,
}

impl<'a> ConvertRequest<'a> {
    fn of(places: &'a ConvertPaths) -> Self {
        Self {
            places,
            dtype: None,
            dequantize: false,
            packed: None,
            quantize: None,
            layout: None,
            rename: &[],
            select: &[],
            tied: Tied::default(),
            metadata: &[],
            max_shard_size: None,
            writing: Writing::default(),
        }
    }

    /// An error if an output is an input, is inside one, or contains one, unless `--if-exists replace` permits it.
    fn check_disjoint(&self, checkpoint: &Checkpoint, files: &[(PathBuf, Vec<usize>)]) -> Result<(), CommandFailure> {
        if self.writing.if_exists == Some(IfThere::Replace) {
            return Ok(());
        }
        let inputs = [WriteInputs::of_checkpoint(checkpoint), WriteInputs::new(self.places.paths.iter().cloned())];
        let targets = std::iter::once(&self.places.out).chain(files.iter().map(|(path, _)| path));
        let mut checks = targets.flat_map(|target| inputs.iter().map(move |inputs| inputs.check(target)));
        checks.try_for_each(|check| check.map_err(|error| CommandFailure::Usage(format!("{error}, {REPLACE}"))))
    }

    fn run(&self, host: &Host, screen: &mut Screen) -> Result<u8, CommandFailure> {
        let checkpoint = open(&self.places.paths, &self.places.reading)?;
        let catalog = checkpoint.catalog();
        if let (Some(note), false) = (catalog.note(), self.places.reading.no_strict) {
            return Err(CommandFailure::Usage(format!(
                "{note}, and would become a model without the others: give the folder, or all shards; with --no-strict, those that are given are taken"
            )));
        }
        let target = ConvertTarget::new(&self.places.out, self.max_shard_size)?;
        let quantized::Decoded { checkpoint, any: is_decoded, kept } = quantized::decoded(self, checkpoint, &target)?;
        let (checkpoint, others) = match self.layout {
            Some(layout) if is_decoded || !kept.is_empty() => {
                return Err(CommandFailure::Usage(format!(
                    "--rename {layout}: its rules are for weights that are not quantized; convert with --dequantize first, and then to this layout"
                )));
            }
            Some(layout) => layouts::converted(layout, self, checkpoint, host)?,
            None => (checkpoint, HashSet::new()),
        };
        let catalog = checkpoint.catalog();
        if self.tied == Tied::Alias && target.is_gguf() {
            return Err(CommandFailure::Usage("--tied alias: a GGUF file cannot name a tensor twice".into()));
        }
        let (mut items, in_order) = items::items(self, (&checkpoint, &kept), &target, &others, host)?;
        let mut notes: Vec<String> = catalog.findings().iter().map(ToString::to_string).collect();
        let tied = tied::resolve(self.tied, catalog, &mut items, &mut notes)?;
        notes.extend(excluded(catalog));
        notes.extend(items::decoded(self, catalog, &items));
        let output = target.output(self, &checkpoint, tied)?;
        let declared: Vec<DeclaredTensor> = items.iter().map(|item| item.tensor.clone()).collect();
        let files = output.files(&declared)?;
        write::check_whole(&checkpoint, &output)?;
        self.check_disjoint(&checkpoint, &files)?;
        let companions = companions::files(self, &checkpoint, (&target, is_decoded), host)?;
        let bytes = items.iter().map(|item| item.tensor.bytes()).sum::<Result<u64, _>>()?;
        if !self.writing.dry_run {
            let done = Arc::new(AtomicU64::new(0));
            let _bar = CommandProgress::new(&done, bytes);
            write::convert(
                in_order.as_ref().unwrap_or(&checkpoint),
                &items,
                &output,
                self.writing.verify,
                &done,
                &uninterrupted,
            )?;
            // One of the tasks does.
            if self.writing.task.is_none_or(|task| task.number() == 1) {
                companions.write(self)?;
            }
        }
        notes.extend_from_slice(&companions.notes);
        report::print(self, &checkpoint, &items, &files, (&companions, &notes), screen)?;
        Ok(CLEAN)
    }
}

/// What replaces an input that is named so, and nothing else does.
const REPLACE: &str = "or give --if-exists replace, if it is to be replaced";

pub(crate) fn run(options: &ConvertArguments, host: &Host, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let ConvertArguments {
        places,
        dtype,
        dequantize,
        packed,
        quantize,
        rename,
        select,
        tied,
        metadata,
        max_shard_size,
        writing,
    } = options;
    let (dtype, quantize, tied, max_shard_size, writing) = (*dtype, *quantize, *tied, *max_shard_size, *writing);
    let (dequantize, packed) = (*dequantize, *packed);
    if packed.is_some() && dtype.is_none() {
        return Err(CommandFailure::Usage(
            "--packed keep changes nothing without --dtype: weights stay packed anyway".into(),
        ));
    }
    if let Some(dtype) = dtype.filter(|dtype| !dtype.is_float()) {
        let name = dtype.name();
        return Err(CommandFailure::Usage(format!(
            "--dtype {name}: floats would lose their fractions; give a dtype of floats, or --quantize q8_0 for a GGUF file"
        )));
    }
    let (layout, rename) = layouts::of(rename)?;
    let rename = &rename;
    ConvertRequest {
        places,
        dtype,
        dequantize,
        packed,
        quantize,
        layout,
        rename,
        select,
        tied,
        metadata,
        max_shard_size,
        writing,
    }
    .run(host, screen)
}

/// Says which values are not written: those of PyTorch files that are not tensors.
fn excluded(catalog: &Catalog) -> Option<String> {
    let names: Vec<String> =
        catalog.objects().map(|object| object.name).filter(|name| !name.is_empty()).map(text::escape).collect();
    let first = names.first()?;
    let values = text::plural(names.len() as u64, "value");
    Some(if names.len() == 1 {
        format!("left out: '{first}', which is not a tensor")
    } else {
        format!("left out: {values} that are not tensors, such as '{first}'")
    })
}

/// A conversion that changes nothing but the number of files.
pub(crate) fn merge(options: &MergeArguments, host: &Host, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let MergeArguments { places, writing } = options;
    if ConvertTarget::is_folder(&places.out) {
        let out = text::path(&places.out);
        return Err(CommandFailure::Usage(format!(
            "{out}: the result is one file: give FILE.safetensors or FILE.gguf"
        )));
    }
    ConvertRequest { writing: *writing, ..ConvertRequest::of(places) }.run(host, screen)
}

/// The same the other way.
pub(crate) fn split(options: &SplitArguments, host: &Host, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let SplitArguments { places, max_shard_size, writing } = options;
    ConvertRequest { writing: *writing, max_shard_size: Some(*max_shard_size), ..ConvertRequest::of(places) }
        .run(host, screen)
}

fn encoding(text: &str) -> Result<Encoding, String> {
    let made = [Encoding::Q8_0, Encoding::Q4_0, Encoding::Q4_1, Encoding::Q5_0, Encoding::Q5_1];
    made.into_iter()
        .find(|encoding| encoding.name().eq_ignore_ascii_case(text))
        .ok_or_else(|| "no such encoding to convert to; there are q8_0, q4_0, q4_1, q5_0 and q5_1".to_owned())
}
