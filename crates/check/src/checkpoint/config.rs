//! The configuration of a model (`config.json`) against its tensors, where the names of these leave no doubt what they are.

use std::path::Path;
use std::sync::Arc;

use max_weights::dtype::DType;
use max_weights::tensor::{Element, TensorInfo};
use max_weights::{Diagnostic, rules};
use serde_json::Value;

use super::sets::CheckpointSet;
use crate::folder::FolderContext;
use crate::json::{number, text};
use crate::quantized::is_float;
use crate::words;

/// The last two parts of the names of embeddings of tokens.
const EMBEDDINGS: &str = "
    embed_tokens.weight wte.weight embeddings.word_embeddings.weight transformer.word_embeddings.weight embed_in.weight shared.weight";
/// Models whose embedding has more rows than their vocabulary, on purpose.
const MORE_ROWS: [&str; 5] = ["mllama", "idefics", "idefics2", "moshi", "vipllava"];
/// Keys of the rows of an embedding that is longer than the vocabulary.
const PADDED: [&str; 2] = ["embedding_size", "padded_vocab_size"];
/// Keys of models whose embedding has its own width.
const OTHER_WIDTHS: [&str; 6] =
    ["embedding_size", "input_embedding_size", "word_embed_proj_dim", "embedding_dim", "d_embed", "emb_dim"];
/// What is before the numbers of the layers that `num_hidden_layers` counts.
const LAYERS: &str = "
    model.layers. layers. transformer.h. h. bert.encoder.layer. roberta.encoder.layer. encoder.layer. gpt_neox.layers. model.decoder.layers.
    model.language_model.layers. language_model.model.layers. backbone.layers.";

/// The configuration of a model, and where it is.
pub(super) struct ModelConfig {
    pub(super) path: Arc<Path>,
    pub(super) value: Value,
}

impl ModelConfig {
    /// The part about the text model, which is all of it where there is only one.
    fn of_text(&self) -> &Value {
        ["text_config", "llm_config", "language_config"]
            .iter()
            .find_map(|key| self.value.get(key).filter(|part| part.is_object()))
            .unwrap_or(&self.value)
    }

    fn is_of(&self, models: &[&str]) -> bool {
        let named =
            |value: &Value| text(value, "model_type").is_some_and(|name| models.iter().any(|m| name.starts_with(m)));
        named(&self.value) || named(self.of_text())
    }
}

/// The embedding of tokens: the only tensor with such a name, if its rows and columns are those of the model.
pub(super) fn embedding<'s>(set: &'s CheckpointSet<'_>) -> Option<TensorInfo<'s>> {
    let is_one = |name: &str| {
        words::each(EMBEDDINGS)
            .any(|end| name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
    };
    let mut found: Option<TensorInfo<'_>> = None;
    for info in set.table().iter().filter(|info| is_one(info.name)) {
        // A model with several parts is only checked if the parts share the embedding.
        if found.is_some_and(|former| former.shape != info.shape) {
            return None;
        }
        found.get_or_insert(info);
    }
    // What is packed has other rows and columns.
    found.filter(|info| is_float(info) && info.shape.len() == 2)
}

/// Compares a configuration with the tensors of its model.
pub(super) fn compare(config: &ModelConfig, set: &CheckpointSet<'_>, context: &mut FolderContext<'_>) {
    embeddings(config, set, context);
    layers(config, set, context);
    tied(config, set, context);
    dtype(config, set, context);
}

fn embeddings(config: &ModelConfig, set: &CheckpointSet<'_>, context: &mut FolderContext<'_>) {
    let Some(info) = embedding(set) else { return };
    let [rows, columns] = info.shape else { return };
    let of_text = config.of_text();
    // Some models say themselves that the embedding is longer than the vocabulary.
    let is_padded = PADDED.iter().any(|key| number(of_text, key) == Some(*rows));
    let vocabulary = number(of_text, "vocab_size").filter(|_| !is_padded && !config.is_of(&MORE_ROWS));
    if let Some(expected) = vocabulary.filter(|expected| expected != rows) {
        let cause = format!("vocab_size is {expected}, but the embedding has {rows} rows");
        set.report(&info, rules::SET_VOCABULARY, cause, context);
    }
    let has_own = OTHER_WIDTHS.iter().any(|key| of_text.get(key).is_some_and(|value| !value.is_null()));
    let hidden = ["hidden_size", "n_embd", "d_model"].iter().find_map(|key| Some((key, number(of_text, key)?)));
    if let Some((key, expected)) = hidden.filter(|(_, expected)| expected != columns && !has_own) {
        let cause = format!("{key} is {expected}, but the embedding has {columns} columns");
        set.report(&info, rules::SET_HIDDEN_SIZE, cause, context);
    }
}

/// The number behind the first dot-separated part that is one, if `name` begins with `prefix`.
fn layer(name: &str, prefix: &str) -> Option<u64> {
    let (number, _) = name.strip_prefix(prefix)?.split_once('.')?;
    number.parse().ok()
}

fn layers(config: &ModelConfig, set: &CheckpointSet<'_>, context: &mut FolderContext<'_>) {
    let of_text = config.of_text();
    // Of an encoder and a decoder one number does not say enough.
    if of_text.get("is_encoder_decoder") == Some(&Value::Bool(true)) || of_text.get("decoder_layers").is_some() {
        return;
    }
    let keys = ["num_hidden_layers", "n_layer"];
    let Some((key, expected)) = keys.iter().find_map(|key| Some((key, number(of_text, key)?))) else { return };
    // The one prefix that the set has.
    let has = |prefix: &&str| set.table().iter().any(|info| layer(info.name, prefix).is_some());
    let prefixes: Vec<&str> = words::each(LAYERS).filter(has).collect();
    let [prefix] = prefixes.as_slice() else { return };
    let last = set.table().iter().filter_map(|info| layer(info.name, prefix)).max().unwrap_or_default();
    let found = last.saturating_add(1);
    // Layers for the prediction of several tokens follow the others.
    let behind = number(of_text, "num_nextn_predict_layers").unwrap_or_default();
    let of = format!("{key} is {expected}, but the layers of {prefix}N are numbered up to {last}");
    if found < expected {
        context.report(&config.path, Diagnostic::new(rules::SET_LAYERS, of));
    } else if found > expected.saturating_add(behind) {
        context.report(&config.path, Diagnostic::new(rules::SET_LAYERS_MORE, of));
    }
}

fn tied(config: &ModelConfig, set: &CheckpointSet<'_>, context: &mut FolderContext<'_>) {
    // The outer configuration counts, and where it is silent the inner one.
    let says = |value: &Value| value.get("tie_word_embeddings").and_then(Value::as_bool);
    if says(&config.value).or_else(|| says(config.of_text())) != Some(true) {
        return;
    }
    if let Some(info) = set.find("lm_head.weight") {
        let cause = "tie_word_embeddings is true, so loaders use the embedding instead".to_owned();
        set.report(&info, rules::SET_TIED, cause, context);
    }
}

fn dtype(config: &ModelConfig, set: &CheckpointSet<'_>, context: &mut FolderContext<'_>) {
    let is_quantized = config.value.get("quantization_config").is_some_and(Value::is_object);
    let declared = ["dtype", "torch_dtype"].iter().find_map(|key| text(&config.value, key));
    let Some(expected) = declared.filter(|_| !is_quantized) else { return };
    let mut bytes = [(DType::Float16, 0u64), (DType::BFloat16, 0), (DType::Float32, 0), (DType::Float64, 0)];
    let mut others = 0u64;
    for info in set.table().iter() {
        match bytes.iter_mut().find(|(dtype, _)| info.element == Element::Plain(*dtype)) {
            Some((_, sum)) => *sum = sum.saturating_add(info.bytes()),
            None => others = others.saturating_add(info.bytes()),
        }
    }
    let Some((main, most)) = bytes.into_iter().max_by_key(|(_, sum)| *sum) else { return };
    let known = ["float16", "bfloat16", "float32", "float64"];
    if most > others && known.contains(&expected) && main.name() != expected {
        let cause = format!("the configuration says {expected}, but most of the weights are {main}");
        context.report(&config.path, Diagnostic::new(rules::SET_DTYPE, cause));
    }
}
