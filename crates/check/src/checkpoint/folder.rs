//! The files that accompany the weights of a model: configurations and tokenizers.

use max_weights::rules;
use max_weights::text::escape;
use max_weights::{Diagnostic, Result};
use serde_json::Value;

use super::config::{ModelConfig, compare};
use super::sets::{CheckpointSet, FolderNames};
use super::{adapter, json, quantized, tokenizer};
use crate::folder::FolderContext;
use crate::words;

const CONFIG: &str = "config.json";
/// The stem of adapters, which have a separate configuration.
const ADAPTER: &str = "adapter_model";
const TOKENIZER: &str = "tokenizer.json";
/// Other files of JSON that libraries read. Of them it is only looked whether they are JSON.
const OTHERS: &str = "
    generation_config.json tokenizer_config.json special_tokens_map.json added_tokens.json preprocessor_config.json processor_config.json
    model_index.json chat_template.json modules.json";
/// What tokenizers of any kind are stored in.
const TOKENIZERS: [&str; 10] = [
    TOKENIZER,
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "tekken.json",
    "merges.txt",
    "tokenizer_config.json",
];

pub(super) fn check(
    names: &FolderNames<'_>,
    sets: &[CheckpointSet<'_>],
    context: &mut FolderContext<'_>,
) -> Result<()> {
    for name in words::each(OTHERS) {
        json::read(names.file(name), context);
        (context.interrupt)()?;
    }
    let config = names.file(CONFIG).and_then(|entry| {
        let value = json::read(Some(entry), context)?;
        Some(ModelConfig { path: entry.path.clone(), value })
    });
    let needed = names.file(TOKENIZER).and_then(|entry| Some((entry, tokenizer::rows(entry, context)?)));
    (context.interrupt)()?;
    let is_model = |set: &&CheckpointSet<'_>| set.is_usual() && set.stem != ADAPTER && set.is_complete;
    for set in sets.iter().filter(is_model) {
        if let Some(config) = &config {
            compare(config, set, context);
        }
        if let Some((entry, needed)) = needed {
            tokenizer::compare(entry, needed, set, context);
        }
        missing(names, set, config.as_ref(), context);
    }
    quantized::check(names, config.as_ref(), sets, context)?;
    adapter::check(names, sets, context)
}

/// What a folder lacks that holds a whole model.
fn missing(
    names: &FolderNames<'_>,
    set: &CheckpointSet<'_>,
    config: Option<&ModelConfig>,
    context: &mut FolderContext<'_>,
) {
    if !names.folder.is_whole {
        return;
    }
    let file = set.path.file_name().unwrap_or_default().to_string_lossy();
    if names.file(CONFIG).is_none() {
        let cause = format!("there is no {CONFIG} in the folder of {}", escape(&file));
        context.report(&set.path, Diagnostic::new(rules::SET_CONFIG_MISSING, cause));
    }
    let is_of_text = config.is_some_and(|config| config.value.get("vocab_size").is_some_and(Value::is_u64));
    if is_of_text && !TOKENIZERS.iter().any(|name| names.file(name).is_some()) {
        let cause = format!("there is no tokenizer in the folder of {}, which has a vocabulary", escape(&file));
        context.report(&set.path, Diagnostic::new(rules::SET_TOKENIZER_MISSING, cause));
    }
}
