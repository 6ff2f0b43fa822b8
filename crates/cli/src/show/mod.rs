//! `max-weights show`: one weight with where it is, what its values are like and a histogram of them; or the metadata.

mod histogram;
mod metadata;
mod numbers;
mod values;
mod weight;

pub(crate) use numbers::significant;

use std::path::PathBuf;

use clap::{Args, ValueHint};
use max_weights::{Checkpoint, Error};
use serde::Serialize;

use crate::CLEAN;
use crate::failure::CommandFailure;
use crate::inputs::ReadArguments;
use crate::list;
use crate::open::open;
use crate::record::Weight;
use crate::screen::Screen;
use crate::warnings::warnings;

/// The weights below a prefix, for programs.
#[derive(Serialize)]
struct Below<'a> {
    schema: &'static str,
    prefix: &'a str,
    weights: Vec<Weight<'a>>,
}

/// Show one weight or metadata value: place, statistics, histogram.
#[derive(Debug, Args)]
#[command(
    after_help = "A prefix shows its subtree. Without a name, the metadata is shown, and those values of a PyTorch file that are not tensors."
)]
pub(crate) struct ShowArguments {
    /// A file, a folder, an index, a URL, or ORG/MODEL[@REVISION] in the local Hugging Face cache.
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) path: PathBuf,
    /// A weight, a prefix of several, or a metadata key; without one: the metadata.
    pub(crate) name: Option<String>,
    /// Print only what the header says.
    #[arg(long, overrides_with = "values")]
    pub(crate) no_values: bool,
    /// Read the values for the statistics (the default).
    #[arg(long, hide = true)]
    values: bool,
    /// Bins of the histogram; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(..=200))]
    pub(crate) bins: u32,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reading: ReadArguments,
}

pub(crate) fn run(options: &ShowArguments, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let checkpoint = open(std::slice::from_ref(&options.path), &options.reading)?;
    let catalog = checkpoint.catalog();
    match options.name.as_deref() {
        None | Some("") => metadata::write_all(catalog, options.json, screen)?,
        Some(name) => show(&checkpoint, name, options, screen)?,
    }
    screen.warn(warnings(catalog))?;
    Ok(CLEAN)
}

/// What the name is: a weight, a prefix of weights, a key of the metadata, a value that is not a tensor; in this order.
fn show(
    checkpoint: &Checkpoint,
    name: &str,
    options: &ShowArguments,
    screen: &mut Screen,
) -> Result<(), CommandFailure> {
    let catalog = checkpoint.catalog();
    let below = catalog.walk(name);
    if let Some(number) = catalog.find(name) {
        weight::write(checkpoint, number, options, screen)?;
        if options.json || below.len() == 1 {
            return Ok(());
        }
        screen.line("")?;
    }
    if !below.is_empty() {
        if options.json {
            let weights = below.iter().map(|&number| Weight::new(catalog, &catalog.table().get(number as usize)));
            let object = Below { schema: "max-weights.show/1", prefix: name, weights: weights.collect() };
            serde_json::to_writer_pretty(&mut *screen, &object)?;
            return Ok(screen.line("")?);
        }
        return Ok(list::write_tree(catalog, name, None, true, screen)?);
    }
    if metadata::write_one(catalog, name, options.json, screen)? || values::write(catalog, name, options.json, screen)?
    {
        return Ok(());
    }
    match catalog.require(name) {
        Err(error) => Err(error.into()),
        Ok(_) => Err(Error::Argument(format!("there is nothing named '{}'", max_weights::text::escape(name))).into()),
    }
}
