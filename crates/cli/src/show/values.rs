//! A PyTorch file without its tensors: values, and the calls that its pickle would make. None is made here.

use max_weights::checkpoint::FileObject;
use max_weights::format::pickle::Danger;
use max_weights::{Catalog, text};
use serde::Serialize;

use crate::failure::CommandFailure;
use crate::screen::{Screen, columns, padded};

/// Values and calls that people are shown at most, and characters of each.
const SHOWN: usize = 100;
const WIDTH: usize = 200;
/// Characters that programs get of each.
const WHOLE: usize = 1 << 20;
/// Only the line of a longer name is wider; it pads no other.
const WIDEST_COLUMN: usize = 100;

/// A value as Python source.
#[derive(Serialize)]
pub(super) struct PythonSource<'a> {
    name: &'a str,
    value: String,
}

/// A call that loading the file by pickle would make, as Python source.
#[allow(clippy::struct_field_names)] // they are the keys of the object
#[derive(Serialize)]
pub(super) struct PickleCallText {
    file: String,
    /// The offset of the call.
    offset: Option<u64>,
    verdict: &'static str,
    call: String,
}

#[derive(Serialize)]
struct ValuesJson<'a> {
    schema: &'static str,
    values: Vec<PythonSource<'a>>,
}

/// All values, for programs.
pub(super) fn values(catalog: &Catalog) -> Vec<PythonSource<'_>> {
    catalog.objects().map(|object| PythonSource { name: object.name, value: object.source(WHOLE) }).collect()
}

/// All calls, for programs.
pub(super) fn calls(catalog: &Catalog) -> Vec<PickleCallText> {
    let call = |object: FileObject<'_>| PickleCallText {
        file: catalog.path(object.file).to_string_lossy().into_owned(),
        offset: object.position(),
        verdict: verdict(&object).name(),
        call: object.source(WHOLE),
    };
    catalog.calls().map(call).collect()
}

/// What calling it could do.
fn verdict(object: &FileObject<'_>) -> Danger {
    object.global().map_or(Danger::NeedsTrust, |global| global.danger)
}

/// Writes the values of this name and of those below it, one a line; whether there are any.
pub(super) fn write(catalog: &Catalog, name: &str, json: bool, screen: &mut Screen) -> Result<bool, CommandFailure> {
    let requested = |object: &FileObject<'_>| {
        name.is_empty() || object.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let found: Vec<FileObject<'_>> = catalog.objects().filter(requested).collect();
    if found.is_empty() {
        return Ok(false);
    }
    if json {
        let values = found.iter().map(|object| PythonSource { name: object.name, value: object.source(WHOLE) });
        let object = ValuesJson { schema: "max-weights.show/1", values: values.collect() };
        serde_json::to_writer_pretty(&mut *screen, &object)?;
        screen.line("")?;
        return Ok(true);
    }
    // A single requested value is shown whole.
    let most = if found.len() == 1 && !name.is_empty() { WHOLE } else { WIDTH };
    let rows: Vec<_> =
        found.iter().take(SHOWN).map(|object| (text::printable(object.name), object.source(most))).collect();
    let width = rows.iter().map(|(name, _)| columns(name)).max().unwrap_or(0).min(WIDEST_COLUMN);
    for (name, value) in rows {
        screen.line(&format!("{0}{1}{0:#}  {value}", screen.paint.dim, padded(&name, width)))?;
    }
    if found.len() > SHOWN {
        screen.line(&format!("… {}", text::plural((found.len() - SHOWN) as u64, "more value")))?;
    }
    Ok(true)
}

/// Writes the calls, one a line, with their places and verdicts.
pub(super) fn write_calls(catalog: &Catalog, screen: &mut Screen) -> Result<(), CommandFailure> {
    let found: Vec<FileObject<'_>> = catalog.calls().collect();
    if found.is_empty() {
        return Ok(());
    }
    let paint = screen.paint;
    let heading = "calls that pickle would make (byte, verdict, what is run); none was made here";
    screen.line("")?;
    screen.line(&format!("{0}{heading}{0:#}", paint.bold))?;
    for object in found.iter().take(SHOWN) {
        let verdict = verdict(object);
        let style = paint.danger(verdict);
        let place = object.position().map_or_else(|| "-".to_owned(), text::grouped);
        let call = object.source(WIDTH);
        screen.line(&format!("  {place:>9}  {style}{:11}{style:#}  {call}", verdict.name()))?;
    }
    if found.len() > SHOWN {
        screen.line(&format!("  … {}", text::plural((found.len() - SHOWN) as u64, "more call")))?;
    }
    Ok(())
}
