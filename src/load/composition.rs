//! Weights that no array of a file represents: a converted checkpoint's rules give their recipes.

use super::recipe::{Recipe, WHOLE};
use crate::buffer::IndexPart;
use crate::checkpoint::{Catalog, Composition, ConversionRule, ConversionStep, WeightRecipe, sizes_of_parts};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Region;

impl Catalog {
    /// The recipe of weight `number`, its elements as `dtype` or unchanged. A weight that an array of a file represents has one piece.
    ///
    /// # Errors
    /// See [`Self::tensor_request`], for each source weight.
    ///
    /// # Panics
    /// If there is no weight of this number.
    pub fn recipe(&self, number: usize, dtype: Option<DType>) -> Result<Recipe> {
        let (Some(composition), Some(made)) = (self.composition(), self.made(number)) else {
            return match self.pieces(self.table().get(number).file) {
                Some(pieces) => self.recipe_of_pieces(number, pieces, dtype),
                None => self.tensor_request(number, dtype).map(Recipe::from),
            };
        };
        match made {
            WeightRecipe::Refused(why) => Err(composition.refused[why as usize].clone().format()),
            WeightRecipe::Same(number) => composition.of.recipe(number as usize, dtype),
            WeightRecipe::Of { group, slot, element } => {
                let (rule, sources) = &composition.groups[group as usize];
                let rule = &composition.rules[*rule];
                let making = RuleOutput { composition, rule, sources, dtype };
                making.tensor(rule.steps().len(), slot as usize, element as usize).map(Recipe::in_order)
            }
        }
    }

    /// As [`Self::recipe`], for a region in elements, also of packed weights. With `whole`, the entire weight is read.
    ///
    /// # Errors
    /// See [`Self::recipe`]; also a region that splits a block.
    ///
    /// # Panics
    /// If there is no weight of this number.
    pub fn request(&self, number: usize, dtype: Option<DType>, region: Option<&Region>, whole: bool) -> Result<Recipe> {
        let is_composed = self.made(number).is_some();
        let recipe = self.recipe(number, dtype)?;
        if whole && is_composed && recipe.one().is_none() {
            return Err(Error::Argument(
                "a digest covers one weight of the file, but this weight is composed of several: load without digests"
                    .into(),
            ));
        }
        let Some(region) = region else { return Ok(recipe) };
        let is_of_pieces = is_composed || self.pieces(self.table().get(number).file).is_some() && !whole;
        if is_of_pieces {
            return recipe.region(region);
        }
        match recipe.into_one() {
            Ok(one) if whole => self.cut_of_whole(one, number, region).map(Recipe::from),
            Ok(one) => self.cut(one, number, region).map(Recipe::from),
            Err(recipe) => recipe.region(region),
        }
    }
}

/// The weights that a rule produces from a group of weights.
struct RuleOutput<'a> {
    composition: &'a Composition,
    rule: &'a ConversionRule,
    sources: &'a [Box<[u32]>],
    dtype: Option<DType>,
}

impl RuleOutput<'_> {
    /// The tensor in a slot after `steps` steps, or one element of the list there. Only its inputs are evaluated.
    fn tensor(&self, steps: usize, slot: usize, element: usize) -> Result<Recipe> {
        let Some(before) = steps.checked_sub(1) else {
            let source = self.sources.get(slot).and_then(|source| source.get(element));
            let source = *source.ok_or_else(|| Error::Argument("one of its source weights is missing".into()))?;
            return self.composition.of.recipe(source as usize, self.dtype);
        };
        let of = |slot: usize, element: usize| self.tensor(before, slot, element);
        let slots = || 0..self.rule.slots(before);
        match &self.rule.steps()[before] {
            ConversionStep::Stack(axis) => {
                let count = self.sources.get(slot).map_or(0, |source| source.len());
                let all = (0..count).map(|element| of(slot, element)).collect::<Result<Vec<_>>>()?;
                Recipe::stack(*axis, &all)
            }
            ConversionStep::Unstack(axis) => of(slot, 0)?.index(&at(*axis, IndexPart::At(element as i64))),
            ConversionStep::Concatenate(axis) => {
                Recipe::join(*axis, slots().map(|slot| of(slot, element)).collect::<Result<_>>()?)
            }
            ConversionStep::Split(axis, parts) => self.part(&of(0, element)?, *axis, parts, slot),
            ConversionStep::Transpose(first, second) => {
                let tensor = of(slot, element)?;
                let mut order: Vec<usize> = (0..tensor.shape().len()).collect();
                order.swap(*first, *second);
                tensor.transpose(&order)
            }
            ConversionStep::Add(amount) => of(slot, element)?.with_sum(*amount),
            ConversionStep::Interleave(axis, groups) => {
                let cut = |slot: usize| {
                    let tensor = of(slot, element)?;
                    let size = tensor.shape()[*axis];
                    tensor.unflatten(*axis, group_size(size, groups.unwrap_or(size as u64)))
                };
                Recipe::join(axis + 1, slots().map(cut).collect::<Result<_>>()?)?.flatten(*axis)
            }
            ConversionStep::Deinterleave(axis, groups, parts) => {
                let whole = of(0, element)?;
                let count = if parts.is_empty() { self.rule.targets() } else { parts.len() };
                let size = whole.shape()[*axis];
                let groups = groups.unwrap_or(size as u64 / count as u64);
                let cut = whole.unflatten(*axis, group_size(size, groups))?;
                self.part(&cut, axis + 1, parts, slot)?.flatten(*axis)
            }
        }
    }

    /// One of the parts of these proportions along an axis.
    fn part(&self, whole: &Recipe, axis: usize, parts: &[u64], number: usize) -> Result<Recipe> {
        let size = whole.shape().get(axis).copied().unwrap_or_default() as u64;
        let sizes = sizes_of_parts(size, parts, self.rule.targets());
        let sizes = sizes
            .ok_or_else(|| Error::Argument(format!("{size} elements cannot be split in the proportions {parts:?}")))?;
        let start = sizes[..number].iter().sum::<u64>() as i64;
        let stop = start + sizes[number] as i64;
        whole.index(&at(axis, IndexPart::Slice { start: Some(start), stop: Some(stop), step: 1 }))
    }
}

/// The number of positions per group.
fn group_size(size: i64, groups: u64) -> i64 {
    (size / i64::try_from(groups).unwrap_or(i64::MAX).max(1)).max(1)
}

/// An index of one axis.
fn at(axis: usize, index: IndexPart) -> Vec<IndexPart> {
    let mut expression = vec![WHOLE; axis];
    expression.push(index);
    expression
}

impl Recipe {
    /// A region in elements: the ranges of each cut axis, concatenated.
    ///
    /// # Errors
    /// See [`Self::index`]; also an axis or elements out of bounds.
    pub fn region(&self, region: &Region) -> Result<Self> {
        let mut found = self.clone();
        for (axis, ranges) in region {
            let size = found.shape().get(*axis).copied().unwrap_or_default() as u64;
            if *axis >= found.shape().len() || ranges.iter().any(|range| range.start > range.end || range.end > size) {
                let shape = found.shape();
                return Err(Error::Argument(format!(
                    "a tensor of {shape:?} has no elements {ranges:?} on axis {axis}"
                )));
            }
            let part = |range: &std::ops::Range<u64>| {
                let (start, stop) = (Some(range.start as i64), Some(range.end as i64));
                found.index(&at(*axis, IndexPart::Slice { start, stop, step: 1 }))
            };
            found = match ranges.as_slice() {
                [] => part(&(0..0))?,
                [range] => part(range)?,
                ranges => Self::join(*axis, ranges.iter().map(part).collect::<Result<_>>()?)?.in_order(),
            };
        }
        Ok(found)
    }
}
