//! The instructions of a pickle, for all protocols: the extent of each argument. Their meaning is up to the machines: the one that makes tensors,
//! and the one that looks for code.

use std::convert::Infallible;

/// Bytes of a pickle, wherever they are.
pub trait PickleBytes {
    /// Why they cannot be read.
    type Error;

    /// The number of bytes.
    fn len(&self) -> u64;

    /// Whether it is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The byte at `at`; none beyond the end.
    #[inline]
    fn byte(&mut self, at: u64) -> Result<Option<u8>, Self::Error> {
        Ok(self.array(at)?.map(|[byte]| byte))
    }

    /// The `N` bytes at `at`; `None` if there are fewer.
    fn array<const N: usize>(&mut self, at: u64) -> Result<Option<[u8; N]>, Self::Error>;

    /// How many bytes the line has that begins there, without its end; `None` if it has no end.
    fn line(&mut self, at: u64) -> Result<Option<u64>, Self::Error>;
}

impl PickleBytes for &[u8] {
    type Error = Infallible;

    #[inline]
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    #[inline]
    fn array<const N: usize>(&mut self, at: u64) -> Result<Option<[u8; N]>, Infallible> {
        let rest = usize::try_from(at).ok().and_then(|at| self.get(at..));
        Ok(rest.and_then(|rest| rest.first_chunk().copied()))
    }

    fn line(&mut self, at: u64) -> Result<Option<u64>, Infallible> {
        let rest = usize::try_from(at).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        Ok(memchr::memchr(b'\n', rest).map(|end| end as u64))
    }
}

/// An instruction, and where its argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// Its first byte.
    pub opcode: u8,
    /// Where the argument begins, after its length if it has one.
    pub start: u64,
    /// The bytes of the argument, of two lines those of the first; without the end of a line.
    pub len: u64,
    /// Where the next instruction begins.
    pub next: u64,
}

impl Instruction {
    /// Where the second of two lines begins, and its bytes.
    pub fn second_line(&self) -> (u64, u64) {
        let start = self.start.saturating_add(self.len).saturating_add(1);
        (start, self.next.saturating_sub(1).saturating_sub(start))
    }
}

/// Why there is no instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoInstruction {
    /// The bytes end before the instruction does.
    Cut {
        /// Where the missing bytes begin.
        at: u64,
        /// How many bytes it needs from there on.
        bytes: u64,
    },
    /// The length of its argument is negative.
    Negative(i32),
    /// No instruction begins with this byte.
    Unknown(u8),
}

/// How the length of an argument is known.
#[derive(Clone, Copy)]
enum Length {
    Fixed(u8),
    Byte,
    Word,
    /// Of four bytes, and less than zero where it is wrong.
    Signed,
    Long,
    Line,
    TwoLines,
}

/// By opcode; `None` for invalid ones.
#[expect(clippy::cast_possible_truncation, reason = "there are 256")]
static LENGTHS: [Option<Length>; 256] = {
    let mut lengths = [None; 256];
    let mut opcode = 0;
    while opcode < lengths.len() {
        lengths[opcode] = match opcode as u8 {
            b'('
            | b')'
            | b'.'
            | b'0'
            | b'1'
            | b'2'
            | b'N'
            | b'Q'
            | b'R'
            | b']'
            | b'}'
            | b'a'
            | b'b'
            | b'd'
            | b'e'
            | b'l'
            | b'o'
            | b's'
            | b't'
            | b'u'
            | 0x81
            | 0x85..=0x89
            | 0x8f..=0x94
            | 0x97
            | 0x98 => Some(Length::Fixed(0)),
            b'K' | b'h' | b'q' | 0x80 | 0x82 => Some(Length::Fixed(1)),
            b'M' | 0x83 => Some(Length::Fixed(2)),
            b'J' | b'j' | b'r' | 0x84 => Some(Length::Fixed(4)),
            b'G' | 0x95 => Some(Length::Fixed(8)),
            b'C' | b'U' | 0x8a | 0x8c => Some(Length::Byte),
            b'B' | b'X' => Some(Length::Word),
            b'T' | 0x8b => Some(Length::Signed),
            0x8d | 0x8e | 0x96 => Some(Length::Long),
            b'F' | b'I' | b'L' | b'P' | b'S' | b'V' | b'g' | b'p' => Some(Length::Line),
            b'c' | b'i' => Some(Length::TwoLines),
            _ => None,
        };
        opcode += 1;
    }
    lengths
};

/// The instruction that begins at `at`. The bytes of its argument exist, but were not read, unless it is a line.
#[inline]
pub fn decode<B: PickleBytes>(bytes: &mut B, at: u64) -> Result<Result<Instruction, NoInstruction>, B::Error> {
    let head = at.saturating_add(1);
    let Some(opcode) = bytes.byte(at)? else { return Ok(Err(NoInstruction::Cut { at, bytes: 1 })) };
    let Some(length) = LENGTHS.get(usize::from(opcode)).copied().flatten() else {
        return Ok(Err(NoInstruction::Unknown(opcode)));
    };
    let (width, len) = match length {
        Length::Fixed(len) => (0, Some(u64::from(len))),
        Length::Byte => (1, bytes.byte(head)?.map(u64::from)),
        Length::Word => (4, bytes.array(head)?.map(|len| u64::from(u32::from_le_bytes(len)))),
        Length::Signed => match bytes.array(head)?.map(i32::from_le_bytes) {
            Some(len) if len < 0 => return Ok(Err(NoInstruction::Negative(len))),
            len => (4, len.map(|len| u64::from(len.unsigned_abs()))),
        },
        Length::Long => (8, bytes.array(head)?.map(u64::from_le_bytes)),
        Length::Line | Length::TwoLines => {
            let unended = |at: u64, all: u64| NoInstruction::Cut { at, bytes: all.saturating_sub(at) + 1 };
            let Some(len) = bytes.line(head)? else { return Ok(Err(unended(head, bytes.len()))) };
            let mut next = head + len + 1;
            if matches!(length, Length::TwoLines) {
                let Some(second) = bytes.line(next)? else { return Ok(Err(unended(next, bytes.len()))) };
                next += second + 1;
            }
            return Ok(Ok(Instruction { opcode, start: head, len, next }));
        }
    };
    let Some(len) = len else { return Ok(Err(NoInstruction::Cut { at: head, bytes: width })) };
    let start = head + width;
    match start.checked_add(len).filter(|next| *next <= bytes.len()) {
        Some(next) => Ok(Ok(Instruction { opcode, start, len, next })),
        None => Ok(Err(NoInstruction::Cut { at: start, bytes: len })),
    }
}

/// The number that at most eight bytes are, the least significant first.
#[inline]
pub fn little(bytes: &[u8]) -> u64 {
    match *bytes {
        [byte] => u64::from(byte),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        _ => bytes.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(mut bytes: &[u8]) -> Result<Instruction, NoInstruction> {
        decode(&mut bytes, 0).unwrap_or_else(|never| match never {})
    }

    #[test]
    fn the_argument_of_every_kind_of_instruction_is_found() {
        for (bytes, start, len, next) in [
            (&b"N."[..], 1, 0, 1),
            (b"K\x07.", 1, 1, 2),
            (b"\x95\0\0\0\0\0\0\0\0.", 1, 8, 9),
            (b"\x8c\x02ab.", 2, 2, 4),
            (b"X\x02\0\0\0ab.", 5, 2, 7),
            (b"T\x02\0\0\0ab.", 5, 2, 7),
            (b"\x8e\x02\0\0\0\0\0\0\0ab.", 9, 2, 11),
            (b"I12\n.", 1, 2, 4),
            (b"cab\nc\n.", 1, 2, 6),
        ] {
            assert_eq!(decoded(bytes), Ok(Instruction { opcode: bytes[0], start, len, next }));
        }
        assert_eq!(decoded(b"cab\ncde\n.").unwrap().second_line(), (4, 3));
    }

    #[test]
    fn what_is_no_instruction_says_why() {
        assert_eq!(decoded(b""), Err(NoInstruction::Cut { at: 0, bytes: 1 }));
        assert_eq!(decoded(b"G123"), Err(NoInstruction::Cut { at: 1, bytes: 8 }));
        assert_eq!(decoded(b"X\x01"), Err(NoInstruction::Cut { at: 1, bytes: 4 }));
        assert_eq!(decoded(b"X\x02\0\0\0a"), Err(NoInstruction::Cut { at: 5, bytes: 2 }));
        assert_eq!(
            decoded(b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff"),
            Err(NoInstruction::Cut { at: 9, bytes: u64::MAX })
        );
        assert_eq!(decoded(b"I12"), Err(NoInstruction::Cut { at: 1, bytes: 3 }));
        assert_eq!(decoded(b"cab\nc"), Err(NoInstruction::Cut { at: 4, bytes: 2 }));
        assert_eq!(decoded(b"T\xff\xff\xff\xff"), Err(NoInstruction::Negative(-1)));
        assert_eq!(decoded(b"\xff"), Err(NoInstruction::Unknown(0xff)));
        assert_eq!(little(b"\x01\x02"), 0x0201);
    }
}
