//! LoRA: two matrices for each layer, of the rank that the configuration says.
//!
//! For rank r, K inputs and N outputs `lora_A.weight` is r, K (and more for convolutions) and `lora_B.weight` N, r; of an embedding of V tokens
//! `lora_embedding_A` is r, V and `lora_embedding_B` N, r. DoRA adds `lora_magnitude_vector` with N numbers.

use std::collections::HashMap;

use max_weights::rules;
use max_weights::tensor::{TensorInfo, checked_elements};
use max_weights::text::{listed, shown};
use max_weights::{Diagnostic, Result};
use serde_json::Value;

use super::names::Patterns;
use super::{Config, wrong_shape};
use crate::checkpoint::json::texts;
use crate::checkpoint::sets::Set;
use crate::folder::FolderContext;

/// What peft writes before the names of the model.
const PREFIX: &str = "base_model.model.";
/// The rank of a configuration that says none.
const RANK: u64 = 8;
/// Layers are looked at so many at a time between two questions whether to go on.
const AT_A_TIME: usize = 1024;

/// The tensors of a layer, by their numbers in the table.
#[derive(Default)]
struct Layer<'s> {
    name: &'s str,
    a: Option<usize>,
    b: Option<usize>,
    magnitude: Option<usize>,
}

/// The layer that a tensor belongs to, and what it is: 0 for A, 1 for B, 2 for the magnitudes.
fn part(name: &str) -> Option<(&str, usize)> {
    let at = name.rfind(".lora_")?;
    let (layer, rest) = (name.get(..at)?, name.get(at + 1..)?);
    let part = match rest.split('.').next()? {
        "lora_A" | "lora_embedding_A" | "lora_down" => 0,
        "lora_B" | "lora_embedding_B" | "lora_up" => 1,
        "lora_magnitude_vector" => 2,
        _ => return None,
    };
    (rest.rsplit('.').next() != Some("bias")).then_some((layer, part))
}

fn layers<'s>(set: &'s Set<'_>) -> Vec<Layer<'s>> {
    let mut layers: Vec<Layer<'s>> = Vec::new();
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    for (number, info) in set.table().iter().enumerate() {
        let Some((name, part)) = part(info.name) else { continue };
        let at = *by_name.entry(name).or_insert_with(|| {
            layers.push(Layer { name, ..Layer::default() });
            layers.len() - 1
        });
        if let Some(layer) = layers.get_mut(at) {
            let place = match part {
                0 => &mut layer.a,
                1 => &mut layer.b,
                _ => &mut layer.magnitude,
            };
            *place = Some(number);
        }
    }
    layers
}

/// What the configuration says about all layers.
pub(super) struct Said<'c> {
    config: &'c Value,
    /// The rank, and those of layers that have their own.
    rank: Option<u64>,
    patterns: Patterns,
    ranks: Vec<Option<u64>>,
    is_dora: bool,
    /// Parameters that are not layers have a rank for each of their parts.
    has_parameters: bool,
    /// Matrices are made of blocks along the diagonal, of which only these are stored.
    has_blocks: bool,
}

impl<'c> Said<'c> {
    pub(super) fn of(config: &'c Value) -> Self {
        let map = config.get("rank_pattern").and_then(Value::as_object);
        let patterns = Patterns::of_endings(map.into_iter().flat_map(|map| map.keys()).map(String::as_str));
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

/// The name that a layer has in its model. What is adapted within an adapted layer, as the last matrix of attention is, has the name of both.
pub(super) fn in_model(layer: &str) -> &str {
    let layer = layer.strip_prefix(PREFIX).unwrap_or(layer);
    layer.split_once(".base_layer.").map_or(layer, |(outer, _)| outer)
}

pub(super) fn check(set: &Set<'_>, config: Option<&Config>, context: &mut FolderContext<'_>) -> Result<()> {
    let layers = layers(set);
    let said = config.map(|config| Said::of(&config.value));
    for (number, layer) in layers.iter().enumerate() {
        if number % AT_A_TIME == AT_A_TIME - 1 {
            (context.interrupt)()?;
        }
        check_layer(set, layer, said.as_ref(), context);
    }
    if let (Some(config), Some(said)) = (config.filter(|_| set.is_complete), &said) {
        let named: Vec<(&str, Option<usize>)> = layers.iter().map(|layer| (layer.name, layer.a.or(layer.b))).collect();
        targets(set, &named, config, said, context)?;
        patterns(&layers, config, context);
    }
    Ok(())
}

fn check_layer(set: &Set<'_>, layer: &Layer<'_>, said: Option<&Said<'_>>, context: &mut FolderContext<'_>) {
    let table = set.table();
    let get = |number: Option<usize>| number.map(|number| table.get(number));
    let (a, b) = match (get(layer.a), get(layer.b)) {
        (Some(a), Some(b)) => (a, b),
        (None, None) => return,
        (Some(alone), None) | (None, Some(alone)) => {
            if set.is_complete {
                let other = if layer.a.is_none() { "A" } else { "B" };
                let cause = format!("its matrix {other} is missing");
                set.report(&alone, rules::ADAPTER_PAIR, cause, context);
            }
            return;
        }
    };
    let (Some(rank), Some(outputs), Some(of_b)) = (a.shape.first(), b.shape.first(), b.shape.get(1)) else { return };
    // Convolutions in groups and matrices of blocks along the diagonal have a part of the rank in each row of B.
    let in_parts = b.shape.len() > 2 || said.is_some_and(|said| said.has_blocks);
    if rank != of_b && !(in_parts && *of_b > 0 && rank.is_multiple_of(*of_b)) {
        let expected: Vec<u64> = [*outputs, *rank].into_iter().chain(b.shape.iter().skip(2).copied()).collect();
        wrong_shape(set, &b, &expected, "for the rank of matrix A", context);
        return;
    }
    let Some(said) = said else { return };
    check_rank(set, layer, &a, *rank, said, context);
    let magnitude = get(layer.magnitude);
    match magnitude {
        Some(magnitude) if !said.is_dora => {
            let cause = "use_dora is not set, so it is not used".to_owned();
            set.report(&magnitude, rules::ADAPTER_DORA, cause, context);
        }
        Some(magnitude) if checked_elements(magnitude.shape) != Some(*outputs) => {
            wrong_shape(set, &magnitude, &[*outputs], "for the outputs of matrix B", context);
        }
        None if said.is_dora && set.is_complete => {
            let cause = "use_dora is set, and its lora_magnitude_vector is missing".to_owned();
            set.report(&a, rules::ADAPTER_DORA, cause, context);
        }
        _ => {}
    }
}

fn check_rank(
    set: &Set<'_>,
    layer: &Layer<'_>,
    a: &TensorInfo<'_>,
    rank: u64,
    said: &Said<'_>,
    context: &mut FolderContext<'_>,
) {
    let Some(ranks) = said.ranks(in_model(layer.name)) else { return };
    let fits =
        |expected: &u64| rank == *expected || said.has_parameters && *expected > 0 && rank.is_multiple_of(*expected);
    if !ranks.iter().any(fits) {
        let expected = ranks.first().copied().unwrap_or_default();
        let cause = format!("its rank is {rank}; the configuration says {expected}");
        set.report(a, rules::ADAPTER_RANK, cause, context);
    }
}

/// Whether the layers, each with one of its tensors, are those that the configuration names.
pub(super) fn targets(
    set: &Set<'_>,
    layers: &[(&str, Option<usize>)],
    config: &Config,
    said: &Said<'_>,
    context: &mut FolderContext<'_>,
) -> Result<()> {
    let (names, patterns) = match said.config.get("target_modules") {
        Some(Value::String(word)) if word == "all-linear" => return Ok(()),
        Some(Value::String(expression)) => (Vec::new(), Patterns::of_expression(expression)),
        Some(Value::Array(_)) => {
            let names = texts(said.config, "target_modules");
            let patterns = Patterns::of_names(names.iter().copied());
            (names, patterns)
        }
        _ => return Ok(()),
    };
    // What is adapted beside the named modules has other names.
    let has_others = said.has_parameters || said.config.get("ensure_weight_tying") == Some(&Value::Bool(true));
    if patterns.has_unknown || layers.is_empty() || has_others {
        return Ok(());
    }
    let mut used = vec![false; names.len()];
    let mut are_named = true;
    for (number, (layer, first)) in layers.iter().enumerate() {
        if number % AT_A_TIME == AT_A_TIME - 1 {
            (context.interrupt)()?;
        }
        let mut is_named = false;
        for fitting in patterns.fitting(in_model(layer)) {
            is_named = true;
            if let Some(used) = used.get_mut(fitting) {
                *used = true;
            }
        }
        are_named &= is_named;
        if let Some(number) = first.filter(|_| !is_named) {
            let cause = format!("target_modules does not name {}", shown(in_model(layer)));
            set.report(&set.table().get(number), rules::ADAPTER_TARGETS, cause, context);
        }
    }
    let unused: Vec<String> = names.iter().zip(used).filter(|(_, used)| !used).map(|(name, _)| shown(name)).collect();
    // What is excluded by name stays in the list of those that are named; and a list of other layers is reported as such.
    let excludes = said.config.get("exclude_modules").is_some_and(|value| !value.is_null());
    if !unused.is_empty() && !excludes && are_named {
        let cause = format!("target_modules names {}, which matches no layer of the adapter", listed(&unused));
        context.report(&config.path, Diagnostic::new(rules::ADAPTER_TARGET_UNUSED, cause));
    }
    Ok(())
}

/// Patterns that fit no layer.
fn patterns(layers: &[Layer<'_>], config: &Config, context: &mut FolderContext<'_>) {
    for key in ["rank_pattern", "alpha_pattern"] {
        let Some(map) = config.value.get(key).and_then(Value::as_object) else { continue };
        let patterns = Patterns::of_endings(map.keys().map(String::as_str));
        if patterns.has_unknown {
            continue;
        }
        let mut used = vec![false; map.len()];
        for number in layers.iter().flat_map(|layer| patterns.fitting(in_model(layer.name))) {
            if let Some(used) = used.get_mut(number) {
                *used = true;
            }
        }
        let unused: Vec<String> = map.keys().zip(used).filter(|(_, used)| !used).map(|(key, _)| shown(key)).collect();
        if !unused.is_empty() {
            let cause = format!("{key} names {}, which matches no layer of the adapter", listed(&unused));
            context.report(&config.path, Diagnostic::new(rules::ADAPTER_PATTERN_UNUSED, cause));
        }
    }
}
