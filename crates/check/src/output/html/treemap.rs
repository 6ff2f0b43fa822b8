//! The tensors as an area: a rectangle for each layer, and in it one for each tensor, as large as their bytes; and the shares of the dtypes.

use std::collections::HashMap;

use max_weights::text;
use serde::Serialize;

use super::layers::layer_of;
use crate::report::TensorSummary;

/// Layers, and tensors of one layer, that have a rectangle of their own; the others share one.
const MAX_LAYERS: usize = 120;
const MAX_TENSORS: usize = 24;
/// Width of the whole as a part of its height.
const ASPECT: f64 = 2.2;
/// Colours that there are for dtypes.
const COLORS: usize = 8;

/// A rectangle, in percents of what it is in.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Tile {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    name: String,
    about: String,
    color: usize,
    inside: Vec<Tile>,
}

/// The part of the bytes that a dtype has.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Share {
    dtype: String,
    percent: f64,
    size: String,
    tensors: String,
    color: usize,
}

/// What is put into rectangles.
struct Item<'a> {
    name: String,
    bytes: u64,
    tensors: Vec<&'a TensorSummary>,
}

pub(super) fn treemap(tensors: &[TensorSummary]) -> Vec<Tile> {
    let dtypes = dtypes(tensors);
    let mut layers: Vec<Item<'_>> = Vec::new();
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    for tensor in tensors {
        let layer = layer_of(&tensor.name);
        let at = *numbers.entry(layer).or_insert_with(|| {
            layers.push(Item { name: layer.to_owned(), bytes: 0, tensors: Vec::new() });
            layers.len() - 1
        });
        if let Some(item) = layers.get_mut(at) {
            item.bytes = item.bytes.saturating_add(tensor.bytes);
            item.tensors.push(tensor);
        }
    }
    let layers = largest(layers, MAX_LAYERS, "layers");
    let tiles = squarified(&layers, ASPECT);
    let with_tensors = tiles.into_iter().zip(&layers).map(|(mut tile, layer)| {
        let items = layer.tensors.iter().map(|tensor| Item {
            name: tensor.name.clone(),
            bytes: tensor.bytes,
            tensors: vec![tensor],
        });
        let items = largest(items.collect(), MAX_TENSORS, "tensors");
        let inside = squarified(&items, ASPECT * tile.width / tile.height.max(f64::MIN_POSITIVE));
        let named = |(tile, item)| {
            let mut tile = described(tile, item, &dtypes);
            // The name of the layer stands above.
            let short = tile.name.strip_prefix(layer.name.as_str()).and_then(|rest| rest.strip_prefix('.'));
            tile.name = short.map_or_else(|| tile.name.clone(), str::to_owned);
            tile
        };
        tile.inside = inside.into_iter().zip(&items).map(named).collect();
        described(tile, layer, &dtypes)
    });
    with_tensors.collect()
}

/// The dtypes, the one with most bytes first.
fn dtypes(tensors: &[TensorSummary]) -> Vec<(&str, u64, u64)> {
    let mut dtypes: Vec<(&str, u64, u64)> = Vec::new();
    for tensor in tensors {
        match dtypes.iter_mut().find(|(dtype, ..)| *dtype == tensor.dtype) {
            Some((_, bytes, count)) => (*bytes, *count) = (bytes.saturating_add(tensor.bytes), *count + 1),
            None => dtypes.push((&tensor.dtype, tensor.bytes, 1)),
        }
    }
    dtypes.sort_by_key(|(_, bytes, _)| std::cmp::Reverse(*bytes));
    dtypes
}

pub(super) fn shares(tensors: &[TensorSummary]) -> Vec<Share> {
    let dtypes = dtypes(tensors);
    let all = dtypes.iter().map(|(_, bytes, _)| *bytes as f64).sum::<f64>().max(1.0);
    let share = |(color, (dtype, bytes, count)): (usize, &(&str, u64, u64))| Share {
        dtype: text::shown(dtype),
        percent: rounded(*bytes as f64 * 100.0 / all),
        size: text::size(*bytes),
        tensors: text::plural(*count, "tensor"),
        color: color.min(COLORS - 1),
    };
    dtypes.iter().enumerate().map(share).collect()
}

/// The largest items, and one for all the others.
fn largest<'a>(mut items: Vec<Item<'a>>, most: usize, noun: &str) -> Vec<Item<'a>> {
    items.retain(|item| item.bytes > 0);
    items.sort_by_key(|item| std::cmp::Reverse(item.bytes));
    if items.len() > most {
        let rest = items.split_off(most - 1);
        items.push(Item {
            name: format!("{} more {noun}", text::grouped(rest.len() as u64)),
            bytes: rest.iter().fold(0, |sum, item| sum.saturating_add(item.bytes)),
            tensors: rest.into_iter().flat_map(|item| item.tensors).collect(),
        });
        items.sort_by_key(|item| std::cmp::Reverse(item.bytes));
    }
    items
}

fn described(mut tile: Tile, item: &Item<'_>, dtypes: &[(&str, u64, u64)]) -> Tile {
    tile.name = text::shown(&item.name);
    tile.about = format!("{}: {}", tile.name, text::size(item.bytes));
    if let [tensor] = *item.tensors {
        tile.about.push_str(&format!(", {} {}", text::shown(&tensor.dtype), text::shape(&tensor.shape)));
    } else {
        tile.about.push_str(&format!(", {}", text::plural(item.tensors.len() as u64, "tensor")));
    }
    let dtype = item.tensors.first().map(|tensor| tensor.dtype.as_str());
    let color = dtypes.iter().position(|(name, ..)| Some(*name) == dtype).unwrap_or(0);
    tile.color = color.min(COLORS - 1);
    tile
}

/// Rectangles of the areas of these items, which are sorted, that are as near to squares as can be had row by row (Bruls, Huizing, van Wijk).
fn squarified(items: &[Item<'_>], aspect: f64) -> Vec<Tile> {
    let all = items.iter().map(|item| item.bytes as f64).sum::<f64>();
    let (mut tiles, mut rest) = (Vec::with_capacity(items.len()), items);
    if all <= 0.0 || aspect <= 0.0 || !aspect.is_finite() {
        return tiles;
    }
    // In a rectangle of this width and height 1, so that an area is a product.
    let (mut left, mut top, mut width, mut height) = (0.0, 0.0, aspect, 1.0);
    let area = |item: &Item<'_>| item.bytes as f64 / all * aspect;
    while !rest.is_empty() {
        let side = f64::min(width, height).max(f64::MIN_POSITIVE);
        let (mut count, mut sum, mut worst) = (0, 0.0, f64::INFINITY);
        let first = rest.first().map_or(0.0, area);
        for item in rest {
            let (with, last) = (sum + area(item), area(item).max(f64::MIN_POSITIVE));
            let row = with / side;
            let worse = f64::max(row * row / last, first / (row * row));
            if count > 0 && worse > worst {
                break;
            }
            (count, sum, worst) = (count + 1, with, worse);
        }
        let (row, others) = rest.split_at(count);
        let thick = sum / side;
        let (mut x, mut y) = (left, top);
        for item in row {
            let long = area(item) / thick.max(f64::MIN_POSITIVE);
            let (w, h) = if width >= height { (thick, long) } else { (long, thick) };
            tiles.push(Tile {
                left: rounded(x / aspect * 100.0),
                top: rounded(y * 100.0),
                width: rounded(w / aspect * 100.0),
                height: rounded(h * 100.0),
                name: String::new(),
                about: String::new(),
                color: 0,
                inside: Vec::new(),
            });
            if width >= height { y += long } else { x += long }
        }
        if width >= height {
            (left, width) = (left + thick, f64::max(width - thick, 0.0));
        } else {
            (top, height) = (top + thick, f64::max(height - thick, 0.0));
        }
        rest = others;
    }
    tiles
}

/// As exact as a screen is.
fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rectangles_have_the_areas_of_their_bytes_and_lie_side_by_side() {
        let items: Vec<Item<'_>> =
            [60, 60, 40, 30, 20, 20, 10].map(|bytes| Item { name: String::new(), bytes, tensors: Vec::new() }).into();
        let tiles = squarified(&items, 1.5);
        assert_eq!(tiles.len(), items.len());
        for (tile, item) in tiles.iter().zip(&items) {
            let expected = item.bytes as f64 / 240.0 * 10_000.0;
            assert!((tile.width * tile.height - expected).abs() < 1.0, "{tile:?}");
            assert!(tile.left + tile.width < 100.01 && tile.top + tile.height < 100.01, "{tile:?}");
            let (width, height) = (tile.width * 1.5, tile.height);
            assert!(f64::max(width / height, height / width) < 3.5, "{tile:?}");
        }
        for (number, a) in tiles.iter().enumerate() {
            for b in tiles.iter().skip(number + 1) {
                let apart = |from: f64, len: f64, other: f64| other >= from + len - 0.01;
                assert!(
                    apart(a.left, a.width, b.left)
                        || apart(b.left, b.width, a.left)
                        || apart(a.top, a.height, b.top)
                        || apart(b.top, b.height, a.top),
                    "{a:?} {b:?}"
                );
            }
        }
    }
}
