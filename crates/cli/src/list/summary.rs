//! What the listed weights are together.

use std::collections::BTreeMap;
use std::io;

use max_weights::tensor::Element;
use max_weights::{Catalog, text};
use serde::Serialize;

use crate::screen::{Screen, columns, padded};
use crate::warnings::warnings;

/// Only the line of a longer name of a dtype is wider; it pads no other.
const WIDEST_COLUMN: usize = 100;

/// What weights of one dtype are together.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Total {
    pub(super) weights: u64,
    pub(super) bytes: u64,
    #[serde(skip)]
    elements: u64,
    #[serde(skip)]
    packed: bool,
}

/// The totals of each dtype, of most bytes first.
pub(super) fn totals(catalog: &Catalog, numbers: &[u32]) -> Vec<(String, Total)> {
    let mut found: Vec<(Element<'_>, Total)> = Vec::new();
    for &number in numbers {
        let info = catalog.table().get(number as usize);
        let at = found.iter().position(|(element, _)| *element == info.element).unwrap_or_else(|| {
            found.push((info.element, Total::default()));
            found.len() - 1
        });
        let total = &mut found[at].1;
        total.weights += 1;
        total.bytes += info.bytes();
        total.elements = total.elements.saturating_add(info.shape.iter().product());
        total.packed = matches!(info.element, Element::Packed(_));
    }
    // Two types that a file calls alike are one.
    let mut named: BTreeMap<String, Total> = BTreeMap::new();
    for (element, total) in found {
        let sum = named.entry(element.to_string()).or_default();
        sum.weights += total.weights;
        sum.bytes += total.bytes;
        sum.elements = sum.elements.saturating_add(total.elements);
        sum.packed |= total.packed;
    }
    let mut named: Vec<_> = named.into_iter().collect();
    named.sort_by_key(|(_, total)| std::cmp::Reverse(total.bytes));
    named
}

/// Writes the totals of the list, and the warnings on standard error.
pub(super) fn write(catalog: &Catalog, numbers: &[u32], screen: &mut Screen) -> io::Result<()> {
    let totals = totals(catalog, numbers);
    let bytes = totals.iter().map(|(_, total)| total.bytes).sum();
    let all = text::plural(catalog.table().len() as u64, "weight");
    let listed = if numbers.len() < catalog.table().len() {
        format!("{} of {all}", text::grouped(numbers.len() as u64))
    } else {
        all
    };
    let paint = screen.paint;
    let files = text::plural(catalog.file_count() as u64, "file");
    screen.line("")?;
    screen.line(&format!("{0}{listed}, {1}, in {files}{0:#}", paint.bold, text::size(bytes)))?;
    if let Some((deltas, weights)) = catalog.changed_by_deltas() {
        let (deltas, weights) = (text::plural(deltas as u64, "delta"), text::plural(weights as u64, "weight"));
        screen.line(&format!("  {weights} changed by {deltas}: --changed prints where"))?;
    }
    let names: Vec<String> = totals.iter().map(|(name, _)| text::escape(name)).collect();
    let width = names.iter().map(|name| columns(name)).max().unwrap_or(0).min(WIDEST_COLUMN);
    for (name, (_, total)) in names.iter().zip(&totals) {
        let Total { weights, bytes, elements, packed } = *total;
        let bits = if packed && elements > 0 {
            format!("{0}, {1:.2} bits per weight{0:#}", paint.dim, bytes as f64 * 8.0 / elements as f64)
        } else {
            String::new()
        };
        let (name, size, count) = (padded(name, width), text::size(bytes), text::plural(weights, "weight"));
        screen.line(&format!("  {0}{name}{0:#}  {size:>9}  {count}{bits}", paint.dtype))?;
    }
    screen.warn(warnings(catalog))
}
