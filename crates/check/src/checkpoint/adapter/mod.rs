//! Adapters as peft writes them: `adapter_config.json`, and `adapter_model.safetensors` or `.bin` in the same folder.

mod lora;
mod names;
mod others;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use max_weights::rules;
use max_weights::tensor::TensorInfo;
use max_weights::text::{escape, shape};
use max_weights::{Diagnostic, Result};
use serde_json::Value;

use super::json;
use super::sets::{CheckpointSet, FolderNames};
use crate::folder::FolderContext;
use crate::json::{number, text, texts};
use crate::kind::Kind;

const CONFIG: &str = "adapter_config.json";
const STEM: &str = "adapter_model";
/// What peft writes before the names of the model.
const PREFIX: &str = "base_model.model.";

/// What the tensors of each kind of adapter have in their names.
const KINDS: [(&str, &str); 13] = [
    ("LORA", ".lora_"),
    ("ADALORA", ".lora_E"),
    ("IA3", ".ia3_l"),
    ("LOHA", ".hada_w1"),
    ("LOKR", ".lokr_w1"),
    ("OFT", ".oft_"),
    ("BOFT", ".boft_"),
    ("VERA", ".vera_lambda"),
    ("FOURIERFT", ".fourierft_spectrum"),
    ("PROMPT_TUNING", PROMPT),
    ("P_TUNING", PROMPT),
    ("PREFIX_TUNING", PROMPT),
    ("ADAPTION_PROMPT", ".adaption_"),
];
const PROMPT: &str = "prompt_embeddings";

/// The configuration of an adapter, and where it is.
struct AdapterConfig {
    path: Arc<Path>,
    value: Value,
}

/// The parts that a layer may have.
const MAX_PARTS: usize = 5;
/// Layers examined between two checks for cancellation.
const AT_A_TIME: usize = 1024;

/// The tensors of a layer, by their numbers in the table.
struct AdapterLayer<'s> {
    name: &'s str,
    parts: [Option<usize>; MAX_PARTS],
}

impl<'s> AdapterLayer<'s> {
    fn get(&self, set: &'s CheckpointSet<'_>, part: usize) -> Option<TensorInfo<'s>> {
        self.parts.get(part).copied().flatten().map(|number| set.table().get(number))
    }

    /// The number of one of its tensors.
    fn first(&self) -> Option<usize> {
        self.parts.iter().copied().flatten().next()
    }

    /// The name that it has in its model. What is adapted within an adapted layer, as the last matrix of attention is, has the name of both.
    fn in_model(&self) -> &'s str {
        let name = self.name.strip_prefix(PREFIX).unwrap_or(self.name);
        name.split_once(".base_layer.").map_or(name, |(outer, _)| outer)
    }
}

/// The layers of an adapter; `part` says of a name which layer it is of, and which part.
fn layers<'s>(set: &'s CheckpointSet<'_>, part: impl Fn(&'s str) -> Option<(&'s str, usize)>) -> Vec<AdapterLayer<'s>> {
    let mut layers: Vec<AdapterLayer<'s>> = Vec::new();
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    for (number, info) in set.table().iter().enumerate() {
        let Some((name, part)) = part(info.name) else { continue };
        let at = *by_name.entry(name).or_insert_with(|| {
            layers.push(AdapterLayer { name, parts: [None; MAX_PARTS] });
            layers.len() - 1
        });
        if let Some(place) = layers.get_mut(at).and_then(|layer| layer.parts.get_mut(part)) {
            *place = Some(number);
        }
    }
    layers
}

pub(super) fn check(
    names: &FolderNames<'_>,
    sets: &[CheckpointSet<'_>],
    context: &mut FolderContext<'_>,
) -> Result<()> {
    let entry = names.file(CONFIG).filter(|entry| entry.kind != Kind::LfsPointer);
    let value = json::read(entry, context);
    // AdapterHub has files with this name, too, without any key of peft.
    let value = value.filter(|value| text(value, "peft_type").is_some());
    let config = entry.zip(value).map(|(entry, value)| AdapterConfig { path: entry.path.clone(), value });
    let has_weights = names.folder.files.iter().any(|entry| entry.name().starts_with(STEM));
    if let Some(config) = config.as_ref().filter(|_| names.folder.is_whole && !has_weights) {
        let cause = format!("there is no {STEM}.safetensors in the same folder");
        context.report(&config.path, Diagnostic::new(rules::ADAPTER_WEIGHTS_MISSING, cause));
    }
    for set in sets {
        (context.interrupt)()?;
        let file = set.path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(config) = config.as_ref().filter(|_| set.stem == STEM) {
            with_config(set, config, context)?;
            continue;
        }
        if set.stem == STEM && names.folder.is_whole && names.file(CONFIG).is_none() {
            let cause = format!("there is no {CONFIG} in the folder of {}", escape(&file));
            context.report(&set.path, Diagnostic::new(rules::ADAPTER_CONFIG_MISSING, cause));
        }
        // The layers of adapters of other programs have two matrices, too.
        if set.stem == STEM || file.to_ascii_lowercase().contains("lora") {
            lora::check(set, None, context)?;
        }
    }
    Ok(())
}

fn with_config(set: &CheckpointSet<'_>, config: &AdapterConfig, context: &mut FolderContext<'_>) -> Result<()> {
    let declared = text(&config.value, "peft_type").unwrap_or_default();
    if !is_of_kind(set, declared, config, context) {
        return Ok(());
    }
    modules_to_save(set, config, context);
    match declared {
        "LORA" => lora::check(set, Some(config), context),
        "PROMPT_TUNING" | "P_TUNING" | "PREFIX_TUNING" => {
            prompt(set, declared, &config.value, context);
            Ok(())
        }
        _ => others::check(set, declared, config, context),
    }
}

/// Whether the tensors belong to the declared kind of adapter; true for unknown kinds.
fn is_of_kind(
    set: &CheckpointSet<'_>,
    declared: &str,
    config: &AdapterConfig,
    context: &mut FolderContext<'_>,
) -> bool {
    let Some((_, mark)) = KINDS.iter().find(|(kind, _)| *kind == declared) else { return true };
    let has = |mark: &str| set.table().iter().any(|info| info.name.contains(mark));
    if has(mark) || !set.is_complete {
        return true;
    }
    let found = KINDS.iter().find(|(_, mark)| has(mark)).map(|(kind, _)| *kind);
    let cause = match found {
        Some(found) => format!("peft_type is {declared}, but the tensors are those of {found}"),
        None => format!("peft_type is {declared}, but no tensor has {} in its name", mark.trim_start_matches('.')),
    };
    context.report(&config.path, Diagnostic::new(rules::ADAPTER_TYPE, cause));
    false
}

/// At least one of the fully trained modules is stored: peft adds names to the list that a model need not have.
fn modules_to_save(set: &CheckpointSet<'_>, config: &AdapterConfig, context: &mut FolderContext<'_>) {
    let modules = texts(&config.value, "modules_to_save");
    if modules.is_empty() || !set.is_complete {
        return;
    }
    let is_present = |module: &&str| {
        let inside = format!(".{module}.");
        set.table().iter().any(|info| info.name.contains(&inside) || info.name.starts_with(&inside[1..]))
    };
    // Real lists are short; the rest of a longer one is ignored.
    if !modules.iter().take(64).any(is_present) {
        let listed: Vec<String> = modules.iter().take(8).map(|module| escape(module)).collect();
        let cause = format!("modules_to_save names {}, but no tensor belongs to them", listed.join(", "));
        context.report(&config.path, Diagnostic::new(rules::ADAPTER_MODULES_TO_SAVE, cause));
    }
}

/// The embeddings of virtual tokens.
fn prompt(set: &CheckpointSet<'_>, kind: &str, config: &Value, context: &mut FolderContext<'_>) {
    let (Some(info), Some(tokens), Some(width)) =
        (set.find(PROMPT), number(config, "num_virtual_tokens"), number(config, "token_dim"))
    else {
        return;
    };
    let expected = if kind == "PREFIX_TUNING" {
        // Keys and values of each layer.
        let Some(layers) = number(config, "num_layers") else { return };
        [tokens, layers.saturating_mul(2).saturating_mul(width)]
    } else {
        let parts = number(config, "num_transformer_submodules").unwrap_or(1).max(1);
        [tokens.saturating_mul(parts), width]
    };
    wrong_shape(set, &info, &expected, "by the configuration", context);
}

fn wrong_shape(
    set: &CheckpointSet<'_>,
    info: &TensorInfo<'_>,
    expected: &[u64],
    why: &str,
    context: &mut FolderContext<'_>,
) {
    if info.shape != expected {
        let cause = format!("it has the shape {}; expected {} {why}", shape(info.shape), shape(expected));
        set.report(info, rules::ADAPTER_SHAPE, cause, context);
    }
}
