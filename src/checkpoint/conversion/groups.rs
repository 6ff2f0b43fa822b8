//! Which weights the rules of a conversion take together: those whose names have the same text in the places of the stars.

use std::collections::HashMap;

use super::rule::{ConversionRule, Slot};
use crate::budget;
use crate::cast::elements_per_group;
use crate::error::{Diagnostic, Error, Result};
use crate::names::{Captures, Template};
use crate::rules;
use crate::tensor::{Element, TensorInfo, TensorTable};
use crate::text;

/// Weights that one rule takes together.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) rule: usize,
    pub(super) stars: Vec<Box<str>>,
    /// By source of the rule, and then by the number that `#` stands for.
    members: Vec<Member>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Member {
    source: u32,
    number: u32,
    weight: u32,
}

/// A weight of the new checkpoint, or several that are made of the same.
#[derive(Debug)]
pub(super) enum Entry {
    /// One as it is, under another name, or its own.
    Same(usize, Option<String>),
    Group(usize),
}

/// What becomes of the weights of a table, in its order. Each belongs to the first rule that one of its sources fits.
pub(super) fn grouped(table: &TensorTable, of: &[ConversionRule]) -> Result<(Vec<Entry>, Vec<Group>)> {
    let mut entries: Vec<Entry> = budget::list(table.len())?;
    let mut groups: Vec<Group> = Vec::new();
    let mut known: HashMap<(usize, Vec<Box<str>>), usize> = HashMap::new();
    // Neighbours in a file are mostly of one group.
    let mut last: Vec<Option<usize>> = vec![None; of.len()];
    let sources: Vec<(usize, u32, &Template)> = of
        .iter()
        .enumerate()
        .flat_map(|(rule, one)| one.sources.iter().zip(0..).map(move |(template, source)| (rule, source, template)))
        .collect();
    let mut captures = Captures::default();
    for weight in 0..table.len() {
        let name = table.name(weight);
        let found = sources.iter().find(|(_, _, template)| template.matches(name, &mut captures));
        let Some(&(rule, source, _)) = found else {
            entries.push(Entry::Same(weight, None));
            continue;
        };
        if of[rule].only_renames() {
            let new = of[rule]
                .targets
                .first()
                .map(|target| target.fill(&captures.stars, captures.number.unwrap_or_default()));
            entries.push(Entry::Same(weight, new));
            continue;
        }
        let is_same =
            |group: &usize| groups[*group].stars.iter().map(|star| &**star).eq(captures.stars.iter().copied());
        let group = last[rule].filter(is_same).unwrap_or_else(|| {
            let stars: Vec<Box<str>> = captures.stars.iter().map(|star| (*star).into()).collect();
            *known.entry((rule, stars)).or_insert_with_key(|(_, stars)| {
                groups.push(Group { rule, stars: stars.clone(), members: Vec::new() });
                entries.push(Entry::Group(groups.len() - 1));
                groups.len() - 1
            })
        });
        last[rule] = Some(group);
        let members = &mut groups[group].members;
        budget::reserve(members, 1)?;
        members.push(Member { source, number: captures.number.unwrap_or_default(), weight: weight as u32 });
    }
    for group in &mut groups {
        group.members.sort_unstable();
    }
    Ok((entries, groups))
}

impl Group {
    /// The weights of each source of the rule, in the order of their numbers.
    pub(super) fn weights(&self) -> Vec<Box<[u32]>> {
        let of_sources = self.members.chunk_by(|a, b| a.source == b.source);
        of_sources.map(|members| members.iter().map(|member| member.weight).collect()).collect()
    }

    /// The first of its weights in the order of the files.
    pub(super) fn first(&self) -> usize {
        self.members.iter().map(|member| member.weight).min().unwrap_or_default() as usize
    }

    /// What the rule makes of it, by name; or why it cannot.
    pub(super) fn made<'a>(&self, table: &'a TensorTable, rule: &ConversionRule) -> Result<(Element<'a>, Vec<Slot>)> {
        self.check_whole(table, rule)?;
        let info = |member: &Member| table.get(member.weight as usize);
        let Some(first) = self.members.first().map(info) else { return Err(Error::Interrupted) };
        let mut slots: Vec<Slot> = Vec::with_capacity(rule.sources.len());
        let is_list = rule.sources.first().is_some_and(Template::is_numbered);
        for of_source in self.members.chunk_by(|a, b| a.source == b.source) {
            let like = info(&of_source[0]);
            for other in of_source.iter().map(info) {
                if other.element != first.element {
                    return refused(
                        rule,
                        &other,
                        format!("it is {}, but '{}' is {}", other.element, shown(&first), first.element),
                    );
                }
                // Shapes are short: a loop here is faster than a call.
                if !other.shape.iter().eq(like.shape) {
                    return refused(
                        rule,
                        &other,
                        format!("its shape is {:?}, but that of '{}' is {:?}", other.shape, shown(&like), like.shape),
                    );
                }
            }
            slots.push(Slot { shape: like.shape.to_vec(), count: is_list.then_some(of_source.len() as u32) });
        }
        let block = match first.element {
            Element::Plain(dtype) => elements_per_group(dtype) as u64,
            Element::Packed(encoding) => encoding.elements_per_block() as u64,
            other => return refused(rule, &first, format!("its elements are {other}, of which nothing is made")),
        };
        match rule.apply(slots, block) {
            Ok(slots) => Ok((first.element, slots)),
            Err(cause) => refused(rule, &first, cause),
        }
    }

    /// That each source of the rule is there, and all of its numbers from 0 on.
    fn check_whole(&self, table: &TensorTable, rule: &ConversionRule) -> Result<()> {
        let stars: Vec<&str> = self.stars.iter().map(|star| &**star).collect();
        let count = self.members.iter().map(|member| member.number + 1).max().unwrap_or_default();
        let mut members = self.members.iter();
        for (source, template) in rule.sources.iter().enumerate() {
            for number in 0..count {
                let expected = (source as u32, number);
                if members.next().is_none_or(|member| (member.source, member.number) != expected) {
                    let first = table.get(self.first());
                    let missing = text::shown(&template.fill(&stars, number));
                    return refused(rule, &first, format!("'{missing}', which belongs to it, is not there"));
                }
            }
        }
        Ok(())
    }
}

fn shown(info: &TensorInfo<'_>) -> String {
    text::shown(info.name)
}

/// An error that names the rule, about this weight.
pub(super) fn refused<T>(rule: &ConversionRule, info: &TensorInfo<'_>, cause: String) -> Result<T> {
    let cause = format!("{cause}: the rule {} cannot be applied", rule.text());
    Err(Diagnostic::new(rules::NAMES_CONVERSION, cause).tensor(info.name).offset(info.span.start()).unsupported())
}
