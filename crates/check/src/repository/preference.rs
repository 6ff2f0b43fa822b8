//! Which of several files with the same weights a loader takes: it loads pickles instead of the safetensors on request.

use max_weights::text::escape;
use max_weights::{Diagnostic, rules};

use crate::folder::{FolderListing, ListedFile};
use crate::kind::{Kind, has_suffix};

/// Names of files of weights: as safetensors, as pickles, and which library decides.
const PAIRS: [(&str, &str, &str); 4] = [
    ("model", "pytorch_model", "Transformers"),
    ("diffusion_pytorch_model", "diffusion_pytorch_model", "Diffusers"),
    ("adapter_model", "adapter_model", "PEFT"),
    ("pytorch_lora_weights", "pytorch_lora_weights", "Diffusers"),
];

/// Says which files the loaders take, where there is a choice.
pub(super) fn look(folder: &FolderListing, report: &mut dyn FnMut(&ListedFile, Diagnostic)) {
    if !folder.is_whole {
        return;
    }
    for (safe, pickled, library) in PAIRS {
        let safe = folder.files.iter().find(|entry| is_weights(entry.name(), safe, "safetensors"));
        let pickles: Vec<&ListedFile> =
            folder.files.iter().filter(|entry| is_weights(entry.name(), pickled, "bin pt pth ckpt")).collect();
        let (Some(safe), Some(first)) = (safe, pickles.first()) else { continue };
        let more = if pickles.len() > 1 { format!(" and {} more", pickles.len() - 1) } else { String::new() };
        let sentence = format!(
            "{}{more} holds weights as pickles in the folder of {}: {library} takes the safetensors, and the pickles with use_safetensors=False",
            escape(first.name()),
            escape(safe.name())
        );
        report(first, Diagnostic::new(rules::REPOSITORY_PICKLE_BESIDE, sentence));
    }
    // A file by the name of safetensors that is none: loaders refuse it or take another one.
    let named = folder.files.iter().filter(|entry| has_suffix(entry.name(), "safetensors"));
    for entry in named.filter(|entry| matches!(entry.kind, Kind::Pickle | Kind::Zip | Kind::TorchLegacy)) {
        let sentence = format!("{} is named .safetensors, but is {}", escape(entry.name()), entry.kind);
        report(entry, Diagnostic::new(rules::REPOSITORY_PICKLE_NAMED_SAFE, sentence));
    }
}

/// `model.safetensors`, `model-00001-of-00002.safetensors`, `model.fp16.safetensors`.
fn is_weights(name: &str, stem: &str, suffixes: &str) -> bool {
    let rest = name.strip_prefix(stem).filter(|rest| rest.starts_with(['.', '-']));
    rest.is_some() && has_suffix(name, suffixes)
}
