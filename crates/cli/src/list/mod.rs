//! `max-weights ls`: what is in a checkpoint, as a tree, a table, JSON or CSV.
//!
//! Quarter of a million weights are ordinary here: records are made one at a time and written as they come.

mod data;
mod summary;
mod table;
mod tree;

use glob::{MatchOptions, Pattern};
use max_weights::error::did_you_mean;
use max_weights::names::nearest_to_pattern;
use max_weights::{Catalog, text};

use crate::arguments::{Format, Ls};
use crate::failure::Failure;
use crate::open::open;
use crate::screen::Screen;
use crate::{CLEAN, fit};

/// Near names that a message has.
const NEAR: usize = 3;

pub(crate) fn run(options: &Ls, screen: &mut Screen) -> Result<u8, Failure> {
    let format = options.format();
    if options.lines.is_some() && !matches!(format, Format::Tree | Format::Table) {
        return Err(Failure::Usage("JSON and CSV are always complete, and cannot be combined with --lines".into()));
    }
    if options.wants_ranks() && matches!(format, Format::Jsonl | Format::Csv) {
        return Err(Failure::Usage("bytes per rank are printed as a table or with --json".into()));
    }
    if format == Format::Tree && !options.filters.is_empty() {
        return Err(Failure::Usage(
            "a filter gives a table, JSON or CSV, and cannot be combined with --format tree".into(),
        ));
    }
    let patterns = Patterns::new("--filter", &options.filters)?;
    let checkpoint = open(&options.checkpoint.paths, &options.checkpoint.reading)?;
    let catalog = checkpoint.catalog();
    let numbers = patterns.matching(catalog)?;
    if options.wants_ranks() {
        return fit::run(options, catalog, &numbers, screen);
    }
    match format {
        Format::Json => data::json(catalog, &numbers, screen)?,
        Format::Jsonl => data::json_lines(catalog, &numbers, screen)?,
        Format::Csv => data::csv(catalog, &numbers, screen)?,
        Format::Table => table::write(catalog, &numbers, options.lines, screen)?,
        Format::Tree => tree::write(catalog, "", options.lines, !options.no_fold, screen)?,
    }
    if matches!(format, Format::Tree | Format::Table) {
        summary::write(catalog, &numbers, screen)?;
    }
    Ok(CLEAN)
}

pub(crate) use tree::write as write_tree;

/// The patterns that an option gives.
pub(crate) struct Patterns<'a> {
    option: &'a str,
    said: &'a [String],
    matchers: Vec<Pattern>,
}

impl<'a> Patterns<'a> {
    pub(crate) fn new(option: &'a str, said: &'a [String]) -> Result<Self, Failure> {
        let pattern = |said: &String| {
            let mut text = said.clone();
            while text.contains("**") {
                text = text.replace("**", "*"); // for the crate, two stand for folders
            }
            Pattern::new(&text).map_err(|error| Failure::Usage(format!("{option} {said}: {}", error.msg)))
        };
        Ok(Self { option, said, matchers: said.iter().map(pattern).collect::<Result<_, _>>()? })
    }

    /// The numbers of the weights whose whole name matches, in file order; of all where there is no pattern. An error for one that matches none.
    pub(crate) fn matching(&self, catalog: &Catalog) -> Result<Vec<u32>, Failure> {
        let table = catalog.table();
        let all = 0..table.len() as u32;
        if self.matchers.is_empty() {
            return Ok(all.collect());
        }
        let options = MatchOptions { case_sensitive: true, ..MatchOptions::new() };
        let mut used = vec![false; self.matchers.len()];
        let matching = all.filter(|&number| {
            let name = table.name(number as usize);
            let mut any = false;
            for (pattern, used) in self.matchers.iter().zip(&mut used) {
                let matches = pattern.matches_with(name, options);
                (any, *used) = (any || matches, *used || matches);
            }
            any
        });
        let matching = matching.collect();
        let Some(unused) = used.iter().position(|used| !used) else { return Ok(matching) };
        let (option, said) = (self.option, &self.said[unused]);
        let names: Vec<&str> = table.iter().map(|info| info.name).collect();
        let near: Vec<String> =
            nearest_to_pattern(&names, said, NEAR).iter().map(|name| format!("'{}'", text::shown(name))).collect();
        Err(Failure::Usage(format!("{option} {said}: no name matches{}", did_you_mean(&near))))
    }
}
