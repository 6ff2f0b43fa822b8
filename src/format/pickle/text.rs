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
pub fn raw_unicode_escape(line: &[u8]) -> Option<String> {
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
            // Half a pair is no character.
            (Some(_), _) => return None,
        }
    }
    high.is_none().then_some(text)
}

/// A line of `STRING`: a quoted literal of Python 2, as its bytes.
pub fn quoted(line: &[u8]) -> Option<Vec<u8>> {
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
                value as u8
            }
            b'0'..=b'7' => {
                let digits = tail.iter().take(3).take_while(|digit| (b'0'..=b'7').contains(digit)).count();
                let value = tail.iter().take(digits).fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                rest = tail.get(digits..)?;
                value as u8
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

/// An integer of a pickle.
#[derive(Debug, PartialEq)]
pub(super) enum Integer {
    /// One that fits.
    Small(i64),
    /// Two's complement, least significant byte first.
    Large(Vec<u8>),
}

/// Two's complement, least significant byte first; no bytes are zero.
pub(super) fn integer(bytes: &[u8]) -> Integer {
    let sign = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let fill = if sign { 0xFF } else { 0 };
    let mut word = [fill; 8];
    let (low, high) = bytes.split_at(bytes.len().min(8));
    for (to, from) in word.iter_mut().zip(low) {
        *to = *from;
    }
    let small = i64::from_le_bytes(word);
    if high.iter().all(|byte| *byte == fill) && (small < 0) == sign {
        return Integer::Small(small);
    }
    Integer::Large(bytes.to_vec())
}

/// Decimal digits, of at most 128 bits.
pub(super) fn decimal(line: &[u8]) -> Option<Integer> {
    let text = str::from_utf8(line).ok()?.trim();
    if let Ok(small) = text.parse() {
        return Some(Integer::Small(small));
    }
    if let Ok(wide) = text.parse::<i128>() {
        return Some(integer(&wide.to_le_bytes()));
    }
    let mut bytes = text.parse::<u128>().ok()?.to_le_bytes().to_vec();
    bytes.push(0);
    Some(integer(&bytes))
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
    fn integers_of_any_length_have_the_value_of_python() {
        assert_eq!(integer(b""), Integer::Small(0));
        assert_eq!(integer(b"\xff"), Integer::Small(-1));
        assert_eq!(integer(b"\xff\x00"), Integer::Small(255));
        assert_eq!(integer(&i64::MIN.to_le_bytes()), Integer::Small(i64::MIN));
        assert_eq!(integer(b"\xff\xff\xff\xff\xff\xff\xff\x7f\x00\x00"), Integer::Small(i64::MAX));
        assert!(matches!(integer(b"\x00\x00\x00\x00\x00\x00\x00\x80\x00"), Integer::Large(_)));
        assert_eq!(decimal(b"-12"), Some(Integer::Small(-12)));
        assert!(matches!(decimal(b"340282366920938463463374607431768211455"), Some(Integer::Large(_))));
        assert_eq!(decimal(b"1e3"), None);
    }
}
