//! Layouts of other libraries by their names: the rules that lead there are in the Python package.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::sync::Arc;

use max_weights::checkpoint::{ConversionRule, PlainRule};
use max_weights::{Checkpoint, Error};
use serde::Deserialize;

use super::ConvertRequest;
use super::hugging_face::run_python;
use crate::failure::CommandFailure;
use crate::host::Host;
use crate::list::PatternArguments;

/// The names of the layouts.
const LAYOUTS: [&str; 3] = ["transformers5", "vllm", "megatron"];

/// What Python answers: rules, some after the others.
#[derive(Debug, Deserialize)]
struct LayoutAnswer {
    rules: Vec<Vec<PlainRule>>,
}

/// The layout among new names, and the pairs of names.
///
/// # Errors
/// There are two.
pub(super) fn of(rename: &[String]) -> Result<(Option<&str>, Vec<String>), CommandFailure> {
    let (layouts, pairs): (Vec<&String>, Vec<&String>) = rename.iter().partition(|one| LAYOUTS.contains(&one.as_str()));
    match layouts[..] {
        [first, second, ..] => {
            Err(CommandFailure::Usage(format!("--rename {first}, --rename {second}: give one layout")))
        }
        _ => Ok((layouts.first().map(|layout| layout.as_str()), pairs.into_iter().cloned().collect())),
    }
}

/// The selected weights, by their names in the files, in the layout of a library; and the names of the others, which stay unchanged. Nothing is read.
pub(super) fn converted(
    layout: &str,
    requested: &ConvertRequest<'_>,
    checkpoint: Checkpoint,
    host: &Host,
) -> Result<(Checkpoint, HashSet<String>), CommandFailure> {
    let catalog = checkpoint.catalog();
    let selected: HashSet<u32> =
        PatternArguments::new("--select", requested.select)?.matching(catalog)?.into_iter().collect();
    let others = catalog.table().iter().zip(0..).filter(|(_, number)| !selected.contains(number));
    let others: HashSet<String> = others.map(|(info, _)| info.name.to_owned()).collect();
    // Each weight belongs to the first rule that it fits.
    let kept = others.iter().map(|name| ConversionRule::of_plain(&(vec![name.clone()], vec![name.clone()], vec![])));
    let kept = kept.collect::<Result<Vec<_>, _>>()?;
    let mut arguments = vec![OsStr::new("rules"), OsStr::new("--"), OsStr::new(layout)];
    arguments.extend(requested.places.paths.iter().map(|path| path.as_os_str()));
    let answer: LayoutAnswer =
        serde_json::from_slice(&run_python("which rules lead to this layout", &arguments, host)?)?;
    let converted = answer.rules.iter().try_fold(checkpoint, |checkpoint, rules| {
        let rules = rules.iter().map(ConversionRule::of_plain);
        let rules = kept.iter().cloned().map(Ok).chain(rules).collect::<Result<Vec<_>, Error>>()?;
        let catalog = checkpoint.catalog().converted(rules)?;
        Ok::<_, Error>(checkpoint.with_catalog(Arc::new(catalog)))
    })?;
    Ok((converted, others))
}
