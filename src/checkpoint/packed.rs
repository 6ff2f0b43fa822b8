//! Unpacks zstd data within a file, in parts, with memory that is bounded for any output size.

use std::fmt;
use std::ops::Range;

use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use crate::budget;
use crate::error::{Error, Result};
use crate::source::{Filesystem, ReadRange, Source};
use crate::workers::Interrupt;

/// The bytes read from a file at a time.
const READ: usize = 128 << 10;
/// The bytes read from a server at a time: long requests take hardly longer than short ones.
const READ_OF_SERVER: usize = 8 << 20;
/// The bytes unpacked before they are passed on: the largest block of a frame, which stays in the cache of a core.
const PART: usize = 128 << 10;
/// The maximum window, as a power of two: 32 MiB, in addition to the buffers. zstd accepts at most 8 MiB by default.
const WINDOW_LOG: u32 = 25;
/// The window of frames with default settings.
const WINDOW: usize = 8 << 20;
/// The maximum unpacked in one step.
pub(crate) const STEP: usize = 1 << 20;

/// The memory that unpacking takes per thread, without its output: the read buffer, the window, and a step or two.
pub(crate) fn unpacking_bytes(is_served: bool) -> usize {
    (if is_served { READ_OF_SERVER } else { READ }) + WINDOW + 2 * STEP
}

/// Unpacks a range of a file, from start to end.
#[derive(Default)]
pub(crate) struct Unpacker {
    /// Reused for the next range.
    decoder: Option<Decoder<'static>>,
    /// The bytes last read, and how many of them are unpacked.
    packed: Vec<u8>,
    used: usize,
    /// The number of bytes read from the range.
    read: u64,
    part: Vec<u8>,
}

impl Unpacker {
    /// Starts a new range.
    pub(super) fn restart(&mut self) {
        self.packed.clear();
        (self.used, self.read) = (0, 0);
        // If the reset fails, the decoder is dropped, together with its partial frame.
        if self.decoder.as_mut().is_some_and(|decoder| decoder.reinit().is_err()) {
            self.decoder = None;
        }
    }

    /// Whether all of the range was unpacked.
    pub(super) fn is_at_end(&self, range: &Range<u64>) -> bool {
        self.used == self.packed.len() && self.read == range.end - range.start
    }

    /// Unpacks the next bytes into `out`. Returns their number, and whether a frame ends with them; only then are they fewer than `out` holds. A
    /// skippable frame counts as an empty frame.
    pub(super) fn step(
        &mut self,
        file: &dyn Source,
        range: &Range<u64>,
        out: &mut [u8],
        interrupt: Interrupt<'_>,
        fault: &dyn Fn(String) -> Error,
    ) -> Result<(usize, bool)> {
        let damaged = |cause: &dyn fmt::Display| fault(format!("its bytes are not a complete zstd frame: {cause}"));
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            none => {
                let mut decoder = Decoder::new().map_err(|error| damaged(&error))?;
                decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG)).map_err(|error| damaged(&error))?;
                none.insert(decoder)
            }
        };
        let mut out = OutBuffer::around(out);
        loop {
            let left = range.end - range.start - self.read;
            if self.used == self.packed.len() && left > 0 {
                interrupt()?;
                let is_served = matches!(file.filesystem(), Some(Filesystem::Server(_)));
                let most = if is_served { READ_OF_SERVER } else { READ };
                self.packed.resize(left.min(most as u64) as usize, 0);
                self.used = 0;
                let part = ReadRange { offset: range.start + self.read, bytes: &mut self.packed };
                file.read(&mut [part], interrupt)?;
                self.read += self.packed.len() as u64;
            }
            let before = (self.used, out.pos());
            let mut packed = InBuffer::around(&self.packed[self.used..]);
            let next = decoder.run(&mut packed, &mut out).map_err(|error| damaged(&error))?;
            self.used += packed.pos();
            if next == 0 || out.pos() == out.capacity() {
                return Ok((out.pos(), next == 0));
            }
            if before == (self.used, out.pos()) {
                return Err(damaged(&"they end before the frame"));
            }
        }
    }

    /// Unpacks a range that is a single frame, and passes it to `take` in parts; `fault` converts errors.
    pub(super) fn frame(
        &mut self,
        file: &dyn Source,
        range: &Range<u64>,
        interrupt: Interrupt<'_>,
        fault: &dyn Fn(String) -> Error,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.restart();
        let mut part = std::mem::take(&mut self.part);
        if part.is_empty() {
            part = budget::zeroed(PART)?;
        }
        loop {
            interrupt()?;
            let (len, is_end) = self.step(file, range, &mut part, interrupt, fault)?;
            take(&part[..len])?;
            if is_end {
                break;
            }
        }
        self.part = part;
        if self.is_at_end(range) { Ok(()) } else { Err(fault("bytes follow its frame".to_owned())) }
    }
}

impl Unpacker {
    /// Unpacks a range of frames, from start to end, and passes the output to `take` in parts; `buffer` is the buffer.
    pub(crate) fn frames(
        &mut self,
        file: &dyn Source,
        range: &Range<u64>,
        buffer: &mut [u8],
        interrupt: Interrupt<'_>,
        fault: &dyn Fn(String) -> Error,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.restart();
        let mut is_in_frame = false;
        while is_in_frame || !self.is_at_end(range) {
            interrupt()?;
            let (len, is_end) = self.step(file, range, buffer, interrupt, fault)?;
            take(&buffer[..len])?;
            is_in_frame = !is_end;
        }
        Ok(())
    }
}

impl fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unpacker behind {} bytes", self.read)
    }
}
