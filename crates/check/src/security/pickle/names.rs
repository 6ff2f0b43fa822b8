//! The classes and functions that a pickle names, each with the verdict of the one list of names.

use std::collections::HashMap;

use max_weights::format::pickle::Danger;
use max_weights::format::pickle::names::judge_spelled;
use max_weights::format::pickle::spelling::{LAST_PROTOCOL, renamed};

/// Distinct names that are kept.
const MAX_NAMES: usize = 20_000;
/// The number of all that are more.
const MANY: u32 = u32::MAX;

/// Unpickles its argument, which is scanned as a separate file, so the function itself is not reported.
const LOOKED_THROUGH: (&str, &str) = ("torch.storage", "_load_from_bytes");

/// A class or function that was named.
#[derive(Debug, Clone)]
pub(super) struct NamedGlobal {
    pub(super) module: String,
    pub(super) name: String,
    pub(super) danger: Danger,
    /// The first place.
    pub(super) at: u64,
    /// How often it was called.
    pub(super) calls: u64,
    /// The first call, as Python would write it, and its place.
    pub(super) call: Option<(u64, String)>,
}

impl NamedGlobal {
    /// Whether module and name are names as Python has them.
    pub(super) fn is_plain(&self) -> bool {
        let is_plain = |name: &str| {
            name.len() > 1
                && name.chars().all(|c| c == '_' || c == '.' || c.is_alphanumeric())
                && !name.starts_with('.')
        };
        is_plain(&self.module) && is_plain(&self.name)
    }

    pub(super) fn full(&self) -> String {
        format!("{}.{}", self.module, self.name)
    }
}

/// The classes and functions of one pickle.
#[derive(Default)]
pub(super) struct PickleNames {
    list: Vec<NamedGlobal>,
    numbers: HashMap<(String, String, bool), u32>,
}

impl PickleNames {
    /// The number of a name that is at `at`.
    pub(super) fn number(&mut self, module: String, name: String, protocol: u8, at: u64) -> u32 {
        let key = (module, name, protocol <= LAST_PROTOCOL);
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let (module, name) = renamed(&key.0, &key.1).unwrap_or((&key.0, &key.1));
        let danger = match judge_spelled(&key.0, &key.1, protocol) {
            _ if (module, name) == LOOKED_THROUGH => Danger::Harmless,
            danger => danger,
        };
        let (module, name) = (module.to_owned(), name.to_owned());
        if self.list.len() >= MAX_NAMES && danger != Danger::RunsCode {
            return MANY;
        }
        let number = self.list.len().min(2 * MAX_NAMES) as u32;
        if self.list.len() < 2 * MAX_NAMES {
            self.list.push(NamedGlobal { module, name, danger, at, calls: 0, call: None });
            self.numbers.insert(key, number);
        }
        number
    }

    pub(super) fn get(&self, number: u64) -> Option<&NamedGlobal> {
        self.list.get(usize::try_from(number).ok()?)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut NamedGlobal> {
        self.list.get_mut(usize::try_from(number).ok()?)
    }

    pub(super) fn all(&self) -> &[NamedGlobal] {
        &self.list
    }

    /// Adds what another pickle names.
    pub(super) fn merge(&mut self, other: Self) {
        for named in other.list {
            let number = self.number(named.module, named.name, LAST_PROTOCOL + 1, named.at);
            if let Some(mine) = self.get_mut(u64::from(number)) {
                mine.danger = mine.danger.max(named.danger);
                mine.calls += named.calls;
                mine.call = mine.call.take().or(named.call);
            }
        }
    }

    /// Whether the limit on distinct names was exceeded.
    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= MAX_NAMES
    }
}
