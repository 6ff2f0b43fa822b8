//! One file of weights by itself: what its header says, and every finding of the core about it.

use std::sync::Arc;

use max_weights::checkpoint::{OpenedDelta, inspect};
use max_weights::format::{SNIFF_BYTES, sniff};
use max_weights::rules::{self, Rule, Verdict};
use max_weights::source::Source;
use max_weights::tensor::{Element, checked_elements};
use max_weights::{Catalog, Diagnostic, Error, Result};

use crate::context::{ByteSpan, FileContext};
use crate::kind::{Kind, has_suffix};
use crate::options::Level;
use crate::report::Depth;
use crate::security;
use crate::security::formats::suffix;

/// Suffixes that promise weights and nothing else.
const WEIGHTS: &str = "safetensors gguf";
/// Suffixes that promise weights, and that other programs use, too.
const MAYBE_WEIGHTS: &str = "bin pt pth ckpt";
/// How the names of weights of the usual names begin.
const USUAL_NAMES: [&str; 4] = ["pytorch_model", "adapter_model", "diffusion_pytorch_model", "model"];

/// What says only that a zip archive is something else than a checkpoint. What else it is, is looked at by who looks into archives.
const OTHER_ARCHIVES: [&Rule; 3] =
    [rules::TORCH_ZIP_NO_PICKLE, rules::TORCH_ZIP_STRANGER, rules::TORCH_ZIP_TORCHSCRIPT];

/// Rules about tensors in pickles. Other faults are not repeated where the scan of the pickle has reported them.
const OF_TENSORS: [&Rule; 8] = [
    rules::PICKLE_EXTENT,
    rules::PICKLE_NEGATIVE,
    rules::PICKLE_RANK,
    rules::PICKLE_SAME_NAME,
    rules::PICKLE_STORAGE,
    rules::PICKLE_STORAGE_CONFLICT,
    rules::PICKLE_TENSOR,
    rules::PICKLE_VIEW,
];

pub(super) fn check(piece: &ByteSpan<'_>, kind: Kind, context: &mut FileContext<'_>) -> Result<()> {
    if piece.member.is_some() {
        return Ok(());
    }
    match kind {
        Kind::Safetensors | Kind::Gguf | Kind::Zip | Kind::TorchLegacy => check_weights(piece, kind, context),
        _ => check_others(piece, kind, context),
    }
}

/// What is in the place of weights, and is none.
fn check_others(piece: &ByteSpan<'_>, kind: Kind, context: &mut FileContext<'_>) -> Result<()> {
    let is_raw = kind == Kind::Unknown && has_suffix(piece.name, "bin") && suffix::is_raw_data(&context.file.path);
    if is_raw || !represents_weights(kind, piece.name) {
        return Ok(());
    }
    let first = piece.bytes.first(SNIFF_BYTES)?;
    if let Err(Error::Format(fault)) = sniff(&first, piece.bytes.len()) {
        context.report(piece, *fault);
    }
    Ok(())
}

fn check_weights(piece: &ByteSpan<'_>, kind: Kind, context: &mut FileContext<'_>) -> Result<()> {
    let Some(file) = context.source.clone() else { return Ok(()) };
    let (catalog, faults) = inspect(file.clone(), &context.options.opening())?;
    context.check_cancelled()?;
    let is_other = is_other_archive(kind, piece.name, &faults);
    let is_scanned = context.file.reported > Verdict::Faulty;
    for fault in faults {
        let of_values = fault.rule.id.starts_with("pickle.") && !OF_TENSORS.contains(&fault.rule);
        // So has the scan if the bytes are none of the name's format and can run code.
        let is_declared = is_scanned && (of_values || fault.rule == rules::FILE_SUFFIX);
        if !(is_other || is_declared) {
            context.report(piece, fault);
        }
    }
    if let Some(catalog) = catalog {
        if kind == Kind::Gguf && context.options.level > Level::Header {
            security::formats::polyglot::other_values(piece, &catalog, context)?;
        }
        if kind == Kind::Safetensors {
            known_dtypes(piece, &catalog, context);
            if context.options.level > Level::Header {
                check_delta(piece, file, context)?;
            }
        }
        describe(&catalog, kind, context);
        context.catalog = Some(catalog);
    }
    Ok(())
}

/// Looks for dtypes that the format does not have. The core lists them, as it can load the other tensors; other readers refuse the file.
fn known_dtypes(piece: &ByteSpan<'_>, catalog: &Catalog, context: &mut FileContext<'_>) {
    for info in catalog.table().iter() {
        // An empty name belongs to a tensor that already has another finding.
        if let Element::Unknown(dtype) = info.element
            && !dtype.is_empty()
        {
            let message =
                format!("its dtype is '{}', which the format does not have", max_weights::text::escape(dtype));
            context.report(piece, Diagnostic::new(rules::SAFETENSORS_UNKNOWN_DTYPE, message).tensor(info.name));
        }
    }
}

/// Looks at what a delta says of the tensors that it changes.
fn check_delta(piece: &ByteSpan<'_>, file: Arc<dyn Source>, context: &mut FileContext<'_>) -> Result<()> {
    let faults = match OpenedDelta::of_source(file, &context.options.opening()) {
        Ok(delta) => delta.map_or(Ok(Vec::new()), |delta| delta.faults(&|| context.check_cancelled())),
        Err(Error::Format(fault) | Error::Unsupported(fault)) => Ok(vec![*fault]),
        Err(error) => Err(error),
    };
    faults?.into_iter().for_each(|fault| context.report(piece, fault));
    Ok(())
}

/// Adds what the header says to the report of the file.
fn describe(catalog: &Catalog, kind: Kind, context: &mut FileContext<'_>) {
    let table = catalog.table();
    let parameters = |shape: &[u64]| checked_elements(shape).unwrap_or(u64::MAX);
    context.file.tensors = Some(table.len() as u64);
    context.file.parameters = Some(table.iter().fold(0, |sum: u64, info| sum.saturating_add(parameters(info.shape))));
    if kind == Kind::Zip {
        "PyTorch".clone_into(&mut context.file.kind);
    }
    let is_deep = context.options.level > Level::Header;
    context.looked(if is_deep { Depth::Structure } else { Depth::Header });
}

/// Whether a zip archive is not a checkpoint of PyTorch, and is not called one either: then what the core says of its frame is not asked for.
fn is_other_archive(kind: Kind, name: &str, faults: &[Diagnostic]) -> bool {
    let says_so = faults.iter().any(|fault| OTHER_ARCHIVES.contains(&fault.rule));
    kind == Kind::Zip && (says_so || !has_suffix(name, MAYBE_WEIGHTS) && !has_suffix(name, WEIGHTS))
}

/// Whether a file that is not weights should be weights: by its name, or because it is a pointer to them.
fn represents_weights(kind: Kind, name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    let may_be = has_suffix(name, MAYBE_WEIGHTS);
    let promised = has_suffix(name, WEIGHTS) || may_be && USUAL_NAMES.iter().any(|usual| file.starts_with(usual));
    match kind {
        Kind::LfsPointer => true,
        Kind::Empty | Kind::Zeros | Kind::WebPage => promised || may_be,
        Kind::Json | Kind::Text | Kind::Yaml | Kind::Script | Kind::Unknown => promised,
        _ => false,
    }
}
