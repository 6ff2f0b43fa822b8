//! What was written, or would be: for people a line a file, with a table of the tensors where nothing is written; for programs an object.

use std::path::PathBuf;

use max_weights::checkpoint::Checkpoint;
use max_weights::text;
use max_weights::write::ConvertItem;
use serde::Serialize;

use super::ConvertRequest;
use super::companions::CompanionFiles;
use crate::failure::CommandFailure;
use crate::screen::{Screen, columns, padded};

/// Only the line of a longer name is wider.
const WIDEST_COLUMN: usize = 100;

#[derive(Serialize)]
struct ConvertJson<'a> {
    schema: &'static str,
    written: bool,
    bytes: u64,
    files: Vec<ConvertedFileJson<'a>>,
    /// The files that accompany the weights.
    #[serde(rename = "beside")]
    companions: Vec<String>,
}

#[derive(Serialize)]
struct ConvertedFileJson<'a> {
    path: String,
    bytes: u64,
    tensors: Vec<ConvertedTensorJson<'a>>,
}

#[derive(Serialize)]
struct ConvertedTensorJson<'a> {
    name: &'a str,
    from: &'a str,
    dtype_from: String,
    dtype: String,
    shape: &'a [u64],
    bytes: u64,
}

pub(super) fn print(
    requested: &ConvertRequest<'_>,
    checkpoint: &Checkpoint,
    items: &[ConvertItem],
    files: &[(PathBuf, Vec<usize>)],
    (companions, notes): (&CompanionFiles, &[String]),
    screen: &mut Screen,
) -> Result<(), CommandFailure> {
    let table = checkpoint.catalog().table();
    let tensor = |number: &usize| {
        let ConvertItem { number, tensor, .. } = &items[*number];
        let info = table.get(*number);
        let bytes = tensor.bytes().unwrap_or_default();
        let (dtype_from, dtype) = (info.element.to_string(), tensor.stored.to_string());
        ConvertedTensorJson { name: &tensor.name, from: info.name, dtype_from, dtype, shape: &tensor.shape, bytes }
    };
    let of_file = |(path, group): &(PathBuf, Vec<usize>)| {
        let tensors: Vec<ConvertedTensorJson<'_>> = group.iter().map(tensor).collect();
        let bytes = tensors.iter().map(|tensor| tensor.bytes).sum();
        ConvertedFileJson { path: path.to_string_lossy().into_owned(), bytes, tensors }
    };
    let files: Vec<ConvertedFileJson<'_>> = files.iter().map(of_file).collect();
    let (written, bytes) = (!requested.writing.dry_run, files.iter().map(|file| file.bytes).sum());
    let companions: Vec<String> = companions.paths().map(|path| path.to_string_lossy().into_owned()).collect();
    if requested.writing.json {
        let object = ConvertJson { schema: "max-weights.convert/1", written, bytes, files, companions };
        serde_json::to_writer_pretty(&mut *screen, &object)?;
        screen.line("")?;
        return Ok(screen.warn(notes.iter())?);
    }
    for file in &files {
        if !written {
            plan(file, screen)?;
        }
        let line = format!(
            "{0}{1}{0:#}  {2}, {3}",
            screen.paint.bold,
            text::printable(&file.path),
            text::plural(file.tensors.len() as u64, "tensor"),
            text::size(file.bytes)
        );
        screen.line(&line)?;
    }
    for path in &companions {
        screen.line(&text::printable(path))?;
    }
    screen.warn(notes.iter())?;
    if !written {
        screen.line(&format!("nothing was written; it would have been {} of tensors", text::size(bytes)))?;
    }
    Ok(())
}

fn plan(file: &ConvertedFileJson<'_>, screen: &mut Screen) -> Result<(), CommandFailure> {
    let names = |tensor: &ConvertedTensorJson<'_>| {
        let name = text::printable(tensor.name);
        if tensor.from == tensor.name {
            name.into_owned()
        } else {
            format!("{name} <- {}", text::printable(tensor.from))
        }
    };
    let dtypes = |tensor: &ConvertedTensorJson<'_>| {
        let ConvertedTensorJson { dtype_from, dtype, .. } = tensor;
        if dtype_from == dtype { dtype.clone() } else { format!("{dtype_from} -> {dtype}") }
    };
    let width = |of: &dyn Fn(&ConvertedTensorJson<'_>) -> String| {
        file.tensors.iter().map(|tensor| columns(&of(tensor))).max().unwrap_or(0).min(WIDEST_COLUMN)
    };
    let (of_names, of_dtypes) = (width(&names), width(&dtypes));
    for tensor in &file.tensors {
        let (name, dtype) = (padded(&names(tensor), of_names), padded(&dtypes(tensor), of_dtypes));
        let (shape, bytes) = (text::shape(tensor.shape), text::grouped(tensor.bytes));
        screen.line(&format!("{name}  {dtype}  {shape}  {bytes}"))?;
    }
    Ok(())
}
