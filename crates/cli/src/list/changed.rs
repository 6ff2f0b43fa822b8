//! `max-weights ls --changed`: what the deltas of a checkpoint change, layer by layer.

use std::collections::BTreeMap;
use std::path::PathBuf;

use max_weights::checkpoint::{ChangedElements, OpenedDelta};
use max_weights::{Catalog, OpenOptions, text, uninterrupted};
use serde::Serialize;

use crate::CLEAN;
use crate::failure::CommandFailure;
use crate::layers::{self, LayerChanges, layers, unit};
use crate::screen::Screen;

#[derive(Serialize)]
struct ChangedJson {
    schema: &'static str,
    deltas: Vec<String>,
    changed: usize,
    weights: usize,
    unit: &'static str,
    layers: Vec<LayerChanges>,
}

/// Writes the layers of the weights that the deltas behind the base change; of each how much, in all deltas together.
pub(super) fn run(paths: &[PathBuf], catalog: &Catalog, json: bool, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let deltas = OpenedDelta::behind_base(paths, &OpenOptions::default())?;
    let Some(unit) = deltas.first().map(|first| unit(first.dialect())) else {
        return Err(CommandFailure::Usage(
            "--changed: no deltas follow the base: ls BASE DELTA... --changed".to_owned(),
        ));
    };
    let table = catalog.table();
    let mut all: BTreeMap<String, ChangedElements> = BTreeMap::new();
    for delta in &deltas {
        for ChangedElements { name, changed, .. } in delta.elements(&uninterrupted)? {
            // A later delta has removed this tensor.
            let Some(number) = catalog.find(&name) else { continue };
            let info = table.get(number);
            let of = if unit == "bytes" { info.bytes() } else { info.shape.iter().product() };
            let new = || ChangedElements { name: name.clone(), changed: 0, elements: Some(of) };
            let own = all.entry(name.clone()).or_insert_with(new);
            own.changed = own.changed.saturating_add(changed);
        }
    }
    let all: Vec<ChangedElements> = all.into_values().collect();
    let (changed, weights, of_layers) = (all.len(), table.len(), layers(&all));
    if json {
        let deltas = deltas.iter().map(|delta| delta.path().to_string_lossy().into_owned()).collect();
        let schema = "max-weights.ls-changed/1";
        let object = ChangedJson { schema, deltas, changed, weights, unit, layers: of_layers };
        serde_json::to_writer_pretty(&mut *screen, &object)?;
        screen.line("")?;
        return Ok(CLEAN);
    }
    layers::write(&of_layers, unit, screen)?;
    let (of, count) = (text::grouped(changed as u64), text::plural(deltas.len() as u64, "delta"));
    screen.line("")?;
    screen.line(&format!(
        "{0}{of} of {1} changed by {count}{0:#}",
        screen.paint.bold,
        text::plural(weights as u64, "weight")
    ))?;
    if deltas.len() > 1 {
        screen.line(&format!("  {unit} that several change count once for each"))?;
    }
    Ok(CLEAN)
}
