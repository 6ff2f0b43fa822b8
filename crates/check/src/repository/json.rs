//! JSON as Python's `json` reads it: configurations have `NaN` and `Infinity`, numbers of any size and halves of surrogates, on which a strict
//! reader gives up, so that one such value would hide all others. Numbers tell nothing here and are all read as 0.

use serde_json::Value;

use crate::limited_json;

/// Bytes in which the line of something is looked for.
const MAX_SEARCHED: usize = 1 << 20;

/// The value of a string; an error says where it is not JSON.
pub(crate) fn read(bytes: Vec<u8>) -> Result<Value, String> {
    limited_json::parse(&tolerated(decoded(bytes))).map_err(|error| error.to_string())
}

/// The text in UTF-8: Python's reader takes the other encodings of Unicode, too, and tells them by the zeros among the first bytes.
pub(super) fn decoded(bytes: Vec<u8>) -> Vec<u8> {
    let (width, is_big, mark) = match bytes.as_slice() {
        [0xff, 0xfe, 0, 0, ..] => (4, false, 4),
        [0, 0, 0xfe, 0xff, ..] => (4, true, 4),
        [0xff, 0xfe, ..] => (2, false, 2),
        [0xfe, 0xff, ..] => (2, true, 2),
        [0, 0, _, _, ..] => (4, true, 0),
        [0, _, _, _, ..] => (2, true, 0),
        [_, 0, 0, 0, ..] => (4, false, 0),
        [_, 0, _, _, ..] => (2, false, 0),
        _ => return bytes,
    };
    let units = bytes.get(mark..).unwrap_or_default().chunks_exact(width).map(|unit| {
        let fold = |value: u32, byte: &u8| value << 8 | u32::from(*byte);
        if is_big { unit.iter().fold(0, fold) } else { unit.iter().rev().fold(0, fold) }
    });
    let text: String = if width == 4 {
        units.map(|unit| char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
    } else {
        let units: Vec<u16> = units.map(|unit| unit as u16).collect();
        String::from_utf16_lossy(&units)
    };
    text.into_bytes()
}

/// The text with what only Python reads put in a form that every reader takes, of the same length.
pub(super) fn tolerated(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.splice(..3, *b"   ");
    }
    let mut at = 0;
    while let Some(byte) = bytes.get(at).copied() {
        at = match byte {
            b'"' => after_string(&mut bytes, at + 1),
            b'-' | b'+' | b'.' | b'0'..=b'9' | b'N' | b'I' => after_number(&mut bytes, at),
            _ => at + 1,
        };
    }
    bytes
}

/// Makes a 0 of what begins here, if it is a number.
fn after_number(bytes: &mut [u8], start: usize) -> usize {
    let rest = bytes.get(start..).unwrap_or_default();
    let len = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte)).count();
    let Some(word) = bytes.get_mut(start..start + len) else { return start + 1 };
    let name = word.strip_prefix(b"-").unwrap_or(word);
    if name == b"NaN" || name == b"Infinity" || name.first().is_some_and(u8::is_ascii_digit) {
        word.fill(b' ');
        if let Some(first) = word.first_mut() {
            *first = b'0';
        }
    }
    start + len.max(1)
}

/// Goes to the end of a string, and replaces halves of surrogates, which no UTF-8 can hold.
fn after_string(bytes: &mut [u8], start: usize) -> usize {
    let mut at = start;
    while let Some(byte) = bytes.get(at).copied() {
        match byte {
            b'"' => return at + 1,
            b'\\' => {
                let Some(unit) = unit(bytes, at) else {
                    at += 2;
                    continue;
                };
                let pair = (0xd800..0xdc00).contains(&unit)
                    && self::unit(bytes, at + 6).is_some_and(|low| (0xdc00..0xe000).contains(&low));
                if pair {
                    at += 12;
                    continue;
                }
                if (0xd800..0xe000).contains(&unit)
                    && let Some(digits) = bytes.get_mut(at + 2..at + 6)
                {
                    digits.copy_from_slice(b"fffd");
                }
                at += 6;
            }
            _ => at += 1,
        }
    }
    at
}

/// The number of an escape `\uXXXX`.
fn unit(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// The line of the first place where this stands, if it does.
pub(super) fn line_of(text: &[u8], wanted: &str) -> Option<(usize, u64)> {
    // Far behind, the line is worth less than the search for it.
    let text = text.get(..text.len().min(MAX_SEARCHED))?;
    let at = memchr::memmem::find(text, wanted.as_bytes())?;
    Some((text.get(..at)?.split(|byte| *byte == b'\n').count(), at as u64))
}
