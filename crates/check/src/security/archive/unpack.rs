//! Bytes that are unpacked a piece after the other, within limits; what was made before a break is kept, as a loader would have seen it.

use std::io::{self, BufRead, Read};

use max_weights::format::torch_zip::{ALWAYS_INFLATED_BYTES, MAX_INFLATED_RATIO};
use max_weights::{Error, Result};

use crate::bytes::RandomRead;
use crate::context::{CheckPace, FileContext};

/// Bytes that are read, and unpacked, at a time.
const PIECE: usize = 64 << 10;
/// The most memory for the window of a decoder, in KiB: xz -9 needs 65 MiB, and nothing that is meant to be read needs more than twice that.
const MAX_WINDOW_KIB: u32 = 128 << 10;
const KIB_LOG: u32 = 10;
/// The most parameters of LZMA in a zip archive.
const LZMA_PROPERTIES: u16 = 5;

/// How bytes are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Deflate,
    Zlib,
    Gzip,
    Bzip2,
    /// With the header of files that end in `.lzma`.
    Lzma,
    /// With the header that zip archives use instead, for this many unpacked bytes.
    LzmaInZip(u64),
    Xz,
    Zstd,
    Lz4,
}

/// How unpacking ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UnpackEnd {
    /// The end of the stream was there.
    Whole,
    /// It cannot continue, for this reason.
    Damaged(String),
    /// More would be unpacked than is allowed.
    TooMuch,
}

/// A stream of bytes that lie somewhere, which knows where it is.
pub(crate) struct StreamReader<'a> {
    bytes: &'a dyn RandomRead,
    buffer: Vec<u8>,
    taken: usize,
    next: u64,
    /// What went wrong below, which the errors of decoders would lose.
    failed: Option<Error>,
    /// Asked whenever bytes are read, of which a decoder may need many before it has made one.
    pace: Option<CheckPace<'a>>,
}

impl<'a> StreamReader<'a> {
    pub(crate) fn new(bytes: &'a dyn RandomRead, at: u64) -> Self {
        Self { bytes, buffer: Vec::new(), taken: 0, next: at, failed: None, pace: None }
    }

    /// Checks for cancellation during reads.
    pub(crate) fn at_pace(self, pace: CheckPace<'a>) -> Self {
        Self { pace: Some(pace), ..self }
    }

    /// The offset of the next byte that is given.
    pub(crate) fn position(&self) -> u64 {
        self.next.saturating_sub((self.buffer.len() - self.taken) as u64)
    }

    /// Goes on there.
    pub(crate) fn seek(&mut self, at: u64) {
        (self.next, self.taken) = (at, 0);
        self.buffer.clear();
    }

    /// Returns at most `most` of the next bytes without consuming them.
    pub(crate) fn peek(&self, most: usize) -> Result<Vec<u8>> {
        self.bytes.part(self.position(), most)
    }
}

impl Read for StreamReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let present = self.fill_buf()?;
        let count = present.len().min(into.len());
        if let (Some(into), Some(present)) = (into.get_mut(..count), present.get(..count)) {
            into.copy_from_slice(present);
        }
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for StreamReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.taken >= self.buffer.len() {
            let cancelled = self.pace.as_ref().map_or(Ok(()), CheckPace::check_cancelled);
            match cancelled.and_then(|()| self.bytes.part(self.next, PIECE)) {
                Ok(bytes) => {
                    self.next += bytes.len() as u64;
                    (self.buffer, self.taken) = (bytes, 0);
                }
                Err(error) => {
                    let shown = io::Error::other(error.to_string());
                    self.failed = Some(error);
                    return Err(shown);
                }
            }
        }
        Ok(self.buffer.get(self.taken..).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.taken = self.buffer.len().min(self.taken.saturating_add(count));
    }
}

/// Unpacks the stream at the position of `reader`, and leaves `reader` at its end. `packed` is the maximum number of packed bytes; `each` gets the
/// unpacked bytes.
pub(crate) fn unpack(
    packing: Packing,
    reader: &mut StreamReader<'_>,
    packed: u64,
    context: &mut FileContext<'_>,
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<UnpackEnd> {
    let end = match decode(packing, reader, &mut |decoder| drive(decoder, packed, context, &mut each)) {
        Ok(end) => end,
        Err(error) => Ok(UnpackEnd::Damaged(error.to_string())),
    };
    reader.failed.take().map_or(end, Err)
}

fn drive(
    decoder: &mut dyn Read,
    packed: u64,
    context: &mut FileContext<'_>,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<UnpackEnd> {
    let (mut piece, mut made) = (vec![0; PIECE], 0u64);
    loop {
        context.check_cancelled()?;
        match decoder.read(&mut piece) {
            Ok(0) => return Ok(UnpackEnd::Whole),
            Ok(count) => {
                made += count as u64;
                let beyond = made > ALWAYS_INFLATED_BYTES && made / MAX_INFLATED_RATIO > packed;
                if beyond || !context.unpack(count as u64) {
                    return Ok(UnpackEnd::TooMuch);
                }
                each(piece.get(..count).unwrap_or_default())?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Ok(UnpackEnd::Damaged(error.to_string())),
        }
    }
}

/// Has a stream of this kind unpacked; an error where it cannot begin.
fn decode(
    packing: Packing,
    reader: &mut StreamReader<'_>,
    drive: &mut dyn FnMut(&mut dyn Read) -> Result<UnpackEnd>,
) -> io::Result<Result<UnpackEnd>> {
    Ok(match packing {
        Packing::Deflate => drive(&mut flate2::bufread::DeflateDecoder::new(reader)),
        Packing::Zlib => drive(&mut flate2::bufread::ZlibDecoder::new(reader)),
        Packing::Gzip => drive(&mut flate2::bufread::GzDecoder::new(reader)),
        Packing::Bzip2 => drive(&mut bzip2::bufread::BzDecoder::new(reader)),
        Packing::Xz => drive(&mut lzma_rust2::XzReader::new_mem_limit(reader, false, MAX_WINDOW_KIB)),
        Packing::Lzma => {
            let mut decoder = lzma_rust2::LzmaReader::new_mem_limit(&mut *reader, MAX_WINDOW_KIB, None)?;
            let end = drive(&mut decoder);
            // It reads ahead, and what it has not used is what follows the stream.
            let (_, unused) = decoder.into_parts();
            reader.seek(reader.position().saturating_sub(unused.len() as u64));
            end
        }
        Packing::LzmaInZip(size) => {
            let mut header = [0; 9];
            reader.read_exact(&mut header)?;
            let [_, _, low, high, properties, dictionary @ ..] = header;
            let dictionary = u32::from_le_bytes(dictionary);
            let needed = lzma_rust2::lzma_get_memory_usage_by_props(dictionary, properties)?;
            if u16::from_le_bytes([low, high]) != LZMA_PROPERTIES || needed > MAX_WINDOW_KIB {
                return Err(io::Error::other("the decoder's window size is not supported"));
            }
            drive(&mut lzma_rust2::LzmaReader::new_with_props(reader, size, properties, dictionary, None)?)
        }
        Packing::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(reader)?.single_frame();
            decoder.window_log_max(MAX_WINDOW_KIB.ilog2() + KIB_LOG)?;
            drive(&mut decoder)
        }
        Packing::Lz4 => drive(&mut lz4_flex::frame::FrameDecoder::new(reader)),
    })
}
