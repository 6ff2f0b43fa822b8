//! What deltas change, layer by layer.

use std::collections::BTreeMap;
use std::io;

use max_weights::checkpoint::{ChangedElements, DeltaDialect};
use max_weights::text;
use serde::Serialize;

use crate::screen::Screen;

/// What changes of the tensors of a layer.
#[derive(Debug, Serialize)]
pub(crate) struct LayerChanges {
    name: String,
    tensors: usize,
    changed: u64,
    /// What these tensors have; none where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    elements: Option<u64>,
}

/// What is counted of a delta of this form.
pub(crate) fn unit(dialect: DeltaDialect) -> &'static str {
    if matches!(dialect, DeltaDialect::Xor | DeltaDialect::Overwrite) { "bytes" } else { "elements" }
}

/// The layer that a tensor is of: its name up to the first number, or without its last part.
fn layer_of(name: &str) -> &str {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len();
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return &name[..end];
        }
        end += 1;
    }
    name.rsplit_once('.').map_or(name, |(layer, _)| layer)
}

/// The layers of tensors that change, in the order of their names with numbers as numbers.
pub(crate) fn layers(all: &[ChangedElements]) -> Vec<LayerChanges> {
    let part = |part: &str| part.parse::<u64>().map_or_else(|_| part.to_owned(), |number| format!("{number:020}"));
    let mut layers: BTreeMap<Vec<String>, LayerChanges> = BTreeMap::new();
    for ChangedElements { name, changed, elements } in all {
        let name = layer_of(name);
        let new = || LayerChanges { name: name.to_owned(), tensors: 0, changed: 0, elements: Some(0) };
        let layer = layers.entry(name.split('.').map(part).collect()).or_insert_with(new);
        layer.tensors += 1;
        layer.changed = layer.changed.saturating_add(*changed);
        layer.elements = layer.elements.zip(*elements).map(|(sum, own)| sum.saturating_add(own));
    }
    layers.into_values().collect()
}

/// Writes a line for each layer.
pub(crate) fn write(layers: &[LayerChanges], unit: &str, screen: &mut Screen) -> io::Result<()> {
    for LayerChanges { name, tensors, changed, elements } in layers {
        let (name, tensors) = (text::printable(name), text::plural(*tensors as u64, "tensor"));
        let of = text::grouped(*changed);
        let line = match elements {
            Some(elements) => {
                let share = 100.0 * *changed as f64 / (*elements).max(1) as f64;
                format!("{share:6.2} %  {name}  {tensors}, {of} of {} {unit}", text::grouped(*elements))
            }
            None => format!("{name}  {tensors}, {of} {unit}"),
        };
        screen.line(&line)?;
    }
    Ok(())
}
