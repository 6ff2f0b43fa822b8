//! Texts and numbers in the spellings of the old protocols.

/// Bytes as text, one character each.
pub fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// The bytes of a string that has one byte per character.
pub(super) fn to_latin1(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|char| u8::try_from(u32::from(char)).ok()).collect()
}

/// A line of `UNICODE`: bytes are characters, but for `\u` with four hexadecimal digits and `\U` with eight; pairs of surrogates
/// become one character.
pub(super) fn raw_unicode_escape(line: &[u8]) -> Option<String> {
    let mut text = String::with_capacity(line.len());
    // The first half of a pair.
    let mut high: Option<u32> = None;
    let mut rest = line;
    while let [first, tail @ ..] = rest {
        // Of two backslashes neither begins an escape.
        if let [b'\\', b'\\', after @ ..] = rest {
            if high.is_some() {
                return None;
            }
            text.push_str("\\\\");
            rest = after;
            continue;
        }
        let digits = match (first, tail.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => 0,
        };
        let unit = if digits == 0 { u32::from(*first) } else { hex(tail.get(1..=digits)?)? };
        rest = if digits == 0 { tail } else { tail.get(1 + digits..)? };
        match (high.take(), unit) {
            (Some(high), 0xDC00..0xE000) => {
                text.push(char::from_u32(0x1_0000 + ((high - 0xD800) << 10) + (unit - 0xDC00))?);
            }
            (None, 0xD800..0xDC00) => high = Some(unit),
            (None, _) => text.push(char::from_u32(unit)?),
            // Half a surrogate pair is not a character.
            (Some(_), _) => return None,
        }
    }
    high.is_none().then_some(text)
}

/// A line of `STRING`: a quoted literal of Python 2, as its bytes.
pub(super) fn quoted(line: &[u8]) -> Option<Vec<u8>> {
    let (first, last) = (line.first()?, line.last()?);
    if line.len() < 2 || first != last || !matches!(first, b'\'' | b'"') {
        return None;
    }
    let mut rest = line.get(1..line.len() - 1)?;
    let mut bytes = Vec::with_capacity(rest.len());
    while let [byte, tail @ ..] = rest {
        rest = tail;
        if *byte != b'\\' {
            bytes.push(*byte);
            continue;
        }
        let escape = *tail.first()?;
        rest = tail.get(1..)?;
        let plain = match escape {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'a' => 7,
            b'b' => 8,
            b'v' => 11,
            b'f' => 12,
            b'\\' | b'\'' | b'"' => escape,
            b'x' => {
                let value = hex(rest.get(..2)?)?;
                rest = rest.get(2..)?;
                u8::try_from(value).ok()?
            }
            b'0'..=b'7' => {
                let digits = tail.iter().take(3).take_while(|digit| (b'0'..=b'7').contains(digit)).count();
                let value = tail.iter().take(digits).fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                rest = tail.get(digits..)?;
                value.to_le_bytes()[0] // as Python does
            }
            _ => {
                bytes.push(b'\\');
                escape
            }
        };
        bytes.push(plain);
    }
    Some(bytes)
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0_u32, |value, digit| Some((value << 4) | char::from(*digit).to_digit(16)?))
}

/// The text of these bytes, as the instruction reads them.
pub fn text_of(opcode: u8, bytes: &[u8]) -> Option<String> {
    let eight_bit = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap_or_else(|error| latin1(error.as_bytes()));
    match opcode {
        b'S' => quoted(bytes).map(eight_bit),
        b'V' => raw_unicode_escape(bytes),
        b'T' | b'U' => Some(eight_bit(bytes.to_vec())),
        b'X' | 0x8c | 0x8d => String::from_utf8(bytes.to_vec()).ok(),
        _ => None,
    }
}

/// Numbers that not every reader accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoNumber {
    /// No reader accepts it.
    None,
    /// It is valid, but too large for this type.
    Large,
    /// Some readers take it.
    Lenient(i128),
}

/// The integer of these bytes, as the instruction reads them.
pub fn integer_of(opcode: u8, bytes: &[u8]) -> Result<i128, NoNumber> {
    let little = |bytes: &[u8]| {
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut word = [if negative { 0xff } else { 0 }; 16];
        let present = word.get_mut(..bytes.len()).ok_or(NoNumber::Large)?;
        present.copy_from_slice(bytes);
        Ok(i128::from_le_bytes(word))
    };
    match opcode {
        b'K' | b'M' => little(&[bytes, &[0]].concat()),
        b'J' | 0x8a | 0x8b => little(bytes),
        // In this instruction alone, the C reader treats nothing before a NUL as zero.
        b'I' if bytes.first() == Some(&0) => Err(NoNumber::Lenient(0)),
        b'I' | b'L' => line_integer(if opcode == b'L' { bytes.strip_suffix(b"L").unwrap_or(bytes) } else { bytes }),
        _ => Err(NoNumber::None),
    }
}

/// Whether a byte is a blank to the readers of numbers: Rust's own question leaves out the vertical tab.
pub fn is_blank(byte: u8) -> bool {
    byte == 0x0b || byte.is_ascii_whitespace()
}

/// The number in a line according to the C reader: the text before a NUL, without surrounding blanks.
pub fn until_nul(line: &[u8]) -> &[u8] {
    let mut text = line.split(|byte| *byte == 0).next().unwrap_or_default();
    while let [first, rest @ ..] = text
        && is_blank(*first)
    {
        text = rest;
    }
    while let [rest @ .., last] = text
        && is_blank(*last)
    {
        text = rest;
    }
    text
}

/// An integer in a line: decimal for all readers, and for some with a base, with underscores, with spaces, or up to a NUL.
pub fn line_integer(line: &[u8]) -> Result<i128, NoNumber> {
    let digits = line.strip_prefix(b"-").unwrap_or(line);
    if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) {
        let text = str::from_utf8(line).map_err(|_| NoNumber::None)?;
        return text.parse().map_err(|_| NoNumber::Large);
    }
    let until_nul = until_nul(line);
    let unsigned = until_nul.strip_prefix(b"-").or(until_nul.strip_prefix(b"+")).unwrap_or(until_nul);
    let text: String = unsigned.iter().filter(|byte| **byte != b'_').map(|byte| char::from(*byte)).collect();
    let lower = text.to_ascii_lowercase();
    let (digits, base) = match lower.get(..2) {
        Some("0x") => (lower.get(2..).unwrap_or_default(), 16),
        Some("0o") => (lower.get(2..).unwrap_or_default(), 8),
        Some("0b") => (lower.get(2..).unwrap_or_default(), 2),
        _ => (lower.as_str(), 10),
    };
    // The C reader stops at the first character that is not a digit, and refuses the rest unless it is the end of the text.
    let is_negative = until_nul.starts_with(b"-");
    match i128::from_str_radix(digits.trim_end_matches('l'), base) {
        Ok(value) => Err(NoNumber::Lenient(if is_negative { value.saturating_neg() } else { value })),
        Err(error) if *error.kind() == std::num::IntErrorKind::PosOverflow => {
            Err(NoNumber::Lenient(if is_negative { i128::MIN } else { i128::MAX }))
        }
        Err(_) => Err(NoNumber::None),
    }
}

/// A float as Python 2 and 3 print it.
pub(super) fn float(line: &[u8]) -> Option<f64> {
    str::from_utf8(line).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_those_of_python() {
        assert_eq!(quoted(br"'a\x41\101\n\\\'\q'"), Some(b"aAA\n\\'\\q".to_vec()));
        assert_eq!(quoted(br#""it's""#), Some(b"it's".to_vec()));
        for broken in [&b"'"[..], b"'a\"", b"a", b"", br"'\x4'", br"'\'"] {
            assert_eq!(quoted(broken), None, "{}", broken.escape_ascii());
        }
        assert_eq!(raw_unicode_escape(b"a\\u00e9\xe9\\U0001F600"), Some("aéé😀".into()));
        assert_eq!(raw_unicode_escape(b"\\ud83d\\ude00 \\n"), Some("😀 \\n".into()));
        assert_eq!(raw_unicode_escape(br"\\u0041\\\u0041"), Some(r"\\u0041\\A".into()));
        assert_eq!(raw_unicode_escape(b"\\ud83d"), None);
        assert_eq!(raw_unicode_escape(b"\\u12"), None);
        assert_eq!(to_latin1(&latin1(b"\x00\xff")), Some(b"\x00\xff".to_vec()));
        assert_eq!(to_latin1("€"), None);
    }

    #[test]
    fn integers_are_read_as_any_reader_reads_them() {
        assert_eq!(integer_of(b'I', b"-12"), Ok(-12));
        assert_eq!(integer_of(b'L', b"12L"), Ok(12));
        assert_eq!(integer_of(b'K', &[0xff]), Ok(255));
        assert_eq!(integer_of(b'J', &[0xff; 4]), Ok(-1));
        assert_eq!(integer_of(0x8a, &[0, 1]), Ok(256));
        assert_eq!(integer_of(0x8a, &[]), Ok(0));
        assert_eq!(integer_of(b'I', b"0x10"), Err(NoNumber::Lenient(16)));
        assert_eq!(integer_of(b'L', b"0x10L"), Err(NoNumber::Lenient(16)));
        assert_eq!(integer_of(b'I', b"1\0rest"), Err(NoNumber::Lenient(1)));
        assert_eq!(integer_of(b'I', b" 1_0 "), Err(NoNumber::Lenient(10)));
        assert_eq!(integer_of(b'I', b"\x0b1\x0b"), Err(NoNumber::Lenient(1)));
        assert_eq!(integer_of(b'I', b"\0rest"), Err(NoNumber::Lenient(0)));
        assert_eq!(integer_of(b'L', b"\0rest"), Err(NoNumber::None));
        assert_eq!(integer_of(b'I', &[&[b'9'; 40][..], b"\0"].concat()), Err(NoNumber::Lenient(i128::MAX)));
        assert_eq!(integer_of(b'L', &[b"-", &[b'9'; 40][..], b"\0"].concat()), Err(NoNumber::Lenient(i128::MIN)));
        assert_eq!(integer_of(b'I', &[b'9'; 100]), Err(NoNumber::Large));
        assert_eq!(integer_of(b'I', b"abc"), Err(NoNumber::None));
        assert_eq!(integer_of(b'I', b""), Err(NoNumber::None));
    }
}
