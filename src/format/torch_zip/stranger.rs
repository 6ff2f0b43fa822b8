//! Zip archives that are not checkpoints, recognized by the names of their entries.

use super::CheckedArchive;

use crate::error::Diagnostic;
use crate::rules;

/// An archive without tensors that PyTorch wrote, or that was given by mistake. TorchScript has a data.pkl too.
pub(super) fn stranger(archive: &CheckedArchive) -> Option<Diagnostic> {
    let is_member = |name: &str| archive.member(name).is_some();
    let below = |folder: &str| archive.iter().any(|entry| below_prefix(archive, entry.name).starts_with(folder));
    if is_member("constants.pkl") || (is_member("data.pkl") && below("code/")) {
        let cause = "this is a TorchScript archive: a program with its weights, not a checkpoint";
        return Some(Diagnostic::new(rules::TORCH_ZIP_TORCHSCRIPT, cause).offset(0));
    }
    if is_member("data.pkl") {
        return None;
    }
    let (what, help) = if is_member("archive_format") || is_member("serialized_exported_program.json") {
        let help = "with PyTorch: torch.export.load(PATH).state_dict has the weights; save them as safetensors";
        ("an exported PyTorch program (torch.export)", help)
    } else if is_member(".data/extern_modules") {
        ("a PyTorch package (torch.package), which contains code", "load it with torch.package and save its weights")
    } else {
        known(archive)?
    };
    Some(Diagnostic::new(rules::TORCH_ZIP_STRANGER, format!("this is {what}, not a checkpoint")).help(help).offset(0))
}

/// The name without the prefix, or all of it if it lacks the prefix.
fn below_prefix<'a>(archive: &CheckedArchive, name: &'a str) -> &'a str {
    name.strip_prefix(archive.prefix()).and_then(|rest| rest.strip_prefix('/')).unwrap_or(name)
}

/// An entry that identifies the kind, its description, and advice.
const KNOWN: [(&str, &str, &str); 6] = [
    ("[Content_Types].xml", "an Office document (such as .docx)", OTHER),
    ("model.weights.h5", "a Keras model (.keras)", "load it with Keras and save it as safetensors"),
    ("policy.pth", "a Stable-Baselines3 model", "unpack it: policy.pth in it is the checkpoint"),
    ("AndroidManifest.xml", "an Android app", OTHER),
    ("META-INF/MANIFEST.MF", "a Java archive", OTHER),
    ("mimetype", "a document (OpenDocument or EPUB)", OTHER),
];
const OTHER: &str = "give the checkpoint itself";

fn known(archive: &CheckedArchive) -> Option<(&'static str, &'static str)> {
    let ends_in = |name: &str, ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    let any = |ends: &[&str]| archive.iter().any(|entry| ends_in(entry.name, ends));
    if let Some((_, what, help)) = KNOWN.iter().find(|(name, ..)| archive.find(name).is_some()) {
        Some((what, help))
    } else if !archive.is_empty() && archive.iter().all(|entry| ends_in(entry.name, &[".npy"])) {
        Some(("a NumPy archive (.npz)", "load it with numpy.load"))
    } else if any(&[".dist-info/METADATA"]) {
        Some(("a Python wheel", "install it with pip"))
    } else if any(&[".safetensors", ".gguf", ".pt", ".pth", ".ckpt", ".bin"]) {
        Some(("a zip archive with checkpoints in it", "unpack it, and open what is in it"))
    } else {
        None
    }
}
