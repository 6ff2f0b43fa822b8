//! A checkpoint with its quantized weights decoded: which there are, and the same checkpoint with some of them as what they decode to.

use std::cell::RefCell;
use std::collections::HashSet;

use max_weights::checkpoint::{Catalog, Checkpoint, DecodedWeight};
use max_weights::dtype::DType;
use max_weights::tensor::Element;
use max_weights::text::escape;
use max_weights::workers::stopped_here;
use max_weights::{Diagnostic, Error, Result};

use super::declared::{DeclaredQuantization, Scheme};
use super::decode::WeightDecoder;
use super::group::{NoLayout, PartFault, QuantizedGroup};
use super::layout::WeightLayout;
use super::parts::{QuantizedLayer, TensorRole, is_float8, layers};
use super::torchao::entries;

/// What to do where a part does not fit.
pub const DAMAGED: &str =
    "The checkpoint was damaged or converted wrongly; `max-weights validate` lists all such tensors";
/// The dtypes that weights are decoded to; others are converted from the first.
const DECODED: [DType; 3] = [DType::Float32, DType::BFloat16, DType::Float16];

/// A quantized weight, by what its tensors say without being read.
#[derive(Debug, Clone)]
pub struct QuantizedWeight {
    /// The name of its layer.
    pub layer: String,
    /// The name that it has where it is not quantized.
    pub weight: String,
    /// The number of the tensor that has its numbers.
    pub packed: usize,
    /// The numbers of all its component tensors.
    pub parts: Vec<(TensorRole, usize)>,
}

/// The quantized weights of a checkpoint.
#[derive(Debug, Clone, Default)]
pub struct QuantizedWeights {
    /// In file order.
    pub found: Vec<QuantizedWeight>,
    /// Tensors with a dtype of quantized weights and unknown scales, or in a checkpoint that declares quantization: their factors are unknown.
    pub unknown: Vec<usize>,
    schemes: Vec<Option<Scheme>>,
    entries: Vec<Option<String>>,
}

impl QuantizedWeights {
    /// Whether a tensor has a dtype that codes have: if none has, no configuration has to be read.
    pub fn is_possible(catalog: &Catalog) -> bool {
        catalog.table().iter().any(|info| is_packed(info.element))
    }

    /// The quantized weights of a catalog.
    pub fn new(catalog: &Catalog, declared: Option<&DeclaredQuantization>) -> Self {
        if !Self::is_possible(catalog) {
            return Self::default();
        }
        let table = catalog.table();
        let layers = layers(table, 0..table.len()).list;
        let none = |_, _| None;
        let is_quantized =
            |layer: &&QuantizedLayer<'_>| QuantizedGroup::new(table, layer, (declared, None), &none).is_quantized();
        let layers: Vec<&QuantizedLayer<'_>> = layers.iter().filter(is_quantized).collect();
        let names: Vec<&str> = layers.iter().map(|layer| layer.name).collect();
        let schemes = declared.map(|declared| declared.schemes(&names).into_iter().map(Option::<&Scheme>::cloned));
        let schemes = schemes.map_or_else(|| vec![None; names.len()], Iterator::collect);
        let by_name = entries(layers.iter().copied(), catalog.metadata());
        let entry = |name: &&str| by_name.get(&*format!("{name}.weight")).map(|entry| (*entry).to_owned());
        let entries = names.iter().map(entry).collect();
        let found: Vec<QuantizedWeight> = layers.into_iter().filter_map(QuantizedWeight::of).collect();
        let known: HashSet<usize> =
            found.iter().flat_map(|found| found.parts.iter().map(|(_, number)| *number)).collect();
        let others: Vec<usize> = (0..table.len()).filter(|number| !known.contains(number)).collect();
        let (scales, others): (Vec<usize>, Vec<usize>) = others.into_iter().partition(|at| is_scale(table.name(*at)));
        let scaled: HashSet<&str> = scales.iter().flat_map(|scale| scaled_by(table.name(*scale))).collect();
        let is_declared = declared.is_some() || catalog.note().is_some();
        let is_unknown = |number: &usize| {
            let info = table.get(*number);
            let has_scale = || [info.name, module_of(info.name)].into_iter().any(|name| scaled.contains(name));
            is_codes(info.element) && (is_declared || has_scale())
        };
        let unknown = others.into_iter().filter(is_unknown).collect();
        Self { found, unknown, schemes, entries }
    }

    /// The layout of one of the weights, by its position; some small tensors are read.
    ///
    /// # Errors
    /// Parts that are missing or do not fit; a scheme that cannot be decoded, with `cure` as what to do; what reading says.
    fn layout(
        &self,
        checkpoint: &Checkpoint,
        declared: Option<&DeclaredQuantization>,
        at: usize,
        cure: &str,
    ) -> Result<WeightLayout> {
        let (catalog, found) = (checkpoint.catalog(), &self.found[at]);
        let layer = QuantizedLayer::named(&found.layer, true, |name| catalog.find(name));
        let failure = RefCell::new(None);
        let values = |number: usize, most: u64| {
            if catalog.table().get(number).bytes() > most {
                return None;
            }
            let read = checkpoint.tensor(number).and_then(|tensor| tensor.copy(&stopped_here));
            match read {
                Ok(copy) => copy.bytes().map(<[u8]>::to_vec),
                Err(error) => {
                    *failure.borrow_mut() = Some(error);
                    None
                }
            }
        };
        let scheme = self.schemes.get(at).and_then(Option::as_ref);
        let entry = self.entries.get(at).and_then(Option::as_deref);
        let group = QuantizedGroup::new(catalog.table(), &layer, (declared, scheme), &values).with_entry(entry);
        let decided = group.decide();
        if let Some(error) = failure.take() {
            return Err(error);
        }
        if let Some(fault) = group.faults().into_iter().next() {
            return Err(raised(catalog, layer.name, fault));
        }
        let refused = |scheme: &str, cause: &str| {
            let name = escape(&found.weight);
            Error::Argument(format!("'{name}' ({}) cannot be decoded: {cause}; {cure}", escape(scheme)))
        };
        match decided {
            Ok(layout) if layer.has(TensorRole::InputFactors) => {
                let cause = "its inputs are multiplied by separate factors, which a weight alone cannot include";
                Err(refused(layout.scheme, cause))
            }
            Ok(layout) => Ok(layout),
            Err(NoLayout::Fault(fault)) => Err(raised(catalog, layer.name, fault)),
            Err(NoLayout::Refused { scheme, cause, .. }) => Err(refused(&scheme, &cause)),
        }
    }

    /// The checkpoint with some of the weights decoded, each given by its position and the dtype that it becomes. Dtypes that weights do not decode to
    /// are left to who converts: the weight is float32 then. Some small tensors are read.
    ///
    /// # Errors
    /// What cannot be decoded, with `cure` as what to do; two weights of one name.
    pub fn decoded(
        &self,
        checkpoint: &Checkpoint,
        declared: Option<&DeclaredQuantization>,
        chosen: impl Iterator<Item = (usize, DType)>,
        cure: &str,
    ) -> Result<Checkpoint> {
        let mut weights = Vec::new();
        for (at, dtype) in chosen {
            let found = &self.found[at];
            let layout = self.layout(checkpoint, declared, at, cure)?;
            let dtype = if DECODED.contains(&dtype) { dtype } else { DType::Float32 };
            weights.push(DecodedWeight {
                name: found.weight.clone(),
                dtype,
                shape: layout.shape.clone(),
                packed: found.packed,
                parts: found.parts.iter().map(|(_, number)| *number).collect(),
                decode: Box::new(WeightDecoder::new(layout, found.parts.iter().copied(), dtype)),
            });
        }
        checkpoint.with_decoded(weights)
    }

    /// The weights in the layout of gpt-oss's experts, which are decoded as [experts, out, in]: the model has [experts, in, out].
    pub fn turned(&self) -> impl Iterator<Item = &QuantizedWeight> {
        self.found.iter().filter(|found| found.parts.iter().any(|(part, _)| *part == TensorRole::Blocks))
    }
}

impl QuantizedWeight {
    fn of(layer: &QuantizedLayer<'_>) -> Option<Self> {
        let parts: Vec<(TensorRole, usize)> = layer.parts().collect();
        let packed = parts.iter().find(|(part, _)| part.role() == "packed")?.1;
        let weight = if layer.is_bare() { layer.name.to_owned() } else { format!("{}.weight", layer.name) };
        Some(Self { layer: layer.name.to_owned(), weight, packed, parts })
    }
}

/// Whether a quantized weight may have such elements.
fn is_packed(element: Element<'_>) -> bool {
    use max_weights::DType::{Int8, Int32, UInt8};
    is_codes(element) || matches!(element, Element::Plain(Int8 | UInt8 | Int32))
}

/// Whether these are floats that are rarely stored without scales.
fn is_codes(element: Element<'_>) -> bool {
    use max_weights::DType::{Float4E2M1Fn, Float6E2M3Fn, Float6E3M2Fn};
    is_float8(element) || matches!(element, Element::Plain(Float4E2M1Fn | Float6E2M3Fn | Float6E3M2Fn))
}

fn is_scale(name: &str) -> bool {
    name.rsplit('.').next().is_some_and(|last| last.contains("scale"))
}

/// What a scale may be of, by its name: the names before its last component, and before the word.
fn scaled_by(name: &str) -> [&str; 2] {
    let word = name.rfind("scale").and_then(|at| name.get(..at)).unwrap_or_default();
    [module_of(name), word.trim_end_matches(['.', '_'])]
}

/// The part of a name before its last component.
fn module_of(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(front, _)| front)
}

fn raised(catalog: &Catalog, name: &str, fault: PartFault) -> Error {
    let info = fault.tensor.map(|number| catalog.table().get(number));
    let mut found = Diagnostic::new(fault.rule, fault.cause).help(fault.help.unwrap_or(DAMAGED));
    if let Some(file) = info.and_then(|info| catalog.files().get(info.file as usize)) {
        found = found.path(&file.path);
    }
    found.tensor(info.map_or(name, |info| info.name)).format()
}
