//! The tensors of one quantized weight, taken with checks: what is missing or does not fit is a fault that names it.

use std::borrow::Cow;
use std::cell::RefCell;

use max_weights::dtype::DType;
use max_weights::rules::{self, Rule};
use max_weights::tensor::{Element, TensorInfo, TensorTable};
use max_weights::text::{escape, shape};

use super::declared::{DeclaredQuantization, Scheme};
use super::parts::{QuantizedLayer, TensorRole, is_float8};

/// The dtypes of scales that are numbers, and not exponents.
pub(super) const FLOATS: [DType; 3] = [DType::Float32, DType::BFloat16, DType::Float16];
/// Sizes that are given where others would do as well.
const USUAL: u64 = 128;

/// A part that is not there, or does not fit.
#[derive(Debug, Clone)]
pub struct PartFault {
    /// What it breaks.
    pub rule: &'static Rule,
    /// The tensor that it is about, by its number in the table.
    pub tensor: Option<usize>,
    /// What is wrong.
    pub cause: String,
    /// What to do, where the rule does not say it.
    pub help: Option<&'static str>,
    /// The part that is not there.
    pub missing: Option<TensorRole>,
    /// Whether it is one in every layout of this scheme: others may exist that are not known here.
    pub is_certain: bool,
}

/// Why there is no layout.
#[derive(Debug)]
pub enum NoLayout {
    /// The parts do not fit together.
    Fault(PartFault),
    /// A scheme that is known, and cannot be decoded.
    Refused {
        /// Its name.
        scheme: Cow<'static, str>,
        /// The tensor that shows it.
        tensor: usize,
        /// Why not.
        cause: String,
    },
}

/// The elements of a tensor in C order, if they are read and have at most this many bytes.
type SmallValues<'a> = &'a dyn Fn(usize, u64) -> Option<Vec<u8>>;

/// The parts of one weight, and what the configuration says of it.
pub struct QuantizedGroup<'a> {
    pub(super) layer: &'a QuantizedLayer<'a>,
    pub(super) declared: Option<&'a DeclaredQuantization>,
    scheme: Option<&'a Scheme>,
    /// What `__metadata__` says of the weight.
    pub(super) entry: Option<&'a str>,
    table: &'a TensorTable,
    values: SmallValues<'a>,
    faults: RefCell<Vec<PartFault>>,
}

impl<'a> QuantizedGroup<'a> {
    /// The parts of a layer of this table; `scheme` is the declared scheme of the layer.
    pub fn new(
        table: &'a TensorTable,
        layer: &'a QuantizedLayer<'a>,
        (declared, scheme): (Option<&'a DeclaredQuantization>, Option<&'a Scheme>),
        values: SmallValues<'a>,
    ) -> Self {
        Self { layer, declared, scheme, entry: None, table, values, faults: RefCell::default() }
    }

    /// The same with the entry that the weight has in `__metadata__` of its file.
    #[must_use]
    pub fn with_entry(self, entry: Option<&'a str>) -> Self {
        Self { entry, ..self }
    }

    /// What does not fit, and leaves the sizes clear.
    pub fn faults(&self) -> Vec<PartFault> {
        self.faults.take()
    }

    pub(super) fn get(&self, part: TensorRole) -> Option<TensorInfo<'a>> {
        self.layer.get(self.table, part)
    }

    pub(super) fn element(&self, part: TensorRole) -> Option<Element<'a>> {
        self.get(part).map(|info| info.element)
    }

    /// The declared scheme of this layer.
    pub(super) fn spec(&self) -> Scheme {
        self.scheme.cloned().unwrap_or_default()
    }

    /// The word for the method.
    pub(super) fn word(&self) -> &'a str {
        self.declared.map_or("", |declared| &declared.word)
    }

    /// The declared layout of the tensors.
    pub(super) fn layout(&self) -> Option<&'a str> {
        self.declared.and_then(|declared| declared.layout.as_deref())
    }

    /// Whether zero points are declared absent.
    pub(super) fn symmetric(&self) -> Option<bool> {
        let of_layer = self.scheme.and_then(|scheme| scheme.symmetric);
        of_layer.or_else(|| self.declared.and_then(|declared| declared.symmetric))
    }

    /// The elements of a part, if they are read.
    pub(super) fn values(&self, part: TensorRole, most: u64) -> Option<Vec<u8>> {
        (self.values)(self.layer.number(part)?, most)
    }

    /// The whole numbers of a part, if they are read.
    pub(super) fn numbers(&self, part: TensorRole) -> Option<Vec<i64>> {
        let info = self.get(part)?;
        let bytes = self.values(part, info.bytes())?;
        Some(match info.element {
            Element::Plain(DType::Int64) => {
                bytes.as_chunks::<8>().0.iter().map(|number| i64::from_ne_bytes(*number)).collect()
            }
            _ => bytes.as_chunks::<4>().0.iter().map(|number| i64::from(i32::from_ne_bytes(*number))).collect(),
        })
    }

    /// A part, or that it is missing.
    pub(super) fn need(&self, part: TensorRole) -> Result<TensorInfo<'a>, NoLayout> {
        self.need_for(part, rules::QUANTIZED_SCALE_MISSING)
    }

    pub(super) fn need_for(&self, part: TensorRole, rule: &'static Rule) -> Result<TensorInfo<'a>, NoLayout> {
        self.get(part).ok_or_else(|| NoLayout::Fault(self.missing(part, rule)))
    }

    pub(super) fn missing(&self, part: TensorRole, rule: &'static Rule) -> PartFault {
        let mut others = self.layer.parts().map(|(_, number)| number);
        let tensor = others.find(|number| self.table.name(*number) != self.layer.name);
        let cause = format!("there is no {} for it", escape(&part.names(self.layer.name)));
        let help = Some("get the missing file of the checkpoint");
        PartFault { rule, tensor, cause, help, missing: Some(part), is_certain: true }
    }

    pub(super) fn fault(&self, rule: &'static Rule, part: TensorRole, cause: impl Into<String>) -> PartFault {
        let tensor = self.layer.number(part);
        PartFault { rule, tensor, cause: cause.into(), help: None, missing: None, is_certain: true }
    }

    /// Notes what does not fit and leaves the sizes clear.
    pub(super) fn note(&self, fault: PartFault) {
        self.faults.borrow_mut().push(fault);
    }

    pub(super) fn require_dtype(&self, part: TensorRole, dtypes: &[DType]) -> Result<(), NoLayout> {
        match self.element(part) {
            Some(Element::Plain(dtype)) if dtypes.contains(&dtype) => Ok(()),
            Some(element) => Err(self.wrong_dtype(part, element, dtypes).into()),
            None => Ok(()),
        }
    }

    pub(super) fn wrong_dtype(&self, part: TensorRole, element: Element<'_>, dtypes: &[DType]) -> PartFault {
        let expected = dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<&str>>().join(" or ");
        self.fault(rules::QUANTIZED_DTYPE, part, format!("it is {}; expected {expected}", escape(&element.to_string())))
    }

    /// The fault of a part that has none of these shapes; `None` if it has one.
    pub(super) fn misshaped(
        &self,
        part: TensorRole,
        rule: &'static Rule,
        expected: &[&[u64]],
        why: &str,
    ) -> Result<(), PartFault> {
        match self.get(part) {
            Some(info) if !expected.contains(&info.shape) => {
                let expected = expected.iter().map(|dims| shape(dims)).collect::<Vec<String>>().join(" or ");
                let cause = format!("it has the shape {}; expected {expected} {why}", shape(info.shape));
                Err(self.fault(rule, part, cause))
            }
            _ => Ok(()),
        }
    }

    /// Requires the shape of a scale.
    pub(super) fn require_scale(&self, part: TensorRole, expected: &[u64], why: &str) -> Result<(), NoLayout> {
        Ok(self.misshaped(part, rules::QUANTIZED_SCALE_SHAPE, &[expected], why)?)
    }

    /// The two sizes of a matrix.
    pub(super) fn matrix(&self, part: TensorRole, dims: &[u64]) -> Result<[u64; 2], NoLayout> {
        dims.try_into().map_err(|_| {
            let cause = format!("it has the shape {}; expected 2 dimensions", shape(dims));
            self.fault(rules::QUANTIZED_SHAPE, part, cause).uncertain().into()
        })
    }

    /// Whether a weight and its scale have the dtypes of NVFP4.
    pub(super) fn is_nvfp4(&self) -> bool {
        self.element(TensorRole::Weight) == Some(Element::Plain(DType::UInt8))
            && self.element(TensorRole::Scale).is_some_and(is_float8)
    }

    pub(super) fn refused(
        &self,
        part: TensorRole,
        scheme: impl Into<Cow<'static, str>>,
        why: impl Into<String>,
    ) -> NoLayout {
        let tensor = self.layer.number(part).unwrap_or_default();
        NoLayout::Refused { scheme: scheme.into(), tensor, cause: why.into() }
    }
}

impl PartFault {
    /// The same in a layout of which others may exist.
    pub(super) fn uncertain(self) -> Self {
        Self { is_certain: false, ..self }
    }
}

impl From<PartFault> for NoLayout {
    fn from(fault: PartFault) -> Self {
        Self::Fault(fault)
    }
}

/// The length of equal pieces of a size; the last may be shorter. The declared length if it gives this many pieces; else the exact quotient, the
/// usual length, or the minimum that does. `None` without any.
pub(super) fn cut(size: u64, parts: u64, spec: Option<u64>) -> Option<u64> {
    if parts < 1 || parts > size.max(1) {
        return None;
    }
    let least = size.div_ceil(parts).max(1);
    let exact = (size.is_multiple_of(parts) && size > 0).then(|| size / parts);
    let fits = |length: u64| size.div_ceil(length).max(1) == parts;
    let spec = spec.filter(|spec| *spec > 0 && size.div_ceil(*spec) == parts);
    spec.or(exact)
        .or_else(|| Some(USUAL).filter(|usual| size.div_ceil(*usual) == parts))
        .or(Some(least).filter(|least| fits(*least)))
}

/// The two lengths of pieces that fit a size alike, equal ones and the usual one, where the configuration says neither.
pub(super) fn two_cuts(size: u64, parts: u64, spec: Option<u64>) -> Option<(u64, u64)> {
    let is_declared = spec.is_some_and(|spec| spec > 0 && size.div_ceil(spec) == parts);
    let exact = (parts > 1 && size.is_multiple_of(parts)).then(|| size / parts)?;
    (!is_declared && exact != USUAL && size.div_ceil(USUAL) == parts).then_some((exact, USUAL))
}

/// The rows and columns of the blocks of a matrix, by the shape of its scales; `None` if there are none.
pub(super) fn blocks(matrix: [u64; 2], scales: [u64; 2], spec: Option<[u64; 2]>) -> Option<[u64; 2]> {
    let [rows, columns] = [0, 1].map(|axis| cut(matrix[axis], scales[axis], spec.map(|spec| spec[axis])));
    Some([rows?, columns?])
}
