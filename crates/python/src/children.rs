//! How a node of the tree lists and finds the names below it.

use std::borrow::Cow;
use std::collections::BTreeSet;

use max_weights::error::Error;
use max_weights::names::join;
use max_weights::tensor::TensorInfo;
use max_weights::text;
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::array_names::{OF_ARRAYS, OF_WEIGHTS};
use crate::error::{BindingResult, no_attribute};
use crate::node::WeightsNode;

/// Attributes that mappings or modules have, and their equivalents for weights: suggesting names of weights would not help.
const ELSEWHERE: [(&str, &str); 6] = [
    ("keys", ", and is no mapping: .items() has all (name, weight) pairs at and below it, .children() one level"),
    ("values", ", and is no mapping: .items() has all (name, weight) pairs at and below it, .children() one level"),
    (
        "get",
        ", and is no mapping: weights[name] is a node, and `name in weights` tells whether there is a weight of that name",
    ),
    (
        "state_dict",
        ": .load(framework=\"torch\") gives {name: tensor}, max_weights.lazy_state_dict(weights) tensors that are read when they are used",
    ),
    ("named_parameters", ": .items() has all (name, weight) pairs, .load(framework=\"torch\") gives {name: tensor}"),
    ("to_onnx", ", as weights alone are no model: `onnx.save` of the module `graph` writes a Graph"),
];
/// Functions of the package that users may expect as methods.
const OF_THE_PACKAGE: [&str; 8] =
    ["plan", "stats", "infos", "diff", "fingerprint", "quantized", "renamed", "lazy_state_dict"];

impl WeightsNode {
    /// The name below which the node's methods work, for messages.
    pub(crate) fn title(&self) -> String {
        let (files, count) = (self.catalog().files(), self.catalog().file_count());
        let first = files.first().map(|file| text::path(&file.path)).unwrap_or_default();
        let deltas = self.catalog().changed_by_deltas();
        let others = count.saturating_sub(1 + deltas.map_or(0, |(deltas, _)| deltas));
        let more = if others > 0 { format!(" and {others} more files") } else { String::new() };
        let with = deltas.map_or(String::new(), |(deltas, weights)| {
            let (deltas, weights) = (text::plural(deltas as u64, "delta"), text::plural(weights as u64, "weight"));
            format!(", with {deltas} that changed {weights}")
        });
        format!("{first}{more}{with}")
    }

    /// A short description of a node: a weight's dtype and shape, and the number of weights at and below a prefix.
    pub(crate) fn summary(&self) -> String {
        let name = if self.name().is_empty() { String::new() } else { format!("'{}', ", text::escape(self.name())) };
        let count = self.catalog().range(self.name()).len();
        let weight = self.catalog().find(self.name()).map(|number| {
            let info = self.catalog().table().get(number);
            format!("{} {:?}", text::escape(&info.element.to_string()), info.shape)
        });
        match weight {
            Some(weight) if count == 1 => format!("{name}{weight}"),
            Some(weight) => format!("{name}{weight}, and {}", text::plural(count as u64 - 1, "weight")),
            None => format!("{name}{}", text::plural(count as u64, "weight")),
        }
    }

    /// The file's entry of this weight, for an attribute `key`; without one, the error that makes Python look up a child of that name.
    pub(crate) fn own(&self, key: &str) -> PyResult<TensorInfo<'_>> {
        let number = self.catalog().find(self.name()).filter(|_| !self.has_child(key));
        number.map(|number| self.catalog().table().get(number)).ok_or_else(|| PyAttributeError::new_err(()))
    }

    pub(crate) fn has_child(&self, key: &str) -> bool {
        !self.catalog().range(&join(self.name(), key)).is_empty()
    }

    /// The keys of the children: numbers first, 10 after 9.
    pub(crate) fn child_keys(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = self.catalog().children(self.name()).collect();
        keys.sort_by_cached_key(|key| key.parse::<u64>().unwrap_or(u64::MAX));
        keys
    }

    /// The key of the numbered child that `back` counts from the end; `key` itself if there is a child of that name.
    pub(crate) fn counted_back<'a>(&'a self, key: &'a str, back: &str) -> Result<Cow<'a, str>, Error> {
        let children = self.catalog().children(self.name());
        let mut numbered: Vec<(u64, &str)> = Vec::new();
        for child in children {
            if child == key {
                return Ok(Cow::Borrowed(key));
            }
            numbered.extend(child.parse().ok().map(|number| (number, child)));
        }
        numbered.sort_unstable();
        let at = back.parse().ok().and_then(|back| numbered.len().checked_sub(back));
        at.and_then(|at| numbered.get(at)).map(|(_, child)| Cow::Borrowed(*child)).ok_or_else(|| {
            let (name, key, count) = (text::escape(self.name()), text::escape(key), numbered.len());
            let rows = if self.exists() { "; rows of a weight are slices such as [-1:]" } else { "" };
            Error::Index(format!("'{name}' has {count} numbered children, and no child [{key}]{rows}"))
        })
    }

    /// The error for an empty tree.
    pub(crate) fn missing(&self) -> Option<Error> {
        if self.name().is_empty() || !self.catalog().range(self.name()).is_empty() {
            return None; // a checkpoint without weights is one
        }
        self.catalog().require(self.name()).err()
    }

    /// Refuses a name that cannot be a child by attribute: Python's own names, and usual attributes of arrays or mappings.
    pub(crate) fn require_possible(&self, key: &str) -> BindingResult<()> {
        if key.starts_with('_') && !self.has_child(key) {
            let key = text::escape(key);
            return Err(PyAttributeError::new_err(format!("no attribute '{key}', and no weight with that name")).into());
        }
        if OF_WEIGHTS.contains(&key) && !self.has_child(key) {
            let missing = self.catalog().require(&self.name).err();
            return Err(no_attribute(key, missing).into());
        }
        if let Some((_, instead)) = ELSEWHERE.iter().find(|(name, _)| *name == key).filter(|_| !self.has_child(key)) {
            return Err(PyAttributeError::new_err(format!("a tree has no '{key}'{instead}")).into());
        }
        if OF_THE_PACKAGE.contains(&key) && !self.has_child(key) {
            let message =
                format!("a tree has no '{key}', which is a function of the package: max_weights.{key}(weights)");
            return Err(PyAttributeError::new_err(message).into());
        }
        if OF_ARRAYS.contains(&key) && self.exists() && !self.has_child(key) {
            let name = text::escape(&self.name);
            let message = format!("'{name}' is a weight, and has no child '{key}'; its tensor has it: .data().{key}");
            return Err(PyAttributeError::new_err(message).into());
        }
        Ok(())
    }

    /// The names for `dir`: those of the class, without the attributes of weights if this is none, and the children.
    pub(crate) fn names_in(&self, class: &Bound<'_, PyType>) -> PyResult<Vec<String>> {
        let mut names: BTreeSet<String> = self.catalog().children(self.name()).map(str::to_owned).collect();
        for class in class.call_method0("mro")?.try_iter()? {
            for name in class?.getattr("__dict__")?.try_iter()? {
                let name: String = name?.extract()?;
                if self.exists() || !OF_WEIGHTS.contains(&name.as_str()) {
                    names.insert(name);
                }
            }
        }
        Ok(names.into_iter().collect())
    }
}
