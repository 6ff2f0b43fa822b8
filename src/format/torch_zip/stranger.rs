//! Zip archives that are no checkpoint, told by the names of their entries.

use super::Archive;

use crate::error::Fault;
use crate::rules;

/// An archive that PyTorch wrote, or that somebody gave by mistake, and that has no tensors for us. TorchScript has a data.pkl too.
pub(super) fn stranger(archive: &Archive) -> Option<Fault> {
    let is_member = |name: &str| archive.member(name).is_some();
    let below = |folder: &str| archive.iter().any(|entry| below_prefix(archive, entry.name).starts_with(folder));
    if is_member("constants.pkl") || (is_member("data.pkl") && below("code/")) {
        let cause = "this is a TorchScript archive: a program with its weights, not a checkpoint";
        return Some(Fault::new(rules::TORCH_ZIP_TORCHSCRIPT, cause).offset(0));
    }
    if is_member("data.pkl") {
        return None;
    }
    let (what, help) = if is_member("archive_format") || is_member("serialized_exported_program.json") {
        let help = "with PyTorch: torch.export.load(PATH).state_dict has the weights; save them as safetensors";
        ("an exported program of PyTorch (torch.export)", help)
    } else if is_member(".data/extern_modules") {
        ("a package of PyTorch (torch.package), which holds code", "load it with torch.package and save its weights")
    } else {
        known(archive)?
    };
    Some(Fault::new(rules::TORCH_ZIP_STRANGER, format!("this is {what}, not a checkpoint")).help(help).offset(0))
}

/// The name without the prefix, or all of it if it does not lie there.
fn below_prefix<'a>(archive: &Archive, name: &'a str) -> &'a str {
    name.strip_prefix(archive.prefix()).and_then(|rest| rest.strip_prefix('/')).unwrap_or(name)
}

fn known(archive: &Archive) -> Option<(&'static str, &'static str)> {
    let has = |name: &str| archive.find(name).is_some();
    let ends = |name: &str, ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    let any = |list: &[&str]| archive.iter().any(|entry| ends(entry.name, list));
    if has("[Content_Types].xml") {
        return Some(("a document of Office (such as .docx)", "give the checkpoint itself"));
    }
    if has("model.weights.h5") {
        return Some(("a Keras model (.keras)", "load it with Keras and save it as safetensors"));
    }
    if has("policy.pth") {
        return Some(("a model of Stable-Baselines3", "unpack it: policy.pth in it is the checkpoint"));
    }
    if has("AndroidManifest.xml") {
        return Some(("an Android app", "give the checkpoint itself"));
    }
    if has("META-INF/MANIFEST.MF") {
        return Some(("a Java archive", "give the checkpoint itself"));
    }
    if has("mimetype") {
        return Some(("a document (OpenDocument or EPUB)", "give the checkpoint itself"));
    }
    if !archive.is_empty() && archive.iter().all(|entry| ends(entry.name, &[".npy"])) {
        return Some(("a NumPy archive (.npz)", "load it with numpy.load"));
    }
    if any(&[".dist-info/METADATA"]) {
        return Some(("a Python wheel", "install it with pip"));
    }
    if any(&[".safetensors", ".gguf", ".pt", ".pth", ".ckpt", ".bin"]) {
        return Some(("a zip archive with checkpoints in it", "unpack it, and open what is in it"));
    }
    None
}
