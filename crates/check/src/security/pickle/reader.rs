//! The bytes of a pickle through a window: what is long is never read, and plain values are read again at the place of their instruction.

use max_weights::format::pickle::spelling::{self, Instruction, decode, integer_of, text_of};
use max_weights::{Error, Result};

use crate::bytes::RandomRead;
use crate::context::FileContext;

/// The size of the window, once it has grown. Longer values are skipped, and known by their position.
const WINDOW: usize = 64 << 10;
/// Maximum bytes that are returned at once.
pub(super) const MAX_READ_BYTES: usize = 4 << 10;
/// The longest text that is read; names, keys and codecs are far shorter.
pub(super) const MAX_TEXT: usize = 1024;
/// Bytes that are read between two checks for cancellation: a line may be as long as the file.
const PACE: u64 = 16 << 20;

/// Bytes that are read forwards, with a look back now and then.
pub(super) struct PickleReader<'a, 'c> {
    bytes: &'a dyn RandomRead,
    context: Option<&'c FileContext<'c>>,
    /// How many bytes were read.
    pub(super) read: u64,
    len: u64,
    /// Where the window begins.
    start: u64,
    window: Vec<u8>,
    /// What lies before the window.
    back: Vec<u8>,
}

impl<'a, 'c> PickleReader<'a, 'c> {
    pub(super) fn new(bytes: &'a dyn RandomRead, context: Option<&'c FileContext<'c>>) -> Self {
        Self { bytes, context, read: 0, len: bytes.len(), start: 0, window: Vec::new(), back: Vec::new() }
    }

    /// Counts the bytes that are read, and checks for cancellation periodically.
    fn count(&mut self, bytes: usize) -> Result<()> {
        let before = self.read / PACE;
        self.read += bytes as u64;
        if self.read / PACE == before { Ok(()) } else { self.context.map_or(Ok(()), FileContext::check_cancelled) }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn bytes(&self) -> &'a dyn RandomRead {
        self.bytes
    }

    /// The byte there; none behind the end.
    pub(super) fn byte(&mut self, at: u64) -> Result<Option<u8>> {
        if let Some(byte) = at.checked_sub(self.start).and_then(|place| self.window.get(usize::try_from(place).ok()?)) {
            return Ok(Some(*byte));
        }
        Ok(self.some(at, 1)?.first().copied())
    }

    /// The bytes there, at most [`MAX`] of them: fewer only where the end is.
    pub(super) fn some(&mut self, at: u64, bytes: usize) -> Result<&[u8]> {
        let requested = (bytes.min(MAX_READ_BYTES) as u64).min(self.len.saturating_sub(at)) as usize;
        if requested == 0 {
            return Ok(&[]);
        }
        if at < self.start {
            self.count(requested)?;
            self.back.resize(requested, 0);
            self.bytes.read_at(at, &mut self.back)?;
            return Ok(&self.back);
        }
        let mut from = (at - self.start) as usize;
        if from + requested > self.window.len() {
            // Most files that only look like a pickle end soon.
            let size = (2 * self.window.len()).clamp(MAX_READ_BYTES, WINDOW);
            let present = (size as u64).min(self.len.saturating_sub(at)) as usize;
            self.count(present)?;
            self.window.resize(present, 0);
            self.start = at;
            self.bytes.read_at(at, &mut self.window)?;
            from = 0;
        }
        Ok(self.window.get(from..from + requested).unwrap_or_default())
    }

    /// The instruction at `at`, if one is whole there.
    pub(super) fn instruction(&mut self, at: u64) -> Result<Option<Instruction>> {
        Ok(decode(self, at)?.ok())
    }

    /// The bytes of the value that the instruction at `at` makes, and its opcode; `None` if there are more than `most`.
    fn literal(&mut self, at: u64, most: usize) -> Result<Option<(u8, Vec<u8>)>> {
        match self.instruction(at)?.filter(|instruction| instruction.len <= most.min(MAX_READ_BYTES) as u64) {
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

impl spelling::PickleBytes for PickleReader<'_, '_> {
    type Error = Error;

    fn len(&self) -> u64 {
        self.len
    }

    fn byte(&mut self, at: u64) -> Result<Option<u8>> {
        PickleReader::byte(self, at)
    }

    fn array<const N: usize>(&mut self, at: u64) -> Result<Option<[u8; N]>> {
        Ok(self.some(at, N)?.try_into().ok())
    }

    fn line(&mut self, at: u64) -> Result<Option<u64>> {
        let mut place = at;
        loop {
            let part = self.some(place, MAX_READ_BYTES)?;
            if let Some(end) = memchr::memchr(b'\n', part) {
                return Ok(Some(place - at + end as u64));
            }
            if part.is_empty() {
                return Ok(None);
            }
            place += part.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use max_weights::format::pickle::spelling::PickleBytes as _;

    use super::*;

    #[test]
    fn every_byte_is_had_wherever_the_window_is() {
        let bytes: Vec<u8> = (0..3 * WINDOW + 5).map(|place| (place % 251) as u8).collect();
        let mut reader = PickleReader::new(&bytes, None);
        for at in [0, 70_000, 3, 2 * WINDOW, WINDOW - 1, 3 * WINDOW + 4] {
            assert_eq!(reader.byte(at as u64).unwrap(), Some(bytes[at]));
            let some = reader.some(at as u64, 100).unwrap().to_vec();
            assert_eq!(some, &bytes[at..(at + 100).min(bytes.len())]);
        }
        assert_eq!(reader.byte(bytes.len() as u64).unwrap(), None);
        assert_eq!(reader.byte(u64::MAX).unwrap(), None);
    }

    #[test]
    fn a_line_may_be_longer_than_the_window() {
        let mut bytes = vec![b'a'; 2 * WINDOW];
        bytes.push(b'\n');
        let mut reader = PickleReader::new(&bytes, None);
        assert_eq!(reader.line(1).unwrap(), Some(2 * WINDOW as u64 - 1));
        assert_eq!(reader.line(2 * WINDOW as u64 + 1).unwrap(), None);
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
            let mut reader = PickleReader::new(&pickle, None);
            assert_eq!(reader.text(0).unwrap().as_deref(), Some("posix"), "{pickle:?}");
        }
        let long = [&b"\x8d\x00\x10\0\0\0\0\0\0"[..], &[b'a'; 4096]].concat();
        assert_eq!(PickleReader::new(&long, None).text(0).unwrap(), None, "too long for a name");
    }
}
