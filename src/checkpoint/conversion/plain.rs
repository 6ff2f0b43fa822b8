//! Rules in the form that Python passes: strings and numbers.

use super::rule::{ConversionRule, ConversionStep};
use crate::error::{Error, Result};
use crate::names::Template;

/// The templates of the sources and targets, and the steps: the name, the numbers and the proportions of each.
pub type PlainRule = (Vec<String>, Vec<String>, Vec<(String, Vec<i64>, Vec<u64>)>);

impl ConversionRule {
    /// Parses the rule.
    ///
    /// # Errors
    /// See [`Self::new`]; also an unknown step.
    pub fn of_plain((sources, targets, steps): &PlainRule) -> Result<Self> {
        let templates = |names: &[String]| names.iter().map(|name| Template::parse(name)).collect::<Result<Vec<_>>>();
        let step = |(name, numbers, parts): &(String, Vec<i64>, Vec<u64>)| {
            let unknown = || Error::Argument(format!("there is no step {name} with the numbers {numbers:?}"));
            if let ("add", [amount]) = (name.as_str(), numbers.as_slice()) {
                return Ok(ConversionStep::Add(i32::try_from(*amount).map_err(|_| unknown())?));
            }
            let numbers = numbers.iter().map(|number| usize::try_from(*number).map_err(|_| unknown()));
            let numbers = numbers.collect::<Result<Vec<_>>>()?;
            let groups = |numbers: &[usize]| numbers.first().map(|groups| *groups as u64);
            Ok(match (name.as_str(), numbers.as_slice()) {
                ("stack", [axis]) => ConversionStep::Stack(*axis),
                ("unstack", [axis]) => ConversionStep::Unstack(*axis),
                ("concatenate", [axis]) => ConversionStep::Concatenate(*axis),
                ("split", [axis]) => ConversionStep::Split(*axis, parts.clone()),
                ("transpose", [first, second]) => ConversionStep::Transpose(*first, *second),
                ("interleave", [axis, rest @ ..]) => ConversionStep::Interleave(*axis, groups(rest)),
                ("deinterleave", [axis, rest @ ..]) => ConversionStep::Deinterleave(*axis, groups(rest), parts.clone()),
                _ => return Err(unknown()),
            })
        };
        let steps = steps.iter().map(step).collect::<Result<Vec<_>>>()?;
        Self::new(templates(sources)?, templates(targets)?, steps)
    }
}
