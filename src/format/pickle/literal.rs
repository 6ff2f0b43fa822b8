//! Plain values in Python's notation: the `repr` of numbers, strings and bytes.

use crate::budget::saturating_u32;
use crate::text;

/// A string of limited length, which ends before the first piece that does not fit.
pub struct Limited {
    text: String,
    left: usize,
    is_full: bool,
}

impl Limited {
    /// An empty one.
    pub fn new(most: usize) -> Self {
        Self { text: String::new(), left: most, is_full: false }
    }

    /// Whether there was more than it has room for.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// The text, with `…` for the rest.
    pub fn finish(mut self) -> String {
        if self.is_full {
            self.text.push('…');
        }
        self.text
    }

    /// Adds as much as fits.
    pub fn put(&mut self, piece: &str) {
        let mut buffer = [0; 4];
        for c in piece.chars() {
            self.whole(c.encode_utf8(&mut buffer), 1);
            if self.is_full {
                return;
            }
        }
    }

    /// Adds all of a piece of `characters` characters, or ends before it.
    fn whole(&mut self, piece: &str, characters: usize) {
        self.is_full |= self.left < characters;
        if !self.is_full {
            self.left -= characters;
            self.text.push_str(piece);
        }
    }

    /// Adds an escape, all of it or nothing.
    fn escape(&mut self, piece: &str) {
        self.whole(piece, piece.len());
    }

    /// A string as `repr` quotes it, safe to print.
    pub fn text(&mut self, text: &str) {
        let quote = quote_of(text.chars().take(self.left.saturating_add(1)));
        let mut buffer = [0; 4];
        self.put(quote);
        for c in text.chars() {
            let plain = c.encode_utf8(&mut buffer);
            match c {
                '\\' => self.escape("\\\\"),
                '\'' if quote == "'" => self.escape("\\'"),
                ' '..='~' => self.whole(plain, 1),
                _ => match text::printable(plain) {
                    safe if *safe == *plain => self.whole(plain, 1),
                    safe => self.escape(&safe),
                },
            }
            if self.is_full {
                return;
            }
        }
        self.put(quote);
    }

    /// Bytes as `repr` writes them.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let quote = quote_of(bytes.iter().take(self.left.saturating_add(1)).map(|byte| char::from(*byte)));
        self.put("b");
        self.put(quote);
        for byte in bytes {
            match *byte {
                b'\\' => self.escape("\\\\"),
                b'\'' if quote == "'" => self.escape("\\'"),
                b'\t' => self.escape("\\t"),
                b'\n' => self.escape("\\n"),
                b'\r' => self.escape("\\r"),
                b' '..=b'~' => self.whole(char::from(*byte).encode_utf8(&mut [0; 4]), 1),
                byte => self.escape(&format!("\\x{byte:02x}")),
            }
            if self.is_full {
                return;
            }
        }
        self.put(quote);
    }
}

/// Single quotes, unless these are in the text and double ones do not.
fn quote_of(text: impl Iterator<Item = char>) -> &'static str {
    let (mut single, mut double) = (false, false);
    for c in text {
        single |= c == '\'';
        double |= c == '"';
    }
    if single && !double { "\"" } else { "'" }
}

/// `True` or `False`.
pub(super) fn bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// The shortest digits that round-trip: `1.0`, `1e-07`, `1e+16`, `inf`, `nan`.
pub fn float(value: f64) -> String {
    digits(value, ".0")
}

/// `2j`, `(1+2j)`.
pub(super) fn complex(real: f64, imaginary: f64) -> String {
    let part = digits(imaginary, "");
    if real == 0.0 && real.is_sign_positive() {
        return format!("{part}j");
    }
    let sign = if part.starts_with('-') { "" } else { "+" };
    format!("({}{sign}{part}j)", digits(real, ""))
}

/// `whole` is the suffix of numbers without a fraction.
fn digits(value: f64, whole: &str) -> String {
    // From here on, and below 1e-4, Python writes an exponent.
    const FROM: i32 = 16;
    const BELOW: i32 = -4;
    if !value.is_finite() {
        let sign = if value.is_sign_negative() && !value.is_nan() { "-" } else { "" };
        return format!("{sign}{}", if value.is_nan() { "nan" } else { "inf" });
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (BELOW..FROM).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') { plain } else { plain + whole };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// The decimal digits of an integer in two's complement, least significant byte first.
pub fn big_integer(bytes: &[u8]) -> String {
    const BASE: u64 = 1_000_000_000;
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut carry = u8::from(negative);
    let mut magnitude: Vec<u8> = Vec::with_capacity(bytes.len() + 1);
    for byte in bytes {
        let sum = u16::from(if negative { !*byte } else { *byte }) + u16::from(carry);
        let [low, high] = sum.to_le_bytes();
        magnitude.push(low);
        carry = high;
    }
    magnitude.push(carry);
    let limb = |chunk: &[u8]| chunk.iter().rev().fold(0, |limb: u32, byte| limb << 8 | u32::from(*byte));
    let mut limbs: Vec<u32> = magnitude.chunks(4).map(limb).collect();
    let mut groups = Vec::new();
    while limbs.iter().any(|limb| *limb != 0) {
        let mut rest = 0;
        for limb in limbs.iter_mut().rev() {
            let value = rest << 32 | u64::from(*limb);
            *limb = saturating_u32(value / BASE);
            rest = value % BASE;
        }
        groups.push(rest);
    }
    let mut text = if negative { "-".to_owned() } else { String::new() };
    text.push_str(&groups.pop().unwrap_or_default().to_string());
    groups.iter().rev().for_each(|group| text.push_str(&format!("{group:09}")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Limited)) -> String {
        let mut limited = Limited::new(100);
        write(&mut limited);
        limited.finish()
    }

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e-4, "0.0001"),
            (1.5e-5, "1.5e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (-f64::NAN, "nan"),
        ] {
            assert_eq!(float(value), text);
        }
        for (real, imaginary, text) in [
            (0.0, 1.0, "1j"),
            (-0.0, 1.0, "(-0+1j)"),
            (1.5, -2.0, "(1.5-2j)"),
            (f64::NAN, f64::INFINITY, "(nan+infj)"),
            (0.0, -0.0, "-0j"),
        ] {
            assert_eq!(complex(real, imaginary), text);
        }
    }

    #[test]
    fn integers_of_any_length_are_written_in_decimal() {
        assert_eq!(big_integer(&[]), "0");
        assert_eq!(big_integer(&[0xff]), "-1");
        assert_eq!(big_integer(&[0x80]), "-128");
        assert_eq!(big_integer(&[0, 0, 0, 0, 0, 0, 0, 0x80, 0]), (1_u64 << 63).to_string());
        for value in [i128::MIN, i128::MAX, -1_000_000_000_000_000_000_000, 1_000_000_000_000_000_000, 1 << 96] {
            assert_eq!(big_integer(&value.to_le_bytes()), value.to_string());
        }
    }

    #[test]
    fn texts_and_bytes_are_quoted_as_python_quotes_them() {
        for (value, quoted) in [
            ("", "''"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("a\\b\n\u{1b}\u{202e}", "'a\\\\b\\n\\x1b\\u202e'"),
            ("Größe 层", "'Größe 层'"),
        ] {
            assert_eq!(written(|out| out.text(value)), quoted);
        }
        assert_eq!(written(|out| out.bytes(b"it's\x00\xff\t\\")), "b\"it's\\x00\\xff\\t\\\\\"");
        assert_eq!(written(|out| out.bytes(b"'\"")), "b'\\'\"'");
    }

    #[test]
    fn what_is_cut_ends_between_characters_and_escapes() {
        let cut = |text: &str, most| {
            let mut limited = Limited::new(most);
            limited.text(text);
            limited.finish()
        };
        assert_eq!(cut("abc", 5), "'abc'");
        assert_eq!(cut("abc", 4), "'abc…");
        assert_eq!(cut("a\u{202e}", 7), "'a…");
        assert_eq!(cut("a\u{202e}", 8), "'a\\u202e…");
        assert_eq!(cut("层层", 2), "'层…");
        assert_eq!(cut("a", 0), "…");
    }
}
