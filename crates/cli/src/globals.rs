//! `max-weights globals`: the classes and functions that PyTorch files name, and what is known of them.

use std::path::Path;

use max_weights::format::pickle::GlobalUse;
use max_weights::{Checkpoint, text};
use serde::Serialize;

use crate::arguments::{Globals, Reading};
use crate::failure::Failure;
use crate::open::open;
use crate::screen::{Screen, padded};
use crate::{CLEAN, FINDINGS};

#[derive(Serialize)]
struct Object<'a> {
    schema: &'static str,
    files: Vec<String>,
    globals: Vec<Global<'a>>,
    /// How many are not known.
    unknown: usize,
}

/// A class or function that a file names.
#[derive(Serialize)]
struct Global<'a> {
    #[serde(serialize_with = "as_text")]
    file: &'a Path,
    /// The byte at which it stands first.
    offset: u64,
    verdict: &'static str,
    name: String,
}

pub(crate) fn run(options: &Globals, screen: &mut Screen) -> Result<u8, Failure> {
    let reading = Reading { no_strict: true, ..Reading::default() };
    let checkpoint = open(&options.paths, &reading)?;
    let found = globals(&checkpoint)?;
    let unknown = found.iter().filter(|global| global.verdict != "known").count();
    if options.json {
        let files = checkpoint.catalog().files().iter().map(|file| file.path.to_string_lossy().into_owned()).collect();
        let object = Object { schema: "max-weights.globals/1", files, globals: found, unknown };
        serde_json::to_writer_pretty(&mut *screen, &object)?;
        screen.line("")?;
    } else {
        print(&found, unknown, checkpoint.catalog().files().len() > 1, screen)?;
    }
    Ok(if unknown > 0 { FINDINGS } else { CLEAN })
}

fn globals(checkpoint: &Checkpoint) -> Result<Vec<Global<'_>>, Failure> {
    let catalog = checkpoint.catalog();
    let files = catalog.files();
    if (0..files.len()).all(|number| catalog.torch(number as u32).is_none()) {
        let path = files.first().map(|file| text::path(&file.path)).unwrap_or_default();
        return Err(Failure::Usage(format!("{path}: this is a {} file: nothing in it names code", catalog.kind())));
    }
    let global = |(file, global): (u32, &GlobalUse)| Global {
        file: &files[file as usize].path,
        offset: global.offset,
        verdict: global.verdict.name(),
        name: global.full_name(),
    };
    Ok(catalog.globals().map(global).collect())
}

fn print(found: &[Global<'_>], unknown: usize, several: bool, screen: &mut Screen) -> Result<(), Failure> {
    let paint = screen.paint;
    let width = found.iter().map(|global| global.offset.to_string().len()).max().unwrap_or(0);
    for Global { file, offset, verdict, name } in found {
        let style = paint.verdict(verdict);
        let place = if several { format!("  {0}{1}{0:#}", paint.dim, text::path(file)) } else { String::new() };
        let (verdict, name) = (padded(verdict, 9), text::printable(name));
        screen.line(&format!("{offset:>width$}  {style}{verdict}{style:#}  {name}{place}"))?;
    }
    screen.line("")?;
    let count = text::plural(found.len() as u64, "global");
    screen.line(&format!("{0}{count}, {1} not known{0:#}", paint.bold, text::grouped(unknown as u64)))?;
    Ok(())
}

fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}
