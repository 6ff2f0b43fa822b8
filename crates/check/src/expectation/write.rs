//! A specification of a checkpoint that is good: every tensor with its shape and dtype, the tensors that share bytes, and how many values there are.

use std::io::{self, Write};

use max_weights::Catalog;
use max_weights::tensor::{Element, TensorInfo};
use serde_json::{Map, Value, json};

use super::check::parameters;

/// The schema of specifications.
pub const SCHEMA: &str = "max-weights.expectation/1";

/// The specification as JSON.
pub fn of(catalog: &Catalog) -> Value {
    let mut tensors = Map::new();
    for info in catalog.table().iter() {
        let mut tensor = json!({"shape": info.shape});
        // A type that is not known here has no name that a specification could have.
        if let (Some(tensor), false) =
            (tensor.as_object_mut(), matches!(info.element, Element::Unknown(_) | Element::NoArray(..)))
        {
            tensor.insert("dtype".into(), info.element.to_string().into());
        }
        tensors.insert(escaped(info.name), tensor);
    }
    let numbers: Vec<u32> = (0..catalog.table().len() as u32).collect();
    let mut ties = Vec::new();
    for group in catalog.aliases(&numbers) {
        for same in alike(catalog, &group) {
            let names = same.iter().map(|number| catalog.table().name(*number as usize));
            ties.push(Value::from(names.collect::<Vec<_>>()));
        }
    }
    let mut spec = json!({"schema": SCHEMA, "tensors": tensors, "parameters": parameters(catalog)});
    if let (Some(spec), false) = (spec.as_object_mut(), ties.is_empty()) {
        spec.insert("ties".into(), ties.into());
    }
    spec
}

/// Writes the specification, indented, with a line end.
///
/// # Errors
/// What it is written to cannot be written.
pub fn write(catalog: &Catalog, mut to: impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut to, &of(catalog))?;
    to.write_all(b"\n")
}

/// A name as a pattern that matches it alone.
fn escaped(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len());
    for c in name.chars() {
        if matches!(c, '*' | '?' | '[') {
            pattern.extend(['[', c, ']']);
        } else {
            pattern.push(c);
        }
    }
    pattern
}

/// Of tensors that share bytes, the groups of those that are one and the same, each of two at least.
fn alike(catalog: &Catalog, group: &[u32]) -> Vec<Vec<u32>> {
    let mut groups: std::collections::HashMap<_, Vec<u32>> = std::collections::HashMap::new();
    for &number in group {
        let info: TensorInfo<'_> = catalog.table().get(number as usize);
        let view = info.view.map(|view| (view.start, view.strides));
        groups.entry((view, info.shape, info.element)).or_default().push(number);
    }
    let mut groups: Vec<Vec<u32>> = groups.into_values().filter(|group| group.len() > 1).collect();
    groups.sort_unstable();
    groups
}
