//! What the values of each layer are like: norm, mean, extremes and a histogram.

use std::collections::HashMap;

use max_weights::text;
use serde::Serialize;

use crate::report::TensorSummary;

/// Layers that are listed, in the order of the files.
const MAX_LAYERS: usize = 400;
/// Bars of a histogram, and its height.
const BARS: usize = 40;
const HEIGHT: f64 = 28.0;

/// A row of the table.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Layer {
    name: String,
    tensors: String,
    size: String,
    norm: Option<String>,
    /// The norm as a part of the largest one of floats.
    norm_percent: f64,
    mean: Option<String>,
    deviation: Option<String>,
    minimum: Option<String>,
    maximum: Option<String>,
    /// The outline of the histogram, as SVG has paths.
    outline: Option<String>,
}

/// The layer of a tensor: its name up to the first number, `model.layers.7`; without one, all but the last part.
pub(super) fn layer_of(name: &str) -> &str {
    let mut end = 0;
    for (number, part) in name.split('.').enumerate() {
        end += part.len() + usize::from(number > 0);
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return name.get(..end).unwrap_or(name);
        }
    }
    name.rsplit_once('.').map_or(name, |(layer, _)| layer)
}

/// The layers whose values were read, and how many more there are.
pub(super) fn layers(tensors: &[TensorSummary]) -> (Vec<Layer>, usize) {
    let mut groups: Vec<(&str, Vec<&TensorSummary>)> = Vec::new();
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let values =
        tensors.iter().filter(|tensor| tensor.mean.is_some() || tensor.norm.is_some() || !tensor.bins.is_empty());
    for tensor in values {
        let layer = layer_of(&tensor.name);
        let next = numbers.len();
        let number = *numbers.entry(layer).or_insert(next);
        if let Some((_, group)) = groups.get_mut(number) {
            group.push(tensor);
        } else if groups.len() < MAX_LAYERS {
            groups.push((layer, vec![tensor]));
        }
    }
    let norms: Vec<Option<f64>> = groups.iter().map(|(_, group)| norm(group)).collect();
    // Those of integers, as indices are, say nothing of how large weights are.
    let of_floats =
        groups.iter().zip(&norms).filter(|((_, group), _)| !group.iter().all(|tensor| is_integer(&tensor.dtype)));
    let largest = of_floats.filter_map(|(_, norm)| *norm).fold(f64::MIN_POSITIVE, f64::max);
    let listed = groups.iter().zip(norms).map(|((name, group), norm)| layer(name, group, norm, largest)).collect();
    (listed, numbers.len() - groups.len())
}

fn layer(name: &str, group: &[&TensorSummary], norm: Option<f64>, largest: f64) -> Layer {
    let count = |tensor: &TensorSummary| tensor.shape.iter().map(|dim| *dim as f64).product::<f64>();
    let values: f64 = group.iter().filter(|tensor| tensor.mean.is_some()).map(|tensor| count(tensor)).sum();
    let weighted = |value: &dyn Fn(&TensorSummary) -> Option<f64>| {
        let sum: f64 = group.iter().filter_map(|tensor| Some(value(tensor)? * count(tensor))).sum();
        (values > 0.0).then_some(sum / values)
    };
    let mean = weighted(&|tensor| tensor.mean);
    // The mean of all squares is that of the variances and of the squares of the means.
    let squares = weighted(&|tensor| Some(tensor.deviation?.powi(2) + tensor.mean?.powi(2)));
    let deviation = squares.zip(mean).map(|(squares, mean)| (squares - mean * mean).max(0.0).sqrt());
    let minimum = group.iter().filter_map(|tensor| tensor.minimum).reduce(f64::min);
    let maximum = group.iter().filter_map(|tensor| tensor.maximum).reduce(f64::max);
    Layer {
        name: text::shown(name),
        tensors: text::grouped(group.len() as u64),
        size: text::size(group.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.bytes))),
        norm: norm.map(number),
        norm_percent: norm
            .filter(|norm| norm.is_finite())
            .map_or(0.0, |norm| f64::min((norm / largest * 1000.0).round() / 10.0, 100.0)),
        mean: mean.map(number),
        deviation: deviation.map(number),
        minimum: minimum.map(number),
        maximum: maximum.map(number),
        outline: minimum.zip(maximum).and_then(|(low, high)| outline(group, low, high)),
    }
}

fn is_integer(dtype: &str) -> bool {
    ["int", "uint", "bool"].iter().any(|start| dtype.starts_with(start))
}

fn norm(group: &[&TensorSummary]) -> Option<f64> {
    let squares: Vec<f64> = group.iter().filter_map(|tensor| tensor.norm).map(|norm| norm * norm).collect();
    (!squares.is_empty()).then(|| squares.iter().sum::<f64>().sqrt())
}

/// The bins of all tensors in bars over the whole width: each bin is divided among the bars that it is in. What is constant is one bar, and where all
/// is, that is the one in the middle.
fn outline(group: &[&TensorSummary], low: f64, high: f64) -> Option<String> {
    let mut bars = [0.0f64; BARS];
    // Quotients first: the distance between the extremes of float64 is itself no float64.
    let per_bar = high / BARS as f64 - low / BARS as f64;
    for tensor in group {
        let (Some(from), Some(to)) = (tensor.minimum, tensor.maximum) else { continue };
        let at = |value: f64| value / per_bar - low / per_bar;
        let (first, last) = (at(from), at(to));
        if !(first.is_finite() && last > first) {
            // Casts saturate.
            let bar = if first.is_finite() { (first as usize).min(BARS - 1) } else { BARS / 2 };
            bars[bar] += tensor.bins.iter().map(|count| *count as f64).sum::<f64>();
            continue;
        }
        let bars_wide = (last - first) / tensor.bins.len() as f64;
        for (number, count) in tensor.bins.iter().enumerate() {
            let begin = first + bars_wide * number as f64;
            for (number, bar) in bars.iter_mut().enumerate().skip(begin as usize).take(bars_wide as usize + 2) {
                let (left, right) = (number as f64, number as f64 + 1.0);
                let common = f64::min(right, begin + bars_wide) - f64::max(left, begin);
                *bar += *count as f64 * (common / bars_wide).clamp(0.0, 1.0);
            }
        }
    }
    let most = bars.iter().copied().reduce(f64::max).filter(|most| *most > 0.0)?;
    let mut path = format!("M0 {HEIGHT}");
    for (number, count) in bars.iter().enumerate() {
        let top = HEIGHT - count / most * HEIGHT;
        path.push_str(&format!("L{number} {top:.1}L{} {top:.1}", number + 1));
    }
    path.push_str(&format!("L{BARS} {HEIGHT}Z"));
    Some(path)
}

/// A number in four digits.
fn number(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 {
        "0".into()
    } else if !(1e-3..1e5).contains(&magnitude) {
        format!("{value:.2e}")
    } else {
        let digits = (3 - magnitude.log10().floor() as i32).clamp(0, 6) as usize;
        format!("{value:.digits$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_named_up_to_its_first_number() {
        for (name, layer) in [
            ("model.layers.12.mlp.up.weight", "model.layers.12"),
            ("0.weight", "0"),
            ("model.embed_tokens.weight", "model.embed_tokens"),
            ("weight", "weight"),
            ("", ""),
            (".1.", ".1"),
            ("重.3.x", "重.3"),
        ] {
            assert_eq!(layer_of(name), layer, "{name}");
        }
    }

    #[test]
    fn a_constant_is_one_bar_and_what_is_even_is_a_block() {
        let tensor = |minimum: f64, maximum: f64, bins: &[u64]| TensorSummary {
            path: std::path::Path::new("a").into(),
            name: "a".into(),
            dtype: "float32".into(),
            shape: vec![4],
            bytes: 16,
            mean: Some(minimum),
            deviation: Some(0.0),
            minimum: Some(minimum),
            maximum: Some(maximum),
            norm: Some(1.0),
            bins: bins.to_vec(),
        };
        let tops = |tensors: &[TensorSummary]| {
            let group: Vec<&TensorSummary> = tensors.iter().collect();
            let low = tensors.iter().filter_map(|tensor| tensor.minimum).fold(f64::INFINITY, f64::min);
            let high = tensors.iter().filter_map(|tensor| tensor.maximum).fold(f64::NEG_INFINITY, f64::max);
            let outline = outline(&group, low, high).expect("an outline");
            let is_empty = |bar: &usize| outline.contains(&format!("L{bar} {HEIGHT:.1}L{} {HEIGHT:.1}", bar + 1));
            (0..BARS).filter(|bar| !is_empty(bar)).collect::<Vec<usize>>()
        };
        assert_eq!(tops(&[tensor(0.0, 0.0, &[7])]), [BARS / 2]);
        assert_eq!(tops(&[tensor(-1.0, 1.0, &[5; 8])]), (0..BARS).collect::<Vec<_>>());
        assert_eq!(tops(&[tensor(-1.0, 1.0, &[1, 0, 0, 0]), tensor(1.0, 1.0, &[9])]), {
            let mut bars: Vec<usize> = (0..BARS / 4).collect();
            bars.push(BARS - 1);
            bars
        });
        assert_eq!(tops(&[tensor(-f64::MAX, f64::MAX, &[5; 8])]), (0..BARS).collect::<Vec<_>>());
    }

    #[test]
    fn numbers_have_four_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1.000"),
            (-123.456, "-123.5"),
            (0.012_344, "0.01234"),
            (1e9, "1.00e9"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
