//! LoRA: two matrices for each layer, of the rank that the configuration says.
//!
//! For rank r, K inputs and N outputs `lora_A.weight` is r, K (and more for convolutions) and `lora_B.weight` N, r; of an embedding of V tokens
//! `lora_embedding_A` is r, V and `lora_embedding_B` N, r. DoRA adds `lora_magnitude_vector` with N numbers.

use std::collections::HashSet;

use max_weights::rules::{self, Rule};
use max_weights::tensor::{TensorInfo, checked_elements};
use max_weights::text::{escape, listed};
use max_weights::{Diagnostic, Result};
use serde_json::Value;

use super::names::NamePatterns;
use super::{AT_A_TIME, AdapterConfig, AdapterLayer, layers, wrong_shape};
use crate::checkpoint::sets::CheckpointSet;
use crate::folder::FolderContext;
use crate::json::texts;

/// The rank of a configuration that says none.
const RANK: u64 = 8;
/// The parts of a layer.
const A: usize = 0;
const B: usize = 1;
const MAGNITUDES: usize = 2;

/// The layer that a tensor belongs to, and what it is.
fn part(name: &str) -> Option<(&str, usize)> {
    let at = name.rfind(".lora_")?;
    let (layer, rest) = (name.get(..at)?, name.get(at + 1..)?);
    let part = match rest.split('.').next()? {
        "lora_A" | "lora_embedding_A" | "lora_down" => A,
        "lora_B" | "lora_embedding_B" | "lora_up" => B,
        "lora_magnitude_vector" => MAGNITUDES,
        _ => return None,
    };
    (rest.rsplit('.').next() != Some("bias")).then_some((layer, part))
}

/// What the configuration says about all layers.
pub(super) struct LoraConfig<'c> {
    config: &'c Value,
    /// The rank, and those of layers that have their own.
    rank: Option<u64>,
    patterns: NamePatterns,
    ranks: Vec<Option<u64>>,
    is_dora: bool,
    /// Parameters that are not layers have a rank for each of their parts.
    has_parameters: bool,
    /// Matrices are block-diagonal, and only the blocks are stored.
    has_blocks: bool,
}

impl<'c> LoraConfig<'c> {
    pub(super) fn of(config: &'c Value) -> Self {
        let map = config.get("rank_pattern").and_then(Value::as_object);
        let patterns = NamePatterns::of_endings(map.into_iter().flat_map(|map| map.keys()).map(String::as_str));
        Self {
            config,
            rank: config.get("r").map_or(Some(RANK), Value::as_u64).filter(|rank| *rank > 0),
            patterns,
            ranks: map.into_iter().flat_map(|map| map.values()).map(Value::as_u64).collect(),
            is_dora: config.get("use_dora").and_then(Value::as_bool) == Some(true),
            has_parameters: !texts(config, "target_parameters").is_empty(),
            has_blocks: config.get("use_bdlora").is_some_and(|blocks| !blocks.is_null()),
        }
    }

    /// The ranks that a layer may have; `None` if that is not known.
    pub(super) fn ranks(&self, layer: &str) -> Option<Vec<u64>> {
        let own: Vec<Option<u64>> =
            self.patterns.fitting(layer).map(|number| self.ranks.get(number).copied().flatten()).collect();
        if self.patterns.has_unknown {
            return None;
        }
        if own.is_empty() { self.rank.map(|rank| vec![rank]) } else { own.into_iter().collect() }
    }
}

pub(super) fn check(
    set: &CheckpointSet<'_>,
    config: Option<&AdapterConfig>,
    context: &mut FolderContext<'_>,
) -> Result<()> {
    let layers = layers(set, part);
    let declared = config.map(|config| LoraConfig::of(&config.value));
    for (number, layer) in layers.iter().enumerate() {
        if number % AT_A_TIME == AT_A_TIME - 1 {
            (context.interrupt)()?;
        }
        check_layer(set, layer, declared.as_ref(), context);
    }
    if let (Some(config), Some(declared)) = (config.filter(|_| set.is_complete), &declared) {
        targets(set, &layers, config, declared, context)?;
        patterns(&layers, config, context);
    }
    Ok(())
}

fn check_layer(
    set: &CheckpointSet<'_>,
    layer: &AdapterLayer<'_>,
    declared: Option<&LoraConfig<'_>>,
    context: &mut FolderContext<'_>,
) {
    let (a, b) = match (layer.get(set, A), layer.get(set, B)) {
        (Some(a), Some(b)) => (a, b),
        (None, None) => return,
        (Some(alone), None) | (None, Some(alone)) => {
            if set.is_complete {
                let other = if layer.get(set, A).is_none() { "A" } else { "B" };
                let cause = format!("its matrix {other} is missing");
                set.report(&alone, rules::ADAPTER_PAIR, cause, context);
            }
            return;
        }
    };
    let (Some(rank), Some(outputs), Some(of_b)) = (a.shape.first(), b.shape.first(), b.shape.get(1)) else { return };
    // Convolutions in groups and matrices of blocks along the diagonal have a part of the rank in each row of B.
    let in_parts = b.shape.len() > 2 || declared.is_some_and(|declared| declared.has_blocks);
    if rank != of_b && !(in_parts && *of_b > 0 && rank.is_multiple_of(*of_b)) {
        let expected: Vec<u64> = [*outputs, *rank].into_iter().chain(b.shape.iter().skip(2).copied()).collect();
        wrong_shape(set, &b, &expected, "for the rank of matrix A", context);
        return;
    }
    let Some(declared) = declared else { return };
    check_rank(set, layer, &a, *rank, declared, context);
    match layer.get(set, MAGNITUDES) {
        Some(magnitude) if !declared.is_dora => {
            let cause = "use_dora is not set, so it is not used".to_owned();
            set.report(&magnitude, rules::ADAPTER_DORA, cause, context);
        }
        Some(magnitude) if checked_elements(magnitude.shape) != Some(*outputs) => {
            wrong_shape(set, &magnitude, &[*outputs], "for the outputs of matrix B", context);
        }
        None if declared.is_dora && set.is_complete => {
            let cause = "use_dora is set, and its lora_magnitude_vector is missing".to_owned();
            set.report(&a, rules::ADAPTER_DORA, cause, context);
        }
        _ => {}
    }
}

fn check_rank(
    set: &CheckpointSet<'_>,
    layer: &AdapterLayer<'_>,
    a: &TensorInfo<'_>,
    rank: u64,
    declared: &LoraConfig<'_>,
    context: &mut FolderContext<'_>,
) {
    let Some(ranks) = declared.ranks(layer.in_model()) else { return };
    let fits = |expected: &u64| {
        rank == *expected || declared.has_parameters && *expected > 0 && rank.is_multiple_of(*expected)
    };
    if !ranks.iter().any(fits) {
        let expected = ranks.first().copied().unwrap_or_default();
        let cause = format!("its rank is {rank}; the configuration says {expected}");
        set.report(a, rules::ADAPTER_RANK, cause, context);
    }
}

/// Whether the layers are those that the configuration names.
pub(super) fn targets(
    set: &CheckpointSet<'_>,
    layers: &[AdapterLayer<'_>],
    config: &AdapterConfig,
    declared: &LoraConfig<'_>,
    context: &mut FolderContext<'_>,
) -> Result<()> {
    let (names, patterns) = match declared.config.get("target_modules") {
        Some(Value::String(word)) if word == "all-linear" => return Ok(()),
        Some(Value::String(expression)) => (Vec::new(), NamePatterns::of_expression(expression)),
        Some(Value::Array(_)) => {
            let names = texts(declared.config, "target_modules");
            let patterns = NamePatterns::of_names(names.iter().copied());
            (names, patterns)
        }
        _ => return Ok(()),
    };
    // Other adapted parameters have other names.
    let has_others = declared.has_parameters || declared.config.get("ensure_weight_tying") == Some(&Value::Bool(true));
    if patterns.has_unknown || layers.is_empty() || has_others {
        return Ok(());
    }
    let mut are_named = true;
    for (number, layer) in layers.iter().enumerate() {
        if number % AT_A_TIME == AT_A_TIME - 1 {
            (context.interrupt)()?;
        }
        let is_named = patterns.fitting(layer.in_model()).next().is_some();
        are_named &= is_named;
        if let Some(number) = layer.first().filter(|_| !is_named) {
            let cause = format!("target_modules does not name {}", escape(layer.in_model()));
            set.report(&set.table().get(number), rules::ADAPTER_TARGETS, cause, context);
        }
    }
    // What is excluded by name stays in the list of those that are named; and a list of other layers is reported as such.
    let excludes = declared.config.get("exclude_modules").is_some_and(|value| !value.is_null());
    if !excludes && are_named {
        unused(&patterns, names.into_iter(), layers, ("target_modules", rules::ADAPTER_TARGET_UNUSED), config, context);
    }
    Ok(())
}

/// Reports names and patterns below a key that fit no layer.
fn unused<'n>(
    patterns: &NamePatterns,
    names: impl Iterator<Item = &'n str>,
    layers: &[AdapterLayer<'_>],
    (key, rule): (&str, &'static Rule),
    config: &AdapterConfig,
    context: &mut FolderContext<'_>,
) {
    let used: HashSet<usize> = layers.iter().flat_map(|layer| patterns.fitting(layer.in_model())).collect();
    let unused = names.enumerate().filter(|(number, _)| !used.contains(number));
    let unused: Vec<String> = unused.map(|(_, name)| escape(name)).collect();
    if !unused.is_empty() {
        let cause = format!("{key} names {}, which matches no layer of the adapter", listed(&unused));
        context.report(&config.path, Diagnostic::new(rule, cause));
    }
}

/// Patterns that fit no layer.
fn patterns(layers: &[AdapterLayer<'_>], config: &AdapterConfig, context: &mut FolderContext<'_>) {
    for key in ["rank_pattern", "alpha_pattern"] {
        let Some(map) = config.value.get(key).and_then(Value::as_object) else { continue };
        let names = || map.keys().map(String::as_str);
        let patterns = NamePatterns::of_endings(names());
        if !patterns.has_unknown {
            unused(&patterns, names(), layers, (key, rules::ADAPTER_PATTERN_UNUSED), config, context);
        }
    }
}
