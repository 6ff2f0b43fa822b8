//! NumPy's files: a header that is a dict of Python's, and then the values, or a pickle of them.

use max_weights::rules;
use max_weights::tensor::checked_elements;
use max_weights::text::escape;
use max_weights::{DType, Diagnostic, Result};

use super::literal::Literal;
use crate::bytes::ByteSlice;
use crate::context::{ByteSpan, FileContext};
use crate::kind::Kind;
use crate::options::Level;
use crate::report::Depth;
use crate::security::archive::look_behind;
use crate::security::pickle::{self, PickleOrigin};
use crate::values::array::{self, ArrayFacts};

const MAGIC: &[u8] = b"\x93NUMPY";
/// The longest header that is read: a hundred times the default limit of NumPy.
const MAX_HEADER: u32 = 1 << 20;
/// Maximum number of arrays examined in one file.
const MAX_ARRAYS: usize = 100_000;
/// Types in types.
const MAX_DEPTH: usize = 32;

/// Looks at all arrays that are in a file one behind the other.
pub(crate) fn scan(piece: &ByteSpan<'_>, context: &mut FileContext<'_>) -> Result<()> {
    let (mut at, mut is_known) = (0, true);
    for _ in 0..MAX_ARRAYS {
        context.check_cancelled()?;
        let Some(end) = array(piece, at, context)? else { break };
        (at, is_known) = end;
        if piece.bytes.part(at, MAGIC.len())? != MAGIC {
            break;
        }
    }
    if at > 0 {
        look_behind(piece, at, ("array", Kind::Unknown, is_known), context)?;
    }
    context.looked(Depth::Structure);
    if piece.member.is_none() && context.options.level >= Level::Content {
        context.looked_at_arrays();
    }
    Ok(())
}

/// Looks at the array there; tells where it ends, and whether that is known, if something may follow.
fn array(piece: &ByteSpan<'_>, at: u64, context: &mut FileContext<'_>) -> Result<Option<(u64, bool)>> {
    let bytes = piece.bytes;
    let refuse = |why: &str, context: &mut FileContext<'_>| {
        array::unknown("a header that cannot be read", context);
        let finding = Diagnostic::new(rules::NUMPY_HEADER, format!("the header of the array {why}")).offset(at);
        context.report(piece, finding);
    };
    let first = bytes.part(at, 12)?;
    let (len, prefix) = match *first.as_slice() {
        [_, _, _, _, _, _, 1, _, a, b, ..] => (u32::from(u16::from_le_bytes([a, b])), 10),
        [_, _, _, _, _, _, 2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([a, b, c, d]), 12),
        _ => {
            refuse("has no version that is known", context);
            // NumPy may reject it, and a pickle may still follow.
            return Ok(Some((at + 8, false)));
        }
    };
    let data = at.saturating_add(prefix).saturating_add(len.into());
    let text = bytes.part(at + prefix, len.min(MAX_HEADER) as usize)?;
    let text = String::from_utf8_lossy(&text);
    if len > MAX_HEADER || data > bytes.len() {
        refuse(&format!("has {len} bytes, which are missing or too many"), context);
        return Ok(None);
    }
    let Some(header) = Literal::parse(&text).and_then(|header| NpyHeader::of(&header)) else {
        let message =
            "the header of the array is not the plain dict of descr, fortran_order and shape that NumPy writes";
        context
            .report(piece, Diagnostic::new(rules::NUMPY_HEADER, message).offset(at + prefix).evidence(escape(&text)));
        array::unknown("a header that cannot be read", context);
        return Ok(Some((data, false)));
    };
    match header.bytes {
        _ if header.has_objects => {
            context.report(
                piece,
                Diagnostic::new(rules::NUMPY_OBJECT, "the array holds Python objects, which are pickled").offset(data),
            );
            let rest = ByteSlice::new(bytes, data, u64::MAX);
            let name = format!("{}: objects", piece.name);
            let way = piece.member.map_or_else(|| "objects".to_owned(), |member| format!("{member}!/objects"));
            pickle::scan(
                &ByteSpan { depth: piece.depth, ..piece.inside(&rest, &name, &way) },
                PickleOrigin::Any,
                context,
            )?;
            Ok(None)
        }
        Some(needed) => {
            let present = bytes.len() - data;
            if present < needed {
                let message = format!("the shape of the array needs {needed} bytes, but {present} are there");
                context.report(piece, Diagnostic::new(rules::NUMPY_SIZE, message).offset(data));
                array::unknown("values that are not all there", context);
                return Ok(None);
            }
            if context.options.level >= Level::Content {
                values(piece, &header, data, needed, context)?;
            }
            Ok(Some((data + needed, true)))
        }
        None => {
            refuse("has an unknown type of values, or a size that overflows", context);
            Ok(Some((data, false)))
        }
    }
}

/// Looks at the values of an array, which are at `at`.
fn values(piece: &ByteSpan<'_>, header: &NpyHeader, at: u64, len: u64, context: &mut FileContext<'_>) -> Result<()> {
    let (dtype, is_swapped, parts) = match &header.values {
        NpyElements::Numbers { dtype, is_swapped, parts } => (*dtype, *is_swapped, *parts),
        // Texts, and dates, have no values that could be wrong.
        NpyElements::None => return Ok(()),
        NpyElements::Other(descr) => {
            array::unknown(&format!("the type {descr}"), context);
            return Ok(());
        }
    };
    // The bytes of an array in Fortran order are those of its transpose, whose rows are no rows of it; so are those of parts of numbers.
    let flat = [header.shape.iter().product::<u64>().saturating_mul(parts)];
    let shape = if header.is_fortran || parts > 1 { flat.as_slice() } else { header.shape.as_slice() };
    let file = piece.name.rsplit(['/', '\\']).next().unwrap_or(piece.name);
    let name = file.strip_suffix(".npy").unwrap_or(file);
    let array = ArrayFacts { name, dtype, shape, at, is_swapped };
    array::look(piece, &array, &ByteSlice::new(piece.bytes, at, len), context)
}

struct NpyHeader {
    has_objects: bool,
    /// The bytes of the values; `None` if they are not known.
    bytes: Option<u64>,
    /// The shape, whose elements are no more than there are numbers if the bytes are known.
    shape: Vec<u64>,
    is_fortran: bool,
    values: NpyElements,
}

/// What the elements of an array are.
enum NpyElements {
    /// Numbers, of which complex ones have two parts.
    Numbers { dtype: DType, is_swapped: bool, parts: u64 },
    /// Nothing that could be wrong: texts, dates.
    None,
    /// What is not looked into.
    Other(String),
}

impl NpyElements {
    fn of(descr: &Literal) -> Self {
        let Literal::Text(text) = descr else { return Self::Other("with fields".into()) };
        let is_swapped = text.starts_with('>');
        let (dtype, parts) = match text.trim_start_matches(['<', '>', '=', '|']) {
            "?" | "b1" => (DType::Bool, 1),
            "i1" | "b" => (DType::Int8, 1),
            "u1" | "B" => (DType::UInt8, 1),
            "i2" => (DType::Int16, 1),
            "u2" => (DType::UInt16, 1),
            "i4" => (DType::Int32, 1),
            "u4" => (DType::UInt32, 1),
            "i8" => (DType::Int64, 1),
            "u8" => (DType::UInt64, 1),
            "f2" => (DType::Float16, 1),
            "f4" => (DType::Float32, 1),
            "f8" => (DType::Float64, 1),
            "c8" => (DType::Float32, 2),
            "c16" => (DType::Float64, 2),
            other if other.starts_with(['S', 'a', 'U', 'M', 'm']) => return Self::None,
            other => return Self::Other(other.to_owned()),
        };
        Self::Numbers { dtype, is_swapped, parts }
    }
}

impl NpyHeader {
    fn of(header: &Literal) -> Option<Self> {
        let Literal::Dict(pairs) = header else { return None };
        let get = |name: &str| {
            pairs.iter().find(|(key, _)| matches!(key, Literal::Text(text) if text == name)).map(|(_, value)| value)
        };
        let (descr, Literal::Bool(is_fortran), Literal::Tuple(dims)) =
            (get("descr")?, get("fortran_order")?, get("shape")?)
        else {
            return None;
        };
        if pairs.len() != 3 {
            return None;
        }
        let mut shape = Vec::with_capacity(dims.len());
        for dim in dims {
            let Literal::Int(dim) = dim else { return None };
            shape.push(u64::try_from(*dim).ok()?);
        }
        let count = checked_elements(&shape);
        let mut has_objects = false;
        let item = size_of(descr, &mut has_objects, 0).ok()?;
        let bytes = item.and_then(|item| count?.checked_mul(item));
        Some(Self { has_objects, bytes, shape, is_fortran: *is_fortran, values: NpyElements::of(descr) })
    }
}

/// What is not a type of NumPy's.
struct NoType;

/// The bytes of a value of this type; `None` if they are not known.
fn size_of(descr: &Literal, has_objects: &mut bool, depth: usize) -> std::result::Result<Option<u64>, NoType> {
    if depth > MAX_DEPTH {
        return Err(NoType);
    }
    match descr {
        Literal::Text(text) => {
            let code = text.trim_start_matches(['<', '>', '=', '|']);
            let letter = code.chars().next().ok_or(NoType)?;
            let digits: String = code.chars().skip(1).take_while(char::is_ascii_digit).collect();
            let number = digits.parse::<u64>().ok();
            *has_objects |= letter == 'O';
            // Several types in one text are a type with fields: 'f4,O'.
            let rest = code.get(letter.len_utf8() + digits.len()..).unwrap_or_default();
            let is_unit = matches!(letter, 'M' | 'm') && rest.starts_with('[') && rest.ends_with(']');
            if !rest.is_empty() && (!is_unit || rest.contains(',')) && letter.is_ascii_alphabetic() {
                *has_objects |= rest.contains('O');
                return Ok(None);
            }
            match letter {
                'O' => Ok(Some(8)),
                '?' => Ok(Some(1)),
                'U' => Ok(number.and_then(|number| number.checked_mul(4))),
                'b' | 'i' | 'u' | 'f' | 'c' | 'S' | 'a' | 'V' | 'M' | 'm' | 'B' => Ok(number),
                // Types of other packages have unknown sizes.
                letter if letter.is_ascii_alphabetic() => Ok(None),
                _ => Err(NoType),
            }
        }
        Literal::List(fields) => {
            let mut sum = Some(0u64);
            for field in fields {
                let size = size_of_field(field, has_objects, depth + 1)?;
                sum = sum.and_then(|sum| sum.checked_add(size?));
            }
            Ok(sum)
        }
        // A type and the shape of an array of it.
        Literal::Tuple(both) => match both.as_slice() {
            [of, Literal::Tuple(dims)] => times(size_of(of, has_objects, depth + 1)?, dims),
            _ => Err(NoType),
        },
        _ => Err(NoType),
    }
}

/// The bytes of a field: its name, or a title and a name, its type, and the shape of an array of it.
fn size_of_field(field: &Literal, has_objects: &mut bool, depth: usize) -> std::result::Result<Option<u64>, NoType> {
    let Literal::Tuple(field) = field else { return Err(NoType) };
    let is_text = |name: &Literal| matches!(name, Literal::Text(_));
    match field.as_slice() {
        [name, of, shape @ ..] if shape.len() <= 1 => {
            if !is_text(name) && !matches!(name, Literal::Tuple(both) if both.iter().all(is_text)) {
                return Err(NoType);
            }
            let size = size_of(of, has_objects, depth)?;
            match shape.first() {
                Some(Literal::Tuple(dims)) => times(size, dims),
                Some(dim) => times(size, std::slice::from_ref(dim)),
                None => Ok(size),
            }
        }
        _ => Err(NoType),
    }
}

fn times(mut size: Option<u64>, dims: &[Literal]) -> std::result::Result<Option<u64>, NoType> {
    for dim in dims {
        let Literal::Int(dim) = dim else { return Err(NoType) };
        let dim = u64::try_from(*dim).map_err(|_| NoType)?;
        size = size.and_then(|size| size.checked_mul(dim));
    }
    Ok(size)
}
