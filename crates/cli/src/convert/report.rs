//! What was written, or would be: for people a line a file, with a table of the tensors where nothing is written; for programs an object.

use std::path::PathBuf;

use max_weights::checkpoint::Checkpoint;
use max_weights::text;
use max_weights::write::Item;
use serde::Serialize;

use super::Wanted;
use super::beside::Beside;
use crate::failure::Failure;
use crate::screen::{Screen, columns, padded};

/// Only the line of a longer name is wider.
const WIDEST_COLUMN: usize = 100;

#[derive(Serialize)]
struct Object<'a> {
    schema: &'static str,
    written: bool,
    bytes: u64,
    files: Vec<File<'a>>,
    /// The files that accompany the weights.
    beside: Vec<String>,
}

#[derive(Serialize)]
struct File<'a> {
    path: String,
    bytes: u64,
    tensors: Vec<Tensor<'a>>,
}

#[derive(Serialize)]
struct Tensor<'a> {
    name: &'a str,
    from: &'a str,
    dtype_from: String,
    dtype: String,
    shape: &'a [u64],
    bytes: u64,
}

pub(super) fn print(
    wanted: &Wanted<'_>,
    checkpoint: &Checkpoint,
    items: &[Item],
    files: &[(PathBuf, Vec<usize>)],
    (beside, notes): (&Beside, &[String]),
    screen: &mut Screen,
) -> Result<(), Failure> {
    let table = checkpoint.catalog().table();
    let tensor = |number: &usize| {
        let Item { number, tensor, .. } = &items[*number];
        let info = table.get(*number);
        let bytes = tensor.bytes().unwrap_or_default();
        let (dtype_from, dtype) = (info.element.to_string(), tensor.stored.to_string());
        Tensor { name: &tensor.name, from: info.name, dtype_from, dtype, shape: &tensor.shape, bytes }
    };
    let of_file = |(path, group): &(PathBuf, Vec<usize>)| {
        let tensors: Vec<Tensor<'_>> = group.iter().map(tensor).collect();
        let bytes = tensors.iter().map(|tensor| tensor.bytes).sum();
        File { path: path.to_string_lossy().into_owned(), bytes, tensors }
    };
    let files: Vec<File<'_>> = files.iter().map(of_file).collect();
    let (written, bytes) = (!wanted.writing.dry_run, files.iter().map(|file| file.bytes).sum());
    let beside: Vec<String> = beside.paths().map(|path| path.to_string_lossy().into_owned()).collect();
    if wanted.writing.json {
        let object = Object { schema: "max-weights.convert/1", written, bytes, files, beside };
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
    for path in &beside {
        screen.line(&text::printable(path))?;
    }
    screen.warn(notes.iter())?;
    if !written {
        screen.line(&format!("nothing was written; it would have been {} of tensors", text::size(bytes)))?;
    }
    Ok(())
}

fn plan(file: &File<'_>, screen: &mut Screen) -> Result<(), Failure> {
    let names = |tensor: &Tensor<'_>| {
        let name = text::printable(tensor.name);
        if tensor.from == tensor.name {
            name.into_owned()
        } else {
            format!("{name} <- {}", text::printable(tensor.from))
        }
    };
    let dtypes = |tensor: &Tensor<'_>| {
        let Tensor { dtype_from, dtype, .. } = tensor;
        if dtype_from == dtype { dtype.clone() } else { format!("{dtype_from} -> {dtype}") }
    };
    let width = |of: &dyn Fn(&Tensor<'_>) -> String| {
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
