//! What zstd compressed within a file, as it is unpacked: read in parts, with memory that is bounded whatever it unpacks to.

use std::fmt;
use std::ops::Range;

use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use crate::budget;
use crate::error::{Error, Result};
use crate::source::{Filesystem, Part, Source};
use crate::workers::Interrupt;

/// What is read of the file at a time.
const READ: usize = 128 << 10;
/// The same of a server, which answers long requests nearly as soon as short ones.
const READ_OF_SERVER: usize = 8 << 20;
/// What is unpacked of a frame before it is handed on: as much as its largest block, so that all of it stays in the cache of a core.
const PART: usize = 128 << 10;
/// How far back what follows may refer, as a power of two: 32 MiB, memory that is taken beside what is kept. zstd takes 8 MiB at most, unless it is told
/// otherwise.
const WINDOW_LOG: u32 = 25;
/// How far it does where nobody asked for more.
const WINDOW: usize = 8 << 20;
/// What is unpacked in one step at most.
pub(crate) const STEP: usize = 1 << 20;

/// What unpacking takes on a thread, beside what it unpacks to: what is read, the window, and a step or two.
pub(crate) fn unpacking_bytes(is_served: bool) -> usize {
    (if is_served { READ_OF_SERVER } else { READ }) + WINDOW + 2 * STEP
}

/// Unpacks a range of a file, from its start to its end.
#[derive(Default)]
pub(crate) struct Unpacker {
    /// That of the last range is taken again for the next.
    decoder: Option<Decoder<'static>>,
    /// Bytes of the range that were read, and how many of them were unpacked.
    packed: Vec<u8>,
    used: usize,
    /// How many bytes of the range were read.
    read: u64,
    part: Vec<u8>,
}

impl Unpacker {
    /// Begins at the start of a range.
    pub(super) fn restart(&mut self) {
        self.packed.clear();
        (self.used, self.read) = (0, 0);
        // What is left of a frame is forgotten with all of it, should that fail.
        if self.decoder.as_mut().is_some_and(|decoder| decoder.reinit().is_err()) {
            self.decoder = None;
        }
    }

    /// Whether all of the range was unpacked.
    pub(super) fn is_at_end(&self, range: &Range<u64>) -> bool {
        self.used == self.packed.len() && self.read == range.end - range.start
    }

    /// Unpacks what comes next into `out`; returns how many bytes that are, and whether a frame ends with them. They are fewer than there is room for only if
    /// it does. What may be left out between frames is a frame of no bytes.
    pub(super) fn step(
        &mut self,
        file: &dyn Source,
        range: &Range<u64>,
        out: &mut [u8],
        interrupt: Interrupt<'_>,
        fault: &dyn Fn(String) -> Error,
    ) -> Result<(usize, bool)> {
        let damaged = |cause: &dyn fmt::Display| fault(format!("its bytes are no whole frame of zstd: {cause}"));
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
                let part = Part { offset: range.start + self.read, bytes: &mut self.packed };
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
                return Err(damaged(&"they end before it does"));
            }
        }
    }

    /// Unpacks the one frame that a range of a file is, and hands it to `take` in parts; what is wrong with it becomes the error that `fault` makes.
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
    /// Unpacks the frames that a range of a file is, from its start to its end, and hands what comes out to `take` in parts; `room` is the memory for them.
    pub(crate) fn frames(
        &mut self,
        file: &dyn Source,
        range: &Range<u64>,
        room: &mut [u8],
        interrupt: Interrupt<'_>,
        fault: &dyn Fn(String) -> Error,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.restart();
        let mut is_in_frame = false;
        while is_in_frame || !self.is_at_end(range) {
            interrupt()?;
            let (len, is_end) = self.step(file, range, room, interrupt, fault)?;
            take(&room[..len])?;
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
