//! Plain values in a pickle, read at the place of their instruction.

use max_weights::Result;
use max_weights::format::pickle::spelling::{Instruction, decode, integer_of, text_of};

use super::reader::{MOST, Reader};

/// The longest text that is read; names, keys and codecs are far shorter.
pub(super) const MAX_TEXT: usize = 1024;

impl Reader<'_, '_> {
    /// The instruction at `at`, if one is whole there.
    pub(super) fn instruction(&mut self, at: u64) -> Result<Option<Instruction>> {
        Ok(decode(self, at)?.ok())
    }

    /// The bytes of the value that the instruction at `at` makes, and its opcode; `None` if there are more than `most`.
    pub(super) fn literal(&mut self, at: u64, most: usize) -> Result<Option<(u8, Vec<u8>)>> {
        match self.instruction(at)?.filter(|instruction| instruction.len <= most.min(MOST) as u64) {
            Some(Instruction { opcode, start, len, .. }) => {
                Ok(Some((opcode, self.some(start, len as usize)?.to_vec())))
            }
            None => Ok(None),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

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
