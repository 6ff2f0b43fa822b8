//! The bytes of an entry: read, inflated within limits, and their checksum.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};

use super::{ZipEntry, ZipMethod};
use crate::budget::saturating_usize;

use crate::budget;
use crate::error::{Diagnostic, Error, Result};
use crate::format::escape;
use crate::rules;
use crate::workers::Interrupt;

/// The maximum expansion of deflate; an entry that claims more is invalid.
pub const DEFLATE_RATIO: u64 = 1032;
/// The most that an entry is inflated, as a multiple of its compressed size…
pub const MAX_INFLATED_RATIO: u64 = 200;
/// … unless it is smaller than this when it is inflated: zeros are compressed a thousandfold, legitimately.
pub const ALWAYS_INFLATED_BYTES: u64 = 256 << 20;
/// Bytes that are read and inflated at a time: a power of two, and at least the window of deflate.
const PIECE: usize = 256 << 10;

/// The checksum of these bytes.
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

impl ZipEntry<'_> {
    /// The fault if the inflated bytes have this checksum; none if PyTorch was told not to compute it.
    pub fn check_crc32(&self, actual: u32) -> Option<Diagnostic> {
        if self.crc32 == actual || self.crc32 == 0 {
            return None;
        }
        Some(wrong_crc32(self.name, actual, self.crc32, self.data.start()))
    }

    /// Memory for the bytes in the file, unless there are more than `most` of them, compressed or inflated.
    pub fn reserve(&self, most: u64) -> Result<Vec<u8>> {
        if self.size > most || self.data.len() > most {
            let cause =
                format!("it has {} bytes ({} in the file); at most {most} are read", self.size, self.data.len());
            return Err(self.about(Diagnostic::new(rules::TORCH_ZIP_ENTRY_TOO_LONG, cause)).format());
        }
        Ok(budget::zeroed(saturating_usize(self.data.len()))?)
    }

    /// The entry's bytes from those in the file, inflated if need be.
    pub fn contents(&self, stored: Vec<u8>, interrupt: Interrupt<'_>) -> Result<Vec<u8>> {
        if self.method == ZipMethod::Stored {
            return Ok(stored);
        }
        inflate(&stored, self.size, interrupt).map_err(|error| match error {
            Error::Format(fault) => self.about(*fault).format(),
            other => other,
        })
    }

    /// The memory that [`ZipEntry::contents`] needs.
    pub fn contents_bytes(&self) -> usize {
        let compressed = if self.method == ZipMethod::Stored { 0 } else { self.data.len() };
        usize::try_from(self.size.saturating_add(compressed)).unwrap_or(usize::MAX)
    }

    fn about(&self, fault: Diagnostic) -> Diagnostic {
        about(fault, self.name, self.data.start())
    }
}

/// The fault of an entry at `offset` with a wrong checksum.
pub fn wrong_crc32(name: &str, actual: u32, declared: u32, offset: u64) -> Diagnostic {
    let cause = format!(
        "entry '{}': its bytes have the checksum {actual:08x}, but the archive states {declared:08x}: they were changed or damaged",
        escape(name)
    );
    Diagnostic::new(rules::TORCH_ZIP_CRC, cause).offset(offset)
}

/// Adds which entry it is about, where it was noticed.
pub(super) fn about(mut fault: Diagnostic, name: &str, offset: u64) -> Diagnostic {
    fault.message = format!("entry '{}': {}", escape(name), fault.message);
    fault.offset(offset)
}

/// Refuses to inflate `compressed` bytes to `size` where it is impossible, or would be an attack on memory.
pub fn check_ratio(compressed: u64, size: u64) -> Result<()> {
    let most = compressed.saturating_mul(MAX_INFLATED_RATIO).max(ALWAYS_INFLATED_BYTES);
    if size > most || size > compressed.saturating_mul(DEFLATE_RATIO) {
        let cause = format!(
            "{compressed} bytes would inflate to {size}; beyond {ALWAYS_INFLATED_BYTES} bytes, at most {MAX_INFLATED_RATIO} times as many are allowed, and never more than {DEFLATE_RATIO} times"
        );
        return Err(Diagnostic::new(rules::TORCH_ZIP_BOMB, cause).format());
    }
    Ok(())
}

/// Inflates to exactly `size` bytes.
pub fn inflate(compressed: &[u8], size: u64, interrupt: Interrupt<'_>) -> Result<Vec<u8>> {
    check_ratio(compressed.len() as u64, size)?;
    let mut output = budget::zeroed(saturating_usize(size))?;
    let (mut taken, mut made) = (0, 0);
    inflate_in_pieces(
        compressed.len() as u64,
        size,
        |_, bytes| {
            bytes.copy_from_slice(&compressed[taken..taken + bytes.len()]);
            taken += bytes.len();
            interrupt()
        },
        |piece| {
            output[made..made + piece.len()].copy_from_slice(piece);
            made += piece.len();
            interrupt()
        },
    )?;
    Ok(output)
}

/// Inflates in bounded memory. `read` reads some of the `compressed` bytes, from an offset on. `each` gets the inflated bytes in consecutive pieces,
/// which must have `size` bytes together.
pub fn inflate_in_pieces(
    compressed: u64,
    size: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    check_ratio(compressed, size)?;
    let mut state: Box<DecompressorOxide> = Box::default();
    let (mut input, mut unread) = (vec![0; PIECE.min(saturating_usize(compressed))], 0..0);
    let mut window = vec![0; PIECE];
    let (mut taken, mut written) = (0, 0u64);
    loop {
        if unread.is_empty() && taken < compressed {
            unread = 0..PIECE.min(saturating_usize(compressed - taken));
            read(taken, &mut input[unread.clone()])?;
            taken += unread.len() as u64;
        }
        let flags = if taken < compressed { inflate_flags::TINFL_FLAG_HAS_MORE_INPUT } else { 0 };
        let place = saturating_usize(written) % PIECE;
        let (status, used, made) = decompress(&mut state, &input[unread.clone()], &mut window, place, flags);
        unread.start += used;
        written += made as u64;
        if written > size {
            return Err(too_much(size));
        }
        each(&window[place..place + made])?;
        match status {
            TINFLStatus::Done => break,
            TINFLStatus::HasMoreOutput => {}
            TINFLStatus::NeedsMoreInput if unread.is_empty() && taken < compressed => {}
            status => return Err(no_more(status, written)),
        }
    }
    check_end(written, size, unread.len() as u64 + (compressed - taken))
}

/// Why the inflated bytes end early.
fn no_more(status: TINFLStatus, written: u64) -> Error {
    match status {
        TINFLStatus::FailedCannotMakeProgress | TINFLStatus::NeedsMoreInput => {
            broken(format!("the compressed bytes end after {written} inflated ones"))
        }
        _ => broken(format!("the compressed bytes are damaged after {written} inflated ones")),
    }
}

fn too_much(size: u64) -> Error {
    broken(format!("it inflates to more than the {size} bytes that the archive states"))
}

fn check_end(written: u64, size: u64, rest: u64) -> Result<()> {
    if written != size {
        return Err(broken(format!("it inflates to {written} bytes, but the archive states {size}")));
    }
    if rest > 0 {
        return Err(broken(format!("{rest} bytes follow the end of the compressed data")));
    }
    Ok(())
}

fn broken(cause: String) -> Error {
    Diagnostic::new(rules::TORCH_ZIP_DEFLATE, cause).format()
}
