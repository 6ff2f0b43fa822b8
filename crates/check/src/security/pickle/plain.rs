//! The instructions that make numbers, texts and bytes: whether all readers take them for the same.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use max_weights::format::pickle::spelling::{
    Instruction, NoNumber, integer_of, is_blank, line_integer, little, text_of, until_nul,
};
use max_weights::rules;

use super::machine::{PickleStep, ScanMachine, broken};
use super::reader::MAX_READ_BYTES;
use super::value::{StackValue, ValueKind};

const OLD_TEXT: &str = "a Python 2 string is not ASCII: what it is depends on the encoding that the reader is given";

impl ScanMachine<'_, '_> {
    /// A number, a string or bytes: kept by its place.
    pub(super) fn literal(&mut self, opcode: u8) -> PickleStep<()> {
        let extent = self.instruction;
        let kind = match opcode {
            b'K' | b'M' | b'J' | 0x8a | 0x8b => ValueKind::Int,
            b'I' | b'L' => self.integer_line(&extent)?,
            b'G' => ValueKind::Float,
            b'F' => {
                self.float_line(&extent)?;
                ValueKind::Float
            }
            b'B' | b'C' | 0x8e => ValueKind::Bytes,
            0x96 => ValueKind::ByteArray,
            _ => {
                self.check_text(&extent)?;
                ValueKind::Text
            }
        };
        if matches!(kind, ValueKind::Bytes | ValueKind::ByteArray) {
            self.look_at_bytes(&extent)?;
        }
        let payload = if matches!(kind, ValueKind::True | ValueKind::False) { 0 } else { self.at };
        self.push(StackValue::new(kind, payload))
    }

    fn integer_line(&mut self, extent: &Instruction) -> PickleStep<ValueKind> {
        let line = self.number_line(extent.start, extent.len)?;
        match (extent.opcode, &line.text[..]) {
            (b'I', b"00") if !line.is_odd => return Ok(ValueKind::False),
            (b'I', b"01") if !line.is_odd => return Ok(ValueKind::True),
            _ => {}
        }
        let value = match integer_of(extent.opcode, &line.text) {
            Ok(_) | Err(NoNumber::Large) if !line.is_odd => return Ok(ValueKind::Int),
            Ok(value) | Err(NoNumber::Lenient(value)) => short(value),
            Err(NoNumber::Large) => short(i128::MAX),
            Err(NoNumber::None) if self.crosses_frame(extent.next) => return Ok(ValueKind::Int),
            Err(NoNumber::None) => return broken("a number written as text is not a number"),
        };
        let message = "a number is not written in decimal digits alone: some readers take it for";
        self.diverges(format!("{message} {value}"));
        Ok(ValueKind::Int)
    }

    fn float_line(&mut self, extent: &Instruction) -> PickleStep<()> {
        let line = self.number_line(extent.start, extent.len)?;
        let is_float = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok_and(|text| text.parse::<f64>().is_ok());
        if !line.is_odd && is_float(&line.text) {
            return Ok(());
        }
        let digits: Vec<u8> = until_nul(&line.text).iter().copied().filter(|byte| *byte != b'_').collect();
        // A number longer than the limit may continue with an exponent.
        let is_long = line.text.len() >= MAX_READ_BYTES && digits.iter().all(|byte| b"0123456789.eE+-".contains(byte));
        if !is_float(&digits) && !is_long {
            return if self.crosses_frame(extent.next) {
                Ok(())
            } else {
                broken("a number written as text is not a number")
            };
        }
        self.diverges("a float is written in a way that not every reader accepts");
        Ok(())
    }

    /// A number in a line of `len` bytes without the blanks before it, of which there may be as many as one likes.
    pub(super) fn number_line(&mut self, start: u64, len: u64) -> PickleStep<NumberLine> {
        let end = start + len;
        let mut at = start;
        while at < end {
            let part = self.reader.some(at, (end - at).min(MAX_READ_BYTES as u64) as usize)?;
            let blanks = part.iter().take_while(|byte| is_blank(**byte)).count();
            at += blanks as u64;
            if blanks < part.len() || part.is_empty() {
                break;
            }
        }
        let text = self.reader.some(at, (end - at).min(MAX_READ_BYTES as u64) as usize)?.to_vec();
        Ok(NumberLine { is_odd: at > start || (text.len() as u64) < end - at, text })
    }

    /// The index of an instruction that remembers or recalls.
    pub(super) fn index(&mut self, opcode: u8) -> PickleStep<u64> {
        let Instruction { start, len, next, .. } = self.instruction;
        if !matches!(opcode, b'g' | b'p') {
            return self.number();
        }
        let line = self.number_line(start, len)?;
        // Zeros before it make it as long as one likes.
        if line.text.len() >= MAX_READ_BYTES {
            self.report(rules::CODE_UNRESOLVABLE, "an index of the memo is longer than any that writers produce");
        }
        let value = match line_integer(&line.text) {
            Ok(value) if !line.is_odd => value,
            Ok(value) | Err(NoNumber::Lenient(value)) => {
                self.diverges("an index of the memo is not written in decimal digits alone");
                value
            }
            Err(NoNumber::Large) => i128::MAX,
            // What the frame leaves of it is another number.
            Err(NoNumber::None) if self.crosses_frame(next) => 0,
            Err(NoNumber::None) => return broken("an index of the memo is not a number"),
        };
        if value < 0 {
            return broken("an index of the memo is negative");
        }
        // The reader in Python takes any number, and this one any up to here.
        Ok(u64::try_from(value).unwrap_or_else(|_| hash_of(&line.text)))
    }

    /// The number that the argument at hand is in its bytes.
    pub(super) fn number(&mut self) -> PickleStep<u64> {
        let Instruction { start, len, .. } = self.instruction;
        Ok(little(self.reader.some(start, len as usize)?))
    }

    /// Whether the frame ends within the instruction at hand, which ends at `next`: the reader in C may lose what is before, and see another line.
    pub(super) fn crosses_frame(&self, next: u64) -> bool {
        self.frame_end.is_some_and(|end| self.at < end && end < next)
    }

    /// Whether a string is what its instruction says it is.
    fn check_text(&mut self, extent: &Instruction) -> PickleStep<()> {
        let opcode = extent.opcode;
        if extent.len > MAX_READ_BYTES as u64 && opcode != b'S' {
            return Ok(());
        }
        let part = self.reader.some(extent.start, extent.len.min(MAX_READ_BYTES as u64) as usize)?;
        match opcode {
            b'S' => {
                let last = if extent.len > MAX_READ_BYTES as u64 {
                    self.reader.byte(extent.start + extent.len - 1)?
                } else {
                    part.last().copied()
                };
                let first = self.reader.byte(extent.start)?;
                let has_quotes = extent.len >= 2 && first == last && matches!(first, Some(b'"' | b'\''));
                if !has_quotes && !self.crosses_frame(extent.next) {
                    return broken("a string has no quotes");
                }
                let part = self.reader.some(extent.start, extent.len.min(MAX_READ_BYTES as u64) as usize)?;
                if !part.is_ascii() {
                    self.report(rules::CODE_OLD_TEXT, OLD_TEXT);
                }
            }
            b'T' | b'U' if !part.is_ascii() => {
                self.report(rules::CODE_OLD_TEXT, OLD_TEXT);
            }
            b'V' if text_of(opcode, part).is_none() => self.diverges("a string has an invalid escape"),
            b'X' | 0x8c | 0x8d if !part.is_ascii() && !is_lenient_utf8(part) => {
                self.diverges("a string is not UTF-8");
            }
            _ => {}
        }
        Ok(())
    }
}

/// A number for an index of the memo that has too many digits for one: the same for the same digits, and beyond those that are counted.
fn hash_of(digits: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    until_nul(digits).hash(&mut hasher);
    hasher.finish() | 1 << 63
}

/// A number as text.
pub(super) struct NumberLine {
    /// The first bytes.
    pub(super) text: Vec<u8>,
    /// Whether there are blanks before it, or more bytes behind it.
    pub(super) is_odd: bool,
}

/// UTF-8 that may contain halves of surrogate pairs, as Python reads it.
fn is_lenient_utf8(bytes: &[u8]) -> bool {
    bytes.utf8_chunks().all(|chunk| chunk.invalid().is_empty() || matches!(chunk.invalid(), [0xed | 0x80..=0xbf]))
}

/// A number that a message has room for.
fn short(value: i128) -> String {
    if value.unsigned_abs() < 1 << 64 { value.to_string() } else { "a large one".to_owned() }
}
