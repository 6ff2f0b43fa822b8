//! The listing as a table: exact numbers without spaces, for `sort` and `awk`.

use std::io;

use max_weights::tensor::TensorInfo;
use max_weights::{Catalog, text};

use crate::screen::{Screen, columns, element, fitted, in_locale, padded};

/// A hostile name of a megabyte must not widen a quarter of a million lines; it sticks out of its own.
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
    let cells = |number: u32| {
        let row = row(catalog, &catalog.table().get(number as usize), several);
        if unicode { row } else { row.map(|cell| in_locale(&cell, false).into_owned()) }
    };
    let mut widths: Vec<usize> = heads.iter().map(|head| head.len()).collect();
    for &number in shown {
        for (width, cell) in widths.iter_mut().zip(cells(number)) {
            *width = (*width).max(columns(&cell).min(WIDEST_COLUMN));
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
    let line = |screen: &mut Screen, cells: &[String]| {
        let mut text = String::new();
        for (column, cell) in cells.iter().take(heads.len()).enumerate() {
            let cell =
                if most.is_some() && column == 0 { fitted(cell, widths[0], unicode) } else { cell.as_str().into() };
            if column > 0 {
                text.push_str("  ");
            }
            if NUMBERS.contains(&HEADS[column]) {
                text.push_str(&format!("{cell:>0$}", widths[column]));
            } else if column + 1 == heads.len() {
                text.push_str(&cell); // the last column ends the line and needs no padding
            } else {
                text.push_str(&padded(&cell, widths[column]));
            }
        }
        screen.line(&text)
    };
    line(screen, &HEADS.map(str::to_owned))?;
    for &number in shown {
        line(screen, &cells(number))?;
    }
    if shown.len() < numbers.len() {
        screen.line(&format!("… {}", text::plural((numbers.len() - shown.len()) as u64, "more weight")))?;
    }
    Ok(())
}

fn row(catalog: &Catalog, info: &TensorInfo<'_>, several: bool) -> [String; 7] {
    let dims: Vec<String> = info.shape.iter().map(u64::to_string).collect();
    let file = if several { text::path(&catalog.files()[info.file as usize].path) } else { String::new() };
    [
        text::printable(info.name).into_owned(),
        element(info),
        format!("[{}]", dims.join(",")),
        info.bytes().to_string(),
        info.span.start().to_string(),
        if info.is_aligned() { "yes" } else { "no" }.to_owned(),
        file,
    ]
}
