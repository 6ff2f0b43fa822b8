//! The catalog of a checkpoint in the layout of another library.

use std::collections::HashMap;
use std::sync::Arc;

use super::groups::{ConvertedEntry, RuleGroup, grouped, refused};
use super::rule::{ConversionRule, StepSlot};
use crate::checkpoint::Catalog;
use crate::error::{Diagnostic, Error, Result};
use crate::names::NameIndex;
use crate::rules;
use crate::tensor::{Element, Span, TensorInfo, TensorTable, checked_bytes, checked_packed_bytes};

/// The maximum number of weights in a converted checkpoint.
const MAX_WEIGHTS: usize = 1 << 20;

/// How weights without an array in a file are composed.
#[derive(Debug)]
pub(crate) struct Composition {
    /// The catalog of the source weights.
    pub(crate) of: Arc<Catalog>,
    pub(crate) rules: Vec<ConversionRule>,
    /// The rule of each group, and the weights of each of its sources.
    pub(crate) groups: Vec<(usize, Vec<Box<[u32]>>)>,
    /// By number.
    made: HashMap<u32, WeightRecipe>,
    /// Why some weights cannot be composed.
    pub(crate) refused: Vec<Diagnostic>,
}

/// The source of one weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightRecipe {
    /// A weight of the source catalog.
    Same(u32),
    /// The output of a rule for a group: the target, and the element if that is a list.
    Of { group: u32, slot: u32, element: u32 },
    /// No source: the error is reported when the weight is loaded.
    Refused(u32),
}

impl Composition {
    /// Marks the weight of this number as unsupported, with the reason.
    pub(super) fn refuse(&mut self, number: usize, fault: Diagnostic) {
        self.made.insert(number as u32, WeightRecipe::Refused(self.refused.len() as u32));
        self.refused.push(fault);
    }

    /// The same with other weight numbers: {before: now}.
    pub(in crate::checkpoint) fn renumbered(&self, numbers: &HashMap<u32, u32>) -> Self {
        let made = self.made.iter().filter_map(|(number, made)| Some((*numbers.get(number)?, *made))).collect();
        let (rules, groups, refused) = (self.rules.clone(), self.groups.clone(), self.refused.clone());
        Self { of: self.of.clone(), rules, groups, made, refused }
    }

    /// The source of the weight of this number; `None` for an ordinary one.
    pub(crate) fn made(&self, number: usize) -> Option<WeightRecipe> {
        self.made.get(&(number as u32)).copied()
    }
}

impl Catalog {
    /// The composition of its weights, if any is composed.
    pub(crate) fn composition(&self) -> Option<&Composition> {
        self.composition.as_deref()
    }

    /// The source of the weight of this number; `None` if an array of a file represents it.
    pub(crate) fn made(&self, number: usize) -> Option<WeightRecipe> {
        self.composition()?.made(number)
    }

    /// Whether the weight of this number is composed of others or of pieces, so that no array of a file represents it.
    pub fn is_composed(&self, number: usize) -> bool {
        self.made(number).is_some() || self.pieces(self.table.get(number).file).is_some()
    }

    /// Whether a number is added to the elements of this weight.
    fn adds(&self, number: u32) -> bool {
        let (Some(composition), Some(made)) = (self.composition(), self.made(number as usize)) else { return false };
        match made {
            WeightRecipe::Same(number) => composition.of.adds(number),
            WeightRecipe::Of { group, .. } => {
                let (rule, sources) = &composition.groups[group as usize];
                let mut weights = sources.iter().flat_map(|source| &**source);
                composition.rules[*rule].adds() || weights.any(|&weight| composition.of.adds(weight))
            }
            WeightRecipe::Refused(_) => false,
        }
    }

    /// Whether any weight is composed of others.
    pub fn makes_any(&self) -> bool {
        self.composition().is_some_and(|composition| !composition.made.is_empty())
    }

    /// Converts the weights by these rules, without reading. Each weight belongs to the first rule that matches it; the others stay unchanged.
    ///
    /// # Errors
    /// A source weight of a rule that is missing, or has another dtype or shape; two weights with one name.
    pub fn converted(self: &Arc<Self>, rules: Vec<ConversionRule>) -> Result<Self> {
        let named = |error: Error| match self.files.first() {
            Some(file) => error.at_path(&file.path),
            None => error,
        };
        let (entries, groups) = grouped(&self.table, &rules)?;
        let weights_of = |group: &RuleGroup| Ok((group.rule, group.weights(&self.table, &rules[group.rule])?));
        let sources = groups.iter().map(weights_of).collect::<Result<Vec<_>>>().map_err(named)?;
        let mut weights = Weights { of: self, table: TensorTable::default(), made: HashMap::new() };
        for entry in entries {
            match entry {
                ConvertedEntry::Same(number, name) => weights.push_same(number, name.as_deref())?,
                ConvertedEntry::Group(number) => {
                    let (rule, of) = &sources[number];
                    let mut of = of.iter().flat_map(|source| &**source);
                    if rules[*rule].adds()
                        && let Some(&weight) = of.find(|&&weight| self.adds(weight))
                    {
                        let cause = "a number is already added to it: save these weights first".to_owned();
                        return refused(&rules[*rule], &self.table.get(weight as usize), cause).map_err(named);
                    }
                    weights.push_made(number, &groups[number], &rules[*rule]).map_err(named)?;
                }
            }
        }
        let Weights { table, made, .. } = weights;
        NameIndex::probe(&table)?;
        let names = NameIndex::new(&table).map_err(|twice| {
            let (_, b) = twice.first().copied().unwrap_or_default();
            let from = match made.get(&(b as u32)) {
                Some(WeightRecipe::Of { group, .. }) => {
                    format!("the rule {} produces", rules[groups[*group as usize].rule].text())
                }
                _ => "another rule produces, or another weight has,".to_owned(),
            };
            let cause = format!("{from} a weight of this name, which already exists");
            let fault = Diagnostic::new(rules::NAMES_COLLISION, cause).tensor(table.name(b));
            named(fault.unsupported())
        })?;
        let composition =
            Some(Arc::new(Composition { of: self.clone(), rules, groups: sources, made, refused: Vec::new() }));
        let (files, values, findings) = (self.files.clone(), self.values.clone(), self.findings.clone());
        Ok(Self { files, values, table, names, findings, note: self.note.clone(), composition })
    }
}

/// The weights of a converted catalog, while they are added.
struct Weights<'a> {
    of: &'a Catalog,
    table: TensorTable,
    made: HashMap<u32, WeightRecipe>,
}

impl Weights<'_> {
    fn push_same(&mut self, number: usize, name: Option<&str>) -> Result<()> {
        let info = self.of.table.get(number);
        if self.of.made(number).is_some() {
            self.made.insert(self.table.len() as u32, WeightRecipe::Same(number as u32));
        }
        self.table.push(&TensorInfo { name: name.unwrap_or(info.name), ..info })
    }

    fn push_made(&mut self, number: usize, group: &RuleGroup, rule: &ConversionRule) -> Result<()> {
        let (element, slots) = group.made(&self.of.table, rule)?;
        let first = self.of.table.get(group.first());
        let stars: Vec<&str> = group.stars.iter().map(|star| &**star).collect();
        for ((slot, StepSlot { shape, count }), target) in (0..).zip(&slots).zip(&rule.targets) {
            let bytes = match element {
                Element::Plain(dtype) => checked_bytes(shape, dtype),
                Element::Packed(encoding) => checked_packed_bytes(shape, encoding),
                _ => None,
            };
            let Some(bytes) = bytes else {
                return refused(rule, &first, format!("the size of {shape:?} overflows"));
            };
            // The place of its first part, for the order of the weights and for messages. No byte is read from it.
            let span = Span::of_made(first.span, bytes);
            for element_number in 0..count.unwrap_or(1) {
                if self.table.len() >= MAX_WEIGHTS.max(2 * self.of.table.len()) {
                    return refused(rule, &first, "there would be too many weights".to_owned());
                }
                let name = target.fill(&stars, element_number);
                let made = WeightRecipe::Of { group: number as u32, slot, element: element_number };
                self.made.insert(self.table.len() as u32, made);
                self.table.push(&TensorInfo { name: &name, element, shape, file: first.file, span, view: None })?;
            }
        }
        Ok(())
    }
}
