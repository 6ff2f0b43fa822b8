//! What the configuration of a model says about its quantisation: `quantization_config` of `config.json`, `quantize_config.json`, or
//! ModelOpt's `hf_quant_config.json`.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use regex_lite::Regex;
use serde_json::Value;

use crate::checkpoint::json::{number, text, texts};

/// Expressions that are tried on every layer, and their longest.
const MAX_EXPRESSIONS: usize = 64;
const MAX_EXPRESSION: usize = 4096;

/// How a model is said to be quantised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Method {
    Gptq,
    Awq,
    /// Weights of float8, with a scale for each block or for the whole.
    Fp8,
    CompressedTensors,
    /// ModelOpt, with the name of what it did.
    ModelOpt(String),
    Mxfp4,
    /// bitsandbytes, with four bits or eight.
    BitsAndBytes {
        four: bool,
    },
    /// Any other.
    Other,
}

/// Bits and scales of a group of layers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Scheme {
    pub(super) bits: Option<u64>,
    /// How many inputs share a scale; none: all of them.
    pub(super) group: Option<u64>,
    /// Rows and columns that share one.
    pub(super) block: Option<[u64; 2]>,
    /// One scale for the whole weight.
    pub(super) whole: bool,
    pub(super) asymmetric: bool,
}

/// What is said.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) path: Arc<Path>,
    /// The word for the method, as it stands there.
    pub(super) word: String,
    pub(super) method: Method,
    /// One for each group of layers; several where they differ, and none where nothing is certain.
    pub(super) schemes: Vec<Scheme>,
    /// How the tensors are laid out, where that is said.
    pub(super) layout: Option<String>,
    /// The kind of four-bit numbers of bitsandbytes.
    pub(super) four_bit: Option<String>,
    excluded: Excluded,
}

/// Layers that are said not to be quantised.
#[derive(Debug, Default)]
struct Excluded {
    names: HashSet<String>,
    /// Whether a name stands for what is below it, too.
    below: bool,
    expressions: Vec<Regex>,
}

impl Declared {
    /// The `quantization_config` of a model.
    pub(super) fn of_config(path: Arc<Path>, config: &Value) -> Option<Self> {
        let inner = config.get("text_config").and_then(|text| text.get("quantization_config"));
        let said = config.get("quantization_config").or(inner).filter(|said| said.is_object())?;
        let word = text(said, "quant_method").or_else(|| said.get("load_in_4bit").map(|_| "bitsandbytes"))?;
        Some(Self::of(path, word, said))
    }

    /// AutoGPTQ's `quantize_config.json`.
    pub(super) fn of_gptq(path: Arc<Path>, config: &Value) -> Option<Self> {
        number(config, "bits")?;
        Some(Self::of(path, text(config, "quant_method").unwrap_or("gptq"), config))
    }

    /// ModelOpt's `hf_quant_config.json`.
    pub(super) fn of_modelopt(path: Arc<Path>, config: &Value) -> Option<Self> {
        let said = config.get("quantization")?;
        text(said, "quant_algo")?;
        Some(Self::of(path, "modelopt", said))
    }

    fn of(path: Arc<Path>, word: &str, said: &Value) -> Self {
        let layout = ["checkpoint_format", "format", "version"].iter().find_map(|key| text(said, key));
        let flag = |key: &str| said.get(key).and_then(Value::as_bool) == Some(true);
        let (method, schemes) = match word {
            "gptq" => (Method::Gptq, of_groups(said, "bits", "group_size")),
            "awq" => (Method::Awq, of_groups(said, "bits", "group_size")),
            "fp8" => (Method::Fp8, of_blocks(said)),
            "compressed-tensors" => (Method::CompressedTensors, of_config_groups(said)),
            "modelopt" => {
                let algorithm = text(said, "quant_algo").unwrap_or_default().to_owned();
                (Method::ModelOpt(algorithm), of_groups(said, "bits", "group_size"))
            }
            "mxfp4" => (Method::Mxfp4, Vec::new()),
            "bitsandbytes" => {
                let four = flag("load_in_4bit") || flag("_load_in_4bit");
                (Method::BitsAndBytes { four }, Vec::new())
            }
            _ => (Method::Other, Vec::new()),
        };
        let four_bit = text(said, "bnb_4bit_quant_type").map(str::to_owned);
        let layout = layout.map(str::to_lowercase);
        let excluded = Excluded::of(said, &method);
        Self { path, word: word.to_owned(), method, schemes, layout, four_bit, excluded }
    }

    /// The one scheme of all layers.
    pub(super) fn scheme(&self) -> Option<&Scheme> {
        if let [scheme] = self.schemes.as_slice() { Some(scheme) } else { None }
    }

    /// Whether this layer is said not to be quantised.
    pub(super) fn excludes(&self, layer: &str) -> bool {
        let Excluded { names, below, expressions } = &self.excluded;
        let above = layer.match_indices('.').filter_map(|(dot, _)| layer.get(..dot));
        names.contains(layer)
            || *below && !names.is_empty() && above.into_iter().any(|name| names.contains(name))
            || expressions.iter().any(|expression| expression.is_match(layer))
    }
}

/// Bits and group of all layers, unless some have their own.
fn of_groups(said: &Value, bits: &str, group: &str) -> Vec<Scheme> {
    let has_own = ["dynamic", "extra_config", "layers"]
        .iter()
        .any(|key| said.get(key).and_then(Value::as_object).is_some_and(|map| !map.is_empty()));
    // Without a size of groups, programs take one of their own.
    if has_own || said.get(group).is_none() {
        return Vec::new();
    }
    let asymmetric = said.get("sym").or(said.get("symmetric")).and_then(Value::as_bool) == Some(false);
    vec![Scheme { bits: number(said, bits), group: number(said, group), asymmetric, ..Scheme::default() }]
}

fn of_blocks(said: &Value) -> Vec<Scheme> {
    vec![Scheme { bits: Some(8), block: pair(said.get("weight_block_size")), ..Scheme::default() }]
}

fn pair(value: Option<&Value>) -> Option<[u64; 2]> {
    let list = value?.as_array()?;
    match list.as_slice() {
        [rows, columns] => Some([rows.as_u64()?, columns.as_u64()?]).filter(|block| !block.contains(&0)),
        _ => None,
    }
}

/// The `config_groups` of compressed-tensors.
fn of_config_groups(said: &Value) -> Vec<Scheme> {
    let Some(groups) = said.get("config_groups").and_then(Value::as_object) else { return Vec::new() };
    let weights = groups.values().filter_map(|group| group.get("weights").filter(|weights| weights.is_object()));
    weights
        .map(|weights| Scheme {
            bits: number(weights, "num_bits"),
            group: number(weights, "group_size")
                .filter(|_| !matches!(text(weights, "strategy"), Some("channel" | "tensor"))),
            block: pair(weights.get("block_structure")),
            whole: text(weights, "strategy") == Some("tensor"),
            asymmetric: weights.get("symmetric").and_then(Value::as_bool) == Some(false),
        })
        .collect()
}

impl Excluded {
    fn of(said: &Value, method: &Method) -> Self {
        let keys = ["modules_to_not_convert", "llm_int8_skip_modules", "ignore", "exclude_modules", "ignored_layers"];
        let mut excluded = Self { below: *method != Method::CompressedTensors, ..Self::default() };
        for word in keys.iter().flat_map(|key| texts(said, key)) {
            // An expression has to fit the whole name: where it fits only its start, programs differ.
            let expression = match word.strip_prefix("re:") {
                Some(expression) => Some(expression.to_owned()),
                None if word.contains('*') => {
                    Some(word.split('*').map(regex_lite::escape).collect::<Vec<_>>().join(".*"))
                }
                None => None,
            };
            let Some(expression) = expression else {
                excluded.names.insert(word.to_owned());
                continue;
            };
            if excluded.expressions.len() < MAX_EXPRESSIONS && expression.len() <= MAX_EXPRESSION {
                // What only Python's expressions have is left out.
                excluded.expressions.extend(Regex::new(&format!("^(?:{expression})$")));
            }
        }
        excluded
    }
}
