//! `max-weights ls`: what is in a checkpoint, as a tree, a table, JSON or CSV.
//!
//! Quarter of a million weights are ordinary here: records are made one at a time and written as they come.

mod changed;
mod data;
mod summary;
mod table;
mod tree;

use clap::{Args, ValueEnum};
use glob::{MatchOptions, Pattern};
use max_weights::error::did_you_mean;
use max_weights::names::nearest_to_pattern;
use max_weights::{Catalog, text};

use crate::CLEAN;
use crate::failure::CommandFailure;
use crate::fit::{self, PerRank};
use crate::inputs::CheckpointArguments;
use crate::open::open;
use crate::screen::Screen;

/// Near names that a message has.
const NEAR: usize = 3;

/// List weights: a tree, a table, JSON or CSV.
#[derive(Debug, Args)]
#[command(visible_alias = "list")]
#[allow(clippy::struct_excessive_bools)] // each is an option that is there or not
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) checkpoint: CheckpointArguments,
    /// tree, table, json, jsonl (one object per line) or csv.
    #[arg(long, value_name = "FORMAT", hide_possible_values = true, conflicts_with_all = ["flat", "json"])]
    format: Option<Format>,
    /// A table, one weight per line, in file order: --format table.
    #[arg(long, conflicts_with = "json")]
    flat: bool,
    /// One JSON object, one weight per line: --format json.
    #[arg(long)]
    json: bool,
    /// Only names that match (*, ?, [ab]), as a table; repeatable.
    #[arg(long = "filter", value_name = "GLOB")]
    pub(crate) filters: Vec<String>,
    /// Print at most this many lines of a tree or a table.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) lines: Option<u32>,
    /// Print all layers, even those that are alike.
    #[arg(long, overrides_with = "fold")]
    pub(crate) no_fold: bool,
    /// Fold layers that are alike into one (the default).
    #[arg(long, hide = true)]
    fold: bool,
    /// What the deltas behind a base change, layer by layer.
    #[arg(long, conflicts_with_all = ["format", "flat", "filters", "lines", "no_fold"])]
    changed: bool,
    #[command(flatten)]
    per_rank: PerRank,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Tree,
    Table,
    Json,
    Jsonl,
    Csv,
}

impl Ls {
    /// What to print; a filter makes a tree a table.
    fn format(&self) -> Format {
        match self.format {
            Some(format) => format,
            None if self.json => Format::Json,
            None if self.flat || !self.filters.is_empty() => Format::Table,
            None => Format::Tree,
        }
    }

    /// Whether nothing but JSON is to be on standard output.
    pub(crate) fn wants_json(&self) -> bool {
        matches!(self.format(), Format::Json | Format::Jsonl)
    }
}

pub(crate) fn run(options: &Ls, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let format = options.format();
    if options.lines.is_some() && !matches!(format, Format::Tree | Format::Table) {
        return Err(CommandFailure::Usage(
            "JSON and CSV are always complete, and cannot be combined with --lines".into(),
        ));
    }
    if options.per_rank.is_requested() && matches!(format, Format::Jsonl | Format::Csv) {
        return Err(CommandFailure::Usage("bytes per rank are printed as a table or with --json".into()));
    }
    if format == Format::Tree && !options.filters.is_empty() {
        return Err(CommandFailure::Usage(
            "a filter gives a table, JSON or CSV, and cannot be combined with --format tree".into(),
        ));
    }
    let patterns = PatternArguments::new("--filter", &options.filters)?;
    let checkpoint = open(&options.checkpoint.paths, &options.checkpoint.reading)?;
    let catalog = checkpoint.catalog();
    if options.changed {
        return changed::run(&options.checkpoint.paths, catalog, options.json, screen);
    }
    let numbers = patterns.matching(catalog)?;
    if options.per_rank.is_requested() {
        return fit::run(&options.per_rank, format == Format::Json, catalog, &numbers, screen);
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
pub(crate) struct PatternArguments<'a> {
    option: &'a str,
    texts: &'a [String],
    matchers: Vec<Pattern>,
}

impl<'a> PatternArguments<'a> {
    pub(crate) fn new(option: &'a str, texts: &'a [String]) -> Result<Self, CommandFailure> {
        let pattern = |texts: &String| {
            let mut text = texts.clone();
            while text.contains("**") {
                text = text.replace("**", "*"); // for the crate, two stand for folders
            }
            Pattern::new(&text).map_err(|error| CommandFailure::Usage(format!("{option} {texts}: {}", error.msg)))
        };
        Ok(Self { option, texts, matchers: texts.iter().map(pattern).collect::<Result<_, _>>()? })
    }

    /// Whether a whole name matches one of them, or there is none.
    pub(crate) fn is_requested(&self, name: &str) -> bool {
        let options = MatchOptions { case_sensitive: true, ..MatchOptions::new() };
        self.matchers.is_empty() || self.matchers.iter().any(|pattern| pattern.matches_with(name, options))
    }

    /// The numbers of the weights whose whole name matches, in file order; of all where there is no pattern. An error for one that matches none.
    pub(crate) fn matching(&self, catalog: &Catalog) -> Result<Vec<u32>, CommandFailure> {
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
        let (option, texts) = (self.option, &self.texts[unused]);
        let names: Vec<&str> = table.iter().map(|info| info.name).collect();
        let near: Vec<String> =
            nearest_to_pattern(&names, texts, NEAR).iter().map(|name| format!("'{}'", text::escape(name))).collect();
        Err(CommandFailure::Usage(format!("{option} {texts}: no name matches{}", did_you_mean(&near))))
    }
}
