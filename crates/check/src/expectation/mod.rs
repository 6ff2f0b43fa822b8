//! What a checkpoint is expected to be: names, shapes, dtypes, ties, counts. Read from a specification, or taken of a checkpoint that is good.
//!
//! A specification is JSON with the schema `max-weights.expectation/1`; docs/validation.md says what may be in it.

mod check;
mod read;
mod write;

use std::collections::BTreeMap;

use max_weights::Catalog;

pub use check::{check, check_ties};
pub use write::{SCHEMA, of, write};

use crate::glob::Glob;

/// What a checkpoint is expected to be.
#[derive(Debug, Clone, Default)]
pub struct Expectation {
    /// What tensors are to be like, in the order of their names.
    tensors: Vec<ExpectedTensor>,
    /// Symbols of shapes whose values are known beforehand.
    symbols: BTreeMap<String, u64>,
    /// Tensors that are not named above and may be there.
    extra: ExtraTensors,
    /// Groups of names for one tensor: one of each group has to be there, and those that are there are alike.
    ties: Vec<Vec<String>>,
    /// How many values there are to be in all tensors.
    parameters: Option<Bounds>,
    /// Keys of the metadata, and their values, where these are given.
    metadata: Vec<(String, Option<String>)>,
}

/// What the tensors of a name are to be like.
#[derive(Debug, Clone)]
struct ExpectedTensor {
    /// A name, or a pattern of names.
    name: Glob,
    /// None: any.
    shape: Option<Vec<Dim>>,
    /// One of these; none: any.
    dtypes: Vec<String>,
    /// Whether it may be missing.
    optional: bool,
    /// How many have names of this pattern.
    count: Option<ExpectedCount>,
}

/// One dimension of a shape.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Dim {
    /// So long.
    Exact(u64),
    /// As long as all others of this symbol.
    Symbol(String),
    /// Of any length.
    Any,
}

/// How many tensors a pattern is to match.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ExpectedCount {
    Bounds(Bounds),
    /// As many as this symbol says.
    Symbol(String),
}

/// Which other tensors may exist in addition to the expected ones.
#[derive(Debug, Clone)]
enum ExtraTensors {
    /// Those whose names match; with an empty list none.
    These(Vec<Glob>),
    /// Any.
    All,
}

impl Default for ExtraTensors {
    fn default() -> Self {
        Self::These(Vec::new())
    }
}

/// Bounds of a number, which are in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Bounds {
    min: Option<u64>,
    max: Option<u64>,
}

impl Bounds {
    fn exact(number: u64) -> Self {
        Self { min: Some(number), max: Some(number) }
    }

    fn has(self, number: u64) -> bool {
        self.min.is_none_or(|min| number >= min) && self.max.is_none_or(|max| number <= max)
    }

    /// The bounds in words.
    fn words(self) -> String {
        use max_weights::text::grouped;
        match (self.min, self.max) {
            (Some(min), Some(max)) if min == max => grouped(min),
            (Some(min), Some(max)) => format!("{} to {}", grouped(min), grouped(max)),
            (Some(min), None) => format!("at least {}", grouped(min)),
            (None, Some(max)) => format!("at most {}", grouped(max)),
            (None, None) => "any number".to_owned(),
        }
    }
}

impl Expectation {
    /// The names, shapes and dtypes of a checkpoint, and nothing else.
    pub fn of_catalog(catalog: &Catalog) -> Self {
        let requested = |info: max_weights::tensor::TensorInfo<'_>| ExpectedTensor {
            name: Glob::exact(info.name),
            shape: Some(info.shape.iter().map(|dim| Dim::Exact(*dim)).collect()),
            dtypes: vec![info.element.to_string()],
            optional: false,
            count: None,
        };
        Self { tensors: catalog.table().iter().map(requested).collect(), ..Self::default() }
    }
}
