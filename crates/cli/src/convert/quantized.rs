//! Quantized weights of several tensors: decoded if a dtype is given, or kept packed.

use std::collections::HashSet;
use std::path::Path;

use max_weights::checkpoint::{Catalog, Checkpoint};
use max_weights::source::store::is_url;
use max_weights::tensor::Element;
use max_weights::{DType, text};
use max_weights_check::quantized::{DeclaredQuantization, QuantizedWeights};

use super::companions::is_of_gpt_oss;
use super::target::ConvertTarget;
use super::{ConvertRequest, Packed};
use crate::failure::CommandFailure;
use crate::list::PatternArguments;

/// What to do about a scheme that cannot be decoded.
const CURE: &str = "leave it out with --select, or keep its tensors packed with --packed keep";

/// The checkpoint to write.
pub(super) struct Decoded {
    pub(super) checkpoint: Checkpoint,
    /// Whether weights are decoded, so that a configuration which says how they are quantized says what is not so.
    pub(super) any: bool,
    /// The numbers of tensors that a dtype is not for.
    pub(super) kept: HashSet<usize>,
}

/// The checkpoint with the requested weights decoded.
pub(super) fn decoded(
    requested: &ConvertRequest<'_>,
    checkpoint: Checkpoint,
    target: &ConvertTarget,
) -> Result<Decoded, CommandFailure> {
    let unchanged = |checkpoint| Decoded { checkpoint, any: false, kept: HashSet::new() };
    let dtype = match (requested.dtype, requested.quantize, requested.dequantize) {
        (Some(dtype), _, _) => dtype,
        (None, Some(_), _) => DType::Float32, // what is packed again is not rounded before
        (None, None, true) => DType::BFloat16,
        (None, None, false) => return Ok(unchanged(checkpoint)),
    };
    let catalog = checkpoint.catalog();
    let declared = declared(catalog)?;
    let listing = QuantizedWeights::new(catalog, declared.as_ref());
    if requested.packed == Some(Packed::Keep) {
        let parts = listing.found.iter().flat_map(|found| found.parts.iter().map(|(_, number)| *number));
        let kept = parts.chain(listing.unknown.iter().copied()).collect();
        return Ok(Decoded { kept, ..unchanged(checkpoint) });
    }
    let has_blocks = || catalog.table().iter().any(|info| matches!(info.element, Element::Packed(_)));
    if requested.dequantize && listing.found.is_empty() && listing.unknown.is_empty() && !has_blocks() {
        return Err(CommandFailure::Usage(
            "--dequantize: nothing is quantized here, so that it changes nothing".into(),
        ));
    }
    let select = PatternArguments::new("--select", requested.select)?;
    if let Some(unknown) = listing.unknown.iter().find(|number| select.is_requested(catalog.table().name(**number))) {
        let name = text::escape(catalog.table().name(*unknown));
        return Err(CommandFailure::Usage(format!(
            "'{name}' holds codes of a quantized weight in a layout that is not known here, and would lose its scales: {CURE}"
        )));
    }
    let chosen: Vec<usize> =
        (0..listing.found.len()).filter(|at| select.is_requested(&listing.found[*at].weight)).collect();
    let turned = || listing.turned().find(|turned| select.is_requested(&turned.weight));
    if let (ConvertTarget::Folder(..), true, Some(found)) = (target, is_of_gpt_oss(requested), turned()) {
        let name = text::escape(&found.weight);
        return Err(CommandFailure::Usage(format!(
            "'{name}' is decoded as [experts, out, in], and transformers takes it from a folder of gpt_oss as [experts, in, out]: give FILE.safetensors as OUT, or --packed keep"
        )));
    }
    let any = !chosen.is_empty();
    let numbered = chosen.into_iter().map(|at| (at, dtype));
    let checkpoint = listing.decoded(&checkpoint, declared.as_ref(), numbered, CURE)?;
    let has_parts = |found: &max_weights_check::quantized::QuantizedWeight| {
        !select.is_requested(&found.weight)
            && found.parts.iter().any(|(_, number)| select.is_requested(catalog.table().name(*number)))
    };
    if let Some(found) = listing.found.iter().find(|found| has_parts(found)) {
        let name = text::escape(&found.weight);
        return Err(CommandFailure::Usage(format!(
            "--select takes a part of the quantized weight '{name}', which is decoded as a whole: select '{name}', or keep its tensors packed with --packed keep"
        )));
    }
    Ok(Decoded { checkpoint, any, kept: HashSet::new() })
}

/// The quantization that the files in the folder of a checkpoint declare.
fn declared(catalog: &Catalog) -> Result<Option<DeclaredQuantization>, CommandFailure> {
    let path = catalog.files().first().map_or(Path::new(""), |file| &file.path);
    if is_url(path) || !QuantizedWeights::is_possible(catalog) {
        return Ok(None);
    }
    Ok(DeclaredQuantization::read(path.parent().unwrap_or(Path::new("")))?)
}
