//! What differs, for programs: one object of JSON, whose keys are documented in docs/cli.md.

use serde::Serialize;

use super::{Difference, DifferenceOptions, DifferingTensor, MetadataChange, OneSidedTensor, Renamed, Side};

/// What differs, with how it was compared.
#[derive(Debug, Serialize)]
pub struct DifferenceJson<'a> {
    schema: &'static str,
    different: bool,
    a: &'a Side,
    b: &'a Side,
    rtol: f64,
    atol: f64,
    exact: bool,
    /// Whether the values were compared.
    values: bool,
    same: u64,
    close: u64,
    removed: &'a [OneSidedTensor],
    added: &'a [OneSidedTensor],
    renamed: &'a [Renamed],
    changed: &'a [DifferingTensor],
    not_compared: Vec<NotCompared<'a>>,
    metadata: &'a [MetadataChange],
    metadata_note: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct NotCompared<'a> {
    name: &'a str,
    reason: &'a str,
}

impl<'a> DifferenceJson<'a> {
    /// Of a comparison with these options.
    pub fn new(found: &'a Difference, options: &DifferenceOptions) -> Self {
        Self {
            schema: "max-weights.diff/1",
            different: !found.is_none(),
            a: &found.a,
            b: &found.b,
            rtol: options.rtol,
            atol: options.atol,
            exact: options.exact,
            values: options.values,
            same: found.same,
            close: found.close,
            removed: &found.removed,
            added: &found.added,
            renamed: &found.renamed,
            changed: &found.changed,
            not_compared: found.not_compared.iter().map(|(name, reason)| NotCompared { name, reason }).collect(),
            metadata: &found.metadata,
            metadata_note: found.metadata_note.as_deref(),
        }
    }
}
