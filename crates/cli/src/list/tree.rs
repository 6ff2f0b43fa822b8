//! The listing as a tree.

use std::fmt::Write as _;
use std::io;

use max_weights::Catalog;
use max_weights::checkpoint::{PrefixTree, TreeLimits, TreeLine};

use crate::screen::{Screen, columns, fitted, in_locale, push_padded};

/// A hostile name of a megabyte must not widen every other line, only its line.
const WIDEST_COLUMN: usize = 100;
/// A column is not made narrower than this, however narrow the terminal is.
const NARROWEST_COLUMN: usize = 12;
/// Names are not cut to less than this.
const SHORT_NAME: usize = 16;
/// The width of the column of sizes, which aligns them.
const SIZE: usize = 9;

/// Writes the tree of the weights below `prefix`.
pub(crate) fn write(
    catalog: &Catalog,
    prefix: &str,
    lines: Option<u32>,
    fold: bool,
    screen: &mut Screen,
) -> io::Result<()> {
    let tree = PrefixTree::new(catalog, prefix, TreeLimits { lines: lines.map(|lines| lines as usize), fold });
    let (mut lines, hidden) = tree.lines();
    let unicode = screen.unicode();
    if !unicode {
        for line in &mut lines {
            line.label = in_locale(&line.label, false).into_owned();
        }
    }
    let width = |column: fn(&TreeLine) -> usize| {
        lines.iter().filter(|line| line.is_weight).map(|line| column(line).min(WIDEST_COLUMN)).max().unwrap_or(0)
    };
    let mut label = width(|line| columns(&line.branches) + columns(&line.label));
    let [dtype, shape] = [width(|line| columns(&line.columns[0])), width(|line| columns(&line.columns[1]))];
    let most = screen.width().unwrap_or(usize::MAX);
    // A short name is whole however deep it is, and leaves no room for the size then.
    let short = width(|line| columns(&line.branches) + columns(&line.label).min(SHORT_NAME));
    let has_size = short.saturating_add(dtype + shape + SIZE + 6) <= most;
    let others = dtype + shape + if has_size { SIZE + 6 } else { 4 };
    label = label.min(most.saturating_sub(others)).max(NARROWEST_COLUMN.min(label)).max(short);
    let paint = screen.paint;
    let mut text = String::new();
    for TreeLine { branches, label: name, columns: [first, second, third], is_weight } in &lines {
        let indent = columns(branches);
        if *is_weight {
            let space = if most == usize::MAX { usize::MAX } else { label.saturating_sub(indent) };
            text.clear();
            // Writing to a string cannot fail.
            let _ = write!(text, "{0}{branches}{0:#}", paint.dim);
            push_padded(&mut text, &fitted(name, space, unicode), label.saturating_sub(indent));
            let _ = write!(text, "  {}", paint.dtype);
            push_padded(&mut text, first, dtype);
            let _ = write!(text, "{:#}  ", paint.dtype);
            if has_size {
                push_padded(&mut text, second, shape);
                let _ = write!(text, "  {0}{third:>SIZE$}{0:#}", paint.size);
            } else {
                text.push_str(second);
            }
            screen.line(&text)?;
        } else {
            let name = fitted(name, most.saturating_sub(indent + columns(third) + 2).max(NARROWEST_COLUMN), unicode);
            screen
                .line(format!("{0}{branches}{0:#}{1}{name}{1:#}  {0}{third}{0:#}", paint.dim, paint.bold).trim_end())?;
        }
    }
    if hidden > 0 {
        screen.line(&format!("… {hidden} more lines"))?;
    }
    // The process ends soon, which frees a hundred thousand lines faster.
    std::mem::forget((tree, lines));
    Ok(())
}
