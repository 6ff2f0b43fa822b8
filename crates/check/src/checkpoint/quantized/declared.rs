//! What the configuration of a model says about its quantization: `quantization_config` of `config.json`, `quantize_config.json`, or
//! ModelOpt's `hf_quant_config.json`.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use regex_lite::Regex;
use serde_json::Value;

use crate::checkpoint::expressions::{MAX_EXPRESSIONS, whole};
use crate::checkpoint::json::{number, text, texts};
use crate::glob::Glob;

/// Patterns with stars.
const MAX_GLOBS: usize = 1024;
/// Names without numbers that are kept with what is known of them.
const MAX_KNOWN: usize = 10_000;

/// How a model is said to be quantized.
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
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own in the configuration")]
pub(super) struct Scheme {
    pub(super) bits: Option<u64>,
    /// How many inputs share a scale; none: all of them.
    pub(super) group: Option<u64>,
    /// Rows and columns that share one.
    pub(super) block: Option<[u64; 2]>,
    /// One scale for the whole weight.
    pub(super) whole: bool,
    /// One for each row.
    pub(super) rows: bool,
    pub(super) asymmetric: bool,
    /// The inputs of a group do not stand side by side, and an index says which they are.
    pub(super) reordered: bool,
}

/// What is said.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) path: Arc<Path>,
    /// Whether it is a file of its own that loaders need not read, and that may have been left.
    pub(super) is_beside: bool,
    /// The word for the method, as it is there.
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

/// Layers that are said not to be quantized.
#[derive(Debug, Default)]
struct Excluded {
    names: HashSet<String>,
    /// Whether a name stands for what is below it, too.
    below: bool,
    globs: Vec<Glob>,
    /// Those in which digits stand are tried on every layer.
    with_digits: Vec<Regex>,
    /// For the others all numbers in names are the same.
    without_digits: Vec<Regex>,
    /// What is known of names without their numbers.
    known: RefCell<HashMap<String, bool>>,
}

impl Declared {
    /// The `quantization_config` of a model.
    pub(super) fn of_config(path: Arc<Path>, config: &Value) -> Option<Self> {
        let inner = config.get("text_config").and_then(|text| text.get("quantization_config"));
        // The older key of compressed-tensors.
        let said = config.get("quantization_config").or(inner).or_else(|| config.get("compression_config"));
        let said = said.filter(|said| said.is_object())?;
        let by_key = || {
            let words =
                [("load_in_4bit", "bitsandbytes"), ("quant_algo", "modelopt"), ("config_groups", "compressed-tensors")];
            words.iter().find(|(key, _)| said.get(key).is_some()).map(|(_, word)| *word)
        };
        let word = text(said, "quant_method").or_else(by_key).unwrap_or_default();
        Some(Self::of(path, word, said))
    }

    /// AutoGPTQ's `quantize_config.json`.
    pub(super) fn of_gptq(path: Arc<Path>, config: &Value) -> Option<Self> {
        number(config, "bits")?;
        let word = text(config, "quant_method").unwrap_or("gptq");
        Some(Self { is_beside: true, ..Self::of(path, word, config) })
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
            "auto-round" | "intel/auto-round" => (of_packing(said), of_groups(said, "bits", "group_size")),
            "fp8" => (Method::Fp8, of_blocks(said)),
            "compressed-tensors" => (Method::CompressedTensors, of_config_groups(said)),
            "modelopt" => {
                let algorithm = text(said, "quant_algo").unwrap_or_default().to_owned();
                let of_all = of_groups(said, "bits", "group_size");
                let schemes = if of_all.is_empty() { of_config_groups(said) } else { of_all };
                (Method::ModelOpt(algorithm), schemes)
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
        Self { path, is_beside: false, word: word.to_owned(), method, schemes, layout, four_bit, excluded }
    }

    /// The one scheme of all layers.
    pub(super) fn scheme(&self) -> Option<&Scheme> {
        if let [scheme] = self.schemes.as_slice() { Some(scheme) } else { None }
    }

    /// Whether this layer is said not to be quantized.
    pub(super) fn excludes(&self, layer: &str) -> bool {
        let Excluded { names, below, globs, with_digits, without_digits, known } = &self.excluded;
        let mut above = layer.match_indices('.').filter_map(|(dot, _)| layer.get(..dot));
        let is_named = names.contains(layer) || *below && !names.is_empty() && above.any(|name| names.contains(name));
        if is_named || globs.iter().any(|glob| glob.matches(layer)) || with_digits.iter().any(|e| e.is_match(layer)) {
            return true;
        }
        if without_digits.is_empty() {
            return false;
        }
        let name = without_numbers(layer);
        let mut known = known.borrow_mut();
        if let Some(fits) = known.get(&name) {
            return *fits;
        }
        let fits = without_digits.iter().any(|expression| expression.is_match(&name));
        if known.len() < MAX_KNOWN {
            known.insert(name, fits);
        }
        fits
    }
}

/// A name with one zero for each number.
fn without_numbers(name: &str) -> String {
    let mut made = String::with_capacity(name.len());
    for c in name.chars() {
        if !c.is_ascii_digit() {
            made.push(c);
        } else if !made.ends_with('0') {
            made.push('0');
        }
    }
    made
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
    let reordered = said.get("desc_act").and_then(Value::as_bool) == Some(true);
    vec![Scheme { bits: number(said, bits), group: number(said, group), asymmetric, reordered, ..Scheme::default() }]
}

/// How AutoRound packed the weights: as GPTQ or AWQ do it, or otherwise.
fn of_packing(said: &Value) -> Method {
    let format = ["packing_format", "backend"].iter().find_map(|key| text(said, key)).unwrap_or("gptq");
    match format {
        format if format.contains("awq") => Method::Awq,
        format if format.contains("gptq") => Method::Gptq,
        _ => Method::Other,
    }
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
            rows: text(weights, "strategy") == Some("channel"),
            asymmetric: weights.get("symmetric").and_then(Value::as_bool) == Some(false),
            reordered: text(weights, "actorder") == Some("group"),
        })
        .collect()
}

impl Excluded {
    fn of(said: &Value, method: &Method) -> Self {
        let keys = ["modules_to_not_convert", "llm_int8_skip_modules", "ignore", "exclude_modules", "ignored_layers"];
        let mut excluded = Self { below: *method != Method::CompressedTensors, ..Self::default() };
        for word in keys.iter().flat_map(|key| texts(said, key)) {
            // An expression has to fit the whole name: where it fits only its start, programs differ.
            if let Some(expression) = word.strip_prefix("re:") {
                excluded.expression(expression);
            } else if !word.contains('*') {
                excluded.names.insert(word.to_owned());
            } else if excluded.globs.len() < MAX_GLOBS {
                excluded.globs.extend(Glob::parse(word));
            }
        }
        excluded
    }

    fn expression(&mut self, expression: &str) {
        let count = self.with_digits.len() + self.without_digits.len();
        let Some(regex) = whole(expression).filter(|_| count < MAX_EXPRESSIONS) else { return };
        if tells_numbers_apart(expression) {
            self.with_digits.push(regex);
        } else {
            self.without_digits.push(regex);
        }
    }
}

/// Whether an expression has digits, or what may stand for some of them: a class of characters, or an escape other than that of a dot.
fn tells_numbers_apart(expression: &str) -> bool {
    let rest = expression.replace(r"\.", "");
    rest.contains(|c: char| c.is_ascii_digit() || matches!(c, '[' | '\\' | '{'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excludes(words: &[&str], layer: &str) -> bool {
        let said = serde_json::json!({"quant_method": "compressed-tensors", "ignore": words});
        Declared::of(Path::new("").into(), "compressed-tensors", &said).excludes(layer)
    }

    #[test]
    fn layers_are_left_out_by_name_by_pattern_and_by_expression() {
        for (word, fitting, other) in [
            ("lm_head", "lm_head", "model.lm_head"),
            ("model.*.gate", "model.layers.12.gate", "model.layers.12.gate_proj"),
            ("*.mlp.*proj", "a.mlp.up_proj", "a.mlp.up"),
            (r"re:.*\.gate", "layers.3.gate", "layers.3.gate_proj"),
            (r"re:layers\.1\..*", "layers.1.up", "layers.11.up"),
            (r"re:layers\.\d\..*", "layers.1.up", "layers.11.up"),
            ("re:layers.[12].up", "layers.2.up", "layers.3.up"),
        ] {
            assert!(excludes(&[word], fitting), "{word} {fitting}");
            assert!(!excludes(&[word], other), "{word} {other}");
        }
        // Below a name, where the method says so.
        let said = serde_json::json!({"modules_to_not_convert": ["model.vision"]});
        let declared = Declared::of(Path::new("").into(), "fp8", &said);
        assert!(declared.excludes("model.vision.0.up") && !declared.excludes("model.vision_tower.0"));
    }
}
