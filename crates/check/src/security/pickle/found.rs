//! What was found in a pickle, before it is known whether it is one.

use std::collections::HashMap;

use max_weights::Diagnostic;
use max_weights::rules::Rule;

use super::StorageSeen;

/// Findings of one rule that are kept for one pickle.
const KEPT: usize = 100;
/// Positions that are kept at which other readers would continue.
const MAX_ALTERNATIVES: usize = 16;
/// Nested pickles that are examined.
const MAX_NESTED: usize = 1_000;
/// Calls and values that are written out.
const MAX_SHOWN: usize = 20_000;
/// Bytes that are decoded for one pickle, also before and after it.
const MAX_DECODED: usize = 64 << 20;
/// Storages that are distinguished.
const MAX_STORAGES: usize = 2_000_000;

/// Bytes in a pickle that are, or may be, another one.
#[derive(Debug, Clone)]
pub(super) struct Nested {
    /// The offset of the value.
    pub(super) at: u64,
    /// Whether something unpickles them.
    pub(super) is_loaded: bool,
    pub(super) data: Data,
}

/// Where the bytes are.
#[derive(Debug, Clone)]
pub(super) enum Data {
    /// In the pickle.
    ObjectHead { start: u64, len: u64 },
    /// They were decoded.
    Decoded(Vec<u8>),
}

impl Data {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::ObjectHead { len, .. } => *len,
            Self::Decoded(bytes) => bytes.len() as u64,
        }
    }
}

#[derive(Default)]
pub(super) struct PickleFindings {
    pub(super) findings: Vec<Diagnostic>,
    counts: HashMap<&'static str, usize>,
    pub(super) nested: Vec<Nested>,
    pub(super) alternatives: Vec<u64>,
    pub(super) storages: Vec<StorageSeen>,
    keys: HashMap<String, usize>,
    /// Something names what unpickles bytes.
    pub(super) names_loader: bool,
    /// Something was called.
    pub(super) calls: u64,
    /// So often a reader would import a module.
    pub(super) imports: u64,
    /// Behind the first of joblib's wrappers of arrays, with the calls and the imports up to there.
    pub(super) arrays: Option<(u64, u64, u64)>,
    /// How many of those wrappers are as joblib writes them.
    pub(super) plain_arrays: u64,
    /// How often a call or a value was written out.
    shown: usize,
    /// Bytes that were decoded.
    decoded: usize,
    /// More was there than was looked at.
    pub(super) is_incomplete: bool,
}

impl PickleFindings {
    /// Whether a finding of this rule would be kept: others need no text.
    pub(super) fn has_space(&self, rule: &'static Rule) -> bool {
        self.counts.get(rule.id).is_none_or(|count| *count < KEPT)
    }

    /// Whether another call or value is written out, within the limit of a report.
    pub(super) fn shows(&mut self) -> bool {
        self.shown += 1;
        self.shown <= MAX_SHOWN
    }

    /// Whether `bytes` more may be decoded.
    pub(super) fn decodes(&mut self, bytes: usize) -> bool {
        self.decoded = self.decoded.saturating_add(bytes);
        self.is_incomplete |= self.decoded > MAX_DECODED;
        self.decoded <= MAX_DECODED
    }

    pub(super) fn report(&mut self, rule: &'static Rule, message: String, at: u64, evidence: Option<String>) {
        let count = self.counts.entry(rule.id).or_default();
        *count += 1;
        if *count > KEPT {
            return;
        }
        let finding = Diagnostic::new(rule, message).offset(at);
        self.findings.push(match evidence {
            Some(evidence) => finding.evidence(evidence),
            None => finding,
        });
    }

    /// Keeps a position at which another reader would continue.
    pub(super) fn alternative(&mut self, at: u64) {
        if self.alternatives.len() < MAX_ALTERNATIVES {
            self.alternatives.push(at);
        }
    }

    pub(super) fn nested(&mut self, nested: Nested) {
        if self.nested.len() < MAX_NESTED {
            self.nested.push(nested);
        } else {
            self.is_incomplete = true;
        }
    }

    /// Keeps a storage; false if it was declared with another size before.
    pub(super) fn storage(&mut self, key: String, elements: Option<u64>, bytes: Option<u64>) -> bool {
        if let Some(seen) = self.keys.get(&key).and_then(|place| self.storages.get(*place)) {
            return seen.bytes == bytes;
        }
        if self.storages.len() >= MAX_STORAGES {
            self.is_incomplete = true;
            return true;
        }
        self.keys.insert(key.clone(), self.storages.len());
        self.storages.push(StorageSeen { key, elements, bytes });
        true
    }

    /// Adds what was found in another pickle.
    pub(super) fn merge(&mut self, other: Self) {
        for finding in other.findings {
            self.report(finding.rule, finding.message, finding.offset.unwrap_or_default(), finding.evidence);
        }
        other.nested.into_iter().for_each(|nested| self.nested(nested));
        other.alternatives.into_iter().for_each(|at| self.alternative(at));
        self.names_loader |= other.names_loader;
        self.calls += other.calls;
        self.imports += other.imports;
        self.is_incomplete |= other.is_incomplete;
    }
}
