//! Formats that hold no pickles by themselves: what in them is code, reaches other files, or is something else than it seems.

mod literal;
pub(crate) mod numpy;
pub(crate) mod polyglot;
pub(crate) mod suffix;

use max_weights::Result;
use max_weights::rules;
use max_weights::text::shown;

use crate::context::{Context, Piece};
use crate::finding::Finding;
use crate::kind::has_suffix;
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

/// What a zip archive with these members is, if it is known.
pub(crate) fn of_members(names: &[&str]) -> Option<&'static str> {
    if !names.is_empty() && names.iter().all(|name| has_suffix(name, &["npy"])) {
        return Some("NumPy npz");
    }
    KNOWN.iter().find(|(end, _)| names.iter().any(|name| ends_in(name, end))).map(|(_, kind)| *kind)
}

/// What a tar archive with these members is, if it is known.
pub(crate) fn of_tar_members(names: &[&str]) -> Option<&'static str> {
    let has = |wanted: &str| names.contains(&wanted);
    if has("storages") && has("tensors") && has("pickle") {
        return Some("PyTorch (tar, from before 0.1.10)");
    }
    of_members(names).filter(|kind| matches!(*kind, "NeMo" | "TorchServe"))
}

/// Whether a name is this, below whatever folder, or ends in it where it begins with a dot.
fn ends_in(name: &str, end: &str) -> bool {
    name.strip_suffix(end).is_some_and(|folder| folder.is_empty() || folder.ends_with('/') || end.starts_with('.'))
}

/// What the members of an archive mean together, beyond what each of them is.
pub(crate) fn check_members(
    piece: &Piece<'_>,
    archive: &dyn Archive,
    accounted: &mut [bool],
    context: &mut Context<'_>,
) -> Result<()> {
    context.go_on()?;
    let members = archive.members();
    let _ = accounted;
    let is_served = members.iter().any(|member| ends_in(&member.name, "MAR-INF/MANIFEST.json"));
    if is_served {
        for member in members.iter().filter(|member| has_suffix(&member.name, &["py", "so", "sh"])) {
            let message = format!("the server runs '{}' when it loads the model", shown(&member.name));
            context.report(piece, Finding::new(rules::ARCHIVE_PROGRAM, message).offset(member.start));
        }
    }
    Ok(())
}
