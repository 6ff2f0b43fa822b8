//! What differs, as findings: for whoever reports differences as broken rules are reported.

use std::path::Path;
use std::sync::Arc;

use max_weights::rules;
use max_weights::text::{self, shown};

use super::{Difference, Renamed, Tensor, Values};
use crate::finding::Finding;

impl Difference {
    /// A finding of each thing that differs, about the first file of the second checkpoint; those that change what a model computes first.
    pub fn findings(&self) -> Vec<Finding> {
        let tensor = |tensor: &Tensor| {
            let (name, dtype) = (shown(&tensor.name), shown(&tensor.dtype));
            format!("'{name}', {dtype} of shape {}", text::shape(&tensor.shape))
        };
        let mut found = Vec::new();
        for changed in &self.changed {
            let name = shown(&changed.name);
            let mut add = |rule, message: String| found.push(Finding::new(rule, message).tensor(&changed.name));
            if let Some((a, b)) = &changed.shape {
                let (a, b) = (text::shape(a), text::shape(b));
                add(rules::DIFFERENCE_SHAPE, format!("'{name}' has shape {b}, and {a} in the first checkpoint"));
            }
            if let Some((a, b)) = &changed.dtype {
                let (a, b) = (shown(a), shown(b));
                add(rules::DIFFERENCE_DTYPE, format!("'{name}' is {b}, and {a} in the first checkpoint"));
            }
            if let Some(values) =
                changed.values.as_ref().filter(|values| values.differing > 0 || changed.dtype.is_none())
            {
                add(rules::DIFFERENCE_VALUES, format!("'{name}': {}", values.sentence()));
            }
        }
        let only = |rule, which: &str, list: &[Tensor]| -> Vec<Finding> {
            let finding =
                |of: &Tensor| Finding::new(rule, format!("{} is in the {which} only", tensor(of))).tensor(&of.name);
            list.iter().map(finding).collect()
        };
        found.extend(only(rules::DIFFERENCE_REMOVED, "first checkpoint", &self.removed));
        found.extend(only(rules::DIFFERENCE_ADDED, "second checkpoint", &self.added));
        found.extend(self.renamed.iter().map(|Renamed { a, b }| {
            Finding::new(rules::DIFFERENCE_RENAMED, format!("{} is called '{}'", tensor(a), shown(b))).tensor(b)
        }));
        found.extend(self.not_compared.iter().map(|(name, reason)| {
            Finding::new(rules::DIFFERENCE_NOT_COMPARED, format!("'{}': {reason}", shown(name))).tensor(name)
        }));
        found.extend(self.metadata.iter().map(|change| {
            let value = |value: &Option<String>| {
                value.as_ref().map_or_else(|| "not there".to_owned(), |value| format!("'{value}'"))
            };
            let (key, a, b) = (shown(&change.key), value(&change.a), value(&change.b));
            Finding::new(rules::DIFFERENCE_METADATA, format!("the key '{key}' is {b}, and {a} in the first checkpoint"))
        }));
        let path: Arc<Path> = self.b.files.first().cloned().unwrap_or_default().into();
        for finding in &mut found {
            finding.path = path.clone();
        }
        found
    }
}

impl Values {
    /// How the values differ, in words.
    pub fn sentence(&self) -> String {
        let of = format!("{} of {}", text::grouped(self.differing), text::plural(self.elements, "value"));
        let mut words = format!("{of} differ");
        if let (Some(index), Some((a, b))) = (&self.index, self.at) {
            words += &format!(", by at most {:?}, at {}: {a:?} and {b:?}", self.largest, text::shape(index));
        }
        if self.nans > 0 {
            words += &format!("; {} are NaN on one side only", text::grouped(self.nans));
        }
        if let Some(cosine) = self.cosine {
            words += &format!("; the cosine similarity is {cosine:.6}");
        }
        words
    }
}
