//! What differs, for people: a table for each kind of difference, and what is the same.

use max_weights::source::store;
use max_weights::text;
use max_weights_check::difference::{Difference, DifferingTensor, OneSidedTensor, ValueDifference};

use super::Diff;
use crate::failure::CommandFailure;
use crate::screen::{Screen, columns, fitted, in_locale, padded};
use crate::show::significant;

/// A name is not cut to fewer columns than this.
const NARROWEST_NAME: usize = 24;
/// A hostile name of a megabyte must not widen all lines, only its line.
const WIDEST_COLUMN: usize = 100;
/// The heads of the table of values, most of which are numbers.
const VALUES: [&str; 7] = ["", "differing", "of", "largest", "relative", "cosine", "at"];
const NUMBERS: std::ops::RangeInclusive<usize> = 1..=5;

/// Writes what differs, a kind of difference after the other, and what is the same.
pub(super) fn write(found: &Difference, options: &Diff, screen: &mut Screen) -> Result<(), CommandFailure> {
    let lines = options.lines.map_or(usize::MAX, |lines| lines as usize);
    let mut section = |title: &str, noun: &str, rows: Vec<Vec<String>>, heads: &[&str]| -> Result<(), CommandFailure> {
        if rows.is_empty() {
            return Ok(());
        }
        let paint = screen.paint;
        screen.line(&format!("{0}{title}{0:#}: {1}", paint.bold, text::plural(rows.len() as u64, noun)))?;
        table(&rows, heads, lines, screen)?;
        if rows.len() > lines {
            screen.line(&format!("  … {}", text::plural((rows.len() - lines) as u64, &format!("more {noun}"))))?;
        }
        Ok(screen.line("")?)
    };
    let name = |text: &str| text::printable(text).into_owned();
    let only = |list: &[OneSidedTensor]| -> Vec<Vec<String>> {
        list.iter().map(|of| vec![name(&of.name), text::escape(&of.dtype), shape(&of.shape)]).collect()
    };
    section("only in A", "weight", only(&found.removed), &[])?;
    section("only in B", "weight", only(&found.added), &[])?;
    let renamed = found.renamed.iter().map(|pair| vec![name(&pair.a.name), format!("→ {}", name(&pair.b))]);
    section("other names", "weight", renamed.collect(), &[])?;
    let shapes = found.changed.iter().filter_map(|of| Some((of, of.shape.as_ref()?)));
    let shapes = shapes.map(|(of, (a, b))| vec![name(&of.name), format!("{} → {}", shape(a), shape(b))]);
    section("other shapes", "weight", shapes.collect(), &[])?;
    let dtypes = found.changed.iter().filter_map(|of| Some((of, of.dtype.as_ref()?)));
    let dtypes = dtypes.map(|(of, (a, b))| {
        vec![name(&of.name), format!("{} → {}", text::escape(a), text::escape(b)), after_the_cast(of).to_owned()]
    });
    section("other dtypes", "weight", dtypes.collect(), &[])?;
    let is_different =
        |of: &&DifferingTensor| of.values.as_ref().is_some_and(|values| values.differing > 0 || of.dtype.is_none());
    let values = found.changed.iter().filter(is_different);
    let values =
        values.filter_map(|of| Some((of, of.values.as_ref()?))).map(|(of, values)| cells(name(&of.name), values));
    section("other values", "weight", values.collect(), &VALUES)?;
    let not_compared = found.not_compared.iter().map(|(of, reason)| vec![name(of), reason.clone()]);
    section("not compared", "weight", not_compared.collect(), &[])?;
    let metadata = found.metadata.iter().map(|change| {
        let value =
            |value: &Option<String>| value.as_ref().map_or_else(|| "–".to_owned(), |value| format!("'{value}'"));
        vec![name(&change.key), format!("{} → {}", value(&change.a), value(&change.b))]
    });
    section("other metadata", "key", metadata.collect(), &[])?;
    summary(found, options, screen)
}

/// The sizes of both, and how many weights are the same.
fn summary(found: &Difference, options: &Diff, screen: &mut Screen) -> Result<(), CommandFailure> {
    let paint = screen.paint;
    for (label, path, side) in [("A", &options.a, &found.a), ("B", &options.b, &found.b)] {
        let what = format!("{}, {}", text::plural(side.tensors, "weight"), text::size(side.bytes));
        screen.line(&format!("{0}{label}{0:#}  {1}: {what}", paint.dim, text::path(&store::redacted(path))))?;
    }
    let all = found.same + found.close;
    let close = match (found.close, options.rtol > 0.0 || options.atol > 0.0) {
        (0, _) => String::new(),
        (close, true) => format!(", {} of them within the tolerances", text::grouped(close)),
        (close, false) => format!(", {} of them with different bytes for the same numbers", text::grouped(close)),
    };
    let headers = if options.no_values { " by their headers" } else { "" };
    let style = if found.is_none() { paint.good } else { paint.warning };
    screen.line(&format!("{style}{} the same{headers}{style:#}{close}", plural_are(all)))?;
    if let Some(note) = &found.metadata_note {
        screen.line(&format!("not compared: {note}"))?;
    }
    Ok(())
}

fn plural_are(count: u64) -> String {
    format!("{} {}", text::plural(count, "weight"), if count == 1 { "is" } else { "are" })
}

fn after_the_cast(of: &DifferingTensor) -> &'static str {
    match &of.values {
        Some(values) if values.differing == 0 => "the same values",
        Some(values) if values.rounded => "the same values, rounded",
        Some(_) => "other values",
        None => "",
    }
}

fn cells(name: String, values: &ValueDifference) -> Vec<String> {
    let nans =
        if values.nans > 0 { format!("; {} NaN on one side only", text::grouped(values.nans)) } else { String::new() };
    let at = match (&values.index, values.at) {
        (Some(index), Some((a, b))) => format!("{}: {} and {}{nans}", shape(index), significant(a), significant(b)),
        _ => nans.trim_start_matches("; ").to_owned(),
    };
    vec![
        name,
        values.differing.to_string(),
        values.elements.to_string(),
        significant(values.largest),
        significant(values.relative),
        values.cosine.map_or_else(|| "–".to_owned(), |cosine| format!("{cosine:.6}")),
        at,
    ]
}

fn shape(dims: &[u64]) -> String {
    let dims: Vec<String> = dims.iter().map(u64::to_string).collect();
    format!("[{}]", dims.join(","))
}

/// Writes rows in columns below heads, if there are any. A name gives way where the terminal is too narrow.
fn table(rows: &[Vec<String>], heads: &[&str], lines: usize, screen: &mut Screen) -> Result<(), CommandFailure> {
    let unicode = screen.unicode();
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    let shown = rows.iter().take(lines).map(|row| row.iter().map(|cell| in_locale(cell, unicode).into_owned()));
    let mut shown: Vec<Vec<String>> = shown.map(Iterator::collect).collect();
    if !heads.is_empty() {
        shown.insert(0, heads);
    }
    let count = shown.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |column: usize| shown.iter().filter_map(|row| row.get(column)).map(|cell| columns(cell)).max();
    let mut widths: Vec<usize> = (0..count).map(|column| widest(column).unwrap_or(0).min(WIDEST_COLUMN)).collect();
    if let (Some(screen_width), Some((name, rest))) = (screen.width(), widths.split_first_mut()) {
        let others = rest.iter().map(|width| width + 2).sum::<usize>() + 2;
        *name = (*name).min(screen_width.saturating_sub(others).max(NARROWEST_NAME));
    }
    for row in &shown {
        let mut line = String::from(" ");
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let cell =
                if column == 0 && screen.width().is_some() { fitted(cell, *width, unicode) } else { cell.into() };
            let is_number = count == VALUES.len() && NUMBERS.contains(&column);
            line.push(' ');
            if is_number {
                line.push_str(&" ".repeat(width.saturating_sub(columns(&cell))));
                line.push_str(&cell);
            } else {
                line.push_str(&padded(&cell, *width));
            }
            line.push(' ');
        }
        screen.line(line.trim_end())?;
    }
    Ok(())
}
