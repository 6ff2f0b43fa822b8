//! Groups the weights that a rule combines: their names have the same text in the places of the stars.

use std::collections::{HashMap, HashSet};

use super::rule::{ConversionRule, StepSlot};
use crate::budget;
use crate::cast::{elements_per_group, is_addable};
use crate::error::{Diagnostic, Result};
use crate::names::{Captures, Template};
use crate::rules;
use crate::tensor::{Element, TensorInfo, TensorTable};
use crate::text;

/// Weights that one rule combines.
#[derive(Debug)]
pub(super) struct RuleGroup {
    pub(super) rule: usize,
    pub(super) stars: Vec<Box<str>>,
    members: Vec<GroupMember>,
    /// The first weight of each source, with which the others must agree.
    firsts: Vec<Option<u32>>,
    /// The first weight that does not agree, and the one that it differs from.
    unlike: Option<(u32, u32)>,
}

/// A weight of a group: the source that its name matches, and the number in the place of `#`.
#[derive(Debug, Clone, Copy)]
struct GroupMember {
    source: u32,
    number: u32,
    weight: u32,
}

/// A weight of the new checkpoint, or several with the same sources.
#[derive(Debug)]
pub(super) enum ConvertedEntry {
    /// An unchanged weight, under its own or another name.
    Same(usize, Option<String>),
    Group(usize),
}

/// A source of a rule: the number of the rule, the number of the source, and the template.
type RuleSource<'a> = (usize, u32, &'a Template);

/// The converted weights of a table, in order. Each belongs to the first rule with a matching source.
pub(super) fn grouped(table: &TensorTable, of: &[ConversionRule]) -> Result<(Vec<ConvertedEntry>, Vec<RuleGroup>)> {
    let mut entries: Vec<ConvertedEntry> = budget::list(table.len())?;
    let mut groups: Vec<RuleGroup> = Vec::new();
    let mut known: HashMap<(usize, Vec<Box<str>>), usize> = HashMap::new();
    // Neighbours in a file are usually in one group.
    let mut last: Vec<Option<usize>> = vec![None; of.len()];
    let sources = of
        .iter()
        .enumerate()
        .flat_map(|(rule, one)| one.sources.iter().zip(0..).map(move |(template, source)| (rule, source, template)));
    // There may be as many exact names as weights, so they are looked up rather than compared.
    let (exact, loose): (Vec<_>, Vec<RuleSource<'_>>) = sources.partition(|(_, _, template)| template.is_exact());
    let mut by_name: HashMap<&str, RuleSource<'_>> = HashMap::new();
    for source in exact {
        by_name.entry(source.2.text()).or_insert(source);
    }
    let mut captures = Captures::default();
    for weight in 0..table.len() {
        let name = table.name(weight);
        let exact = by_name.get(name);
        let is_before = |source: &&RuleSource<'_>| exact.is_none_or(|exact| (source.0, source.1) < (exact.0, exact.1));
        let found = loose.iter().take_while(is_before).find(|(_, _, template)| template.matches(name, &mut captures));
        if found.is_none() {
            captures.stars.clear();
            captures.number = None;
        }
        let Some(&(rule, source, _)) = found.or(exact) else {
            entries.push(ConvertedEntry::Same(weight, None));
            continue;
        };
        if of[rule].only_renames() {
            let new = of[rule]
                .targets
                .first()
                .map(|target| target.fill(&captures.stars, captures.number.unwrap_or_default()));
            entries.push(ConvertedEntry::Same(weight, new));
            continue;
        }
        let is_same =
            |group: &usize| groups[*group].stars.iter().map(|star| &**star).eq(captures.stars.iter().copied());
        let group = last[rule].filter(is_same).unwrap_or_else(|| {
            let stars: Vec<Box<str>> = captures.stars.iter().map(|star| (*star).into()).collect();
            *known.entry((rule, stars)).or_insert_with_key(|(_, stars)| {
                let (members, firsts) = (Vec::new(), vec![None; of[rule].sources.len()]);
                groups.push(RuleGroup { rule, stars: stars.clone(), members, firsts, unlike: None });
                entries.push(ConvertedEntry::Group(groups.len() - 1));
                groups.len() - 1
            })
        });
        last[rule] = Some(group);
        groups[group]
            .push(table, GroupMember { source, number: captures.number.unwrap_or_default(), weight: weight as u32 })?;
    }
    Ok((entries, groups))
}

impl RuleGroup {
    fn push(&mut self, table: &TensorTable, member: GroupMember) -> Result<()> {
        let first = *self.firsts[member.source as usize].get_or_insert(member.weight);
        // Compared here, while the table entry is at hand.
        if !table.are_alike(first as usize, member.weight as usize) {
            self.unlike.get_or_insert((member.weight, first));
        }
        budget::reserve(&mut self.members, 1)?;
        self.members.push(member);
        Ok(())
    }

    /// The first of its weights, in file order.
    pub(super) fn first(&self) -> usize {
        self.members.iter().map(|member| member.weight).min().unwrap_or_default() as usize
    }

    /// The weights of each source of the rule, in the order of their numbers.
    pub(super) fn weights(&self, table: &TensorTable, rule: &ConversionRule) -> Result<Vec<Box<[u32]>>> {
        let count = self.members.iter().map(|member| member.number + 1).max().unwrap_or_default() as usize;
        if count.checked_mul(rule.sources.len()) != Some(self.members.len()) {
            return self.incomplete(table, rule);
        }
        // Each pair of source and number is unique, so `count` members per source fill all places.
        let mut weights = vec![vec![0; count].into_boxed_slice(); rule.sources.len()];
        for member in &self.members {
            weights[member.source as usize][member.number as usize] = member.weight;
        }
        Ok(weights)
    }

    /// The output of the rule for these weights, or the reason why it fails.
    pub(super) fn made<'a>(
        &self,
        table: &'a TensorTable,
        rule: &ConversionRule,
    ) -> Result<(Element<'a>, Vec<StepSlot>)> {
        let is_list = rule.sources.first().is_some_and(Template::is_numbered);
        let count = is_list.then_some((self.members.len() / rule.sources.len().max(1)) as u32);
        let firsts: Vec<TensorInfo<'a>> =
            self.firsts.iter().flatten().map(|&first| table.get(first as usize)).collect();
        let Some(first) = firsts.first() else { return self.incomplete(table, rule) };
        if let Some((other, like)) = self.unlike {
            return unlike(rule, &table.get(other as usize), &table.get(like as usize));
        }
        if let Some(other) = firsts.iter().find(|other| other.element != first.element) {
            return unlike(rule, other, first);
        }
        let block = match first.element {
            Element::Plain(dtype) => elements_per_group(dtype) as u64,
            Element::Packed(encoding) => encoding.elements_per_block() as u64,
            other => return refused(rule, first, format!("its elements are {other}, which no rule converts")),
        };
        if rule.adds()
            && let Some(cause) = not_addable(first.element)
        {
            return refused(rule, first, cause);
        }
        let slots = firsts.iter().map(|info| StepSlot { shape: info.shape.to_vec(), count }).collect();
        match rule.apply(slots, block) {
            Ok(slots) => Ok((first.element, slots)),
            Err(cause) => refused(rule, first, cause),
        }
    }

    /// The error for the first missing weight of a source: the numbers from 0 on must be complete.
    fn incomplete<T>(&self, table: &TensorTable, rule: &ConversionRule) -> Result<T> {
        let stars: Vec<&str> = self.stars.iter().map(|star| &**star).collect();
        let present: HashSet<(u32, u32)> = self.members.iter().map(|member| (member.source, member.number)).collect();
        // With one more number than weights, at least one is missing.
        let numbers = 0..=self.members.len() as u32;
        let missing = (0..rule.sources.len() as u32)
            .flat_map(|source| numbers.clone().map(move |number| (source, number)))
            .filter(|(source, number)| !present.contains(&(*source, *number)))
            .find(|(_, number)| self.members.iter().any(|member| member.number >= *number));
        let (source, number) = missing.unwrap_or_default();
        let missing = rule.sources.get(source as usize).map(|template| template.fill(&stars, number));
        let missing = text::escape(&missing.unwrap_or_default());
        refused(rule, &table.get(self.first()), format!("'{missing}', which belongs to it, is missing"))
    }
}

/// The reason why a number cannot be added to such elements, if there is one.
pub(super) fn not_addable(element: Element<'_>) -> Option<String> {
    match element {
        Element::Plain(dtype) if is_addable(dtype) => None,
        Element::Packed(encoding) => {
            Some(format!("cannot add to packed blocks of {encoding}: save it as floats first"))
        }
        other => Some(format!("numbers can be added to float16, bfloat16, float32 and float64, not to {other}")),
    }
}

/// The error for a weight whose dtype or shape differs from another one of its group.
fn unlike<T>(rule: &ConversionRule, other: &TensorInfo<'_>, like: &TensorInfo<'_>) -> Result<T> {
    let cause = if other.element == like.element {
        format!("its shape is {:?}, but that of '{}' is {:?}", other.shape, describe(like), like.shape)
    } else {
        format!("it is {}, but '{}' is {}", other.element, describe(like), like.element)
    };
    refused(rule, other, cause)
}

fn describe(info: &TensorInfo<'_>) -> String {
    text::escape(info.name)
}

/// An error about this weight that names the rule.
pub(super) fn refused<T>(rule: &ConversionRule, info: &TensorInfo<'_>, cause: String) -> Result<T> {
    let cause = format!("{cause}: the rule {} cannot be applied", rule.text());
    Err(Diagnostic::new(rules::NAMES_CONVERSION, cause).tensor(info.name).offset(info.span.start()).unsupported())
}
