//! `max-weights ls`: what is in a checkpoint, as a tree, a table, JSON or CSV.
//!
//! Quarter of a million weights are ordinary here: records are made one at a time and written as they come.

mod data;
mod summary;
mod table;
mod tree;

use glob::{MatchOptions, Pattern};
use max_weights::Catalog;

use crate::arguments::{Format, Ls};
use crate::failure::Failure;
use crate::open::open;
use crate::screen::Screen;
use crate::{CLEAN, fit};

pub(crate) fn run(options: &Ls, screen: &mut Screen) -> Result<u8, Failure> {
    let format = options.format();
    if options.lines.is_some() && !matches!(format, Format::Tree | Format::Table) {
        return Err(Failure::Usage("JSON and CSV are always complete, and cannot be combined with --lines".into()));
    }
    if options.wants_ranks() && matches!(format, Format::Jsonl | Format::Csv) {
        return Err(Failure::Usage("bytes per rank are printed as a table or with --json".into()));
    }
    let patterns = patterns("--filter", &options.filters)?;
    let checkpoint = open(&options.checkpoint.paths, &options.checkpoint.reading)?;
    let catalog = checkpoint.catalog();
    let numbers = matching(catalog, &patterns);
    if options.wants_ranks() {
        return fit::run(options, catalog, &numbers, screen);
    }
    match format {
        Format::Json => data::json(catalog, &numbers, screen)?,
        Format::Jsonl => data::json_lines(catalog, &numbers, screen)?,
        Format::Csv => data::csv(catalog, &numbers, screen)?,
        Format::Table => table::write(catalog, &numbers, options.lines, screen)?,
        Format::Tree if patterns.is_empty() => tree::write(catalog, "", options.lines, !options.no_fold, screen)?,
        Format::Tree => {
            return Err(Failure::Usage(
                "a filter gives a table, JSON or CSV, and cannot be combined with --format tree".into(),
            ));
        }
    }
    if matches!(format, Format::Tree | Format::Table) {
        summary::write(catalog, &numbers, screen)?;
    }
    Ok(CLEAN)
}

pub(crate) use tree::write as write_tree;

/// The numbers of the weights whose whole name matches, in file order; of all where there is no pattern.
pub(crate) fn matching(catalog: &Catalog, patterns: &[Pattern]) -> Vec<u32> {
    let options = MatchOptions { case_sensitive: true, ..MatchOptions::new() };
    let wanted = |name: &str| patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches_with(name, options));
    (0..catalog.table().len() as u32).filter(|&number| wanted(catalog.table().name(number as usize))).collect()
}

/// The patterns that an option gives.
pub(crate) fn patterns(option: &str, filters: &[String]) -> Result<Vec<Pattern>, Failure> {
    let pattern = |filter: &String| {
        let mut text = filter.clone();
        while text.contains("**") {
            text = text.replace("**", "*"); // for the crate, two stand for folders
        }
        Pattern::new(&text).map_err(|error| Failure::Usage(format!("{option} {filter}: {}", error.msg)))
    };
    filters.iter().map(pattern).collect()
}
