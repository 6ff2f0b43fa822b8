//! What several commands are given: which files and how to read them, dtypes, sizes, pairs.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use max_weights::DType;
use max_weights_check::amount;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

/// What a command opens.
#[derive(Debug, Args)]
pub(crate) struct CheckpointArguments {
    /// A file, a folder, an index, a URL, or ORG/MODEL[@REVISION] in the local Hugging Face cache; several files are one checkpoint.
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) reading: ReadArguments,
}

/// How a checkpoint is read.
#[derive(Debug, Default, Args)]
pub(crate) struct ReadArguments {
    /// List what other readers let pass, with a warning, instead of refusing it.
    #[arg(long, overrides_with = "strict")]
    pub(crate) no_strict: bool,
    /// Refuse what other readers let pass (the default).
    #[arg(long, hide = true)]
    pub(crate) strict: bool,
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
