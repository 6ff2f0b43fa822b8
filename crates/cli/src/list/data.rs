//! The listing for programs: JSON, JSON lines, CSV.

use std::io::{IsTerminal as _, Write as _};

use max_weights::{Catalog, text};
use serde::{Serialize, Serializer};

use super::summary::{Total, totals};
use crate::failure::CommandFailure;
use crate::record::{MessageJson, MetadataJson, Weight};
use crate::screen::Screen;
use crate::warnings::warnings;

/// One object: what is known of the whole, and the weights in file order, one a line.
pub(super) fn json(catalog: &Catalog, numbers: &[u32], screen: &mut Screen) -> Result<(), CommandFailure> {
    let totals = totals(catalog, numbers);
    screen.write_all(b"{\n")?;
    member(screen, "schema", "max-weights.ls/1")?;
    let files: Vec<_> = catalog.files().iter().map(|file| file.path.to_string_lossy()).collect();
    member(screen, "files", &files)?;
    member(screen, "metadata", &MetadataJson(catalog))?;
    let found = warnings(catalog);
    let warnings: Vec<_> = found.iter().map(MessageJson::of_fault).collect();
    member(screen, "warnings", &warnings)?;
    let mut whole = Total::default();
    for (_, total) in &totals {
        whole.weights += total.weights;
        whole.bytes += total.bytes;
    }
    member(screen, "totals", &whole)?;
    member(screen, "dtypes", &ByDtype(&totals))?;
    screen.write_all(b"\"weights\": [")?;
    for (position, &number) in numbers.iter().enumerate() {
        screen.write_all(if position == 0 { b"\n" } else { b",\n" })?;
        let info = catalog.table().get(number as usize);
        serde_json::to_writer(&mut *screen, &Weight::new(catalog, &info))?;
    }
    screen.write_all(b"\n]\n}\n")?;
    Ok(())
}

/// One object a weight and line.
pub(super) fn json_lines(catalog: &Catalog, numbers: &[u32], screen: &mut Screen) -> Result<(), CommandFailure> {
    for &number in numbers {
        let info = catalog.table().get(number as usize);
        serde_json::to_writer(&mut *screen, &Weight::new(catalog, &info))?;
        screen.write_all(b"\n")?;
    }
    Ok(())
}

/// A line of heads, and one line a weight. The shape has an `x` between the dimensions. Names are unchanged, since CSV has no
/// escapes; on a terminal they are safe to print.
pub(super) fn csv(catalog: &Catalog, numbers: &[u32], screen: &mut Screen) -> Result<(), CommandFailure> {
    let for_eyes = std::io::stdout().is_terminal();
    let shown = |text: String| if for_eyes { text::printable(&text).into_owned() } else { text };
    let mut writer = csv::Writer::from_writer(screen.raw());
    writer.write_record(["name", "dtype", "shape", "bytes", "file", "offset", "aligned"])?;
    for &number in numbers {
        let info = catalog.table().get(number as usize);
        let shape: Vec<String> = info.shape.iter().map(u64::to_string).collect();
        let file = shown(catalog.files()[info.file as usize].path.to_string_lossy().into_owned());
        let (name, dtype) = (shown(info.name.to_owned()), shown(info.element.to_string()));
        let (bytes, offset) = (info.bytes().to_string(), info.span.start().to_string());
        let aligned = if info.is_aligned() { "true" } else { "false" };
        let record = [&name, &dtype, &shape.join("x"), &bytes, &file, &offset, aligned];
        writer.write_record(record)?;
    }
    writer.flush()?;
    Ok(())
}

fn member(screen: &mut Screen, key: &str, value: &(impl Serialize + ?Sized)) -> Result<(), CommandFailure> {
    serde_json::to_writer(&mut *screen, key)?;
    screen.write_all(b": ")?;
    serde_json::to_writer(&mut *screen, value)?;
    screen.write_all(b",\n")?;
    Ok(())
}

/// The totals as an object, in their order.
struct ByDtype<'a>(&'a [(String, Total)]);

impl Serialize for ByDtype<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, total)| (name, total)))
    }
}
