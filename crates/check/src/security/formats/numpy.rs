//! NumPy's files: a header that is a dict of Python's, and then the values, or a pickle of them.

use max_weights::Result;
use max_weights::rules;
use max_weights::text::shown;

use super::literal::Literal;
use crate::bytes::{Bytes, Slice};
use crate::context::{Context, Piece};
use crate::finding::Finding;
use crate::report::Depth;
use crate::security::archive::{is_zero, loadable, scan_inside};
use crate::security::pickle::{self, Expected};

const MAGIC: &[u8] = b"\x93NUMPY";
/// The longest header that is read: a hundred times of what NumPy itself reads without being asked to.
const MAX_HEADER: u32 = 1 << 20;
/// So many arrays are looked at in one file.
const MAX_ARRAYS: usize = 100_000;
/// Types in types.
const MAX_DEPTH: usize = 32;

/// Looks at all arrays that lie in a file one behind the other.
pub(crate) fn scan(piece: &Piece<'_>, context: &mut Context<'_>) -> Result<()> {
    let (mut at, mut is_known) = (0, true);
    for _ in 0..MAX_ARRAYS {
        context.go_on()?;
        let Some(end) = array(piece, at, context)? else { break };
        (at, is_known) = end;
        if piece.bytes.part(at, MAGIC.len())? != MAGIC {
            break;
        }
    }
    let rest = Slice::new(piece.bytes, at, u64::MAX);
    if at > 0 && !rest.is_empty() && !is_zero(&rest, context)? {
        let what = "the bytes behind the array";
        if let Some(kind) = loadable(&rest, what)? {
            let message = format!("{what} are {}", kind.with_article());
            context.report(piece, Finding::new(rules::ARCHIVE_HIDDEN, message).offset(at));
            scan_inside(piece, &rest, what, context)?;
        } else if is_known {
            let message = format!("{} bytes follow the end of the array", rest.len());
            context.report(piece, Finding::new(rules::ARCHIVE_STRAY, message).offset(at));
        }
    }
    context.looked(Depth::Structure);
    Ok(())
}

/// Looks at the array there; tells where it ends, and whether that is known, if something may follow.
fn array(piece: &Piece<'_>, at: u64, context: &mut Context<'_>) -> Result<Option<(u64, bool)>> {
    let bytes = piece.bytes;
    let refuse = |why: &str, context: &mut Context<'_>| {
        let finding = Finding::new(rules::NUMPY_HEADER, format!("the header of the array {why}")).offset(at);
        context.report(piece, finding);
    };
    let first = bytes.part(at, 12)?;
    let (len, prefix) = match *first.as_slice() {
        [_, _, _, _, _, _, 1, _, a, b, ..] => (u32::from(u16::from_le_bytes([a, b])), 10),
        [_, _, _, _, _, _, 2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([a, b, c, d]), 12),
        _ => {
            refuse("has no version that is known", context);
            // Whatever NumPy makes of it, a pickle may follow.
            return Ok(Some((at + 8, false)));
        }
    };
    let data = at.saturating_add(prefix).saturating_add(len.into());
    let text = bytes.part(at + prefix, len.min(MAX_HEADER) as usize)?;
    let text = String::from_utf8_lossy(&text);
    if len > MAX_HEADER || data > bytes.len() {
        refuse(&format!("has {len} bytes, which are not there or too many"), context);
        return Ok(None);
    }
    let Some(header) = Literal::parse(&text).and_then(|header| Header::of(&header)) else {
        let message =
            "the header of the array is not the plain dict of descr, fortran_order and shape that NumPy writes";
        context.report(piece, Finding::new(rules::NUMPY_HEADER, message).offset(at + prefix).evidence(shown(&text)));
        return Ok(Some((data, false)));
    };
    match header.bytes {
        _ if header.has_objects => {
            context.report(
                piece,
                Finding::new(rules::NUMPY_OBJECT, "the array holds Python objects, which are pickled").offset(data),
            );
            let rest = Slice::new(bytes, data, u64::MAX);
            let name = format!("{}: objects", piece.name);
            let way = piece.member.map_or_else(|| "objects".to_owned(), |member| format!("{member}!/objects"));
            pickle::scan(&Piece { depth: piece.depth, ..piece.inside(&rest, &name, &way) }, Expected::Any, context)?;
            Ok(None)
        }
        Some(needed) => {
            let there = bytes.len() - data;
            if there < needed {
                let message = format!("the shape of the array needs {needed} bytes, and {there} are there");
                context.report(piece, Finding::new(rules::NUMPY_SIZE, message).offset(data));
                return Ok(None);
            }
            Ok(Some((data + needed, true)))
        }
        None => {
            refuse("has a type of values that is not known, or a size beyond all numbers", context);
            Ok(Some((data, false)))
        }
    }
}

struct Header {
    has_objects: bool,
    /// The bytes of the values; none if they are not known.
    bytes: Option<u64>,
}

impl Header {
    fn of(header: &Literal) -> Option<Self> {
        let Literal::Dict(pairs) = header else { return None };
        let get = |name: &str| {
            pairs.iter().find(|(key, _)| matches!(key, Literal::Text(text) if text == name)).map(|(_, value)| value)
        };
        let (descr, Literal::Bool(_), Literal::Tuple(shape)) = (get("descr")?, get("fortran_order")?, get("shape")?)
        else {
            return None;
        };
        if pairs.len() != 3 {
            return None;
        }
        let mut count = Some(1u64);
        for dim in shape {
            let Literal::Int(dim) = dim else { return None };
            let dim = u64::try_from(*dim).ok()?;
            count = count.and_then(|count| count.checked_mul(dim));
        }
        let mut has_objects = false;
        let item = size_of(descr, &mut has_objects, 0).ok()?;
        Some(Self { has_objects, bytes: item.and_then(|item| count?.checked_mul(item)) })
    }
}

/// What is no type of NumPy's.
struct NoType;

/// The bytes of a value of this type; none if they are not known.
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
                // Other packages' types have names of their own, whose sizes are not known.
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
