//! The definitions of all commands and their options. Help, completions, the man page and the documentation are made of them.
#![allow(clippy::struct_excessive_bools)] // each is an option that is there or not

use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use max_weights::DType;
use max_weights_check::amount;

use crate::complete;
use crate::validate::{Explain, Scan, Validate};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Look into checkpoint files: safetensors, GGUF, PyTorch. Nothing in a file is ever executed.
#[derive(Debug, Parser)]
#[command(name = "max-weights", bin_name = "max-weights", version, styles = STYLES, arg_required_else_help = true, max_term_width = 100)]
#[command(
    after_help = "`max-weights FILE` lists it. Exit status: 0 clean, 1 findings, 2 wrong usage, 3 broken or unreadable, 4 needs trust, 5 malicious, 130 interrupted."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Colours: auto, always or never.
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub(crate) color: Color,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Ls(Ls),
    Show(Show),
    Globals(Globals),
    Validate(Validate),
    Scan(Scan),
    Explain(Explain),
    Diff(crate::diff::Diff),
    Manifest(crate::manifest::Manifest),
    Bom(crate::manifest::Bom),
    Convert(crate::convert::Convert),
    Merge(crate::convert::Merge),
    Split(crate::convert::Split),
    Reshard(crate::reshard::Reshard),
    Meta(crate::meta::Meta),
    Bench(Bench),
    Versions(Versions),
    Completions(Completions),
}

impl Command {
    /// Whether nothing but JSON is to be on standard output.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Ls(options) => matches!(options.format(), Format::Json | Format::Jsonl),
            Self::Show(options) => options.json,
            Self::Globals(options) => options.json,
            Self::Diff(options) => options.json,
            Self::Manifest(options) => options.wants_json(),
            Self::Bom(_) => true,
            Self::Convert(options) => options.wants_json(),
            Self::Merge(options) => options.wants_json(),
            Self::Split(options) => options.wants_json(),
            Self::Reshard(options) => options.json,
            Self::Validate(options) => options.checking.wants_json(),
            Self::Scan(options) => options.checking.wants_json(),
            Self::Explain(options) => options.json,
            Self::Bench(options) => options.json,
            Self::Versions(options) => options.json,
            Self::Meta(_) | Self::Completions(_) => false,
        }
    }
}

/// What a command opens.
#[derive(Debug, Args)]
pub(crate) struct Checkpoint {
    /// A file, a folder, an index, or ORG/MODEL[@REVISION] in the local Hugging Face cache; several files are one checkpoint.
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

/// How a checkpoint is read.
#[derive(Debug, Default, Args)]
pub(crate) struct Reading {
    /// List what other readers let pass, with a warning, instead of refusing it.
    #[arg(long, overrides_with = "strict")]
    pub(crate) no_strict: bool,
    /// Refuse what other readers let pass (the default).
    #[arg(long, hide = true)]
    pub(crate) strict: bool,
}

/// List weights: a tree, a table, JSON or CSV.
#[derive(Debug, Args)]
#[command(visible_alias = "list")]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) checkpoint: Checkpoint,
    /// tree, table, json, jsonl (one object per line) or csv.
    #[arg(long, value_name = "FORMAT", hide_possible_values = true, conflicts_with_all = ["flat", "json"])]
    format: Option<Format>,
    /// A table, one weight per line, in file order: --format table.
    #[arg(long, conflicts_with = "json")]
    flat: bool,
    /// One JSON object, one weight per line: --format json.
    #[arg(long)]
    json: bool,
    /// Only names that match (*, ?, [ab]), as a table; repeatable.
    #[arg(long = "filter", value_name = "GLOB")]
    pub(crate) filters: Vec<String>,
    /// Print at most this many lines of a tree or a table.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) lines: Option<u32>,
    /// Print all layers, even those that are alike.
    #[arg(long, overrides_with = "fold")]
    pub(crate) no_fold: bool,
    /// Fold layers that are alike into one (the default).
    #[arg(long, hide = true)]
    fold: bool,
    /// Count floats as if they were of this dtype.
    #[arg(long = "as", value_name = "DTYPE", value_parser = dtype, help_heading = "Bytes per rank")]
    pub(crate) dtype: Option<DType>,
    /// Ranks of tensor parallelism: matrices are divided.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Bytes per rank")]
    pub(crate) tp: Option<u32>,
    /// Ranks of expert parallelism: experts are spread.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Bytes per rank")]
    pub(crate) ep: Option<u32>,
    /// Whether it fits into this much, such as 80GB or 24GiB; exit status 1 if not.
    #[arg(long, value_name = "SIZE", value_parser = memory, help_heading = "Bytes per rank")]
    pub(crate) memory: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Tree,
    Table,
    Json,
    Jsonl,
    Csv,
}

impl Ls {
    /// What to print; a filter makes a tree a table.
    pub(crate) fn format(&self) -> Format {
        match self.format {
            Some(format) => format,
            None if self.json => Format::Json,
            None if self.flat || !self.filters.is_empty() => Format::Table,
            None => Format::Tree,
        }
    }

    /// Whether the bytes per rank are asked for.
    pub(crate) fn wants_ranks(&self) -> bool {
        self.dtype.is_some() || self.tp.is_some() || self.ep.is_some() || self.memory.is_some()
    }
}

/// Show one weight or metadata value: place, statistics, histogram.
#[derive(Debug, Args)]
#[command(
    after_help = "A prefix shows its subtree. Without a name, the metadata is shown, and those values of a PyTorch file that are not tensors."
)]
pub(crate) struct Show {
    /// A file, a folder, an index, or ORG/MODEL[@REVISION] in the local Hugging Face cache.
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) path: PathBuf,
    /// A weight, a prefix of several, or a metadata key; without one: the metadata.
    pub(crate) name: Option<String>,
    /// Print only what the header says.
    #[arg(long, overrides_with = "values")]
    pub(crate) no_values: bool,
    /// Read the values for the statistics (the default).
    #[arg(long, hide = true)]
    values: bool,
    /// Bins of the histogram; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(..=200))]
    pub(crate) bins: u32,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

/// List the code that pickles name, with a verdict on each.
#[derive(Debug, Args)]
#[command(after_help = "\
known:      plain data or a tensor is made from it
unknown:    kept as a placeholder, never built
dangerous:  likewise, and calling it could run code or reach files
Every file below the paths is looked at. Exit status 1 if any is not known,
3 if something could not be looked at; `max-weights scan` says more.")]
pub(crate) struct Globals {
    /// Files, folders, indexes, ORG/MODEL in the local cache; - for stdin.
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure how long a checkpoint takes to load, next to other packages and the least that the machine needs.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// A file, a folder, an index, or ORG/MODEL[@REVISION] in the local Hugging Face cache; several files are one checkpoint.
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// Any of safetensors, torch, gguf, runai, fastsafetensors, and for a GPU instanttensor, separated by commas; '' for none.
    #[arg(long, value_name = "NAMES")]
    pub(crate) against: Option<String>,
    /// One JSON object, including each run.
    #[arg(long)]
    pub(crate) json: bool,
    /// Leave the files in the page cache.
    #[arg(long, overrides_with = "cold")]
    pub(crate) no_cold: bool,
    /// Drop the files from the page cache to read them from the disk (the default).
    #[arg(long, hide = true)]
    cold: bool,
    /// Stop after this time, whatever is left to do.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// A GPU to load to, such as cuda or cuda:1.
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
}

/// Print the versions that a bug report needs.
#[derive(Debug, Args)]
pub(crate) struct Versions {
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print the script with which a shell completes this command.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell; without it, the one that SHELL names.
    pub(crate) shell: Option<complete::Shell>,
}

pub(crate) fn dtype(text: &str) -> Result<DType, String> {
    let short = match text {
        "bf16" => "bfloat16",
        "fp16" | "f16" | "half" => "float16",
        "fp32" | "f32" => "float32",
        "fp8" | "f8" => "float8_e4m3fn",
        "fp4" | "f4" => "float4_e2m1fn",
        other => other,
    };
    let found =
        DType::all().find(|dtype| dtype.name() == short || dtype.safetensors_name().eq_ignore_ascii_case(short));
    found.ok_or_else(|| {
        let names: Vec<&str> = DType::all().map(DType::name).collect();
        format!("no such dtype; known are {}, and bf16, fp16, fp32, fp8, fp4", names.join(", "))
    })
}

pub(crate) fn memory(text: &str) -> Result<u64, String> {
    amount::bytes(text).ok_or_else(|| "a size such as 80GB, 24GiB or 1500MB is needed".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds >= 1.0 && seconds.is_finite() => Ok(seconds),
        _ => Err("a number of seconds, at least 1, is needed".into()),
    }
}
