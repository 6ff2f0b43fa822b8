//! `max-weights ls --as DTYPE --tp N --ep N --memory SIZE`: how many bytes of weights each rank has, and whether they fit.
//!
//! An estimate from names, shapes and dtypes, by rules that hold for the usual transformers. A matrix is divided among the ranks of tensor
//! parallelism, along an axis whose length they divide, or else with its rows filled up to a multiple; a vector is on every rank. An expert
//! (`experts.7.…`, and of stacked ones the first axis of `experts.…` and `…_exps`) is on one rank of expert parallelism, and its matrices are
//! divided as others are.

use std::collections::HashMap;

use clap::Args;
use max_weights::tensor::{Element, TensorInfo};
use max_weights::{Catalog, DType, text};
use serde::Serialize;

use crate::failure::CommandFailure;
use crate::inputs::{dtype, memory};
use crate::screen::Screen;
use crate::warnings::warnings;
use crate::{CLEAN, FINDINGS};

/// What ranks are counted for.
#[derive(Debug, Args)]
pub(crate) struct PerRank {
    /// Count floats as if they were of this dtype.
    #[arg(long = "as", value_name = "DTYPE", value_parser = dtype, help_heading = "Bytes per rank")]
    dtype: Option<DType>,
    /// Ranks of tensor parallelism: matrices are divided.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Bytes per rank")]
    tp: Option<u32>,
    /// Ranks of expert parallelism: experts are spread.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Bytes per rank")]
    ep: Option<u32>,
    /// Whether it fits into this much, such as 80GB or 24GiB; exit status 1 if not.
    #[arg(long, value_name = "SIZE", value_parser = memory, help_heading = "Bytes per rank")]
    memory: Option<u64>,
}

impl PerRank {
    pub(crate) fn is_requested(&self) -> bool {
        self.dtype.is_some() || self.tp.is_some() || self.ep.is_some() || self.memory.is_some()
    }
}

/// The object that programs get.
#[derive(Serialize)]
struct Ranks {
    schema: &'static str,
    /// The dtype that floats are counted as; `None` for their stored one.
    dtype: Option<&'static str>,
    tensor_parallel: u64,
    expert_parallel: u64,
    /// What one rank has of the matrices that are divided.
    divided: FitPart,
    /// What is whole on every rank.
    whole: FitPart,
    /// What one rank has of the experts, where it has most.
    experts: FitPart,
    /// The most bytes of weights that a rank has.
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fits: Option<bool>,
}

#[derive(Debug, Default, Clone, Copy, Serialize)]
struct FitPart {
    weights: u64,
    bytes: u64,
}

impl FitPart {
    fn add(&mut self, bytes: u64) {
        self.weights += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

pub(crate) fn run(
    options: &PerRank,
    json: bool,
    catalog: &Catalog,
    numbers: &[u32],
    screen: &mut Screen,
) -> Result<u8, CommandFailure> {
    let [tp, ep] = [options.tp, options.ep].map(|ranks| u64::from(ranks.unwrap_or(1)));
    let mut ranks = Ranks {
        schema: "max-weights.ranks/1",
        dtype: options.dtype.map(DType::name),
        tensor_parallel: tp,
        expert_parallel: ep,
        divided: FitPart::default(),
        whole: FitPart::default(),
        experts: FitPart::default(),
        bytes: 0,
        memory: options.memory,
        fits: None,
    };
    let infos = || numbers.iter().map(|&number| catalog.table().get(number as usize));
    let mut experts = vec![FitPart::default(); ep as usize];
    let counts = expert_counts(infos());
    for info in infos() {
        let bits = bits(&info, options.dtype);
        let bytes = |shape: &[u64]| bytes(shape, bits, &info);
        match Expert::of(&info) {
            Some(Expert::Numbered { prefix, number }) => {
                let count = counts.get(prefix).copied().unwrap_or(1).max(1);
                let rank = (u128::from(number) * u128::from(ep) / u128::from(count)) as usize;
                let last = experts.len() - 1;
                experts[rank.min(last)].add(bytes(&divided(info.shape, tp)));
            }
            Some(Expert::Stacked) => {
                let (count, rest) = (info.shape[0], divided(&info.shape[1..], tp));
                for (rank, part) in experts.iter_mut().enumerate() {
                    let [from, to] =
                        [rank, rank + 1].map(|rank| (u128::from(count) * rank as u128 / u128::from(ep)) as u64);
                    part.add((to - from).saturating_mul(bytes(&rest)));
                }
            }
            None if info.shape.len() < 2 || tp == 1 => ranks.whole.add(bytes(info.shape)),
            None => ranks.divided.add(bytes(&divided(info.shape, tp))),
        }
    }
    ranks.experts = experts.into_iter().max_by_key(|part| part.bytes).unwrap_or_default();
    ranks.bytes = ranks.divided.bytes.saturating_add(ranks.whole.bytes).saturating_add(ranks.experts.bytes);
    ranks.fits = options.memory.map(|memory| ranks.bytes <= memory);
    screen.status = if ranks.fits == Some(false) { FINDINGS } else { CLEAN };
    if json {
        serde_json::to_writer_pretty(&mut *screen, &ranks)?;
        screen.line("")?;
    } else {
        print(&ranks, screen)?;
        screen.warn(warnings(catalog))?;
    }
    Ok(screen.status)
}

/// What a name says of the expert that a weight belongs to.
enum Expert<'a> {
    /// One of those whose names begin so.
    Numbered { prefix: &'a str, number: u64 },
    /// All of a layer, along the first axis.
    Stacked,
}

impl<'a> Expert<'a> {
    fn of(info: &TensorInfo<'a>) -> Option<Self> {
        let mut at = 0;
        let mut among_experts = false;
        for component in info.name.split('.') {
            if among_experts && let Ok(number) = component.parse() {
                return Some(Self::Numbered { prefix: &info.name[..at], number });
            }
            among_experts |= component == "experts" || component.ends_with("_exps");
            at += component.len() + 1;
        }
        (among_experts && info.shape.len() >= 3).then_some(Self::Stacked)
    }
}

/// How many experts there are by the prefix of their names.
fn expert_counts<'a>(infos: impl Iterator<Item = TensorInfo<'a>>) -> HashMap<&'a str, u64> {
    let mut counts = HashMap::new();
    for info in infos {
        if let Some(Expert::Numbered { prefix, number }) = Expert::of(&info) {
            let count: &mut u64 = counts.entry(prefix).or_default();
            *count = (*count).max(number.saturating_add(1));
        }
    }
    counts
}

/// The shape of one rank's part: an axis that the ranks divide, or else the rows, padded to a multiple. A vector is whole.
fn divided(shape: &[u64], ranks: u64) -> Vec<u64> {
    let mut part = shape.to_vec();
    if shape.len() >= 2 {
        let exact = shape.iter().position(|length| length.is_multiple_of(ranks));
        let axis = exact.unwrap_or(0);
        part[axis] = part[axis].div_ceil(ranks);
    }
    part
}

/// Bits of an element; `None` for elements that are counted by their bytes in the file.
fn bits(info: &TensorInfo<'_>, dtype: Option<DType>) -> Option<u64> {
    let is_float = |dtype: DType| dtype.name().contains("float");
    match (info.element, dtype) {
        (Element::Plain(own), Some(requested)) if is_float(own) => Some(requested.bits() as u64),
        (Element::Plain(own), _) => Some(own.bits() as u64),
        (Element::Packed(_), Some(requested)) => Some(requested.bits() as u64),
        _ => None,
    }
}

fn bytes(shape: &[u64], bits: Option<u64>, info: &TensorInfo<'_>) -> u64 {
    let elements = |shape: &[u64]| shape.iter().fold(1u128, |product, &length| product.saturating_mul(length.into()));
    let part = elements(shape);
    let bytes = match bits {
        Some(bits) => part.saturating_mul(bits.into()).div_ceil(8),
        None => u128::from(info.bytes()).saturating_mul(part).div_ceil(elements(info.shape).max(1)),
    };
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn print(ranks: &Ranks, screen: &mut Screen) -> Result<(), CommandFailure> {
    let Ranks { dtype, tensor_parallel, expert_parallel, divided, whole, experts, bytes, memory, fits, .. } = ranks;
    let paint = screen.paint;
    let counted = dtype.map_or_else(String::new, |dtype| format!(", floats as {dtype}"));
    screen.line(&format!(
        "{0}{1} on each rank{0:#} of {tensor_parallel} × {expert_parallel} (tensor × expert parallelism){counted}",
        paint.bold,
        text::size(*bytes)
    ))?;
    for (name, part) in [("divided", divided), ("whole", whole), ("experts", experts)] {
        if part.weights > 0 {
            let (size, count) = (text::size(part.bytes), text::plural(part.weights, "weight"));
            screen.line(&format!("  {name:7}  {0}{size:>9}{0:#}  {count}", paint.size))?;
        }
    }
    if let (Some(memory), Some(fits)) = (*memory, *fits) {
        let (rest, size) = (bytes.abs_diff(memory), text::size(memory));
        screen.line("")?;
        screen.line(&if fits {
            format!("{0}fits{0:#} into {size}: {1} are left for activations and caches", paint.good, text::size(rest))
        } else {
            format!("{0}does not fit{0:#} into {size}: {1} are missing", paint.error, text::size(rest))
        })?;
    }
    Ok(())
}
