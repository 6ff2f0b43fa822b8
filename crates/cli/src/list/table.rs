//! The listing as a table: exact numbers without spaces, for `sort` and `awk`.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use max_weights::tensor::TensorInfo;
use max_weights::{Catalog, text};

use crate::screen::{Screen, columns, element, fitted, in_locale, push_padded};

/// A hostile name of a megabyte must not widen a quarter of a million lines, only its line.
const WIDEST_COLUMN: usize = 100;
/// A name is not cut to fewer columns than this; a narrower terminal has fewer columns of the table.
const NARROWEST_NAME: usize = 24;
/// The columns; the last one is there where there are several files.
const HEADS: [&str; 7] = ["name", "dtype", "shape", "bytes", "offset", "aligned", "file"];
const NUMBERS: [&str; 2] = ["bytes", "offset"];

/// Writes one line a weight: name, dtype, shape, bytes, offset, aligned, and the file where there are several.
pub(super) fn write(catalog: &Catalog, numbers: &[u32], lines: Option<u32>, screen: &mut Screen) -> io::Result<()> {
    let shown = &numbers[..lines.map_or(numbers.len(), |lines| numbers.len().min(lines as usize))];
    let several = catalog.files().len() > 1;
    let mut heads = &HEADS[..if several { HEADS.len() } else { HEADS.len() - 1 }];
    let unicode = screen.unicode();
    let fill = |row: &mut TableRow, number: u32| {
        let info = catalog.table().get(number as usize);
        row.fill(&info, several.then(|| &*catalog.files()[info.file as usize].path), unicode);
    };
    let mut row = TableRow::default();
    let mut widths: Vec<usize> = heads.iter().map(|head| head.len()).collect();
    for &number in shown {
        fill(&mut row, number);
        for (width, cell) in widths.iter_mut().zip(&row.cells) {
            *width = (*width).max(columns(cell).min(WIDEST_COLUMN));
        }
    }
    let most = screen.width();
    if let Some(most) = most {
        let wide = |count: usize| widths[1..count].iter().map(|width| width + 2).sum::<usize>();
        while heads.len() > 3 && widths[0].min(NARROWEST_NAME) + wide(heads.len()) > most {
            heads = &heads[..heads.len() - 1];
        }
        widths[0] = widths[0].min(most.saturating_sub(wide(heads.len())).max(NARROWEST_NAME));
    }
    let mut text = String::new();
    let mut line = |screen: &mut Screen, row: &TableRow| {
        text.clear();
        for (column, cell) in row.cells.iter().take(heads.len()).enumerate() {
            let cell =
                if most.is_some() && column == 0 { fitted(cell, widths[0], unicode) } else { cell.as_str().into() };
            if column > 0 {
                text.push_str("  ");
            }
            if NUMBERS.contains(&HEADS[column]) {
                let _ = write!(text, "{cell:>0$}", widths[column]); // writing to a string cannot fail
            } else if column + 1 == heads.len() {
                text.push_str(&cell); // the last column ends the line and needs no padding
            } else {
                push_padded(&mut text, &cell, widths[column]);
            }
        }
        screen.line(&text)
    };
    line(screen, &TableRow { cells: HEADS.map(str::to_owned) })?;
    for &number in shown {
        fill(&mut row, number);
        line(screen, &row)?;
    }
    if shown.len() < numbers.len() {
        screen.line(&format!("… {}", text::plural((numbers.len() - shown.len()) as u64, "more weight")))?;
    }
    Ok(())
}

/// The cells of one line, which is filled again and again.
#[derive(Default)]
struct TableRow {
    cells: [String; 7],
}

impl TableRow {
    fn fill(&mut self, info: &TensorInfo<'_>, file: Option<&Path>, unicode: bool) {
        self.cells.iter_mut().for_each(String::clear);
        let [name, dtype, shape, bytes, offset, aligned, path] = &mut self.cells;
        name.push_str(&text::printable(info.name));
        dtype.push_str(&element(info));
        for (axis, length) in info.shape.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = write!(shape, "{}{length}", if axis == 0 { "[" } else { "," });
        }
        shape.push_str(if info.shape.is_empty() { "[]" } else { "]" });
        let _ = write!(bytes, "{}", info.bytes());
        let _ = write!(offset, "{}", info.span.start());
        aligned.push_str(if info.is_aligned() { "yes" } else { "no" });
        if let Some(file) = file {
            path.push_str(&text::path(file));
        }
        if !unicode {
            for cell in &mut self.cells {
                if !cell.is_ascii() {
                    *cell = in_locale(cell, false).into_owned();
                }
            }
        }
    }
}
