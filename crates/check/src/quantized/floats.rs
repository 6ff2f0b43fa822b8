//! Weights that are numbers times the scale of their block: FP8, MXFP8, MXFP6, MXFP4, NVFP4 and int8.
//!
//! For a weight N, K and blocks of n x k, `weight_scale_inv` is ceil(N / n), ceil(K / k); experts in one tensor have their number before both.
//! Some models call it `scale` or `qscale_weight`. With weights of int8, these are pairs of FP4, N, K / 2, and it has a scale for each 32
//! inputs: N, K / 32. `weight_scale` is one number, N (or N, 1) numbers, or N, K / g for groups of g inputs, or as above for blocks. NVFP4 and
//! MXFP4 are uint8 N, K / 2 and MXFP6 N, K * 3 / 4, with a float8 for 16 inputs or an exponent for 32; NVFP4 has one float32 besides. The MXFP4
//! of gpt-oss, for E experts: `NAME_blocks` uint8 E, N, K / 32, 16; `NAME_scales` uint8 E, N, K / 32.

use max_weights::dtype::DType;
use max_weights::rules;
use max_weights::tensor::{Element, TensorInfo};
use max_weights::text::shape;

use super::declared::QuantizationMethod;
use super::group::{FLOATS, NoLayout, QuantizedGroup, blocks, two_cuts};
use super::layout::{ScaleRule, WeightLayout};
use super::parts::{TensorRole, is_eight_bit, is_float8};
use super::rows::{pairs_of_outputs, shifted_bytes};

pub(super) const FLOAT8: [DType; 4] =
    [DType::Float8E4M3Fn, DType::Float8E4M3Fnuz, DType::Float8E5M2, DType::Float8E5M2Fnuz];
const EXPONENTS: [DType; 2] = [DType::UInt8, DType::Float8E8M0Fnu];
const NVFP4_GROUP: u64 = 16;
const MX_GROUP: u64 = 32;
const BLOCK_BYTES: u64 = 16;
/// Rows that are decoded as one block where all rows share a scale, to give every core some work.
const ROWS: u64 = 128;
/// Some programs fuse layers into one tensor with a scale for each part; the maximum number of parts.
const FUSED: u64 = 4;

/// Weights with two scales: ModelOpt's NVFP4, whose scale of all is a factor; and others that have a second scale that is for nothing here.
pub(super) fn two_scales(group: &QuantizedGroup<'_>) -> Result<WeightLayout, NoLayout> {
    let weight = group.need_for(TensorRole::Weight, rules::QUANTIZED_SCALE_ORPHAN)?;
    let scale = group.need(TensorRole::Scale)?;
    if group.is_nvfp4() {
        group.need(TensorRole::Scale2)?;
        return nvfp4(group, (TensorRole::Weight, &weight), &scale, TensorRole::Scale2);
    }
    let is_bytes = weight.element == Element::Plain(DType::UInt8);
    let is_declared =
        |method: &QuantizationMethod| matches!(method, QuantizationMethod::ModelOpt(algorithm) if algorithm == "NVFP4");
    if is_bytes && group.declared.is_some_and(|declared| is_declared(&declared.method)) {
        group.require_dtype(TensorRole::Scale, &FLOAT8)?;
    }
    scaled(group)
}

/// Weights of eight bits, or pairs of FP4 or of integers, with separate scales.
pub(super) fn scaled(group: &QuantizedGroup<'_>) -> Result<WeightLayout, NoLayout> {
    let weight = group.need_for(TensorRole::Weight, rules::QUANTIZED_SCALE_ORPHAN)?;
    let mut scales = [TensorRole::ScaleInv, TensorRole::Scale, TensorRole::PlainScale].into_iter();
    let part = scales.find(|part| group.layer.has(*part)).unwrap_or(TensorRole::Scale);
    let scale = group.need(part)?;
    let is_bytes = weight.element == Element::Plain(DType::UInt8);
    if is_bytes && part == TensorRole::Scale && scale.element == Element::Plain(DType::Float32) {
        return pairs_of_outputs(group, &weight, &scale);
    }
    let numbers: Vec<DType> = FLOATS.into_iter().chain(EXPONENTS).collect();
    group.require_dtype(part, &numbers)?;
    let is_exponent = is_exponent(scale.element);
    if is_bytes && is_exponent {
        return packed_rows(group, (TensorRole::Weight, &weight), (part, &scale), "mxfp4", MX_GROUP); // as ModelOpt writes it
    }
    let is_int8 = weight.element == Element::Plain(DType::Int8);
    if is_int8 && part != TensorRole::Scale {
        let expected = of_rows(weight.shape, 4, MX_GROUP);
        let is_declared = group.declared.is_some_and(|declared| declared.method == QuantizationMethod::Fp8);
        if expected.as_deref() == Some(scale.shape) || is_exponent || is_declared {
            let scheme = if is_exponent { "mxfp4" } else { "fp4" };
            return packed_rows(group, (TensorRole::Weight, &weight), (part, &scale), scheme, MX_GROUP);
        }
    }
    if !is_eight_bit(weight.element) {
        let eight: Vec<DType> = FLOAT8.into_iter().chain([DType::Int8]).collect();
        return Err(group.wrong_dtype(TensorRole::Weight, weight.element, &eight).uncertain().into());
    }
    let mut layout = grid(group, &weight, (part, &scale))?;
    let is_mx = is_exponent && layout.block == [1, MX_GROUP];
    layout.scheme = if is_int8 {
        "int8"
    } else if is_mx {
        "mxfp8"
    } else {
        "fp8"
    };
    let is_symmetric = group.spec().symmetric != Some(false)
        || group.declared.is_none_or(|declared| declared.method != QuantizationMethod::CompressedTensors);
    match (group.layer.has(TensorRole::ZeroPoint), is_int8) {
        (true, true) => shifted_bytes(group, &weight, (part, &scale), layout.block),
        (true, false) => {
            Err(group.refused(TensorRole::ZeroPoint, layout.scheme, "float8 with zero points cannot be decoded"))
        }
        (false, _) => {
            if !is_symmetric {
                group.note(group.missing(TensorRole::ZeroPoint, rules::QUANTIZED_ZERO_POINT_MISSING));
            }
            Ok(layout)
        }
    }
}

/// NVFP4, MXFP4 or MXFP6 of compressed-tensors, whose NVFP4 is divided by the scale of all.
pub(super) fn packed(group: &QuantizedGroup<'_>) -> Result<WeightLayout, NoLayout> {
    let weight = (TensorRole::Packed, &group.need_for(TensorRole::Packed, rules::QUANTIZED_SCALE_ORPHAN)?);
    let scale = group.need(TensorRole::Scale)?;
    if is_float8(scale.element) {
        group.need(TensorRole::GlobalScale)?;
        return nvfp4(group, weight, &scale, TensorRole::GlobalScale);
    }
    let numbers: Vec<DType> = EXPONENTS.into_iter().chain(FLOAT8).collect();
    group.require_dtype(TensorRole::Scale, &numbers)?;
    let bits = group.spec().bits;
    let is_of_six = match (weight.1.shape, scale.shape) {
        ([outer @ .., columns], [scale_outer @ .., groups]) => {
            outer == scale_outer && *columns == groups.saturating_mul(MX_GROUP * 6 / 8)
        }
        _ => false,
    };
    let scheme = if bits == Some(6) || is_of_six && bits.is_none() { "mxfp6" } else { "mxfp4" };
    packed_rows(group, weight, (TensorRole::Scale, &scale), scheme, MX_GROUP)
}

/// The MXFP4 of gpt-oss: bytes [..., out, in / 32, 16], and an exponent for each 32.
pub(super) fn mxfp4(group: &QuantizedGroup<'_>) -> Result<WeightLayout, NoLayout> {
    let packed = group.need_for(TensorRole::Blocks, rules::QUANTIZED_SCALE_ORPHAN)?;
    group.need(TensorRole::BlockScales)?;
    group.require_dtype(TensorRole::Blocks, &[DType::UInt8])?;
    group.require_dtype(TensorRole::BlockScales, &EXPONENTS)?;
    let (true, [outer @ .., count, BLOCK_BYTES]) = (packed.shape.len() > 2, packed.shape) else {
        let dims = shape(packed.shape);
        let cause = format!("it has the shape {dims}; expected [..., out, in / 32, 16], blocks of 32 elements");
        return Err(group.fault(rules::QUANTIZED_SHAPE, TensorRole::Blocks, cause).into());
    };
    let of_blocks: Vec<u64> = outer.iter().copied().chain([*count]).collect();
    group.require_scale(TensorRole::BlockScales, &of_blocks, "for one scale of each block")?;
    let dims = outer.iter().copied().chain([count.saturating_mul(MX_GROUP)]).collect();
    let layout = WeightLayout::new(("mxfp4", ScaleRule::Blocks), 4, dims, [1, MX_GROUP], TensorRole::BlockScales);
    Ok(WeightLayout { dtype: Some(DType::Float4E2M1Fn), ..layout })
}

fn nvfp4(
    group: &QuantizedGroup<'_>,
    weight: (TensorRole, &TensorInfo<'_>),
    scale: &TensorInfo<'_>,
    whole: TensorRole,
) -> Result<WeightLayout, NoLayout> {
    group.require_dtype(whole, &FLOATS)?;
    let layout = packed_rows(group, weight, (TensorRole::Scale, scale), "nvfp4", NVFP4_GROUP)?;
    let outer = layout.shape.get(..layout.shape.len().saturating_sub(2)).unwrap_or_default();
    let mut shapes = vec![vec![], vec![1]];
    if !outer.is_empty() {
        shapes
            .extend((0..3).map(|ones| outer.iter().copied().chain(std::iter::repeat_n(1, ones)).collect::<Vec<u64>>()));
    }
    let expected: Vec<&[u64]> = shapes.iter().map(Vec::as_slice).collect();
    let why = "for the one scale of a whole weight";
    group.misshaped(whole, rules::QUANTIZED_SCALE_SHAPE, &expected, why)?;
    let way = if whole == TensorRole::GlobalScale { ScaleRule::Divided } else { ScaleRule::Multiplied };
    Ok(WeightLayout { way, ..layout })
}

/// Rows of a float of four or six bits, the lowest bits first, with a scale for each group of a row.
fn packed_rows(
    group: &QuantizedGroup<'_>,
    (part, weight): (TensorRole, &TensorInfo<'_>),
    (of_scale, scale): (TensorRole, &TensorInfo<'_>),
    scheme: &'static str,
    size: u64,
) -> Result<WeightLayout, NoLayout> {
    let (bits, dtype) = if scheme == "mxfp6" { (6, DType::Float6E2M3Fn) } else { (4, DType::Float4E2M1Fn) };
    group.require_dtype(part, &[DType::UInt8, DType::Int8])?;
    let ([outer @ .., columns], Some(expected)) = (weight.shape, of_rows(weight.shape, bits, size)) else {
        let of = if bits == 4 { "/ 2" } else { "* 3 / 4" };
        let cause = format!("it has the shape {}; expected [out, in {of}]", shape(weight.shape));
        return Err(group.fault(rules::QUANTIZED_SHAPE, part, cause).into());
    };
    let inputs = columns.saturating_mul(8) / bits;
    // Groups of another size are of another program.
    let spec = group.spec().group.filter(|spec| *spec > 0 && *spec != size);
    let spec = spec.filter(|spec| of_rows(weight.shape, bits, *spec).as_deref() == Some(scale.shape));
    let size = spec.filter(|_| scale.shape != expected).unwrap_or(size);
    if spec.is_none() {
        group.require_scale(of_scale, &expected, &format!("for rows of {inputs} elements in groups of {size}"))?;
    }
    let dims = outer.iter().copied().chain([inputs]).collect();
    let layout = WeightLayout::new((scheme, ScaleRule::Blocks), bits, dims, [1, size], of_scale);
    Ok(WeightLayout { dtype: Some(dtype), ..layout })
}

/// The shape of the scales for rows of packed bytes, with elements of `bits` bits in groups of this size.
fn of_rows(weight: &[u64], bits: u64, size: u64) -> Option<Vec<u64>> {
    let (columns, outer) = weight.split_last()?;
    let all = columns.checked_mul(8).filter(|all| all.is_multiple_of(bits) && !outer.is_empty())?;
    Some(outer.iter().copied().chain([(all / bits).div_ceil(size)]).collect())
}

/// The block of a weight of eight bits that has one scale, the blocks that it is decoded in, and the shape of their scales.
pub(super) fn grid(
    group: &QuantizedGroup<'_>,
    weight: &TensorInfo<'_>,
    (part, scale): (TensorRole, &TensorInfo<'_>),
) -> Result<WeightLayout, NoLayout> {
    let found = scale.shape;
    let is_one = found.iter().all(|size| *size == 1);
    let matrix = matrix(weight.shape, is_one);
    let layout = |way: ScaleRule, block: [u64; 2]| WeightLayout {
        matrix: matrix.clone(),
        ..WeightLayout::new(("", way), 8, weight.shape.to_vec(), block, part)
    };
    let fault = |cause: String| {
        let fault = group.fault(rules::QUANTIZED_SCALE_SHAPE, part, cause);
        // Programs have different scales for experts in one tensor.
        let is_known = weight.shape.len() == 2 || weight.shape.len() > 2 && part != TensorRole::Scale;
        Err(if is_known { fault } else { fault.uncertain() }.into())
    };
    let [outer @ .., rows, columns] = matrix.as_slice() else {
        let (found, weight) = (shape(found), shape(weight.shape));
        return fault(format!("it has the shape {found}, and the weight {weight}; expected one scale"));
    };
    let (rows, columns) = (*rows, (*columns).max(1));
    let with = |more: &[u64]| -> Vec<u64> { outer.iter().chain(more).copied().collect() };
    if is_one || !outer.is_empty() && (found == outer || found == with(&[1, 1])) {
        return Ok(WeightLayout { step: [ROWS, columns], ..layout(ScaleRule::Spread, [rows.max(1), columns]) });
    }
    if found == with(&[rows]) {
        return Ok(WeightLayout { grid: Some(with(&[rows, 1])), ..layout(ScaleRule::Blocks, [1, columns]) });
    }
    let scheme = group.spec();
    let cut = |grid: [u64; 2], spec: Option<[u64; 2]>| {
        let sizes = [rows, columns].into_iter().zip(grid).enumerate();
        let two = { sizes }.find_map(|(axis, (size, parts))| two_cuts(size, parts, spec.map(|spec| spec[axis])));
        let Some((equal, usual)) = two else { return Ok(blocks([rows, columns], grid, spec)) };
        let why = format!(
            "its {} scales may be of blocks of {equal} or of {usual}, and no configuration says which: put config.json, with weight_block_size \
             in quantization_config, in the folder of the weights",
            shape(found)
        );
        Err(group.refused(part, "fp8", why))
    };
    // Dimensions that ModelOpt leaves.
    if let (true, &[of_rows, 1, of_columns, 1]) = (outer.is_empty(), found)
        && let Some(block) = cut([of_rows, of_columns], scheme.block)?
    {
        return Ok(WeightLayout { grid: Some(vec![of_rows, of_columns]), ..layout(ScaleRule::Blocks, block) });
    }
    if let [scale_outer @ .., of_rows, of_columns] = found
        && scale_outer == outer
    {
        let of_groups = scheme.group.filter(|size| *size > 0 && *of_rows == rows).map(|size| [1, size]);
        if let Some(block) = cut([*of_rows, *of_columns], scheme.block.or(of_groups))? {
            return Ok(layout(ScaleRule::Blocks, block));
        }
    }
    if part == TensorRole::Scale && matches!(found, [2..=FUSED]) {
        return Err(group.refused(part, "fp8", "scales of layers that were made one tensor cannot be decoded"));
    }
    let (found, weight) = (shape(found), shape(weight.shape));
    fault(format!("it has the shape {found}, which fits neither blocks nor rows nor all of a weight {weight}"))
}

/// The shape to decode a weight in: large matrices where one scale is for all, as of a convolution.
fn matrix(shape: &[u64], is_one: bool) -> Vec<u64> {
    let product = |sizes: &[u64]| sizes.iter().fold(1, |all: u64, size| all.saturating_mul(*size));
    match shape {
        _ if !is_one || shape.len() == 2 => shape.to_vec(),
        [] => vec![1, 1],
        [outer @ .., last] if *last >= ROWS => vec![product(outer), *last],
        [first, rest @ ..] => vec![*first, product(rest)],
    }
}

fn is_exponent(element: Element<'_>) -> bool {
    matches!(element, Element::Plain(dtype) if EXPONENTS.contains(&dtype))
}

impl QuantizedGroup<'_> {
    /// Whether scales, of which nothing but the name says that they are some, have the shape of one for each block.
    pub(crate) fn has_blocks(&self, part: TensorRole) -> bool {
        let (Some(weight), Some(scale)) = (self.get(TensorRole::Weight), self.get(part)) else { return false };
        match (weight.shape, scale.shape) {
            ([outer @ .., rows, columns], [scale_outer @ .., of_rows, of_columns]) => {
                outer == scale_outer && blocks([*rows, *columns], [*of_rows, *of_columns], None).is_some()
            }
            _ => false,
        }
    }
}
