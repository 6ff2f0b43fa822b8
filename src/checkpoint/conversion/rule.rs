//! Conversion rules: the names of source and target weights, and the steps between the tensors.

use crate::error::{Error, Result};
use crate::names::Template;

/// The maximum number of tensors that one is split into.
const MAX_PARTS: u64 = 1 << 16;

/// The maximum magnitude of an added number: float32 represents all integers up to it.
const MAX_AMOUNT: u32 = 1 << 24;

/// A step of a conversion between two layouts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConversionStep {
    /// Stacks the tensors of a list along a new axis.
    Stack(usize),
    /// Splits a tensor into a list, one element per position of an axis, which is removed.
    Unstack(usize),
    /// Concatenates the tensors of all sources along an axis.
    Concatenate(usize),
    /// Splits a tensor into one per target, in these proportions along an axis; in equal parts without proportions.
    Split(usize, Vec<u64>),
    /// Swaps two axes.
    Transpose(usize, usize),
    /// Interleaves the tensors of all sources along an axis. Each is cut into this number of equal groups; the first groups of all tensors come
    /// first, then the second ones. `None`: a group is one position.
    Interleave(usize, Option<u64>),
    /// Undoes an interleave, with one tensor per target: within each of this number of equal groups along an axis, the targets have these
    /// proportions.
    Deinterleave(usize, Option<u64>, Vec<u64>),
    /// Adds a number to each element, in float32, or in float64 for elements of that type. The sum is rounded to the requested dtype.
    Add(i32),
}

/// Names, and the steps for the tensors that match them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversionRule {
    pub(super) sources: Vec<Template>,
    pub(super) targets: Vec<Template>,
    steps: Vec<ConversionStep>,
}

/// A tensor between steps, or a list of tensors of one shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StepSlot {
    pub(super) shape: Vec<u64>,
    /// The length of the list; `None` for a single tensor.
    pub(super) count: Option<u32>,
}

impl ConversionRule {
    /// Converts weights that match `sources` to weights that match `targets`, by `steps`. The sign `#` matches the numbers of a list; a star in a
    /// target is the text of the star in the sources.
    ///
    /// # Errors
    /// Templates with different numbers of `*`; steps whose outputs do not match the targets.
    pub fn new(sources: Vec<Template>, targets: Vec<Template>, steps: Vec<ConversionStep>) -> Result<Self> {
        let rule = Self { sources, targets, steps };
        rule.check().map_err(|cause| Error::Argument(format!("the rule {}: {cause}", rule.text())))?;
        Ok(rule)
    }

    fn check(&self) -> std::result::Result<(), String> {
        let Some(stars) = self.sources.first().map(Template::stars) else { return Err("it has no source".into()) };
        let all = || self.sources.iter().chain(&self.targets);
        if let Some(other) = all().find(|template| template.stars() != stars) {
            let (first, other) = (self.sources[0].text(), other.text());
            return Err(format!("'{other}' and '{first}' have different numbers of *"));
        }
        let lists = |templates: &[Template]| {
            let first = templates.first().is_some_and(Template::is_numbered);
            let same = templates.iter().all(|template| template.is_numbered() == first);
            same.then_some(first).ok_or("either all sources have a #, or none has; the same holds for targets")
        };
        let (mut slots, mut is_list) = (self.sources.len(), lists(&self.sources)?);
        for (number, step) in self.steps.iter().enumerate() {
            let one = |name: &str| {
                if slots == 1 { Ok(()) } else { Err(format!("{name} takes one tensor, not {slots}")) }
            };
            match step {
                ConversionStep::Stack(_) if is_list && number == 0 => is_list = false,
                ConversionStep::Stack(_) => return Err("Stack must be the first step, and its sources need a #".into()),
                ConversionStep::Unstack(_) if !is_list && number + 1 == self.steps.len() => is_list = true,
                ConversionStep::Unstack(_) => {
                    return Err("Unstack must be the last step, of one tensor or several".into());
                }
                ConversionStep::Concatenate(_) | ConversionStep::Interleave(..) => slots = 1,
                ConversionStep::Split(_, parts) => {
                    one("Split")?;
                    slots = self.slots_of(parts)?;
                }
                ConversionStep::Deinterleave(_, _, parts) => {
                    one("Deinterleave")?;
                    slots = self.slots_of(parts)?;
                }
                ConversionStep::Add(amount) if amount.unsigned_abs() > MAX_AMOUNT => {
                    return Err(format!("Add adds numbers up to {MAX_AMOUNT}, not {amount}"));
                }
                ConversionStep::Add(_)
                    if self.steps[..number].iter().any(|step| matches!(step, ConversionStep::Add(_))) =>
                {
                    return Err("Add must occur once, with the sum".into());
                }
                ConversionStep::Transpose(..) | ConversionStep::Add(_) => {}
            }
        }
        if slots != self.targets.len() {
            return Err(format!("its steps lead to {slots} tensors, but it has {} targets", self.targets.len()));
        }
        if is_list != lists(&self.targets)? {
            let cause = if is_list { "a list, but the targets have no #" } else { "no list, and the targets have a #" };
            return Err(format!("its steps lead to {cause}"));
        }
        Ok(())
    }

    /// The number of tensors after a split in these proportions.
    fn slots_of(&self, parts: &[u64]) -> std::result::Result<usize, String> {
        match parts {
            [] => Ok(self.targets.len()),
            parts if parts.contains(&0) => Err(format!("the proportions {parts:?} must not contain 0")),
            parts => Ok(parts.len()),
        }
    }

    /// The steps of the rule.
    pub fn steps(&self) -> &[ConversionStep] {
        &self.steps
    }

    /// The number of targets.
    pub(crate) fn targets(&self) -> usize {
        self.targets.len()
    }

    /// The number of tensors, or lists of tensors, after `steps` steps.
    pub(crate) fn slots(&self, steps: usize) -> usize {
        let after = |slots: usize, step: &ConversionStep| match step {
            ConversionStep::Concatenate(_) | ConversionStep::Interleave(..) => 1,
            ConversionStep::Split(_, parts) | ConversionStep::Deinterleave(_, _, parts) if parts.is_empty() => {
                self.targets.len()
            }
            ConversionStep::Split(_, parts) | ConversionStep::Deinterleave(_, _, parts) => parts.len(),
            ConversionStep::Stack(_)
            | ConversionStep::Unstack(_)
            | ConversionStep::Transpose(..)
            | ConversionStep::Add(_) => slots,
        };
        self.steps[..steps].iter().fold(self.sources.len(), after)
    }

    /// Whether it adds a number to the elements.
    pub(super) fn adds(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, ConversionStep::Add(_)))
    }

    /// Whether it only renames one weight.
    pub(super) fn only_renames(&self) -> bool {
        self.steps.is_empty() && self.sources.len() == 1
    }

    /// The rule as messages show it.
    pub fn text(&self) -> String {
        let list = |templates: &[Template]| templates.iter().map(Template::text).collect::<Vec<_>>().join(", ");
        format!("'{} -> {}'", list(&self.sources), list(&self.targets))
    }

    /// Applies the steps to the shapes of the sources; an error if they do not fit. `block` elements along the last axis are stored together.
    pub(super) fn apply(&self, mut slots: Vec<StepSlot>, block: u64) -> std::result::Result<Vec<StepSlot>, String> {
        for step in &self.steps {
            slots = step.apply(slots, self.targets.len(), block)?;
        }
        Ok(slots)
    }
}

impl ConversionStep {
    fn apply(
        &self,
        mut slots: Vec<StepSlot>,
        targets: usize,
        block: u64,
    ) -> std::result::Result<Vec<StepSlot>, String> {
        match self {
            Self::Stack(axis) => {
                for StepSlot { shape, count } in &mut slots {
                    if *axis > shape.len() || (block > 1 && *axis == shape.len()) {
                        return Err(format!("a tensor of {shape:?} cannot get a new axis {axis}"));
                    }
                    shape.insert(*axis, u64::from(count.take().unwrap_or(1)));
                }
            }
            Self::Unstack(axis) => {
                for StepSlot { shape, count } in &mut slots {
                    check_axis(shape, *axis)?;
                    check_whole(shape, *axis, 1, block)?;
                    let size = shape.remove(*axis);
                    if size > MAX_PARTS {
                        return Err(format!("a tensor can be split into {MAX_PARTS} at most, not into {size}"));
                    }
                    *count = Some(size as u32);
                }
            }
            Self::Concatenate(axis) => return joined(slots, *axis, block, Turns::None),
            Self::Interleave(axis, groups) => return joined(slots, *axis, block, Turns::of(*groups)),
            Self::Split(axis, parts) => return parted(slots, *axis, parts, targets, block, 1),
            Self::Deinterleave(axis, groups, parts) => {
                let size = slots.first().and_then(|slot| slot.shape.get(*axis)).copied().unwrap_or_default();
                let count = if parts.is_empty() { targets } else { parts.len() };
                let groups = groups.unwrap_or(size / count as u64).max(1);
                return parted(slots, *axis, parts, targets, block, groups);
            }
            Self::Transpose(first, second) => {
                for StepSlot { shape, .. } in &mut slots {
                    check_axis(shape, *first)?;
                    check_axis(shape, *second)?;
                    if block > 1 && (*first).max(*second) + 1 == shape.len() && first != second {
                        return Err("blocks lie along the last axis, which must stay the last".into());
                    }
                    shape.swap(*first, *second);
                }
            }
            Self::Add(_) => {}
        }
        Ok(slots)
    }
}

/// The sizes of parts in these proportions; equal sizes without proportions.
pub(crate) fn sizes_of_parts(size: u64, parts: &[u64], count: usize) -> Option<Vec<u64>> {
    let all: u64 = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(*part))?;
    let of = |numerator: u64, denominator: u64| {
        let product = u128::from(size) * u128::from(numerator);
        let denominator = u128::from(denominator);
        (denominator > 0 && product % denominator == 0).then(|| (product / denominator) as u64)
    };
    if parts.is_empty() {
        return of(1, count as u64).map(|part| vec![part; count]);
    }
    parts.iter().map(|part| of(*part, all)).collect()
}

fn check_axis(shape: &[u64], axis: usize) -> std::result::Result<(), String> {
    if axis < shape.len() { Ok(()) } else { Err(format!("a tensor of {shape:?} has no axis {axis}")) }
}

/// Fails if a block would be split.
fn check_whole(shape: &[u64], axis: usize, size: u64, block: u64) -> std::result::Result<(), String> {
    if axis + 1 < shape.len() || size.is_multiple_of(block) {
        return Ok(());
    }
    Err(format!("{block} elements of the last axis of {shape:?} are stored together, and cannot be split"))
}

/// How concatenated tensors alternate.
#[derive(Clone, Copy)]
enum Turns {
    /// Not at all: one follows the other.
    None,
    /// Position by position.
    Positions,
    /// This number of groups per tensor.
    Groups(u64),
}

impl Turns {
    fn of(groups: Option<u64>) -> Self {
        groups.map_or(Self::Positions, Self::Groups)
    }
}

fn joined(slots: Vec<StepSlot>, axis: usize, block: u64, turns: Turns) -> std::result::Result<Vec<StepSlot>, String> {
    let mut slots = slots.into_iter();
    let Some(mut whole) = slots.next() else { return Ok(Vec::new()) };
    check_axis(&whole.shape, axis)?;
    let first = whole.shape.clone();
    let check_groups = |shape: &[u64]| match turns {
        Turns::None => Ok(()),
        Turns::Positions if shape[axis] == first[axis] => check_whole(shape, axis, 1, block),
        Turns::Positions => Err(format!("{shape:?} and {first:?} differ in length along axis {axis}")),
        Turns::Groups(groups) if groups > 0 && shape[axis].is_multiple_of(groups) => {
            check_whole(shape, axis, shape[axis] / groups, block)
        }
        Turns::Groups(groups) => Err(format!("axis {axis} of {shape:?} cannot be split into {groups} equal groups")),
    };
    check_groups(&first)?;
    for StepSlot { shape, count } in slots {
        let mut like = shape.clone();
        if let (Some(dim), true) = (like.get_mut(axis), shape.len() == first.len()) {
            *dim = first[axis];
        }
        if like != first || count != whole.count {
            return Err(format!("{shape:?} cannot be concatenated to {first:?} along axis {axis}"));
        }
        check_groups(&shape)?;
        whole.shape[axis] = whole.shape[axis].checked_add(shape[axis]).ok_or("the size overflows")?;
    }
    Ok(vec![whole])
}

fn parted(
    slots: Vec<StepSlot>,
    axis: usize,
    parts: &[u64],
    targets: usize,
    block: u64,
    groups: u64,
) -> std::result::Result<Vec<StepSlot>, String> {
    let Some(StepSlot { shape, count }) = slots.into_iter().next() else { return Ok(Vec::new()) };
    check_axis(&shape, axis)?;
    let of_group = shape[axis].is_multiple_of(groups).then(|| shape[axis] / groups);
    let Some(sizes) = of_group.and_then(|size| sizes_of_parts(size, parts, targets)) else {
        let (in_groups, proportions) = (
            if groups == 1 { String::new() } else { format!(" in each of {groups} groups") },
            if parts.is_empty() {
                format!("{targets} equal parts")
            } else {
                format!("parts in the proportions {parts:?}")
            },
        );
        return Err(format!("axis {axis} of {shape:?} cannot be split into {proportions}{in_groups}"));
    };
    let part = |size: u64| {
        check_whole(&shape, axis, size, block)?;
        let mut shape = shape.clone();
        shape[axis] = size * groups;
        Ok(StepSlot { shape, count })
    };
    sizes.into_iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(sources: &[&str], targets: &[&str], steps: &[ConversionStep]) -> Result<ConversionRule> {
        let parsed = |texts: &[&str]| texts.iter().map(|text| Template::parse(text)).collect::<Result<Vec<_>>>();
        ConversionRule::new(parsed(sources)?, parsed(targets)?, steps.to_vec())
    }

    fn slot(shape: &[u64], count: Option<u32>) -> StepSlot {
        StepSlot { shape: shape.to_vec(), count }
    }

    #[test]
    fn experts_become_one_tensor_and_come_apart_again() {
        let (apart, packed) = (["*.e.#.w1", "*.e.#.w3"], ["*.e.gate_up"]);
        let packs = rule(&apart, &packed, &[ConversionStep::Stack(0), ConversionStep::Concatenate(1)]).expect("a rule");
        let expert = slot(&[6, 4], Some(8));
        assert_eq!(packs.apply(vec![expert.clone(), expert.clone()], 1), Ok(vec![slot(&[8, 12, 4], None)]));
        let splits =
            rule(&packed, &apart, &[ConversionStep::Split(1, vec![]), ConversionStep::Unstack(0)]).expect("a rule");
        assert_eq!(splits.apply(vec![slot(&[8, 12, 4], None)], 1), Ok(vec![expert.clone(), expert]));
        let refused = |slot: StepSlot| splits.apply(vec![slot], 1).expect_err("refused");
        assert!(refused(slot(&[8, 13, 4], None)).contains("cannot be split into 2 equal parts"));
        assert!(refused(slot(&[1 << 40, 2, 0], None)).contains("65536 at most"));
        assert!(refused(slot(&[8], None)).contains("no axis 1"));
    }

    #[test]
    fn queries_keys_and_values_are_as_long_as_their_proportions_say() {
        let fused = rule(&["qkv"], &["q", "k", "v"], &[ConversionStep::Split(0, vec![4, 2, 2])]).expect("a rule");
        let shapes = fused.apply(vec![slot(&[32, 5], None)], 1).expect("parts");
        assert_eq!(shapes, [slot(&[16, 5], None), slot(&[8, 5], None), slot(&[8, 5], None)]);
        let groups = rule(&["qkv"], &["q", "k", "v"], &[ConversionStep::Deinterleave(0, Some(2), vec![2, 1, 1])])
            .expect("a rule");
        assert_eq!(groups.apply(vec![slot(&[32, 5], None)], 1).expect("parts"), shapes);
        assert!(groups.apply(vec![slot(&[33, 5], None)], 1).expect_err("odd").contains("in each of 2 groups"));
        let back = rule(&["q", "k", "v"], &["qkv"], &[ConversionStep::Interleave(0, Some(2))]).expect("a rule");
        assert_eq!(back.apply(shapes, 1), Ok(vec![slot(&[32, 5], None)]));
        assert_eq!(sizes_of_parts(u64::MAX, &[u64::MAX, 1], 2), None, "no overflow");
    }

    #[test]
    fn blocks_are_not_taken_apart() {
        let wide = rule(&["a"], &["b", "c"], &[ConversionStep::Split(1, vec![])]).expect("a rule");
        assert!(wide.apply(vec![slot(&[4, 32], None)], 32).expect_err("refused").contains("stored together"));
        assert!(wide.apply(vec![slot(&[4, 64], None)], 32).is_ok());
        let turned = rule(&["a"], &["b"], &[ConversionStep::Transpose(0, 1)]).expect("a rule");
        assert!(turned.apply(vec![slot(&[4, 64], None)], 32).expect_err("refused").contains("must stay the last"));
    }

    #[test]
    fn a_rule_whose_steps_do_not_lead_to_its_targets_is_refused() {
        let wrong = |sources: &[&str], targets: &[&str], steps: &[ConversionStep]| {
            rule(sources, targets, steps).expect_err("refused").to_string()
        };
        assert!(wrong(&["a", "b"], &["c"], &[]).contains("'a, b -> c': its steps lead to 2 tensors, but it has 1"));
        assert!(wrong(&["*.a"], &["a"], &[]).contains("different numbers of *"));
        assert!(wrong(&["a.#"], &["a"], &[]).contains("the targets have no #"));
        assert!(wrong(&["a"], &["a.#"], &[]).contains("the targets have a #"));
        assert!(wrong(&["a"], &["b"], &[ConversionStep::Stack(0)]).contains("Stack must be the first step"));
        assert!(
            wrong(&["a"], &["b.#"], &[ConversionStep::Unstack(0), ConversionStep::Transpose(0, 1)])
                .contains("Unstack must be the last")
        );
        assert!(
            wrong(&["a"], &["b", "c"], &[ConversionStep::Split(0, vec![1])])
                .contains("lead to 1 tensors, but it has 2")
        );
        assert!(wrong(&["a"], &["b", "c"], &[ConversionStep::Split(0, vec![1, 0])]).contains("must not contain 0"));
        assert!(wrong(&["a", "b"], &["c", "d"], &[ConversionStep::Split(0, vec![])]).contains("takes one tensor"));
        assert!(
            wrong(&["a"], &["b"], &[ConversionStep::Add(1), ConversionStep::Add(1)]).contains("Add must occur once")
        );
        assert!(wrong(&["a"], &["b"], &[ConversionStep::Add(i32::MIN)]).contains("numbers up to 16777216"));
        assert!(wrong(&["a.#", "b"], &["c"], &[]).contains("either all sources"));
        assert!(wrong(&[], &[], &[]).contains("no source"));
    }
}
