//! What several commands are given: which files and how to read them, dtypes, sizes, pairs.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, ValueHint};
use max_weights::rules;
use max_weights::{DType, Diagnostic, Error};
use max_weights_check::amount;
use tempfile::TempDir;

use crate::failure::Failure;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

/// What a command opens.
#[derive(Debug, Args)]
pub(crate) struct Checkpoint {
    /// A file, a folder, an index, a URL, or ORG/MODEL[@REVISION] in the local Hugging Face cache; several files are one checkpoint.
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

/// How reports call standard input.
pub(crate) const STDIN: &str = "stdin";

/// The paths, `-` among them as a temporary file with what comes on standard input, and the folder that holds it.
pub(crate) fn with_stdin(given: &[PathBuf]) -> Result<(Vec<PathBuf>, Option<TempDir>), Failure> {
    let (mut paths, mut stdin): (Vec<PathBuf>, Option<TempDir>) = (Vec::new(), None);
    for path in given {
        if path.as_os_str() != "-" {
            paths.push(path.clone());
        } else if stdin.is_none() {
            let failed = |error| Error::io(Path::new(STDIN), "copy it to a temporary file", error);
            let folder = tempfile::tempdir().map_err(failed)?;
            let path = folder.path().join(STDIN);
            let mut file = File::create(&path).map_err(failed)?;
            if io::copy(&mut io::stdin().lock(), &mut file).map_err(failed)? == 0 {
                // What was to write it failed, most likely.
                return Err(Diagnostic::new(rules::FORMAT_EMPTY, "nothing came")
                    .path(Path::new(STDIN))
                    .format()
                    .into());
            }
            paths.push(path);
            stdin = Some(folder);
        }
    }
    Ok((paths, stdin))
}

pub(crate) fn memory(text: &str) -> Result<u64, String> {
    amount::bytes(text).ok_or_else(|| "a size such as 80GB, 24GiB or 1500MB is needed".to_owned())
}
