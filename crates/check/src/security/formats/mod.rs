//! Formats that are no pickles by themselves: what in them is code, reaches other files, or is something else than it seems.

pub(crate) mod arrow;
mod configurations;
pub(crate) mod hdf5;
mod keras;
mod literal;
pub(crate) mod numpy;
pub(crate) mod onnx;
pub(crate) mod otherwise;
pub(crate) mod polyglot;
mod protobuf;
mod skops;
pub(crate) mod suffix;
pub(crate) mod tensorflow;
pub(crate) mod tflite;
mod unpickled;

use max_weights::rules;
use max_weights::text::escape;
use max_weights::{Diagnostic, Result};

use crate::bytes::RandomRead;
use crate::context::{ByteSpan, FileContext};
use crate::json;
use crate::kind::has_suffix;
use crate::repository;
use crate::security::archive::Archive;

/// Archives that are known by a member: the end of its name, and what they are. The first that fits counts.
const KNOWN: [(&str, &str); 17] = [
    ("constants.pkl", "TorchScript"),
    (".data/extern_modules", "torch.package"),
    ("serialized_exported_program.json", "torch.export"),
    ("archive_format", "torch.export"),
    ("data.pkl", "PyTorch"),
    ("MAR-INF/MANIFEST.json", "TorchServe"),
    ("policy.pth", "Stable-Baselines3"),
    ("model.weights.h5", "Keras"),
    ("schema.json", "skops"),
    ("saved_model.pb", "TensorFlow SavedModel (zip)"),
    ("[Content_Types].xml", "Office document"),
    ("AndroidManifest.xml", "Android app"),
    (".dist-info/METADATA", "Python wheel"),
    ("META-INF/MANIFEST.MF", "Java archive"),
    ("META-INF/container.xml", "EPUB"),
    ("model_config.yaml", "NeMo"),
    ("mimetype", "OpenDocument"),
];

/// What an archive of NumPy's arrays is called.
pub(crate) const NPZ: &str = "NumPy npz";

/// What a zip archive with these members is, if it is known.
pub(crate) fn of_members(names: &[&str]) -> Option<&'static str> {
    if !names.is_empty() && names.iter().all(|name| has_suffix(name, "npy")) {
        return Some(NPZ);
    }
    KNOWN.iter().find(|(end, _)| names.iter().any(|name| ends_in(name, end))).map(|(_, kind)| *kind)
}

/// What a tar archive with these members is, if it is known.
pub(crate) fn of_tar_members(names: &[&str]) -> Option<&'static str> {
    let has = |requested: &str| names.contains(&requested);
    if has("storages") && has("tensors") && has("pickle") {
        return Some("PyTorch (tar, from before 0.1.10)");
    }
    of_members(names).filter(|kind| matches!(*kind, "NeMo" | "TorchServe"))
}

/// Whether this is the name, in any folder, or its end if it begins with a dot.
fn ends_in(name: &str, end: &str) -> bool {
    name.strip_suffix(end).is_some_and(|folder| folder.is_empty() || folder.ends_with('/') || end.starts_with('.'))
}

/// What the members of an archive mean together, beyond what each of them is.
pub(crate) fn check_members(piece: &ByteSpan<'_>, archive: &dyn Archive, context: &mut FileContext<'_>) {
    let members = archive.members();
    if !members.iter().any(|member| ends_in(&member.name, "MAR-INF/MANIFEST.json")) {
        return;
    }
    for member in members.iter().filter(|member| has_suffix(&member.name, "py so sh")) {
        let message = format!("the server runs '{}' when it loads the model", escape(&member.name));
        context.report(piece, Diagnostic::new(rules::ARCHIVE_PROGRAM, message).offset(member.start));
    }
}

/// Looks at a JSON text that a loader makes objects by: a configuration of Keras, or the schema of a skops file.
pub(crate) fn json(piece: &ByteSpan<'_>, context: &mut FileContext<'_>) -> Result<()> {
    let words = words_of_objects(piece.bytes, context)?;
    if words == JsonWords::default() {
        return Ok(());
    }
    // What is long is data, unless a loader looks for it by its name.
    let is_named = repository::is_config(piece.name) || ends_in(piece.name, "schema.json");
    let report = |message: String, context: &mut FileContext<'_>| {
        context.report(piece, Diagnostic::new(rules::KERAS_CONFIG, message));
    };
    let len = piece.bytes.len();
    if len > keras::MAX_CONFIG as u64 {
        if is_named {
            report(format!("the configuration has {len} bytes, too many to look for code in them"), context);
        }
        return Ok(());
    }
    match json::read(&piece.bytes.first(keras::MAX_CONFIG)?) {
        Ok(value) => {
            keras::walk(piece, &value, 0, context)?;
            skops::walk(piece, &value, context)?;
        }
        Err(why) if words.are_plain || is_named => {
            report(format!("the configuration cannot be read: {}", escape(&why)), context);
        }
        Err(_) => {}
    }
    Ok(())
}

/// The words in a JSON text that name the objects that a loader creates.
#[derive(Default, PartialEq, Eq)]
struct JsonWords {
    are_plain: bool,
    may_be_hidden: bool,
}

fn words_of_objects(bytes: &dyn RandomRead, context: &FileContext<'_>) -> Result<JsonWords> {
    const WINDOW: usize = 1 << 20;
    /// Words lie over the ends of windows.
    const OVERLAP: usize = 16;
    const WORDS: [&[u8]; 3] = [b"\"class_name\"", b"\"__loader__\"", b"\"__module__\""];
    let (mut words, mut at) = (JsonWords::default(), 0);
    // In another encoding of Unicode than UTF-8, which Python reads as well, no word is found by its letters.
    let start = bytes.part(0, 4)?;
    words.may_be_hidden = start.contains(&0) || start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff");
    while at < bytes.len() {
        context.check_cancelled()?;
        let window = bytes.part(at, WINDOW + OVERLAP)?;
        words.are_plain |= WORDS.iter().any(|word| memchr::memmem::find(&window, word).is_some());
        words.may_be_hidden |= hides_letters(&window);
        at += WINDOW as u64;
    }
    Ok(words)
}

/// Whether a letter is written by its number, `\u0061` for `a`: no program writes JSON like this, and a word is not found by its letters then.
fn hides_letters(text: &[u8]) -> bool {
    memchr::memmem::find_iter(text, b"\\u00")
        .any(|at| matches!(text.get(at + 4..at + 6), Some([b'4'..=b'6', _] | [b'7', b'0'..=b'9' | b'a' | b'A'])))
}
