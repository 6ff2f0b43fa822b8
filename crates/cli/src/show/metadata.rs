//! The metadata of the files.

use std::io;

use max_weights::format::gguf::GgufValue;
use max_weights::{Catalog, text};
use serde::Serialize;

use super::values;
use crate::failure::CommandFailure;
use crate::record::{MetadataJson, MetadataValueJson};
use crate::screen::{Screen, columns, padded};

/// Only the line of a longer key is wider; it pads no other.
const WIDEST_COLUMN: usize = 100;
/// Elements of an array that are shown.
const ARRAY_SHOWN: usize = 8;

#[derive(Serialize)]
struct All<'a> {
    schema: &'static str,
    metadata: MetadataJson<'a>,
    /// Of a PyTorch file, the values that are not tensors, and the calls that its pickle would make, as Python source.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    values: Vec<values::PythonSource<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    calls: Vec<values::PickleCallText>,
}

#[derive(Serialize)]
struct MetadataEntry<'a, V> {
    schema: &'static str,
    key: &'a str,
    value: V,
}

/// Writes the key-value pairs, one a line, and the values of a PyTorch file that are not tensors.
pub(super) fn write_all(catalog: &Catalog, json: bool, screen: &mut Screen) -> Result<(), CommandFailure> {
    if json {
        let all = All {
            schema: "max-weights.show/1",
            metadata: MetadataJson(catalog),
            values: values::values(catalog),
            calls: values::calls(catalog),
        };
        serde_json::to_writer_pretty(&mut *screen, &all)?;
        return Ok(screen.line("")?);
    }
    let pairs: Vec<(&str, String)> = match catalog.gguf() {
        Some(gguf) => gguf.metadata.iter().map(|(key, value)| (key, plain(&value, ARRAY_SHOWN))).collect(),
        None => catalog.metadata().map(|(key, value)| (key, value.to_owned())).collect(),
    };
    let width = pairs.iter().map(|(key, _)| columns(&text::printable(key))).max().unwrap_or(0).min(WIDEST_COLUMN);
    for (key, value) in &pairs {
        let (key, value) = (padded(&text::printable(key), width), text::printable(value));
        let line = format!("{0}{key}{0:#}  {value}", screen.paint.dim);
        screen.line(&line)?;
    }
    if pairs.is_empty() && catalog.objects().next().is_none() {
        screen.line("no metadata")?;
    }
    values::write(catalog, "", false, screen)?;
    values::write_calls(catalog, screen)
}

/// Writes the whole value of this key, if there is one: an array with an element a line, a string with its own lines.
pub(super) fn write_one(catalog: &Catalog, key: &str, json: bool, screen: &mut Screen) -> Result<bool, CommandFailure> {
    if let Some(value) = catalog.gguf().and_then(|gguf| gguf.metadata.get(key)) {
        if json {
            object(key, &MetadataValueJson(value), screen)?;
        } else {
            lines(&value, screen)?;
        }
        return Ok(true);
    }
    let Some((_, value)) = catalog.metadata().find(|(known, _)| *known == key) else { return Ok(false) };
    if json {
        object(key, value, screen)?;
    } else {
        text_lines(value, screen)?;
    }
    Ok(true)
}

fn object<V: Serialize + ?Sized>(key: &str, value: &V, screen: &mut Screen) -> Result<(), CommandFailure> {
    serde_json::to_writer(&mut *screen, &MetadataEntry { schema: "max-weights.show/1", key, value })?;
    Ok(screen.line("")?)
}

fn lines(value: &GgufValue<'_>, screen: &mut Screen) -> io::Result<()> {
    match value {
        GgufValue::Array(array) => {
            array.iter().try_for_each(|element| screen.line(&text::printable(&plain(&element, usize::MAX))))
        }
        GgufValue::String(value) => text_lines(value, screen),
        other => screen.line(&text::printable(&plain(other, usize::MAX))),
    }
}

/// A string keeps its lines; what else is in it is made safe.
fn text_lines(value: &str, screen: &mut Screen) -> io::Result<()> {
    value.lines().try_for_each(|line| screen.line(&text::printable(line)))
}

/// A value as people read it; of an array the first elements, and how many more there are.
fn plain(value: &GgufValue<'_>, most: usize) -> String {
    value.text_with(|array| {
        let mut shown: Vec<String> = array.iter().take(most).map(|element| quoted(&element, most)).collect();
        if array.len() > shown.len() {
            shown.push(format!("… {} more", text::grouped((array.len() - shown.len()) as u64)));
        }
        format!("[{}]", shown.join(", "))
    })
}

/// An element of an array: a string in quotes, so that its ends are seen.
fn quoted(value: &GgufValue<'_>, most: usize) -> String {
    match value {
        GgufValue::String(_) | GgufValue::Bytes(_) => format!("'{}'", plain(value, most)),
        other => plain(other, most),
    }
}
