//! Plain values in a pickle, read at the place of their instruction: how far they go, and what they are.

use max_weights::Result;
use max_weights::format::pickle::spelling;

use super::reader::{MOST, Reader};

/// The longest text that is read; names, keys and codecs are far shorter.
pub(super) const MAX_TEXT: usize = 1024;

/// Where the bytes of a value stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) opcode: u8,
    pub(super) start: u64,
    pub(super) len: u64,
    /// The next instruction.
    pub(super) next: u64,
}

/// Why a value ends nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoExtent {
    /// The bytes end before.
    Cut,
    /// Its length is negative.
    Negative,
}

impl Reader<'_, '_> {
    /// Where the value is that the instruction at `at` makes.
    pub(super) fn extent(&mut self, opcode: u8, at: u64) -> Result<std::result::Result<Extent, NoExtent>> {
        let head = at + 1;
        let (head, len) = match opcode {
            b'I' | b'L' | b'F' | b'S' | b'V' => {
                let Some(len) = self.line(head)? else { return Ok(Err(NoExtent::Cut)) };
                return Ok(Ok(Extent { opcode, start: head, len, next: head + len + 1 }));
            }
            b'K' => (0, Some(1)),
            b'M' => (0, Some(2)),
            b'J' => (0, Some(4)),
            b'G' => (0, Some(8)),
            0x8a | b'U' | 0x8c | b'C' => (1, self.byte(head)?.map(u64::from)),
            b'X' | b'B' => (4, self.array(head)?.map(|len| u64::from(u32::from_le_bytes(len)))),
            0x8b | b'T' => {
                let len = self.array(head)?.map(i32::from_le_bytes);
                match len.map(u64::try_from) {
                    Some(Err(_)) => return Ok(Err(NoExtent::Negative)),
                    len => (4, len.and_then(std::result::Result::ok)),
                }
            }
            _ => (8, self.array(head)?.map(u64::from_le_bytes)),
        };
        let start = at + 1 + head;
        let end = len.and_then(|len| start.checked_add(len)).filter(|end| *end <= self.len());
        Ok(match (len, end) {
            (Some(len), Some(next)) => Ok(Extent { opcode, start, len, next }),
            _ => Err(NoExtent::Cut),
        })
    }

    /// The bytes of the value that the instruction at `at` makes, and its opcode; `None` if there are more than `most`.
    pub(super) fn literal(&mut self, at: u64, most: usize) -> Result<Option<(u8, Vec<u8>)>> {
        let Some(opcode) = self.byte(at)? else { return Ok(None) };
        let Ok(extent) = self.extent(opcode, at)? else { return Ok(None) };
        if extent.len > most.min(MOST) as u64 {
            return Ok(None);
        }
        Ok(Some((opcode, self.some(extent.start, extent.len as usize)?.to_vec())))
    }

    /// The text that the instruction at `at` makes, unless it is too long to be a name or is not text.
    pub(super) fn text(&mut self, at: u64) -> Result<Option<String>> {
        Ok(self.literal(at, MAX_TEXT)?.and_then(|(opcode, bytes)| text_of(opcode, &bytes)))
    }

    /// The integer that the instruction at `at` makes, unless it is too large.
    pub(super) fn integer(&mut self, at: u64) -> Result<Option<i128>> {
        Ok(self.literal(at, 64)?.and_then(|(opcode, bytes)| integer_of(opcode, &bytes).ok()))
    }
}

/// The text of these bytes, as the instruction reads them.
pub(super) fn text_of(opcode: u8, bytes: &[u8]) -> Option<String> {
    let eight_bit =
        |bytes: Vec<u8>| String::from_utf8(bytes).unwrap_or_else(|error| spelling::latin1(error.as_bytes()));
    match opcode {
        b'S' => spelling::quoted(bytes).map(eight_bit),
        b'V' => spelling::raw_unicode_escape(bytes),
        b'T' | b'U' => Some(eight_bit(bytes.to_vec())),
        b'X' | 0x8c | 0x8d => String::from_utf8(bytes.to_vec()).ok(),
        _ => None,
    }
}

/// How a number is written that not every reader takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoNumber {
    /// No reader takes it.
    None,
    /// It is too large to be known here, and well written.
    Large,
    /// Some readers take it.
    Lenient(i128),
}

/// The integer of these bytes, as the instruction reads them.
pub(super) fn integer_of(opcode: u8, bytes: &[u8]) -> std::result::Result<i128, NoNumber> {
    let little = |bytes: &[u8]| {
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut word = [if negative { 0xff } else { 0 }; 16];
        let there = word.get_mut(..bytes.len()).ok_or(NoNumber::Large)?;
        there.copy_from_slice(bytes);
        Ok(i128::from_le_bytes(word))
    };
    match opcode {
        b'K' | b'M' => little(&[bytes, &[0]].concat()),
        b'J' | 0x8a | 0x8b => little(bytes),
        // The reader in C takes nothing before a NUL for zero, in this instruction alone.
        b'I' if bytes.first() == Some(&0) => Err(NoNumber::Lenient(0)),
        b'I' | b'L' => line_integer(if opcode == b'L' { bytes.strip_suffix(b"L").unwrap_or(bytes) } else { bytes }),
        _ => Err(NoNumber::None),
    }
}

/// Whether a byte is a blank to the readers of numbers: Rust's own question leaves out the vertical tab.
pub(super) fn is_blank(byte: u8) -> bool {
    byte == 0x0b || byte.is_ascii_whitespace()
}

/// What of a line the reader in C takes for a number: what is before a NUL, without blanks around it.
pub(super) fn until_nul(line: &[u8]) -> &[u8] {
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
pub(super) fn line_integer(line: &[u8]) -> std::result::Result<i128, NoNumber> {
    let digits = line.strip_prefix(b"-").unwrap_or(line);
    if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) {
        let text = std::str::from_utf8(line).map_err(|_| NoNumber::None)?;
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
    // The reader in C stops at what is no digit, and refuses the rest but for the end of the text.
    let is_negative = until_nul.starts_with(b"-");
    match i128::from_str_radix(digits.trim_end_matches('l'), base) {
        Ok(value) => Err(NoNumber::Lenient(if is_negative { value.saturating_neg() } else { value })),
        Err(error) if *error.kind() == std::num::IntErrorKind::PosOverflow => {
            Err(NoNumber::Lenient(if is_negative { i128::MIN } else { i128::MAX }))
        }
        Err(_) => Err(NoNumber::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn texts_are_read_by_their_place_in_every_spelling() {
        for pickle in [
            &b"S'posix'\n"[..],
            b"Vposi\\u0078\n",
            b"U\x05posix",
            b"T\x05\0\0\0posix",
            b"X\x05\0\0\0posix",
            b"\x8c\x05posix",
        ] {
            let pickle = pickle.to_vec();
            let mut reader = Reader::new(&pickle, None);
            assert_eq!(reader.text(0).unwrap().as_deref(), Some("posix"), "{pickle:?}");
        }
        let long = [&b"\x8d\x00\x10\0\0\0\0\0\0"[..], &[b'a'; 4096]].concat();
        assert_eq!(Reader::new(&long, None).text(0).unwrap(), None, "too long for a name");
    }
}
