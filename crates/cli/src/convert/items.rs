//! Which tensors are written, and what each becomes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use max_weights::checkpoint::{Catalog, Checkpoint};
use max_weights::names::{Pattern, Renames};
use max_weights::tensor::{Element, TensorInfo};
use max_weights::write::{self, ConvertItem, DeclaredTensor, StoredElements};
use max_weights::{DType, text};

use super::target::ConvertTarget;
use super::{ConvertRequest, hugging_face};
use crate::failure::CommandFailure;
use crate::host::Host;
use crate::list::PatternArguments;

/// The scheme of names that Hugging Face gives the weights of a GGUF file.
pub(super) const HUGGING_FACE: &str = "hf";

/// The tensors, in the order of the files, but for the `others`; and the checkpoint with the same weights by the same numbers, where rows have another order under the new
/// names.
pub(super) fn items(
    requested: &ConvertRequest<'_>,
    (checkpoint, kept): (&Checkpoint, &HashSet<usize>),
    target: &ConvertTarget,
    others: &HashSet<String>,
    host: &Host,
) -> Result<(Vec<ConvertItem>, Option<Checkpoint>), CommandFailure> {
    let catalog = checkpoint.catalog();
    let names = NewNames::new(requested, catalog, host)?;
    // In a layout, weights have names that the files do not have.
    let select = if requested.layout.is_some() { &[] } else { requested.select };
    let mut selected = PatternArguments::new("--select", select)?.matching(catalog)?;
    selected.retain(|number| !others.contains(catalog.table().name(*number as usize)));
    if selected.is_empty() {
        return Err(CommandFailure::Usage("it has no tensors; nothing was written".into()));
    }
    let mut items = Vec::with_capacity(selected.len());
    let mut taken: HashMap<String, usize> = HashMap::new();
    for number in selected {
        let number = number as usize;
        let info = catalog.table().get(number);
        if names.leave_out(info.name) {
            continue;
        }
        let name = names.of(number, info.name);
        if let Some(first) = taken.insert(name.clone(), number) {
            let [first, second] = [catalog.table().name(first), info.name].map(text::escape);
            return Err(CommandFailure::Usage(format!(
                "--rename gives '{first}' and '{second}' the same name, '{name}'"
            )));
        }
        let stored = stored(requested, (&info, kept.contains(&number)), &name, target)?;
        items.push(ConvertItem {
            number,
            region: None,
            tensor: DeclaredTensor { name, stored, shape: info.shape.to_vec() },
        });
    }
    if let Some(encoding) = requested.quantize {
        write::check_quantized(items.iter().map(|item| item.tensor.stored), encoding)?;
    }
    if requested.dtype.is_some() && items.iter().all(|item| !is_float(&catalog.table().get(item.number))) {
        return Err(CommandFailure::Usage("--dtype: there are no floats to convert; integers keep their dtype".into()));
    }
    Ok((items, names.with_values(checkpoint)?))
}

/// The default dtype of decoded weights: models run in it, and it takes half the bytes of a lossless one.
pub(super) const DECODED: DType = DType::BFloat16;

/// Says that packed weights are decoded where no dtype was asked for.
pub(super) fn decoded(requested: &ConvertRequest<'_>, catalog: &Catalog, items: &[ConvertItem]) -> Option<String> {
    let is_decoded = |item: &&ConvertItem| {
        let packed = matches!(catalog.table().get(item.number).element, Element::Packed(_));
        packed && matches!(item.tensor.stored, StoredElements::Plain(_))
    };
    let number = items.iter().filter(is_decoded).count() as u64;
    (requested.dtype.is_none() && number > 0).then(|| {
        let (weights, dtype) = (text::plural(number, "packed weight"), DECODED.name());
        format!("{weights} became {dtype}, which rounds them; --dtype float32 keeps every bit")
    })
}

/// Whether the elements are floats, packed ones among them.
fn is_float(info: &TensorInfo<'_>) -> bool {
    match info.element {
        Element::Plain(dtype) => dtype.is_float(),
        _ => true,
    }
}

/// What the elements become.
fn stored(
    requested: &ConvertRequest<'_>,
    (info, is_kept): (&TensorInfo<'_>, bool),
    name: &str,
    target: &ConvertTarget,
) -> Result<StoredElements, CommandFailure> {
    let Some(found) = StoredElements::of(info.element) else {
        let (name, element) = (text::escape(info.name), info.element);
        return Err(CommandFailure::Usage(format!(
            "tensor '{name}': elements of the type {element} cannot be written to another file; leave it out with --select"
        )));
    };
    let keeps = requested.packed.is_some();
    if let (true, StoredElements::Packed(_), false) = (keeps, found, target.is_gguf()) {
        let name = text::escape(info.name);
        return Err(CommandFailure::Usage(format!(
            "--packed keep: '{name}' is packed in blocks of GGUF, which only FILE.gguf can hold"
        )));
    }
    Ok(match (requested.dtype, requested.quantize, found) {
        (_, None, StoredElements::Packed(_)) if keeps => found,
        (None, None, StoredElements::Packed(_)) if requested.dequantize => StoredElements::Plain(DType::BFloat16),
        (Some(_), None, _) if is_kept => found,
        (Some(dtype), _, _) if is_float(info) => StoredElements::Plain(dtype),
        (None, Some(encoding), _) if target.is_gguf() => write::quantized(name, info.shape, found, encoding),
        (None, Some(_), _) => {
            return Err(CommandFailure::Usage(
                "--quantize: only GGUF files have such blocks: give FILE.gguf as OUT".into(),
            ));
        }
        (None, None, StoredElements::Packed(_)) if !target.is_gguf() => StoredElements::Plain(DECODED),
        _ => found,
    })
}

/// New names.
struct NewNames {
    /// By number, those that get another one.
    new: Vec<Option<String>>,
    hugging_face: Option<hugging_face::HuggingFaceNames>,
}

impl NewNames {
    fn new(requested: &ConvertRequest<'_>, catalog: &Catalog, host: &Host) -> Result<Self, CommandFailure> {
        let (schemes, pair_texts): (Vec<String>, Vec<String>) =
            requested.rename.iter().cloned().partition(|declared| declared == HUGGING_FACE);
        let hugging_face =
            if schemes.is_empty() { None } else { Some(hugging_face::names(&requested.places.paths, catalog, host)?) };
        let patterns = pair_texts.iter().map(|declared| Pattern::parse(declared)).collect::<Result<_, _>>();
        let of_scheme =
            |name| hugging_face.as_ref().and_then(|known: &hugging_face::HuggingFaceNames| known.by_name.get(name));
        let names: Vec<&str> =
            catalog.table().iter().map(|info| of_scheme(info.name).map_or(info.name, String::as_str)).collect();
        let new = patterns.and_then(|patterns| Renames::new(patterns).apply_all(&names));
        let new = new.map_err(|error| CommandFailure::Usage(format!("--rename {error}")))?;
        Ok(Self { new, hugging_face })
    }

    fn leave_out(&self, name: &str) -> bool {
        self.hugging_face.as_ref().is_some_and(|known| known.excluded.contains(name))
    }

    fn of(&self, number: usize, name: &str) -> String {
        if let Some(new) = &self.new[number] {
            return new.clone();
        }
        let of_scheme = self.hugging_face.as_ref().and_then(|known| known.by_name.get(name));
        of_scheme.map_or(name, String::as_str).to_owned()
    }

    /// The checkpoint whose weights have the values that they have under the new names, where these are others.
    fn with_values(&self, checkpoint: &Checkpoint) -> Result<Option<Checkpoint>, CommandFailure> {
        let Some(known) = self.hugging_face.as_ref() else { return Ok(None) };
        if known.heads.is_empty() && known.amounts.is_empty() {
            return Ok(None);
        }
        let catalog = checkpoint.catalog().renamed_from_gguf(&HashMap::new(), &known.heads, &known.amounts)?;
        Ok(Some(checkpoint.with_catalog(Arc::new(catalog))))
    }
}
