//! The names, and the configuration and tokenizer, that transformers has for a GGUF file: Python knows them.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use max_weights::text;
use max_weights::{Catalog, DType};
use serde::Deserialize;

use crate::failure::CommandFailure;
use crate::host::Host;

/// The module of the Python package that answers.
const MODULE: &str = "max_weights._hub_folder";
/// What it knows of GGUF files.
const NAMES: &str = "what Hugging Face calls the weights";

/// New names by those in the file; of the matrices whose rows have another order there, the number of heads; and what is added to others.
#[derive(Debug, Deserialize)]
pub(super) struct HuggingFaceNames {
    #[serde(rename = "names")]
    pub(super) by_name: HashMap<String, String>,
    pub(super) heads: HashMap<String, u64>,
    pub(super) amounts: HashMap<String, i32>,
    /// Those that a checkpoint of Hugging Face does not have.
    pub(super) excluded: HashSet<String>,
}

/// The files that now accompany the weights.
#[derive(Debug, Deserialize)]
pub(super) struct WrittenCompanions {
    pub(super) files: Vec<String>,
    /// What is to be known about it.
    pub(super) notes: Vec<String>,
    /// The weights that the model of the configuration does not have.
    pub(super) not_loaded: Vec<String>,
}

pub(super) fn names(paths: &[PathBuf], catalog: &Catalog, host: &Host) -> Result<HuggingFaceNames, CommandFailure> {
    if catalog.gguf().is_none() {
        return Err(CommandFailure::Usage(
            "--rename hf: only GGUF files have other names; those in this file are already the model's own".into(),
        ));
    }
    let mut arguments = vec![OsStr::new("names"), OsStr::new("--")];
    arguments.extend(paths.iter().map(|path| path.as_os_str()));
    Ok(serde_json::from_slice(&run_python(NAMES, &arguments, host)?)?)
}

/// Writes config.json and the files of the tokenizer into a folder, and says which they are.
pub(super) fn write(
    gguf: &Path,
    folder: &Path,
    dtype: DType,
    host: &Host,
) -> Result<WrittenCompanions, CommandFailure> {
    let arguments = [
        "files".as_ref(),
        "--dtype".as_ref(),
        dtype.name().as_ref(),
        "--no-sync".as_ref(),
        "--".as_ref(),
        gguf.as_os_str(),
        folder.as_os_str(),
    ];
    Ok(serde_json::from_slice(&run_python(NAMES, &arguments, host)?)?)
}

/// What the module prints of something.
pub(super) fn run_python(what: &str, arguments: &[&OsStr], host: &Host) -> Result<Vec<u8>, CommandFailure> {
    let mut command = host.module(MODULE)?;
    let python = text::path(Path::new(command.get_program()));
    let failed = |why: &str| CommandFailure::Needs(format!("{python} cannot say {what}: {why}"));
    let run = command.args(arguments).output();
    let output = run.map_err(|error| failed(&error.to_string()))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(failed(message.trim().lines().next_back().unwrap_or("it said nothing")));
    }
    Ok(output.stdout)
}
