//! What the configuration of a model says about its quantization: `quantization_config` of `config.json`, `quantize_config.json`, or
//! ModelOpt's `hf_quant_config.json`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;
use std::sync::Arc;

use max_weights::text::escape;
use max_weights::{Diagnostic, Error, Result, rules};
use regex_lite::Regex;
use serde_json::Value;

use crate::expressions::{MAX_EXPRESSIONS, at_start, whole};
use crate::glob::Glob;
use crate::json::{Document, JsonDialect, MAX_CONFIGURATION, MAX_VALUES, number, text, texts};

/// Targets of groups that are read: more than any model has kinds of layers.
const MAX_TARGETS: usize = 4096;
/// What one file says of quantization, if it says anything.
type DeclarationReader = fn(Arc<Path>, &Value) -> Option<DeclaredQuantization>;
/// The files that may say it; the first that does counts.
const FILES: [(&str, DeclarationReader); 3] = [
    ("config.json", DeclaredQuantization::of_config),
    ("quantize_config.json", DeclaredQuantization::of_gptq),
    ("hf_quant_config.json", DeclaredQuantization::of_modelopt),
];
const AUTO_ROUND: &str = "auto-round";
/// Layouts of methods that have several; those that are not here are for one kernel.
const LAYOUTS: [(&str, &[&str]); 3] = [
    ("gptq", &["gptq", "gptq_v2"]),
    ("awq", &["gemm"]),
    (AUTO_ROUND, &["auto_round", "auto_round:auto_gptq", "auto_round:gptqmodel", "auto_round:auto_awq", "auto"]),
];

/// Patterns with stars.
const MAX_GLOBS: usize = 1024;
/// Names without numbers that are kept with what is known of them.
const MAX_KNOWN: usize = 10_000;

/// The declared quantization of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuantizationMethod {
    /// GPTQ, or AutoRound that packs as it does.
    Gptq,
    /// AWQ, or AutoRound that packs as it does.
    Awq,
    /// Weights of float8, with a scale for each block or for the whole.
    Fp8,
    /// compressed-tensors.
    CompressedTensors,
    /// ModelOpt, with the name of its algorithm.
    ModelOpt(String),
    /// The MXFP4 of gpt-oss.
    Mxfp4,
    /// bitsandbytes.
    BitsAndBytes {
        /// With four bits, not eight.
        four: bool,
    },
    /// Any other.
    Other,
}

/// Bits and scales of a group of layers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scheme {
    /// Of one number.
    pub bits: Option<u64>,
    /// How many inputs share a scale; none: all of them.
    pub group: Option<u64>,
    /// Rows and columns that share one.
    pub block: Option<[u64; 2]>,
    /// One scale for the whole weight.
    pub whole: bool,
    /// One for each row.
    pub rows: bool,
    /// Whether there are no zero points, if declared.
    pub symmetric: Option<bool>,
    /// The inputs of a group are not adjacent, and an index lists them.
    pub reordered: bool,
}

/// The declared quantization.
#[derive(Debug)]
pub struct DeclaredQuantization {
    /// The file that says it.
    pub path: Arc<Path>,
    /// Whether it is a separate file that loaders need not read, and that may be left over.
    pub is_companion: bool,
    /// The unchanged word for the method; empty without one.
    pub word: String,
    /// The method that the word names.
    pub method: QuantizationMethod,
    /// That of all layers; none where they differ, or nothing is certain.
    pub scheme: Option<Scheme>,
    /// Where layers differ: the targets, sorted, and the scheme of the weights of each.
    targets: Vec<(String, Scheme)>,
    /// Whether there are no zero points, if declared for all layers.
    pub symmetric: Option<bool>,
    /// How the tensors are laid out, if declared.
    pub layout: Option<String>,
    /// The kind of four-bit numbers of bitsandbytes.
    pub four_bit: Option<String>,
    /// Why it cannot be gone by.
    problem: Option<String>,
    excluded: Excluded,
}

/// Layers that are declared unquantized.
#[derive(Debug, Default)]
struct Excluded {
    names: HashSet<String>,
    /// Whether a name includes the layers below it.
    below: bool,
    globs: Vec<Glob>,
    /// Patterns with digits are tried on every layer.
    with_digits: Vec<Regex>,
    /// For the others all numbers in names are the same.
    without_digits: Vec<Regex>,
}

impl DeclaredQuantization {
    /// What the files of a folder say.
    ///
    /// # Errors
    ///
    /// If one that would be gone by cannot be read, is no JSON object, or has targets of groups that are no names or patterns.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        for (name, reader) in FILES {
            let path: Arc<Path> = folder.join(name).into();
            let fault = |problem: &str| {
                let help = "It says how the weights are quantized: repair it, or move the weights away from it";
                let cause = format!("this is no configuration: {}", escape(problem));
                Diagnostic::new(rules::SET_JSON, cause).path(&*path).help(help).format()
            };
            let mut bytes = Vec::new();
            let read = File::open(&path).and_then(|file| file.take(MAX_CONFIGURATION + 1).read_to_end(&mut bytes));
            match read {
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
                Err(error) => return Err(Error::io(&path, "read it", error)),
            }
            if bytes.len() as u64 > MAX_CONFIGURATION {
                return Err(fault(&format!("it has more than {MAX_CONFIGURATION} bytes")));
            }
            let document =
                Document::read(&bytes, JsonDialect::Python, MAX_VALUES).map_err(|problem| fault(&problem))?;
            if let Some(kind) = not_an_object(&document.value) {
                return Err(fault(&format!("it is a {kind}, not an object")));
            }
            if let Some(declared) = reader(path.clone(), &document.value) {
                return declared
                    .problem
                    .as_deref()
                    .map_or(Ok(()), |problem| Err(fault(problem)))
                    .map(|()| Some(declared));
            }
        }
        Ok(None)
    }

    /// The `quantization_config` of a model.
    pub fn of_config(path: Arc<Path>, config: &Value) -> Option<Self> {
        let of_text = config.get("text_config").and_then(|text| text.get("quantization_config"));
        // The last is the older key of compressed-tensors.
        let candidates = [config.get("quantization_config"), of_text, config.get("compression_config")];
        let spec = candidates.into_iter().flatten().find(|spec| spec.is_object())?;
        let by_key = || {
            let words =
                [("load_in_4bit", "bitsandbytes"), ("quant_algo", "modelopt"), ("config_groups", "compressed-tensors")];
            words.iter().find(|(key, _)| spec.get(key).is_some()).map(|(_, word)| *word)
        };
        let word = text(spec, "quant_method").filter(|word| !word.is_empty()).or_else(by_key).unwrap_or_default();
        Some(Self::of(path, word, spec))
    }

    /// AutoGPTQ's `quantize_config.json`.
    pub fn of_gptq(path: Arc<Path>, config: &Value) -> Option<Self> {
        number(config, "bits")?;
        let word = text(config, "quant_method").unwrap_or("gptq");
        Some(Self { is_companion: true, ..Self::of(path, word, config) })
    }

    /// ModelOpt's `hf_quant_config.json`.
    pub fn of_modelopt(path: Arc<Path>, config: &Value) -> Option<Self> {
        let spec = config.get("quantization")?;
        text(spec, "quant_algo")?;
        Some(Self::of(path, "modelopt", spec))
    }

    fn of(path: Arc<Path>, word: &str, spec: &Value) -> Self {
        let flag = |key: &str| spec.get(key).and_then(Value::as_bool);
        let keys: &[&str] = match word {
            "auto-round" | "intel/auto-round" => &["packing_format", "backend"],
            _ => &["checkpoint_format", "format", "version"],
        };
        let mut layout = keys.iter().find_map(|key| text(spec, key)).map(str::to_lowercase);
        let mut word = word;
        let method = match word {
            "gptq" => QuantizationMethod::Gptq,
            "awq" => QuantizationMethod::Awq,
            "auto-round" | "intel/auto-round" => {
                word = AUTO_ROUND;
                let layout = layout.get_or_insert_with(|| "auto_round".to_owned());
                match layout.as_str() {
                    layout if layout.contains("awq") => QuantizationMethod::Awq,
                    layout if LAYOUTS[2].1.contains(&layout) => QuantizationMethod::Gptq,
                    _ => QuantizationMethod::Other,
                }
            }
            "fp8" => QuantizationMethod::Fp8,
            "compressed-tensors" => QuantizationMethod::CompressedTensors,
            "modelopt" => QuantizationMethod::ModelOpt(text(spec, "quant_algo").unwrap_or_default().to_owned()),
            "mxfp4" => QuantizationMethod::Mxfp4,
            "bitsandbytes" => {
                let is_four = |key: &str| flag(key) == Some(true);
                QuantizationMethod::BitsAndBytes { four: is_four("load_in_4bit") || is_four("_load_in_4bit") }
            }
            _ => QuantizationMethod::Other,
        };
        let (groups, mut problem) = of_config_groups(spec);
        let of_all = match method {
            QuantizationMethod::Fp8 => Some(Scheme { bits: Some(8), ..of_whole(spec) }),
            QuantizationMethod::Gptq | QuantizationMethod::Awq | QuantizationMethod::ModelOpt(_) => of_groups(spec),
            _ => None,
        };
        let first = groups.first().map(|(_, scheme)| scheme);
        let are_alike = groups.iter().all(|(_, scheme)| Some(scheme) == first);
        let scheme = of_all.or_else(|| first.filter(|_| are_alike).cloned());
        let mut targets = BTreeMap::new();
        if scheme.is_none() {
            let each = groups
                .into_iter()
                .flat_map(|(names, scheme)| names.into_iter().map(move |name| (name, scheme.clone())));
            targets = each.collect();
            problem = problem.or_else(|| problem_of(&targets));
        }
        let zero_points = flag("zero_point").filter(|_| word == "awq");
        Self {
            path,
            is_companion: false,
            word: word.to_owned(),
            scheme,
            targets: targets.into_iter().collect(),
            symmetric: zero_points.map(|present| !present).or_else(|| flag("sym")).or_else(|| flag("symmetric")),
            layout,
            four_bit: text(spec, "bnb_4bit_quant_type").map(str::to_owned),
            problem,
            excluded: Excluded::of(spec, &method),
            method,
        }
    }

    /// The layout, if the method has several and this one is for one kernel.
    pub(super) fn layout_of_a_kernel(&self) -> Option<&str> {
        let (_, known) = LAYOUTS.iter().find(|(word, _)| *word == self.word)?;
        self.layout.as_deref().filter(|layout| !known.contains(layout))
    }

    /// Whether AutoRound packed the weights.
    pub(super) fn is_auto_round(&self) -> bool {
        self.word == AUTO_ROUND
    }

    /// Whether names of tensors are enough to tell which group a layer is of: of several classes they do not tell which one it has.
    pub(crate) fn distinguishes_layers(&self) -> bool {
        self.targets.iter().filter(|(target, _)| target.starts_with(char::is_uppercase)).count() < 2
    }

    /// The declared scheme of each of these layers.
    ///
    /// Of several groups, the one that names a layer best applies, as in compressed-tensors: by its name, by a pattern (`re:`), or by its class. Of
    /// two patterns the first in sorted order applies. Names of tensors do not reveal classes, so one class applies to all layers that remain.
    pub fn schemes<'d>(&'d self, layers: &[&str]) -> Vec<Option<&'d Scheme>> {
        let mut chosen = vec![self.scheme.as_ref(); layers.len()];
        if self.targets.is_empty() {
            return chosen;
        }
        let mut choose = |scheme: &'d Scheme, fits: &dyn Fn(&str) -> bool| {
            for (place, layer) in chosen.iter_mut().zip(layers).filter(|(place, _)| place.is_none()) {
                *place = fits(layer).then_some(scheme);
            }
        };
        for (target, scheme) in &self.targets {
            choose(scheme, &|layer| layer == target);
        }
        for (target, scheme) in &self.targets {
            if let Some(pattern) = target.strip_prefix("re:").and_then(|pattern| at_start(pattern).ok()) {
                choose(scheme, &|layer| pattern.is_match(layer));
            }
        }
        for (target, scheme) in &self.targets {
            if target.starts_with(char::is_uppercase) {
                choose(scheme, &|_| true);
            }
        }
        chosen
    }

    /// Whether this layer is declared unquantized. `known` caches the results for names without their numbers.
    pub(crate) fn excludes(&self, layer: &str, known: &mut HashMap<String, bool>) -> bool {
        let Excluded { names, below, globs, with_digits, without_digits } = &self.excluded;
        let mut above = layer.match_indices('.').filter_map(|(dot, _)| layer.get(..dot));
        let is_named = names.contains(layer) || *below && !names.is_empty() && above.any(|name| names.contains(name));
        if is_named || globs.iter().any(|glob| glob.matches(layer)) || with_digits.iter().any(|e| e.is_match(layer)) {
            return true;
        }
        if without_digits.is_empty() {
            return false;
        }
        let name = without_numbers(layer);
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

/// What a value is that is no object.
fn not_an_object(value: &Value) -> Option<&'static str> {
    match value {
        Value::Object(_) => None,
        Value::Array(_) => Some("list"),
        Value::String(_) => Some("text"),
        Value::Number(_) => Some("number"),
        Value::Bool(_) | Value::Null => Some("word"),
    }
}

/// Bits and group of all layers, unless some have their own.
fn of_groups(spec: &Value) -> Option<Scheme> {
    let has_own = ["dynamic", "extra_config", "layers"]
        .iter()
        .any(|key| spec.get(key).and_then(Value::as_object).is_some_and(|map| !map.is_empty()));
    // Without a group size, each program has a different default.
    if has_own || spec.get("group_size").is_none() {
        return None;
    }
    let reordered = spec.get("desc_act").and_then(Value::as_bool) == Some(true);
    Some(Scheme { bits: number(spec, "bits"), group: number(spec, "group_size"), reordered, ..of_whole(spec) })
}

/// What any method declares for all layers.
fn of_whole(spec: &Value) -> Scheme {
    Scheme { block: pair(spec.get("weight_block_size")), ..Scheme::default() }
}

fn pair(value: Option<&Value>) -> Option<[u64; 2]> {
    let list = value?.as_array()?;
    match list.as_slice() {
        [rows, columns] => Some([rows.as_u64()?, columns.as_u64()?]).filter(|block| !block.contains(&0)),
        _ => None,
    }
}

/// The `config_groups` of compressed-tensors: their targets, and the scheme of their weights; and what is wrong with a target.
fn of_config_groups(spec: &Value) -> (Vec<(Vec<String>, Scheme)>, Option<String>) {
    let mut problem = None;
    let groups = spec.get("config_groups").and_then(Value::as_object).into_iter().flat_map(|groups| groups.values());
    let of_group = |group: &Value| {
        let weights = group.get("weights").filter(|weights| weights.is_object())?;
        let targets = match group.get("targets") {
            None => Some(Vec::new()),
            Some(targets) => targets
                .as_array()
                .and_then(|targets| targets.iter().map(|target| target.as_str().map(str::to_owned)).collect()),
        };
        if targets.is_none() {
            problem = Some("the targets of a group are no list of texts".to_owned());
        }
        let strategy = text(weights, "strategy");
        let scheme = Scheme {
            bits: number(weights, "num_bits"),
            group: number(weights, "group_size").filter(|_| !matches!(strategy, Some("channel" | "tensor"))),
            block: of_whole(spec).block.or_else(|| pair(weights.get("block_structure"))),
            whole: strategy == Some("tensor"),
            rows: strategy == Some("channel"),
            symmetric: weights.get("symmetric").and_then(Value::as_bool),
            reordered: text(weights, "actorder") == Some("group"),
        };
        Some((targets.unwrap_or_default(), scheme))
    };
    let groups = groups.filter_map(of_group).collect();
    (groups, problem)
}

/// What is wrong with the targets of groups.
fn problem_of(targets: &BTreeMap<String, Scheme>) -> Option<String> {
    if targets.len() > MAX_TARGETS {
        return Some(format!("its groups have {} targets; at most {MAX_TARGETS} are read", targets.len()));
    }
    let mut patterns = targets.keys().filter_map(|target| target.strip_prefix("re:"));
    patterns.find_map(|pattern| {
        let error = at_start(pattern).err()?;
        Some(format!("the target 're:{}' is no pattern that can be tried: {error}", escape(pattern)))
    })
}

impl Excluded {
    fn of(spec: &Value, method: &QuantizationMethod) -> Self {
        let keys = ["modules_to_not_convert", "llm_int8_skip_modules", "ignore", "exclude_modules", "ignored_layers"];
        let mut excluded = Self { below: *method != QuantizationMethod::CompressedTensors, ..Self::default() };
        for word in keys.iter().flat_map(|key| texts(spec, key)) {
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
        if distinguishes_numbers(expression) {
            self.with_digits.push(regex);
        } else {
            self.without_digits.push(regex);
        }
    }
}

/// Whether an expression has digits, or something that may match some of them: a class of characters, or an escape other than that of a dot.
fn distinguishes_numbers(expression: &str) -> bool {
    let rest = expression.replace(r"\.", "");
    rest.contains(|c: char| c.is_ascii_digit() || matches!(c, '[' | '\\' | '{'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excludes(words: &[&str], layer: &str) -> bool {
        let spec = serde_json::json!({"quant_method": "compressed-tensors", "ignore": words});
        DeclaredQuantization::of(Path::new("").into(), "compressed-tensors", &spec).excludes(layer, &mut HashMap::new())
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
        // The method excludes everything below a name.
        let spec = serde_json::json!({"modules_to_not_convert": ["model.vision"]});
        let declared = DeclaredQuantization::of(Path::new("").into(), "fp8", &spec);
        assert!(
            declared.excludes("model.vision.0.up", &mut HashMap::new())
                && !declared.excludes("model.vision_tower.0", &mut HashMap::new())
        );
    }
}
