//! What stands beside the weights in a folder that a model is loaded from: its configuration and its tokenizer.

use std::fs;
use std::path::{Path, PathBuf};

use max_weights::checkpoint::{Checkpoint, ModelCache};
use max_weights::write::Replacement;
use max_weights::{DType, Error};
use serde_json::Value;

use super::target::Target;
use super::{Wanted, hugging_face};
use crate::failure::Failure;
use crate::host::Host;

const CONFIG: &str = "config.json";
/// The keys of a configuration that say the dtype of the weights.
const DTYPE_KEYS: [&str; 2] = ["torch_dtype", "dtype"];
/// The files that a model has beside its weights: configurations, vocabularies, templates, code, texts.
const SUFFIXES: [&str; 7] = ["json", "txt", "model", "jinja", "tiktoken", "py", "md"];
/// An index names the files of weights, which are other ones now.
const INDEX: &str = ".index.json";
/// What is larger is no such file.
const MOST_BYTES: u64 = 256 << 20;

/// The files, and where they come from.
#[derive(Debug)]
pub(super) enum Beside {
    Nothing,
    /// Those of the folder that the weights were in.
    Copied {
        from: Vec<PathBuf>,
        to: PathBuf,
    },
    /// Made of the metadata of a GGUF file.
    Made {
        gguf: PathBuf,
        to: PathBuf,
    },
}

pub(super) fn files(wanted: &Wanted<'_>, checkpoint: &Checkpoint, target: &Target) -> Result<Beside, Failure> {
    let (Target::Folder(to, _), [path]) = (target, &*wanted.places.paths) else { return Ok(Beside::Nothing) };
    let to = to.clone();
    let Some(first) = checkpoint.opened().first() else { return Ok(Beside::Nothing) };
    if checkpoint.catalog().gguf().is_some() {
        let named = wanted.rename.iter().any(|said| said == super::items::HUGGING_FACE);
        return Ok(if named { Beside::Made { gguf: first.clone(), to } } else { Beside::Nothing });
    }
    let path = ModelCache::from_environment().resolve(path)?;
    let is_index = path.to_string_lossy().ends_with(INDEX);
    if !path.is_dir() && !is_index {
        return Ok(Beside::Nothing);
    }
    let folder = if is_index { path.parent().unwrap_or(Path::new("")) } else { &path };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let listed = fs::read_dir(folder).map_err(|source| Error::io(folder, "list", source))?;
    let mut from: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).filter(|path| is_beside(path)).collect();
    from.sort();
    let same = |a: &Path, b: &Path| matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if same(folder, &to) {
        from.retain(|path| wanted.dtype.is_some() && path.ends_with(CONFIG));
    }
    Ok(Beside::Copied { from, to })
}

fn is_beside(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let known = path.extension().is_some_and(|suffix| SUFFIXES.iter().any(|known| suffix.eq_ignore_ascii_case(known)));
    let is_file = fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= MOST_BYTES);
    known && is_file && !name.starts_with('.') && !name.ends_with(INDEX)
}

impl Beside {
    /// The names of the files that are known before they are written.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Copied { from, to } => from.iter().filter_map(|path| Some(to.join(path.file_name()?))).collect(),
            Self::Made { to, .. } => vec![to.join(CONFIG)],
        }
    }

    /// Writes them.
    pub(super) fn write(&self, wanted: &Wanted<'_>, host: &Host) -> Result<(), Failure> {
        match self {
            Self::Nothing => Ok(()),
            Self::Made { gguf, to } => {
                hugging_face::write(gguf, to, wanted.dtype.unwrap_or(DType::Float32), host)?;
                Ok(())
            }
            Self::Copied { from, .. } => {
                for (from, to) in from.iter().zip(self.paths()) {
                    let mut bytes = fs::read(from).map_err(|source| Error::io(from, "read", source))?;
                    if let (true, Some(dtype)) = (from.ends_with(CONFIG), wanted.dtype) {
                        bytes = with_dtype(bytes, dtype);
                    }
                    let file = Replacement::create(&to, bytes.len() as u64, !wanted.writing.no_sync)?;
                    file.write_at(0, &bytes)?;
                    file.commit()?;
                }
                Ok(())
            }
        }
    }
}

/// The configuration with another dtype, where it says one; whatever is no JSON stays as it is.
fn with_dtype(bytes: Vec<u8>, dtype: DType) -> Vec<u8> {
    let Ok(Value::Object(mut config)) = serde_json::from_slice(&bytes) else { return bytes };
    let mut changed = false;
    for key in DTYPE_KEYS {
        if let Some(value @ Value::String(_)) = config.get_mut(key) {
            *value = Value::String(dtype.name().to_owned());
            changed = true;
        }
    }
    match serde_json::to_vec_pretty(&config) {
        Ok(mut made) if changed => {
            made.push(b'\n');
            made
        }
        _ => bytes,
    }
}
