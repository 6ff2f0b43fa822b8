//! One weight: what the header says of it, and what its values are like.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use max_weights::check::{Bin, ExactNumber, Statistics, statistics};
use max_weights::tensor::{Element, TensorInfo};
use max_weights::{Catalog, Checkpoint, DType, Error, text, uninterrupted};
use serde::{Serialize, Serializer};

use super::ShowArguments;
use super::histogram;
use super::numbers::significant;
use crate::failure::CommandFailure;
use crate::progress::CommandProgress;
use crate::record::Weight;
use crate::screen::Screen;

/// The alignment of an offset is reported up to a page.
const PAGE: u64 = 4096;

#[derive(Serialize)]
struct WeightJson<'a> {
    schema: &'static str,
    weight: Weight<'a>,
    elements: u64,
    /// What the offset in the file is a multiple of, up to a page.
    alignment: u64,
    /// `None` if they were not requested, or are not available.
    #[serde(skip_serializing_if = "Option::is_none")]
    statistics: Option<FiniteStatistics>,
    /// Why there are no statistics, or how they are to be taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// The statistics of the finite values.
#[derive(Serialize)]
struct FiniteStatistics {
    count: u64,
    zeros: u64,
    subnormals: u64,
    nan: u64,
    inf: u64,
    #[serde(serialize_with = "number")]
    min: Option<ExactNumber>,
    #[serde(serialize_with = "number")]
    max: Option<ExactNumber>,
    mean: Option<f64>,
    std: Option<f64>,
    histogram: Vec<JsonBin>,
}

#[derive(Serialize)]
struct JsonBin {
    low: f64,
    high: f64,
    count: u64,
}

/// Writes what the header says of a weight, and of its values unless they were not asked for.
pub(super) fn write(
    checkpoint: &Checkpoint,
    number: usize,
    options: &ShowArguments,
    screen: &mut Screen,
) -> Result<(), CommandFailure> {
    let catalog = checkpoint.catalog();
    let info = catalog.table().get(number);
    let (found, note) =
        if options.no_values { (None, None) } else { values(checkpoint, number, options.bins as usize)? };
    if options.json {
        let object = WeightJson {
            schema: "max-weights.show/1",
            weight: Weight::new(catalog, &info),
            elements: elements(&info),
            alignment: placed(&info),
            statistics: found.map(FiniteStatistics::from),
            note,
        };
        serde_json::to_writer_pretty(&mut *screen, &object)?;
        return Ok(screen.line("")?);
    }
    let mut rows = header(catalog, &info);
    if let Some(note) = note {
        rows.push(("values", note));
    }
    if let Some(found) = &found {
        rows.extend(described(found, info.element));
    }
    let paint = screen.paint;
    screen.line(&format!("{0}{1}{0:#}", paint.bold, text::printable(info.name)))?;
    let width = rows.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
    for (label, value) in rows {
        screen.line(&format!("  {0}{label:width$}{0:#}  {1}", paint.dim, text::printable(&value)))?;
    }
    match &found {
        Some(found) if !found.bins.is_empty() => Ok(histogram::write(&found.bins, screen)?),
        _ => Ok(()),
    }
}

fn header(catalog: &Catalog, info: &TensorInfo<'_>) -> Vec<(&'static str, String)> {
    let bytes = info.bytes();
    let exact = if bytes >= 1000 { format!(" ({})", text::plural(bytes, "byte")) } else { String::new() };
    let dims: Vec<String> = info.shape.iter().map(u64::to_string).collect();
    vec![
        ("dtype", element_type(info.element)),
        ("shape", format!("[{}], {}", dims.join(", "), text::plural(elements(info), "element"))),
        ("size", format!("{}{exact}", text::size(bytes))),
        ("file", text::path(&catalog.files()[info.file as usize].path)),
        ("offset", text::grouped(info.span.start())),
        ("alignment", alignment(info)),
    ]
}

fn elements(info: &TensorInfo<'_>) -> u64 {
    info.shape.iter().fold(1, |product: u64, &length| product.saturating_mul(length))
}

/// The dtype, or the encoding of packed blocks with what it costs.
fn element_type(element: Element<'_>) -> String {
    let Element::Packed(encoding) = element else { return element.to_string() };
    let (elements, bytes) = (encoding.elements_per_block(), encoding.bytes_per_block());
    let bits = bytes as f64 * 8.0 / elements as f64;
    format!("{encoding}, {elements} elements in {bytes} bytes, {bits:.2} bits each")
}

/// What the first byte's place is a multiple of, up to a page.
fn placed(info: &TensorInfo<'_>) -> u64 {
    match info.span.start() {
        0 => PAGE,
        start => (1 << start.trailing_zeros()).min(PAGE),
    }
}

/// How well the first byte is placed, and what that means.
fn alignment(info: &TensorInfo<'_>) -> String {
    let placed = placed(info);
    let Element::Plain(dtype) = info.element else { return placed.to_string() };
    let means = if info.is_aligned() { "used without a copy" } else { "copied when it is used" };
    format!("{placed}; {dtype} wants {}: {means}", dtype.align())
}

/// The statistics, and how they are to be taken; or none, and why.
fn values(
    checkpoint: &Checkpoint,
    number: usize,
    bins: usize,
) -> Result<(Option<Statistics>, Option<String>), CommandFailure> {
    let info = checkpoint.catalog().table().get(number);
    if info.bytes() == 0 {
        return Ok((None, Some("none: the tensor is empty".into())));
    }
    let done = Arc::new(AtomicU64::new(0));
    let progress = CommandProgress::new(&done, info.bytes());
    let found = statistics(checkpoint, number, bins, &done, &uninterrupted);
    drop(progress);
    match found {
        Ok(found) => {
            let note = note(&info, &found);
            Ok((Some(found), note))
        }
        Err(Error::Unsupported(fault)) => Ok((None, Some(format!("not read: {}", fault.message)))),
        Err(error) => Err(error.into()),
    }
}

fn note(info: &TensorInfo<'_>, found: &Statistics) -> Option<String> {
    let above_one = found.maximum.is_some_and(|maximum| maximum.to_f64() > 1.0);
    if found.count < elements(info) {
        let count = text::grouped(found.count);
        return Some(format!("{count} of them: the tensor uses the same elements of the file repeatedly"));
    }
    match info.element {
        Element::Plain(DType::Complex64) => Some("magnitudes of complex numbers".into()),
        Element::Plain(DType::Bool) if above_one => {
            Some("there are bytes other than 0 and 1, which readers interpret differently".into())
        }
        _ => None,
    }
}

/// The statistics by label.
fn described(found: &Statistics, element: Element<'_>) -> Vec<(&'static str, String)> {
    let share = |count: u64| match count {
        0 => "0".to_owned(),
        _ => format!("{} ({:.2}%)", text::grouped(count), count as f64 * 100.0 / found.count as f64),
    };
    let shown = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), significant);
    let mut rows = vec![
        ("min", found.minimum.map_or_else(|| "–".to_owned(), histogram::exact)),
        ("max", found.maximum.map_or_else(|| "–".to_owned(), histogram::exact)),
        ("mean", shown(found.mean)),
        ("std", shown(found.deviation)),
        ("zeros", share(found.zeros)),
    ];
    let is_integer = matches!(found.minimum, Some(ExactNumber::Integer(_)));
    let is_float = !is_integer && !matches!(element, Element::Plain(DType::Bool));
    if is_float {
        rows.extend([("NaN", share(found.nans)), ("Inf", share(found.infinities))]);
    }
    if found.subnormals > 0 {
        rows.push(("subnormal", share(found.subnormals)));
    }
    rows
}

impl From<Statistics> for FiniteStatistics {
    fn from(found: Statistics) -> Self {
        let bin = |bin: &Bin| JsonBin { low: bin.low.to_f64(), high: bin.high.to_f64(), count: bin.count };
        Self {
            count: found.count,
            zeros: found.zeros,
            subnormals: found.subnormals,
            nan: found.nans,
            inf: found.infinities,
            min: found.minimum,
            max: found.maximum,
            mean: found.mean,
            std: found.deviation,
            histogram: found.bins.iter().map(bin).collect(),
        }
    }
}

/// A number as JSON has it: an integer stays exact.
#[allow(clippy::ref_option)] // the signature is serde's
fn number<S: Serializer>(value: &Option<ExactNumber>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(ExactNumber::Integer(value)) => match i64::try_from(*value) {
            Ok(value) => serializer.serialize_i64(value),
            Err(_) => serializer.serialize_u64(u64::try_from(*value).unwrap_or(u64::MAX)),
        },
        Some(ExactNumber::Float(value)) => serializer.serialize_f64(*value),
        None => serializer.serialize_none(),
    }
}
