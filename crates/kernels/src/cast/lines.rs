//! [`Lines`]: batches of f32 values, converted to a narrower type, or streamed.

use super::{CastOptions, convert};
use crate::dtype::DType;
use crate::simd::CacheAligned;
use crate::simd::Level;

/// Bytes of a line of the cache.
const LINE: usize = 64;
/// Values that are kept for the next call: less than a line of the narrowest type.
const KEPT: usize = LINE / 2;
/// The most values of a batch: they stay in the L1 cache.
pub(crate) const VALUES: usize = 2048;

/// Values, and directly before them those of a line that was not complete yet.
type LineBuffer = CacheAligned<[[u8; 4]; KEPT + VALUES]>;

/// Streams an output in whole cache lines, wherever it begins. A partly written line makes the processor wait for memory, and each batch would have
/// one at both ends. NumPy's arrays begin in the middle of a line.
pub(crate) struct Lines<'a> {
    buffer: LineBuffer,
    kept: usize,
    level: Level,
    to: DType,
    stream: bool,
    out: &'a mut [u8],
    /// The byte of the output for the kept values, or else for the next value.
    place: usize,
}

impl<'a> Lines<'a> {
    /// For an output of float32, float16 or bfloat16, by the instructions of a level, which must be available.
    pub(crate) const fn new(level: Level, to: DType, out: &'a mut [u8], stream: bool) -> Self {
        Self { buffer: CacheAligned([[0; 4]; KEPT + VALUES]), kept: 0, level, to, stream, out, place: 0 }
    }

    /// The next values go to this byte of the output.
    pub(crate) fn seek(&mut self, place: usize) {
        if place != self.place + self.kept * self.width() {
            self.finish();
            self.place = place;
        }
    }

    /// Room for the next values.
    pub(crate) fn reserve(&mut self, count: usize) -> &mut [[u8; 4]] {
        if self.is_direct() {
            return &mut self.out[self.place..].as_chunks_mut().0[..count];
        }
        &mut self.buffer.0[KEPT..KEPT + count]
    }

    /// Writes the values of the batch, except for those that begin a line.
    pub(crate) fn push(&mut self, count: usize) {
        if self.is_direct() {
            self.place += count * self.width();
            return;
        }
        let values = self.kept + count;
        let begun = (self.out.as_ptr().addr() + self.place + values * self.width()) % LINE;
        // Where no value ends with a line, none is kept.
        let keep = if self.stream && begun.is_multiple_of(self.width()) { begun / self.width() } else { 0 };
        self.write(count, keep.min(values));
    }

    /// Where the next values belong, for a caller that writes them itself.
    #[cfg(target_arch = "x86_64")] // for its kernels
    pub(crate) fn place(&mut self, count: usize) -> &mut [u8] {
        self.finish();
        let start = self.place;
        self.place += count * self.width();
        &mut self.out[start..self.place]
    }

    /// Writes the kept values. After calls with `stream` a [`fence`](super::fence) is needed.
    pub(crate) fn finish(&mut self) {
        self.write(0, 0);
    }

    fn write(&mut self, count: usize, keep: usize) {
        let values = &self.buffer.0[KEPT - self.kept..KEPT + count - keep];
        let end = self.place + values.len() * self.width();
        from_f32(self.level, values.as_flattened(), self.to, &mut self.out[self.place..end], self.stream);
        self.place = end;
        self.buffer.0.copy_within(KEPT + count - keep..KEPT + count, KEPT - keep);
        self.kept = keep;
    }

    /// Whether values are written directly to their place.
    fn is_direct(&self) -> bool {
        self.to == DType::Float32 && !self.stream
    }

    const fn width(&self) -> usize {
        self.to.bits() / 8
    }
}

/// Converts f32 to another type, or copies them; the lengths match. After calls with `stream` a [`fence`](super::fence) is needed.
pub(crate) fn from_f32(level: Level, values: &[u8], to: DType, out: &mut [u8], stream: bool) {
    let options = CastOptions { saturate: false, stream };
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if super::lanes::kernel::convert_before_fence(level, DType::Float32, to, values, out, options) {
        return;
    }
    convert(level, DType::Float32, to, values, out, options);
}
