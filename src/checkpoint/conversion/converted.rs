//! The catalog of a checkpoint as another library has it.

use std::collections::HashMap;
use std::sync::Arc;

use super::groups::{Entry, Group, grouped, refused};
use super::rule::{ConversionRule, Slot};
use crate::checkpoint::Catalog;
use crate::error::{Diagnostic, Error, Result};
use crate::names::NameIndex;
use crate::rules;
use crate::tensor::{Element, Span, TensorInfo, TensorTable, checked_bytes, checked_packed_bytes};

/// The most weights that a converted checkpoint has.
const MAX_WEIGHTS: usize = 1 << 20;

/// What the weights of a catalog are made of that no array of a file stands for.
#[derive(Debug)]
pub(crate) struct Composition {
    /// What they are made of.
    pub(crate) of: Arc<Catalog>,
    pub(crate) rules: Vec<ConversionRule>,
    /// What each group of weights is made of: the rule, and the weights of each of its sources.
    pub(crate) groups: Vec<(usize, Vec<Box<[u32]>>)>,
    /// By number.
    made: HashMap<u32, Made>,
    /// Why some cannot be made.
    pub(crate) refused: Vec<Diagnostic>,
}

/// What one weight is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Made {
    /// A weight that is made itself.
    Same(u32),
    /// Of what a rule makes of a group: for which target, and there of a list the how-manyth.
    Of { group: u32, slot: u32, element: u32 },
    /// Of nothing: why, is said when it is taken.
    Refused(u32),
}

impl Composition {
    /// Says why the weight of this number cannot be made.
    pub(super) fn refuse(&mut self, number: usize, fault: Diagnostic) {
        self.made.insert(number as u32, Made::Refused(self.refused.len() as u32));
        self.refused.push(fault);
    }

    /// The same where the weights have other numbers: {before: now}.
    pub(in crate::checkpoint) fn renumbered(&self, numbers: &HashMap<u32, u32>) -> Self {
        let made = self.made.iter().filter_map(|(number, made)| Some((*numbers.get(number)?, *made))).collect();
        let (rules, groups, refused) = (self.rules.clone(), self.groups.clone(), self.refused.clone());
        Self { of: self.of.clone(), rules, groups, made, refused }
    }

    /// What the weight of this number is made of; `None` for an ordinary one.
    pub(crate) fn made(&self, number: usize) -> Option<Made> {
        self.made.get(&(number as u32)).copied()
    }
}

impl Catalog {
    /// What its weights are made of, if any is.
    pub(crate) fn composition(&self) -> Option<&Composition> {
        self.composition.as_deref()
    }

    /// What the weight of this number is made of; `None` if an array of a file stands for it.
    pub(crate) fn made(&self, number: usize) -> Option<Made> {
        self.composition()?.made(number)
    }

    /// Whether the weight of this number is made of others, or of pieces, and no array of a file stands for it.
    pub fn is_composed(&self, number: usize) -> bool {
        self.made(number).is_some() || self.pieces(self.table.get(number).file).is_some()
    }

    /// Whether something is added to the elements of the weight of this number.
    fn adds(&self, number: u32) -> bool {
        let (Some(composition), Some(made)) = (self.composition(), self.made(number as usize)) else { return false };
        match made {
            Made::Same(number) => composition.of.adds(number),
            Made::Of { group, .. } => {
                let (rule, sources) = &composition.groups[group as usize];
                let mut weights = sources.iter().flat_map(|source| &**source);
                composition.rules[*rule].adds() || weights.any(|&weight| composition.of.adds(weight))
            }
            Made::Refused(_) => false,
        }
    }

    /// Whether any weight is made of others.
    pub fn makes_any(&self) -> bool {
        self.composition().is_some_and(|composition| !composition.made.is_empty())
    }

    /// The weights as these rules make them. Each weight belongs to the first rule that it fits; those that fit none stay as they are. Nothing is read.
    ///
    /// # Errors
    /// Weights that a rule needs and that are not there, or of another type or shape than it needs; two weights that get one name.
    pub fn converted(self: &Arc<Self>, rules: Vec<ConversionRule>) -> Result<Self> {
        let named = |error: Error| match self.files.first() {
            Some(file) => error.at_path(&file.path),
            None => error,
        };
        let (entries, groups) = grouped(&self.table, &rules)?;
        let weights_of = |group: &Group| Ok((group.rule, group.weights(&self.table, &rules[group.rule])?));
        let sources = groups.iter().map(weights_of).collect::<Result<Vec<_>>>().map_err(named)?;
        let mut weights = Weights { of: self, table: TensorTable::default(), made: HashMap::new() };
        for entry in entries {
            match entry {
                Entry::Same(number, name) => weights.push_same(number, name.as_deref())?,
                Entry::Group(number) => {
                    let (rule, of) = &sources[number];
                    let mut of = of.iter().flat_map(|source| &**source);
                    if rules[*rule].adds()
                        && let Some(&weight) = of.find(|&&weight| self.adds(weight))
                    {
                        let cause = "something is added to it already: save these weights first".to_owned();
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
                Some(Made::Of { group, .. }) => {
                    format!("the rule {} makes", rules[groups[*group as usize].rule].text())
                }
                _ => "another rule makes, or another weight has,".to_owned(),
            };
            let cause = format!("{from} a weight of this name, and it is there already");
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
    made: HashMap<u32, Made>,
}

impl Weights<'_> {
    fn push_same(&mut self, number: usize, name: Option<&str>) -> Result<()> {
        let info = self.of.table.get(number);
        if self.of.made(number).is_some() {
            self.made.insert(self.table.len() as u32, Made::Same(number as u32));
        }
        self.table.push(&TensorInfo { name: name.unwrap_or(info.name), ..info })
    }

    fn push_made(&mut self, number: usize, group: &Group, rule: &ConversionRule) -> Result<()> {
        let (element, slots) = group.made(&self.of.table, rule)?;
        let first = self.of.table.get(group.first());
        let stars: Vec<&str> = group.stars.iter().map(|star| &**star).collect();
        for ((slot, Slot { shape, count }), target) in (0..).zip(&slots).zip(&rule.targets) {
            let bytes = match element {
                Element::Plain(dtype) => checked_bytes(shape, dtype),
                Element::Packed(encoding) => checked_packed_bytes(shape, encoding),
                _ => None,
            };
            let Some(bytes) = bytes else {
                return refused(rule, &first, format!("the size of {shape:?} overflows"));
            };
            // Where its first part is: for the order of the weights, and for messages. It is not read from there.
            let span = Span::of_made(first.span, bytes);
            for element_number in 0..count.unwrap_or(1) {
                if self.table.len() >= MAX_WEIGHTS.max(2 * self.of.table.len()) {
                    return refused(rule, &first, "there would be too many weights".to_owned());
                }
                let name = target.fill(&stars, element_number);
                let made = Made::Of { group: number as u32, slot, element: element_number };
                self.made.insert(self.table.len() as u32, made);
                self.table.push(&TensorInfo { name: &name, element, shape, file: first.file, span, view: None })?;
            }
        }
        Ok(())
    }
}
