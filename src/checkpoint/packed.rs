//! What zstd compressed within a file, as it is unpacked: read in parts, with memory that is bounded whatever it unpacks to.

use std::io;
use std::ops::Range;

use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::error::{Error, Result};
use crate::source::{Part, Source};
use crate::workers::Interrupt;

/// What is unpacked in one step, and read of the file for it.
pub(super) const STEP: usize = 1 << 20;
const READ: usize = 128 << 10;
/// How far back what follows may refer: memory that is taken beside what is kept. zstd takes 8 MiB at most, unless it is told otherwise.
pub(super) const WINDOW: u64 = 32 << 20;

/// Unpacks the one frame that a range of a file is, and hands it to `take` in parts; what is wrong with it becomes the error that `fault` makes.
pub(super) fn unpack(
    file: &dyn Source,
    range: &Range<u64>,
    interrupt: Interrupt<'_>,
    fault: &dyn Fn(String) -> Error,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let (mut decoder, mut packed, mut part) = (FrameDecoder::new(), Packed::default(), Vec::new());
    let mut feed = Feed::new(file, range, &mut packed, interrupt);
    let damaged = |feed: &mut Feed<'_>, error: FrameDecoderError| {
        let failed = feed.failed.take();
        failed.unwrap_or_else(|| fault(format!("its bytes are no whole frame of zstd: {error}")))
    };
    decoder.set_max_window_size(WINDOW);
    decoder.reset(&mut feed).map_err(|error| damaged(&mut feed, error))?;
    loop {
        interrupt()?;
        let step = BlockDecodingStrategy::UptoBytes(STEP);
        let is_last = decoder.decode_blocks(&mut feed, step).map_err(|error| damaged(&mut feed, error))?;
        part.clear();
        // A list takes whatever is written to it.
        decoder.collect_to_writer(&mut part).map_err(|error| fault(error.to_string()))?;
        take(&part)?;
        if is_last {
            break;
        }
    }
    if let (Some(said), Some(is)) = (decoder.get_checksum_from_data(), decoder.get_calculated_checksum())
        && said != is
    {
        return Err(fault(format!("the checksum of its frame is {is:08x}, but it says {said:08x}")));
    }
    if !feed.is_at_end() {
        return Err(fault("bytes follow its frame".to_owned()));
    }
    Ok(())
}

/// The bytes of a range that were read and not unpacked.
#[derive(Default)]
pub(super) struct Packed {
    bytes: Vec<u8>,
    used: usize,
    /// How many bytes of the range were read or left out.
    read: u64,
}

/// A range of a file, as the decoder reads it.
pub(super) struct Feed<'a> {
    file: &'a dyn Source,
    item: &'a Range<u64>,
    packed: &'a mut Packed,
    interrupt: Interrupt<'a>,
    /// Why it could not be read.
    pub(super) failed: Option<Error>,
}

impl<'a> Feed<'a> {
    pub(super) fn new(
        file: &'a dyn Source,
        item: &'a Range<u64>,
        packed: &'a mut Packed,
        interrupt: Interrupt<'a>,
    ) -> Self {
        Self { file, item, packed, interrupt, failed: None }
    }

    fn left(&self) -> u64 {
        (self.item.end - self.item.start).saturating_sub(self.packed.read)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.packed.used == self.packed.bytes.len() && self.left() == 0
    }

    /// Leaves bytes out; those beyond the end are none.
    pub(super) fn skip(&mut self, len: u64) {
        let there = ((self.packed.bytes.len() - self.packed.used) as u64).min(len);
        self.packed.used += there as usize;
        self.packed.read += (len - there).min(self.left());
    }
}

impl io::Read for Feed<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.packed.used == self.packed.bytes.len() {
            let len = self.left().min(READ as u64) as usize;
            self.packed.bytes.resize(len, 0);
            self.packed.used = 0;
            let part = Part { offset: self.item.start + self.packed.read, bytes: &mut self.packed.bytes };
            if let Err(error) = self.file.read(&mut [part], self.interrupt) {
                self.failed = Some(error);
                return Err(io::Error::other("the file"));
            }
            self.packed.read += len as u64;
        }
        let there = &self.packed.bytes[self.packed.used..];
        let len = there.len().min(out.len());
        out[..len].copy_from_slice(&there[..len]);
        self.packed.used += len;
        Ok(len)
    }
}
