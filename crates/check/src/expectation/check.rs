//! Compares a checkpoint with what is expected. Each deviation is a finding with the expected and the actual value.

use std::collections::{BTreeMap, HashSet};

use max_weights::error::{Diagnostics, MAX_FINDINGS, Policy};
use max_weights::names::nearest;
use max_weights::rules::{self, Rule};
use max_weights::tensor::TensorInfo;
use max_weights::text::{self, escape, plural};
use max_weights::workers::Interrupt;
use max_weights::{Catalog, Checkpoint, Diagnostic, Result};

use super::{Dim, Expectation, ExpectedCount, ExpectedTensor, ExtraTensors};
use crate::difference::{same_bytes, text_of};

/// Similar names are searched for this many missing names.
const MAX_NEAR: usize = 20;
/// Similar names given for each.
const NEAR_NAMES: usize = 3;

/// Compares the headers with the specification: names, shapes and dtypes in the order of the names in the specification, then the rest.
pub fn check(catalog: &Catalog, expected: &Expectation) -> Vec<Diagnostic> {
    let mut checking = ExpectationCheck {
        catalog,
        expected,
        found: Diagnostics::new(Policy::CollectAll, MAX_FINDINGS),
        near: 0,
        symbols: BTreeMap::new(),
        named: vec![false; catalog.table().len()],
    };
    for (position, requested) in expected.tensors.iter().enumerate() {
        checking.tensors(position, requested);
    }
    checking.symbols();
    checking.ties();
    checking.extra();
    checking.parameters();
    checking.metadata();
    checking.finish()
}

/// Tied tensors that are there several times, with other bytes.
///
/// # Errors
/// A file that cannot be read; Ctrl-C.
pub fn check_ties(
    checkpoint: &Checkpoint,
    expected: &Expectation,
    interrupt: Interrupt<'_>,
) -> Result<Vec<Diagnostic>> {
    let catalog = checkpoint.catalog();
    let (mut pairs, mut found) = (Vec::new(), Vec::new());
    for group in &expected.ties {
        let present: Vec<usize> = group.iter().filter_map(|name| catalog.find(name)).collect();
        let Some((first, others)) = present.split_first() else { continue };
        pairs.extend(others.iter().map(|other| (*first, *other)));
    }
    for ((first, other), same) in pairs.iter().zip(same_bytes(checkpoint, &pairs, interrupt)?) {
        if same == Some(false) {
            let [a, b] = [first, other].map(|number| escape(catalog.table().name(*number)));
            let message = format!("'{b}' is expected to be '{a}', but has other values");
            found.push(about(catalog, *other, Diagnostic::new(rules::EXPECTATION_TIES, message)));
        }
    }
    Ok(found)
}

/// The total number of values; a tensor with several names counts once.
pub(super) fn parameters(catalog: &Catalog) -> u64 {
    let mut seen = HashSet::new();
    let mut all = 0u64;
    for info in catalog.table().iter() {
        let is_new = info.view.is_none_or(|view| {
            seen.insert((info.file, view.storage.start(), view.start, info.shape.to_vec(), view.strides.to_vec()))
        });
        if is_new {
            all = all.saturating_add(info.shape.iter().fold(1, |product: u64, dim| product.saturating_mul(*dim)));
        }
    }
    all
}

/// A place where a symbol appears.
#[derive(Clone, Copy)]
enum SymbolPlace {
    /// A dimension of a tensor.
    Dim(usize, usize),
    /// The tensors that match an entry of the specification.
    Count(usize),
}

struct ExpectationCheck<'a> {
    catalog: &'a Catalog,
    expected: &'a Expectation,
    found: Diagnostics,
    /// How many names had near ones looked for.
    near: usize,
    symbols: BTreeMap<&'a str, Vec<(SymbolPlace, u64)>>,
    /// The tensors that something is expected of.
    named: Vec<bool>,
}

impl<'a> ExpectationCheck<'a> {
    /// Reports something about a tensor, or about all of them.
    fn report(&mut self, number: Option<usize>, rule: &'static Rule, message: String) {
        let finding = Diagnostic::new(rule, message);
        let finding = match number {
            Some(number) => about(self.catalog, number, finding),
            None => at_first_file(self.catalog, finding),
        };
        self.found.note(rule, |_| finding);
    }

    fn name(&self, number: usize) -> String {
        escape(self.catalog.table().name(number))
    }

    /// The tensors that an entry names, and each of them.
    fn tensors(&mut self, position: usize, requested: &'a ExpectedTensor) {
        let table = self.catalog.table();
        let numbers: Vec<usize> = match requested.name.name() {
            Some(name) => self.catalog.find(name).into_iter().collect(),
            None => (0..table.len()).filter(|number| requested.name.matches(table.name(*number))).collect(),
        };
        match &requested.count {
            Some(ExpectedCount::Bounds(bounds))
                if !(bounds.has(numbers.len() as u64) || (requested.optional && numbers.is_empty())) =>
            {
                let (name, present) = (escape(requested.name.text()), plural(numbers.len() as u64, "tensor"));
                let (words, verb) = (bounds.words(), verb(numbers.len(), "matches", "match"));
                let are = if words == "1" { "is" } else { "are" };
                let message = format!("{present} {verb} '{name}', and {words} {are} expected");
                self.report(None, rules::EXPECTATION_COUNT, message);
            }
            // As many as there are, but some: a symbol that is 0 everywhere would hide that all names are others.
            Some(ExpectedCount::Symbol(symbol))
                if numbers.is_empty() && !requested.optional && !self.expected.symbols.contains_key(symbol) =>
            {
                self.missing(requested);
            }
            Some(ExpectedCount::Symbol(symbol)) => {
                self.symbols.entry(symbol).or_default().push((SymbolPlace::Count(position), numbers.len() as u64));
            }
            None if numbers.is_empty() && !requested.optional => self.missing(requested),
            Some(ExpectedCount::Bounds(_)) | None => {}
        }
        // What holds for all says of none that it may be there.
        let is_named = !requested.name.is_all();
        for number in numbers {
            if let Some(named) = self.named.get_mut(number) {
                *named |= is_named;
            }
            self.tensor(number, requested);
        }
    }

    /// That nothing has this name, unless another name of the same tensor is there.
    fn missing(&mut self, requested: &ExpectedTensor) {
        let tied =
            |group: &&Vec<String>| requested.name.name().is_some_and(|name| group.iter().any(|other| other == name));
        let mut groups = self.expected.ties.iter().filter(tied);
        if groups.any(|group| group.iter().any(|name| self.catalog.find(name).is_some())) {
            return;
        }
        let name = escape(requested.name.text());
        let Some(exact) = requested.name.name() else {
            self.report(None, rules::EXPECTATION_MISSING, format!("no tensor matches '{name}'"));
            return;
        };
        let near = if self.near < MAX_NEAR {
            nearest(self.catalog.names(), self.catalog.table(), exact, NEAR_NAMES)
        } else {
            Vec::new()
        };
        self.near += 1;
        let near = match &*near {
            [] => String::new(),
            near => format!("; there {} {}", verb(near.len(), "is", "are"), quoted(near)),
        };
        self.report(None, rules::EXPECTATION_MISSING, format!("there is no tensor '{name}'{near}"));
    }

    /// The shape and dtype of a tensor.
    fn tensor(&mut self, number: usize, requested: &'a ExpectedTensor) {
        let info: TensorInfo<'a> = self.catalog.table().get(number);
        let dtype = info.element.to_string();
        if !requested.dtypes.is_empty() && !requested.dtypes.contains(&dtype) {
            let expected = requested.dtypes.join(" or ");
            let message = format!("'{}' is {}, but {expected} is expected", escape(info.name), escape(&dtype));
            self.report(Some(number), rules::EXPECTATION_DTYPE, message);
        }
        let Some(shape) = &requested.shape else { return };
        let fits = |(dim, length): (&Dim, &u64)| !matches!(dim, Dim::Exact(requested) if requested != length);
        if shape.len() != info.shape.len() || !shape.iter().zip(info.shape).all(fits) {
            let expected: Vec<String> = shape.iter().map(Dim::to_string).collect();
            let (name, present) = (escape(info.name), text::shape(info.shape));
            let message = format!("'{name}' has shape {present}, but [{}] is expected", expected.join(", "));
            self.report(Some(number), rules::EXPECTATION_SHAPE, message);
            return;
        }
        for (axis, (dim, length)) in shape.iter().zip(info.shape).enumerate() {
            if let Dim::Symbol(symbol) = dim {
                self.symbols.entry(symbol).or_default().push((SymbolPlace::Dim(number, axis), *length));
            }
        }
    }

    /// A symbol has the same value everywhere: that of the specification, or the most frequent one.
    fn symbols(&mut self) {
        for (symbol, places) in std::mem::take(&mut self.symbols) {
            let declared = self.expected.symbols.get(symbol).copied();
            let Some(value) = declared.or_else(|| most(&places)) else { continue };
            let first = places.iter().find(|(_, number)| *number == value).map(|(place, _)| *place);
            let requested = match (declared, first) {
                (Some(_), _) | (None, None) => format!("{value} is expected"),
                (None, Some(SymbolPlace::Dim(number, _))) => format!("{value} by '{}'", self.name(number)),
                (None, Some(SymbolPlace::Count(position))) => format!("{value} by '{}'", self.pattern(position)),
            };
            let symbol = escape(symbol);
            for (place, number) in places.into_iter().filter(|(_, number)| *number != value) {
                match place {
                    SymbolPlace::Dim(tensor, axis) => {
                        let name = self.name(tensor);
                        let message =
                            format!("'{symbol}' is {number} by dimension {axis} of '{name}', and {requested}");
                        self.report(Some(tensor), rules::EXPECTATION_SYMBOL, message);
                    }
                    SymbolPlace::Count(position) => {
                        let (present, verb) = (plural(number, "tensor"), verb(number as usize, "matches", "match"));
                        let pattern = self.pattern(position);
                        let message =
                            format!("{present} {verb} '{pattern}', so that '{symbol}' is {number}, and {requested}");
                        self.report(None, rules::EXPECTATION_COUNT, message);
                    }
                }
            }
        }
    }

    fn pattern(&self, position: usize) -> String {
        self.expected.tensors.get(position).map_or_else(String::new, |requested| escape(requested.name.text()))
    }

    /// The names of one tensor: one of them is there, and those that are there are alike.
    fn ties(&mut self) {
        for group in &self.expected.ties {
            let present: Vec<usize> = group.iter().filter_map(|name| self.catalog.find(name)).collect();
            for number in &present {
                if let Some(named) = self.named.get_mut(*number) {
                    *named = true;
                }
            }
            let Some((first, others)) = present.split_first() else {
                // What the tensors of the specification name was reported as missing.
                let is_named =
                    |name: &String| self.expected.tensors.iter().any(|requested| requested.name.name() == Some(name));
                if !group.iter().any(is_named) {
                    self.report(None, rules::EXPECTATION_TIES, format!("there is none of {}", quoted(group)));
                }
                continue;
            };
            for other in others {
                let (a, b) = (self.catalog.table().get(*first), self.catalog.table().get(*other));
                if a.shape != b.shape || a.element != b.element {
                    let (name, of) = (escape(b.name), escape(a.name));
                    let [a, b] = [a, b].map(described);
                    let message = format!("'{name}' is {b}, but is expected to be '{of}', which is {a}");
                    self.report(Some(*other), rules::EXPECTATION_TIES, message);
                }
            }
        }
    }

    /// Tensors that nothing is expected of.
    fn extra(&mut self) {
        let ExtraTensors::These(patterns) = &self.expected.extra else { return };
        for number in 0..self.catalog.table().len() {
            let info = self.catalog.table().get(number);
            let is_named = self.named.get(number).is_some_and(|named| *named);
            if !is_named && !patterns.iter().any(|glob| glob.matches(info.name)) {
                let message = format!("'{}', {}, is not expected", escape(info.name), described(info));
                self.report(Some(number), rules::EXPECTATION_EXTRA, message);
            }
        }
    }

    fn parameters(&mut self) {
        let Some(bounds) = self.expected.parameters else { return };
        let present = parameters(self.catalog);
        if !bounds.has(present) {
            let (present, expected) = (plural(present, "parameter"), bounds.words());
            let message = format!("there are {present}, but {expected} are expected");
            self.report(None, rules::EXPECTATION_PARAMETERS, message);
        }
    }

    fn metadata(&mut self) {
        let texts: BTreeMap<&str, String> = match self.catalog.gguf() {
            Some(gguf) => gguf.metadata.iter().map(|(key, value)| (key, text_of(&value))).collect(),
            None => self.catalog.metadata().map(|(key, value)| (key, value.to_owned())).collect(),
        };
        for (key, expected) in &self.expected.metadata {
            let (present, key) = (texts.get(key.as_str()), escape(key));
            let message = match (present, expected) {
                (None, _) => format!("the metadata has no key '{key}'"),
                (Some(present), Some(expected)) if present != expected => {
                    format!(
                        "the metadata has '{}' for '{key}', but '{}' is expected",
                        escape(present),
                        escape(expected)
                    )
                }
                (Some(_), _) => continue,
            };
            self.report(None, rules::EXPECTATION_METADATA, message);
        }
    }

    fn finish(mut self) -> Vec<Diagnostic> {
        let (found, catalog) = (self.found.close(), self.catalog);
        let place = |finding: Diagnostic| {
            if finding.path.is_some() { finding } else { at_first_file(catalog, finding) }
        };
        found.into_iter().map(place).collect()
    }
}

impl std::fmt::Display for Dim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(length) => length.fmt(f),
            Self::Symbol(symbol) => f.write_str(&escape(symbol)),
            Self::Any => f.write_str("*"),
        }
    }
}

fn verb<'a>(count: usize, one: &'a str, many: &'a str) -> &'a str {
    if count == 1 { one } else { many }
}

/// What a tensor is.
fn described(info: TensorInfo<'_>) -> String {
    format!("{} of shape {}", escape(&info.element.to_string()), text::shape(info.shape))
}

fn quoted(names: &[String]) -> String {
    text::listed(names.iter().map(|name| format!("'{}'", escape(name))))
}

/// The number that most places have; the first of several.
fn most(places: &[(SymbolPlace, u64)]) -> Option<u64> {
    let mut counts: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    for (at, (_, number)) in places.iter().enumerate() {
        counts.entry(*number).or_insert((0, usize::MAX - at)).0 += 1;
    }
    counts.into_iter().max_by_key(|(_, rank)| *rank).map(|(number, _)| number)
}

/// The finding with the tensor and the file that it is about.
fn about(catalog: &Catalog, number: usize, finding: Diagnostic) -> Diagnostic {
    let info = catalog.table().get(number);
    let path = catalog.files().get(info.file as usize).map(|file| file.path.as_path().into());
    Diagnostic { path, ..finding.tensor(info.name) }
}

fn at_first_file(catalog: &Catalog, finding: Diagnostic) -> Diagnostic {
    let path = catalog.files().first().map(|file| file.path.as_path().into());
    Diagnostic { path, ..finding }
}
