//! bitsandbytes: NF4 and FP4 (`weight`, `weight.absmax`, `weight.quant_map`, `weight.quant_state.bitsandbytes__nf4`), and int8 (`SCB`).
//!
//! A packed weight has half a byte for each element, as one column. Each block of elements (64 by default) has an `absmax`; where these are
//! quantized again they are uint8, and each 256 of them have a `nested_absmax`. The int8 weight N, K has N numbers in `SCB`.

use max_weights::dtype::DType;
use max_weights::format::json;
use max_weights::rules;
use max_weights::tensor::{Element, TensorInfo};
use max_weights::text::{escape, grouped};
use serde_json::{Map, Value};

use super::group::{FLOATS, NoLayout, PartFault, QuantizedGroup};
use super::layout::{ScaleRule, WeightLayout};
use super::parts::TensorRole;

/// Tables are made by a division, of which the last bit may differ between devices.
const TOLERANCE: f32 = 1e-6;
/// The usual block.
const BLOCK: u64 = 64;
const BLOCKS: [u64; 8] = [32, 64, 128, 256, 512, 1024, 2048, 4096];
/// The default number of scales that share a nested scale.
const NESTED_BLOCK: u64 = 256;
/// The values of four bits, and those of the eight bits of quantized scales.
const MAP: u64 = 16;
const NESTED_MAP: u64 = 256;
/// A longer state is none: it is a handful of words and numbers.
const MAX_STATE: u64 = 1 << 16;
const MAX_RANK: usize = 8;
const MAX_SIZE: u64 = 1 << 62;
/// Characters of a value that a message shows.
const MAX_SHOWN: usize = 60;

/// Int8 with the largest magnitude of each row, which is 127.
pub(super) fn int8(group: &QuantizedGroup<'_>) -> Result<WeightLayout, NoLayout> {
    let weight = group.need_for(TensorRole::Weight, rules::QUANTIZED_SCALE_ORPHAN)?;
    group.require_dtype(TensorRole::Weight, &[DType::Int8])?;
    let [rows, columns] = group.matrix(TensorRole::Weight, weight.shape)?;
    group.require_dtype(TensorRole::Scb, &[DType::Float32])?;
    let shapes: [&[u64]; 2] = [&[rows], &[rows, 1]];
    group.misshaped(TensorRole::Scb, rules::QUANTIZED_SCALE_SHAPE, &shapes, "for the rows of the weight")?;
    group.require_dtype(TensorRole::Format, &[DType::UInt8])?;
    group.misshaped(TensorRole::Format, rules::QUANTIZED_SHAPE, &[&[], &[1]], "for one number")?;
    if group.values(TensorRole::Format, 1).is_some_and(|order| order != [0]) {
        let why = "int8 in the order of one kernel cannot be decoded";
        return Err(group.refused(TensorRole::Weight, "bitsandbytes-int8", why));
    }
    Ok(WeightLayout::new(("bitsandbytes-int8", ScaleRule::Int8), 8, vec![rows, columns], [1, columns], TensorRole::Scb))
}

/// NF4 or FP4: the codes of all elements in sequence, in blocks that ignore the ends of rows.
pub(super) fn four_bits(group: &QuantizedGroup<'_>) -> Result<WeightLayout, NoLayout> {
    let weight = group.need_for(TensorRole::Weight, rules::QUANTIZED_SCALE_ORPHAN)?;
    let absmax = group.need(TensorRole::Absmax)?;
    group.need(TensorRole::QuantMap)?;
    let state = group.need(TensorRole::QuantState)?;
    let is_nf4 = state.name.ends_with("nf4");
    let (kind, scheme, way) =
        if is_nf4 { ("nf4", "bitsandbytes-nf4", ScaleRule::Nf4) } else { ("fp4", "bitsandbytes-fp4", ScaleRule::Fp4) };
    let spec = spec(group, &state)?;
    let (dims, block) = match &spec {
        Some(spec) => sizes(group, spec, &weight, kind)?,
        None => (vec![weight.bytes().saturating_mul(2)], usual_block(&weight, &absmax)),
    };
    let elements = dims.iter().fold(1, |all: u64, size| all.saturating_mul(*size));
    let count = elements.div_ceil(block);
    let why = format!("for {elements} elements in blocks of {block}");
    group.require_scale(TensorRole::Absmax, &[count], &why)?;
    group.require_dtype(TensorRole::QuantMap, &[DType::Float32])?;
    group.misshaped(TensorRole::QuantMap, rules::QUANTIZED_SHAPE, &[&[MAP]], "for the values of four bits")?;
    if group.values(TensorRole::QuantMap, MAP * 4).is_some_and(|bytes| !is_table(&bytes, way)) {
        let cause = format!("its values are not those of {kind}");
        return Err(group.fault(rules::QUANTIZED_METHOD, TensorRole::QuantMap, cause).into());
    }
    let mut layout = WeightLayout::new((scheme, way), 4, dims, [1, block], TensorRole::Absmax);
    if absmax.element == Element::Plain(DType::UInt8) {
        layout.nested = Some(nested(group, spec.as_ref(), count)?);
    } else {
        group.require_dtype(TensorRole::Absmax, &FLOATS)?;
    }
    Ok(layout)
}

/// What the bytes of a state say. Where they say nothing that is known, that is noted.
fn spec(group: &QuantizedGroup<'_>, state: &TensorInfo<'_>) -> Result<Option<Map<String, Value>>, NoLayout> {
    group.require_dtype(TensorRole::QuantState, &[DType::UInt8])?;
    let bytes = state.bytes();
    let problem = if bytes > MAX_STATE {
        format!("it has {} bytes; expected {} at most", grouped(bytes), grouped(MAX_STATE))
    } else {
        let Some(text) = group.values(TensorRole::QuantState, MAX_STATE) else { return Ok(None) };
        match json::read(&text, MAX_STATE) {
            Ok(Value::Object(spec)) => return Ok(Some(spec)),
            Ok(Value::Array(_)) => "its bytes are no JSON object: it is a list".to_owned(),
            Ok(value) => format!("its bytes are no JSON object: it is {}", printed(Some(&value))),
            Err(problem) => format!("its bytes are no JSON object: {problem}"),
        }
    };
    group.note(group.fault(rules::QUANTIZED_SHAPE, TensorRole::QuantState, problem).uncertain());
    Ok(None)
}

/// The shape and the block that a state says, if they are those of the weight.
fn sizes(
    group: &QuantizedGroup<'_>,
    spec: &Map<String, Value>,
    weight: &TensorInfo<'_>,
    kind: &str,
) -> Result<(Vec<u64>, u64), NoLayout> {
    let wrong = |key: &str, expected: &str| {
        let cause = format!("its {key} is {}; expected {expected}", printed(spec.get(key)));
        group.fault(rules::QUANTIZED_SHAPE, TensorRole::QuantState, cause)
    };
    let word = spec.get("quant_type").and_then(Value::as_str);
    if word.is_none() {
        group.note(wrong("quant_type", "a word").uncertain());
    }
    let sizes = spec.get("shape").and_then(Value::as_array).filter(|sizes| (1..=MAX_RANK).contains(&sizes.len()));
    let size = |value: &Value| value.as_u64().filter(|size| *size < MAX_SIZE);
    let Some(dims) = sizes.and_then(|sizes| sizes.iter().map(size).collect::<Option<Vec<u64>>>()) else {
        return Err(wrong("shape", &format!("a list of one to {MAX_RANK} sizes")).into());
    };
    let block = spec.get("blocksize").and_then(Value::as_u64).filter(|block| BLOCKS.contains(block));
    let Some(block) = block else {
        let blocks = BLOCKS.map(|block| block.to_string()).join(", ");
        return Err(wrong("blocksize", &format!("one of {blocks}")).into());
    };
    if let Some(word) = word.filter(|word| *word != kind) {
        let cause = format!("it says '{}', which is not what its name says", escape(word));
        return Err(group.fault(rules::QUANTIZED_METHOD, TensorRole::QuantState, cause).into());
    }
    let elements = dims.iter().try_fold(1, |all: u64, size| all.checked_mul(*size));
    let expected = elements.map(|elements| elements.div_ceil(2));
    if expected != Some(weight.bytes()) {
        let (bytes, shape) = (weight.bytes(), printed(spec.get("shape")));
        let cause = match elements.zip(expected) {
            Some((elements, expected)) => {
                format!("it has {bytes} bytes; expected {expected} for {elements} elements of four bits")
            }
            None => format!("it has {bytes} bytes; expected more than can be counted for the shape {shape}"),
        };
        return Err(group.fault(rules::QUANTIZED_SHAPE, TensorRole::Weight, cause).into());
    }
    Ok((dims, block))
}

/// The block that gives as many scales as there are, where no state says it.
fn usual_block(weight: &TensorInfo<'_>, absmax: &TensorInfo<'_>) -> u64 {
    let elements = weight.bytes().saturating_mul(2);
    BLOCKS.into_iter().find(|block| absmax.shape == [elements.div_ceil(*block)]).unwrap_or(BLOCK)
}

/// How many scales that are codes share a scale, and what is added to them.
fn nested(group: &QuantizedGroup<'_>, spec: Option<&Map<String, Value>>, count: u64) -> Result<(u64, f32), NoLayout> {
    group.need(TensorRole::NestedQuantMap)?;
    group.need(TensorRole::NestedAbsmax)?;
    group.require_dtype(TensorRole::NestedQuantMap, &[DType::Float32])?;
    let why = "for the values of eight bits";
    group.misshaped(TensorRole::NestedQuantMap, rules::QUANTIZED_SHAPE, &[&[NESTED_MAP]], why)?;
    group.require_dtype(TensorRole::NestedAbsmax, &FLOATS)?;
    let wrong = |key: &str, expected: &str| -> PartFault {
        let value = printed(spec.and_then(|spec| spec.get(key)));
        let cause = format!("its {key} is {value}; expected {expected}");
        group.fault(rules::QUANTIZED_SHAPE, TensorRole::QuantState, cause).uncertain()
    };
    let get = |key: &str| spec.and_then(|spec| spec.get(key));
    let size = get("nested_blocksize").and_then(Value::as_u64).filter(|size| (1..1 << 32).contains(size));
    let offset = get("nested_offset").and_then(Value::as_f64).filter(|offset| offset.abs() <= f64::from(f32::MAX));
    if spec.is_some() && size.is_none() {
        group.note(wrong("nested_blocksize", "a number of scales"));
    }
    if spec.is_some() && offset.is_none() {
        group.note(wrong("nested_offset", "a float32"));
    }
    let size = size.unwrap_or(NESTED_BLOCK);
    let why = format!("for {count} scales in blocks of {size}");
    group.require_scale(TensorRole::NestedAbsmax, &[count.div_ceil(size)], &why)?;
    Ok((size, offset.unwrap_or_default() as f32))
}

/// Whether these are the values of the codes of a kind.
fn is_table(bytes: &[u8], way: ScaleRule) -> bool {
    let values = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
    let table = way.table().unwrap_or_default();
    let is_near = |(value, known): (f32, f32)| (value - known).abs() <= TOLERANCE + TOLERANCE * known.abs();
    values.len() == table.len() && values.zip(table).all(is_near)
}

/// A value in few words, as Python prints JSON.
fn printed(value: Option<&Value>) -> String {
    let text = match value {
        Some(Value::Array(list)) => {
            let items = list.iter().take(MAX_SHOWN).map(ToString::to_string).collect::<Vec<String>>();
            format!("[{}]", items.join(", "))
        }
        Some(value) => value.to_string(),
        None => "null".to_owned(),
    };
    let text = escape(&text);
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
