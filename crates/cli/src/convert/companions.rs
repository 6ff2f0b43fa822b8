//! The files that accompany the weights in the folder of a model: its configuration and its tokenizer.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use max_weights::checkpoint::{Checkpoint, ModelCache};
use max_weights::format::json;
use max_weights::source::store::{self, is_url};
use max_weights::tensor::{Element, TensorInfo};
use max_weights::write::{Temporary, place_file};
use max_weights::{DType, Error, text, uninterrupted};
use serde_json::Value;
use tempfile::TempDir;

use super::target::ConvertTarget;
use super::{ConvertRequest, hugging_face};
use crate::failure::CommandFailure;
use crate::host::Host;

const CONFIG: &str = "config.json";
/// The longest one that is read.
const MAX_CONFIG: u64 = 16 << 20;
/// The keys of a configuration that say the dtype of the weights.
const DTYPE_KEYS: [&str; 2] = ["torch_dtype", "dtype"];
/// The files of a model other than its weights: configurations, vocabularies, templates, code, texts.
const SUFFIXES: [&str; 7] = ["json", "txt", "model", "jinja", "tiktoken", "py", "md"];
/// The keys of a configuration that say how the weights are quantized, and the files that say nothing else.
const QUANTIZATION_KEYS: [&str; 2] = ["quantization_config", "compression_config"];
const QUANTIZATION_FILES: [&str; 2] = ["quantize_config.json", "hf_quant_config.json"];
/// An index names the files of weights, which are other ones now.
const INDEX: &str = ".index.json";
/// What is larger is no such file.
const MAX_BYTES: u64 = 256 << 20;

/// The files, each where it is and where it goes.
#[derive(Debug, Default)]
pub(super) struct CompanionFiles {
    files: Vec<(PathBuf, PathBuf)>,
    /// What is to be known about them.
    pub(super) notes: Vec<String>,
    /// Whether weights are decoded that the configuration says are quantized.
    is_decoded: bool,
    /// Holds those that were made for this.
    _made: Option<(TempDir, Temporary)>,
}

/// The files to copy from the folder of the weights, or to create from the metadata of a GGUF file. They are created now, so that missing
/// metadata is found before the weights are written.
pub(super) fn files(
    requested: &ConvertRequest<'_>,
    checkpoint: &Checkpoint,
    (target, is_decoded): (&ConvertTarget, bool),
    host: &Host,
) -> Result<CompanionFiles, CommandFailure> {
    let (ConvertTarget::Folder(to, _), [path]) = (target, &*requested.places.paths) else {
        return Ok(CompanionFiles::default());
    };
    let Some(first) = checkpoint.opened().first() else { return Ok(CompanionFiles::default()) };
    if checkpoint.catalog().gguf().is_some() {
        let named = requested.rename.iter().any(|declared| declared == super::items::HUGGING_FACE);
        return if named { made(requested, checkpoint, first, to, host) } else { Ok(CompanionFiles::default()) };
    }
    if is_url(path) {
        return Ok(CompanionFiles::default());
    }
    let path = ModelCache::from_environment().resolve(path)?;
    let is_index = path.to_string_lossy().ends_with(INDEX);
    if !path.is_dir() && !is_index {
        return Ok(CompanionFiles::default());
    }
    let folder = if is_index { path.parent().unwrap_or(Path::new("")) } else { &path };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let listed = fs::read_dir(folder).map_err(|source| Error::io(folder, "list", source))?;
    let mut from: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).filter(|path| is_companion(path)).collect();
    from.sort();
    let same = |a: &Path, b: &Path| matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if same(folder, to) {
        if let Some(declared) = from.iter().find(|path| is_decoded && says_quantization(path)) {
            return Err(CommandFailure::Usage(format!(
                "{}: it declares the quantization of weights that are decoded, and would stay in their folder: give another folder as OUT",
                text::path(declared)
            )));
        }
        from.retain(|path| (requested.dtype.is_some() || is_decoded) && path.ends_with(CONFIG));
    }
    from.retain(|path| !(is_decoded && says_quantization(path)));
    let files = from.into_iter().filter_map(|path| Some((path.clone(), join(to, path.file_name()?)))).collect();
    Ok(CompanionFiles { files, is_decoded, ..CompanionFiles::default() })
}

/// Whether a file says how weights are quantized, and nothing else.
fn says_quantization(path: &Path) -> bool {
    QUANTIZATION_FILES.iter().any(|name| path.ends_with(name))
}

/// Whether the configuration that would be copied is that of gpt-oss.
pub(super) fn is_of_gpt_oss(requested: &ConvertRequest<'_>) -> bool {
    let [path] = &*requested.places.paths else { return false };
    let Ok(path) = ModelCache::from_environment().resolve(path) else { return false };
    let folder = if path.is_dir() { &*path } else { path.parent().unwrap_or(Path::new("")) };
    let config = fs::read(folder.join(CONFIG)).ok().and_then(|bytes| json::read::<Value>(&bytes, MAX_CONFIG).ok());
    config.is_some_and(|config| config.get("model_type").is_some_and(|kind| kind == "gpt_oss"))
}

/// The file of this name in a folder, or below a URL.
fn join(folder: &Path, name: &OsStr) -> PathBuf {
    if is_url(folder) { store::join(folder, &name.to_string_lossy()) } else { folder.join(name) }
}

fn made(
    requested: &ConvertRequest<'_>,
    checkpoint: &Checkpoint,
    gguf: &Path,
    to: &Path,
    host: &Host,
) -> Result<CompanionFiles, CommandFailure> {
    if requested.writing.dry_run {
        return Ok(CompanionFiles {
            files: vec![(PathBuf::new(), join(to, OsStr::new(CONFIG)))],
            ..CompanionFiles::default()
        });
    }
    let place = std::env::temp_dir();
    let made = Temporary::make(|| tempfile::tempdir().map(|folder| (folder.path().to_path_buf(), folder)));
    let (noted, folder) = made.map_err(|source| Error::io(&place, "make a folder in", source))?;
    let is_packed = |info: TensorInfo<'_>| matches!(info.element, Element::Packed(_));
    let is_packed = checkpoint.catalog().table().iter().any(is_packed);
    let dtype = if is_packed || requested.dequantize { super::items::DECODED } else { DType::Float32 };
    let written = hugging_face::write(gguf, folder.path(), requested.dtype.unwrap_or(dtype), host)?;
    let files =
        written.files.into_iter().map(|name| (folder.path().join(&name), join(to, OsStr::new(&name)))).collect();
    let mut notes = written.notes;
    if let [first, ..] = &*written.not_loaded {
        let count = text::plural(written.not_loaded.len() as u64, "weight");
        notes.push(format!(
            "{count} that the model of the configuration does not have, such as '{}'",
            text::escape(first)
        ));
    }
    Ok(CompanionFiles { files, notes, _made: Some((folder, noted)), is_decoded: false })
}

fn is_companion(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let known = path.extension().is_some_and(|suffix| SUFFIXES.iter().any(|known| suffix.eq_ignore_ascii_case(known)));
    let is_file = fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= MAX_BYTES);
    known && is_file && !name.starts_with('.') && !name.ends_with(INDEX)
}

impl CompanionFiles {
    /// Where the files go.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(_, to)| to.as_path())
    }

    /// Puts them there.
    pub(super) fn write(&self, requested: &ConvertRequest<'_>) -> Result<(), CommandFailure> {
        for (from, to) in &self.files {
            let mut bytes = fs::read(from).map_err(|source| Error::io(from, "read", source))?;
            if let (true, Some(dtype)) = (from.ends_with(CONFIG), requested.dtype) {
                bytes = with_dtype(bytes, dtype);
            }
            if from.ends_with(CONFIG) && self.is_decoded {
                bytes = without_quantization(bytes);
            }
            place_file(to, &bytes, !requested.writing.no_sync, &requested.writing.destination(), &uninterrupted)?;
        }
        Ok(())
    }
}

/// The configuration without what it says of quantization.
fn without_quantization(bytes: Vec<u8>) -> Vec<u8> {
    let Ok(Value::Object(mut config)) = json::read(&bytes, MAX_CONFIG) else { return bytes };
    for key in QUANTIZATION_KEYS {
        config.remove(key);
        for of_part in config.values_mut().filter_map(Value::as_object_mut) {
            of_part.remove(key);
        }
    }
    serde_json::to_vec_pretty(&config).map_or(bytes, |mut made| {
        made.push(b'\n');
        made
    })
}

/// The configuration with another dtype, if it has one; anything but JSON stays unchanged.
fn with_dtype(bytes: Vec<u8>, dtype: DType) -> Vec<u8> {
    let Ok(Value::Object(mut config)) = json::read(&bytes, MAX_CONFIG) else { return bytes };
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
