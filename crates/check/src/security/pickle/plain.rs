//! The instructions that make numbers, texts and bytes: how far they go, and whether all readers take them for the same.

use max_weights::rules;

use super::literal::{Extent, NoExtent, NoNumber, integer_of, text_of};
use super::machine::{Machine, Step, broken, cut};
use super::reader::MOST;
use super::value::{Kind, Value};

const OLD_TEXT: &str = "a Python 2 string is not ASCII: what it is depends on the encoding that the reader is given";

impl Machine<'_, '_> {
    fn extent(&mut self, opcode: u8) -> Step<Extent> {
        match self.reader.extent(opcode, self.at)? {
            Ok(extent) => {
                self.next = extent.next;
                Ok(extent)
            }
            Err(NoExtent::Cut) => cut(),
            Err(NoExtent::Negative) => broken("a length is negative"),
        }
    }

    /// A number, a string or bytes: kept by its place.
    pub(super) fn literal(&mut self, opcode: u8) -> Step<()> {
        let extent = self.extent(opcode)?;
        let kind = match opcode {
            b'K' | b'M' | b'J' | 0x8a | 0x8b => Kind::Int,
            b'I' | b'L' => self.integer_line(&extent)?,
            b'G' => Kind::Float,
            b'F' => {
                self.float_line(&extent)?;
                Kind::Float
            }
            b'B' | b'C' | 0x8e => Kind::Bytes,
            0x96 => Kind::ByteArray,
            _ => {
                self.check_text(&extent)?;
                Kind::Text
            }
        };
        if matches!(kind, Kind::Bytes | Kind::ByteArray) {
            self.look_at_bytes(&extent)?;
        }
        let payload = if matches!(kind, Kind::True | Kind::False) { 0 } else { self.at };
        self.push(Value::new(kind, payload))
    }

    fn integer_line(&mut self, extent: &Extent) -> Step<Kind> {
        let line = self.reader.some(extent.start, extent.len.min(MOST as u64) as usize)?;
        match (extent.opcode, line) {
            (b'I', b"00") => return Ok(Kind::False),
            (b'I', b"01") => return Ok(Kind::True),
            _ => {}
        }
        match integer_of(extent.opcode, line) {
            Ok(_) | Err(NoNumber::Large) => {}
            Err(NoNumber::Lenient(value)) => {
                self.diverges(format!(
                    "a number is not written in decimal digits alone: some readers take it for {}",
                    short(value)
                ));
            }
            Err(NoNumber::None) => return broken("a number written as text is not a number"),
        }
        Ok(Kind::Int)
    }

    fn float_line(&mut self, extent: &Extent) -> Step<()> {
        let line = self.reader.some(extent.start, extent.len.min(256) as usize)?;
        let text: String = line.iter().map(|byte| char::from(*byte)).collect();
        if text.parse::<f64>().is_ok() {
            return Ok(());
        }
        if text.trim().replace('_', "").parse::<f64>().is_err() {
            return broken("a number written as text is not a number");
        }
        self.diverges("a float is written in a way that not every reader accepts");
        Ok(())
    }

    /// Whether a string is what its instruction says it is.
    fn check_text(&mut self, extent: &Extent) -> Step<()> {
        let opcode = extent.opcode;
        if extent.len > MOST as u64 && opcode != b'S' {
            return Ok(());
        }
        let part = self.reader.some(extent.start, extent.len.min(MOST as u64) as usize)?;
        match opcode {
            b'S' => {
                let last = if extent.len > MOST as u64 {
                    self.reader.byte(extent.start + extent.len - 1)?
                } else {
                    part.last().copied()
                };
                let first = self.reader.byte(extent.start)?;
                if extent.len < 2 || first != last || !matches!(first, Some(b'"' | b'\'')) {
                    return broken("a string has no quotes");
                }
                let part = self.reader.some(extent.start, extent.len.min(MOST as u64) as usize)?;
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

/// UTF-8 in which halves of surrogate pairs may stand, as Python reads it.
fn is_lenient_utf8(bytes: &[u8]) -> bool {
    bytes.utf8_chunks().all(|chunk| chunk.invalid().is_empty() || matches!(chunk.invalid(), [0xed | 0x80..=0xbf]))
}

/// A number that a message has room for.
fn short(value: i128) -> String {
    if value.unsigned_abs() < 1 << 64 { value.to_string() } else { "a large one".to_owned() }
}
