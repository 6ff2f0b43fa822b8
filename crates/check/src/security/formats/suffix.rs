//! What the name of a file says, held against its bytes.

use std::path::Path;

use max_weights::rules::{self, Verdict};
use max_weights::source::store;
use max_weights::text::{escape, size};
use max_weights::{Diagnostic, Result};

use crate::context::{ByteSpan, FileContext};
use crate::kind::{Kind, has_suffix};
use crate::words;

/// Suffixes of weights of any format.
const WEIGHTS: &str = "
    safetensors gguf ggml bin pt pth ckpt pkl pickle joblib npy npz h5 hdf5 keras onnx tflite model nemo mar msgpack pb";
/// Suffixes of formats that hold no code, with the kinds that such files may be.
const PLAIN: [(&str, &[Kind]); 8] = [
    ("safetensors", &[Kind::Safetensors]),
    ("gguf ggml", &[Kind::Gguf, Kind::OldGgml]),
    ("onnx", &[Kind::Onnx]),
    ("tflite", &[Kind::TfLite]),
    ("npy", &[Kind::Numpy]),
    ("npz", &[Kind::Zip]),
    ("h5 hdf5 keras", &[Kind::Hdf5, Kind::Zip]),
    ("json jsonl txt md csv yaml yml toml cfg ini jpg jpeg png gif wav mp3", &[]),
];
/// Suffixes of weights that may be no text, nor bytes of no known format.
const NO_TEXT: &str = "safetensors gguf pt pth ckpt onnx npy npz keras h5";
/// Suffixes of weights that are text only where that is a pickle.
const TEXT_IF_PICKLE: &str = "pkl pickle joblib bin";
/// Files in the same folder that mark raw data of other programs: those with the stem of `NAME.bin`, and those with fixed names.
const NEXT_TO_RAW_DATA: [&str; 3] = ["xml", "param", "onnx"];
const NAMES_RAW_DATA: &str = "
    ndarray-cache.json tensor-cache.json model.json vocabulary.json vocabulary.txt shared_vocabulary.json shared_vocabulary.txt ../model.mlmodel";
/// Where TensorFlow looks for a graph if there is no `saved_model.pb`: as text, and in parts.
const OTHER_GRAPHS: [&str; 2] = ["saved_model.pbtxt", "saved_model.cpb"];
/// What standard input is called, of which no name says what it is.
const STDIN: &str = "stdin";
/// Other suffixes of files that are broken if they are empty.
const NEVER_EMPTY: &str = "json yaml yml jinja";
/// Longer files are not looked at as Python's path files.
const MAX_PATH_FILE: u64 = 32 << 20;

/// Looks at a file by its name.
pub(crate) fn check(piece: &ByteSpan<'_>, kind: Kind, context: &mut FileContext<'_>) -> Result<()> {
    let is_file = piece.member.is_none();
    let is_given = is_file && piece.name == STDIN;
    let names_weights = has_suffix(piece.name, WEIGHTS) || is_given;
    path_lines(piece, kind, context)?;
    let report = |rule, message: String, context: &mut FileContext<'_>| {
        context.report(piece, Diagnostic::new(rule, message).offset(0));
    };
    match kind {
        Kind::Empty if is_file && (names_weights || has_suffix(piece.name, NEVER_EMPTY)) => {
            report(rules::FORMAT_EMPTY, "the file is empty".into(), context);
        }
        Kind::LfsPointer => {
            let pointer = piece.bytes.first(1024)?;
            let represents = pointer_size(&pointer).map(|bytes| format!(" of {}", size(bytes))).unwrap_or_default();
            let message = format!("this is a git-LFS pointer, not the file{represents} that it stands for");
            report(rules::FORMAT_LFS_POINTER, message, context);
        }
        Kind::WebPage if names_weights => {
            report(rules::FORMAT_WEB_PAGE, "this is a web page in place of weights".into(), context);
        }
        Kind::Zeros if names_weights && is_file => {
            report(rules::FORMAT_ZEROS, "the file begins with nothing but zeros".into(), context);
        }
        Kind::Json if has_suffix(piece.name, "safetensors gguf pt pth ckpt bin onnx npz npy h5") => {
            report(rules::FORMAT_JSON, "this is JSON in place of weights".into(), context);
        }
        Kind::Script | Kind::Python if names_weights => {
            let message = format!("'{}' is a script named like weights", escape(piece.name));
            report(rules::CONTAINER_EXECUTABLE, message, context);
        }
        Kind::Text if has_suffix(piece.name, "pth") && is_path_file(piece)? => {}
        Kind::Text | Kind::Unknown if has_suffix(piece.name, NO_TEXT) => no_weights(piece, kind, context),
        Kind::Media | Kind::Arrow | Kind::Parquet | Kind::Feather if names_weights => {
            let message = format!("this is {} in place of weights", kind.with_article());
            report(rules::FORMAT_STRANGER, message, context);
        }
        Kind::Executable if names_weights => {
            let message = format!("'{}' is an executable program named like weights", escape(piece.name));
            report(rules::CONTAINER_EXECUTABLE, message, context);
        }
        _ => mismatch(piece, kind, context),
    }
    Ok(())
}

fn no_weights(piece: &ByteSpan<'_>, kind: Kind, context: &mut FileContext<'_>) {
    let what = if kind == Kind::Text { "a text" } else { "nothing known" };
    let message = format!("this is {what}, but is named like weights");
    context.report(piece, Diagnostic::new(rules::FORMAT_UNKNOWN, message).offset(0));
}

/// Checks the name of a file that is not a pickle either.
pub(crate) fn unexamined(piece: &ByteSpan<'_>, kind: Kind, context: &mut FileContext<'_>) {
    let is_given = piece.member.is_none() && piece.name == STDIN;
    let is_named = has_suffix(piece.name, TEXT_IF_PICKLE) || is_given;
    if context.file.reported > Verdict::Clean {
        // Its fault was reported before.
        return;
    }
    match kind {
        // In a folder it may belong to any program: data of tokens, of an index, of another runtime.
        Kind::Unknown if has_suffix(piece.name, "bin") && piece.member.is_none() => {
            let is_raw = is_raw_data(&context.file.path);
            if context.is_given && !is_raw {
                no_weights(piece, kind, context);
            } else if !is_raw {
                let message = "nothing is known about the contents of this file, which is named like weights";
                context.report(piece, Diagnostic::new(rules::FILE_NOT_EXAMINED, message).offset(0));
            }
        }
        Kind::Unknown if has_suffix(piece.name, "bin") => {}
        Kind::Text | Kind::Unknown if is_named => no_weights(piece, kind, context),
        Kind::Text | Kind::Unknown if OTHER_GRAPHS.iter().any(|name| super::ends_in(piece.name, name)) => {
            let message = "this is a graph of TensorFlow in a form that was not looked into";
            context.report(piece, Diagnostic::new(rules::ARCHIVE_UNSUPPORTED, message).offset(0));
        }
        _ => {}
    }
}

/// Whether a file in its folder, or its package, marks a `.bin` as raw data of another program: of OpenVINO, ncnn, ONNX, Core ML, MLC, TensorFlow.js
/// or CTranslate2.
pub(crate) fn is_raw_data(path: &Path) -> bool {
    let names = words::each(NAMES_RAW_DATA).map(|name| path.with_file_name(name));
    // The other files of a server's folder are unknown here.
    let is_here = !store::is_url(path);
    let companions = NEXT_TO_RAW_DATA.iter().map(|suffix| path.with_extension(suffix));
    let is_packaged = path.ancestors().any(|folder| folder.extension().is_some_and(|suffix| suffix == "mlpackage"));
    is_packaged || is_here && names.chain(companions).any(|other| other.is_file())
}

/// Something that can run code under the name of a format that cannot.
pub(crate) fn mismatch(piece: &ByteSpan<'_>, kind: Kind, context: &mut FileContext<'_>) {
    let is_code = matches!(kind, Kind::Hdf5 | Kind::Executable) || kind.is_pickle();
    let runs_code = is_code || kind.is_archive() || (kind.is_compressed() && kind != Kind::Lzma);
    let declared = PLAIN.iter().find(|(suffixes, _)| has_suffix(piece.name, suffixes));
    if let Some((_, kinds)) = declared.filter(|(_, kinds)| runs_code && !kinds.contains(&kind)) {
        let suffix = piece.name.rsplit('.').next().unwrap_or_default();
        let expected = kinds.first().map_or("data without code", |kind| kind.name());
        let message =
            format!("the name ends in .{}, as for {expected}, but this is {}", escape(suffix), kind.with_article());
        context.report(piece, Diagnostic::new(rules::CONTAINER_SUFFIX, message).offset(0));
    }
}

/// Reports that Python runs a line of a file, which is a path file by its name, whatever its format.
fn path_lines(piece: &ByteSpan<'_>, kind: Kind, context: &mut FileContext<'_>) -> Result<()> {
    let is_weights = matches!(kind, Kind::Zip | Kind::TorchLegacy | Kind::Tar | Kind::Pickle);
    if !has_suffix(piece.name, "pth") || is_weights || piece.bytes.len() > MAX_PATH_FILE {
        return Ok(());
    }
    let text = piece.bytes.first(MAX_PATH_FILE as usize)?;
    let runs = |line: &&[u8]| line.starts_with(b"import ") || line.starts_with(b"import\t");
    if let Some(line) = text.split(|byte| matches!(byte, b'\n' | b'\r')).find(runs) {
        let message = "Python runs a line of this file whenever it starts, if the file is in a folder of packages";
        let line = escape(&String::from_utf8_lossy(line));
        context.report(piece, Diagnostic::new(rules::CONTAINER_PATH_FILE, message).evidence(line));
    }
    Ok(())
}

/// Whether a text has what Python's path files have: paths, comments and lines that are run.
fn is_path_file(piece: &ByteSpan<'_>) -> Result<bool> {
    let text = piece.bytes.first(MAX_PATH_FILE as usize)?;
    let is_own =
        |line: &[u8]| line.is_empty() || line.starts_with(b"import") || matches!(line, [b'/' | b'.' | b'#', ..]);
    Ok(text.split(|byte| matches!(byte, b'\n' | b'\r')).all(is_own))
}

/// The size of the real file, from the line `size N` of a git-LFS pointer.
fn pointer_size(text: &[u8]) -> Option<u64> {
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"size "))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}
