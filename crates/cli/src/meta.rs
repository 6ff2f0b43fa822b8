//! `max-weights meta set` and `meta unset`: the metadata of a file, changed where it is.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use max_weights::format::gguf::ValueType;
use max_weights::write::{Edited, KeyChange, MetadataValue, edit_metadata};
use max_weights::{Catalog, Checkpoint, OpenOptions, text, uninterrupted};

use crate::CLEAN;
use crate::failure::CommandFailure;
use crate::screen::Screen;

/// Change the metadata of a safetensors or GGUF file.
#[derive(Debug, Args)]
pub(crate) struct Meta {
    #[command(subcommand)]
    action: MetaCommand,
}

#[derive(Debug, Subcommand)]
enum MetaCommand {
    Set(MetaSet),
    Unset(Unset),
}

/// Set keys of the metadata, or add them.
#[derive(Debug, Args)]
#[command(after_help = "\
The header is overwritten where that cannot leave it half written; otherwise
a copy of the file replaces it, and the system copies its data.")]
struct MetaSet {
    /// A safetensors or GGUF file.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Keys and values; KEY:TYPE=VALUE, with u8 to u64, i8 to i64, f32, f64 or bool, for values in a GGUF file that are not strings.
    #[arg(required = true, value_name = "KEY=VALUE")]
    pairs: Vec<String>,
}

/// Remove keys from the metadata.
#[derive(Debug, Args)]
struct Unset {
    /// A safetensors or GGUF file.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// The keys.
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
}

pub(crate) fn run(options: &Meta, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let file = match &options.action {
        MetaCommand::Set(MetaSet { file, .. }) | MetaCommand::Unset(Unset { file, .. }) => file,
    };
    let opened = Checkpoint::open(std::slice::from_ref(file), &OpenOptions::default())?;
    let catalog = opened.catalog();
    let changes = match &options.action {
        MetaCommand::Set(MetaSet { pairs: declared, .. }) => typed(catalog, &pairs("meta set", declared)?)?,
        MetaCommand::Unset(Unset { keys, .. }) => {
            for key in keys {
                let known = match catalog.gguf() {
                    Some(gguf) => gguf.metadata.get(key).is_some(),
                    None => catalog.metadata().any(|(known, _)| known == key),
                };
                if !known {
                    let (file, key) = (text::path(file), text::escape(key));
                    return Err(CommandFailure::Usage(format!("{file}: its metadata has no '{key}'")));
                }
            }
            keys.iter().map(|key| (key.clone(), None)).collect()
        }
    };
    drop(opened);
    let declared = match edit_metadata(file, &changes, true, &uninterrupted)? {
        Edited::Unchanged => "nothing to change",
        Edited::InPlace => "changed in place",
        Edited::Rewritten => "rewritten",
    };
    screen.line(&format!("{}: {declared}", text::path(file)))?;
    Ok(CLEAN)
}

/// `KEY=VALUE` each.
pub(crate) fn pairs(option: &str, declared: &[String]) -> Result<Vec<(String, String)>, CommandFailure> {
    let pair = |text: &String| match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(CommandFailure::Usage(format!("{option} {text}: it must have the form NAME=VALUE"))),
    };
    declared.iter().map(pair).collect()
}

/// The values in the types that they have in the file, or are declared with.
pub(crate) fn typed(catalog: &Catalog, pairs: &[(String, String)]) -> Result<Vec<KeyChange>, CommandFailure> {
    let typed = |(declared, value): &(String, String)| {
        let named = declared.rsplit_once(':').and_then(|(key, kind)| Some((key, ValueType::from_name(kind)?)));
        let known =
            catalog.gguf().and_then(|gguf| Some(MetadataValue::from(gguf.metadata.get(declared)?).value_type()));
        let (key, kind) = match (known, named) {
            (None, Some((key, kind))) => (key, kind),
            (known, _) => (&**declared, known.unwrap_or(ValueType::String)),
        };
        let parsed = MetadataValue::parse(kind, value).ok_or_else(|| {
            let (key, value) = (text::escape(key), text::escape(value));
            let why = if kind == ValueType::Array { "arrays cannot be set here" } else { "it is not such a value" };
            CommandFailure::Usage(format!("metadata '{key}' is {kind}, but '{value}' was given: {why}"))
        })?;
        Ok((key.to_owned(), Some(parsed)))
    };
    pairs.iter().map(typed).collect()
}
