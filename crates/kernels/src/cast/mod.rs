//! Conversion between dtypes: slices in, slices out.
//!
//! The rules are those of the docs page "dtypes", and the code of `scalar` defines them; everything else here does the same, faster. A call takes
//! the fastest way for its pair: a kernel, a table of the 256 bytes, a plain loop, two of these with f32 in between, or the oracle itself. One call
//! runs on one thread; callers with several threads give each a part.

mod add;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
mod lines;
mod portable;
mod scalar;
mod scale;
mod small_float;
mod table;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use add::{add, is_addable};
pub(crate) use lines::{Lines, VALUES, from_f32};
pub use scale::{BlockScaled, require_scalable, scale_block_rows, scale_block_rows_at};

use crate::cast::small_float::FloatFormat;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::simd::CacheAligned;
use crate::simd::Level;

/// How to convert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CastOptions {
    /// Give the largest finite value where a value is too large, instead of infinity or NaN.
    pub saturate: bool,
    /// Write past the caches: for an output that is too large for them, or a part of one. The bytes are the same.
    pub stream: bool,
}

/// True if elements of `from` can be converted to `to`.
///
/// Everything can, except that complex numbers convert only to themselves: dropping the imaginary part must be asked for, not slipped in.
#[inline]
pub fn is_supported(from: DType, to: DType) -> bool {
    from == to || (from != DType::Complex64 && to != DType::Complex64)
}

/// A real dtype as a number, for GPU kernels that convert any dtype. From the lowest byte up it has the bits and the kind: 0 for a float, 1 for an
/// unsigned integer, 2 for a signed one, 3 for bool. For a float follow the bits of exponent and mantissa, two bytes of bias, and a number for the
/// use of the codes at the end of its range.
pub fn description(dtype: DType) -> u64 {
    use DType::{Bool, Int8, Int16, Int32, Int64};
    let [exponent, mantissa, bias, specials] = FloatFormat::of(dtype).map_or([0; 4], FloatFormat::parts);
    let kind = match dtype {
        Bool => 3,
        Int8 | Int16 | Int32 | Int64 => 2,
        _ => u64::from(FloatFormat::of(dtype).is_none()),
    };
    dtype.bits() as u64 | kind << 8 | exponent << 16 | mantissa << 24 | bias << 32 | specials << 48
}

/// The smallest positive float of a dtype with all of its digits; 0 for a dtype without denormals, such as integers.
pub fn smallest_normal(dtype: DType) -> f64 {
    FloatFormat::of(dtype).and_then(FloatFormat::smallest_normal).unwrap_or_default()
}

/// How many elements fill a whole number of bytes: a slice can be cut at multiples of this.
#[inline]
pub const fn elements_per_group(dtype: DType) -> usize {
    match dtype.bits() {
        4 => 2,
        6 => 4,
        _ => 1,
    }
}

/// Converts the elements of `src` into `dst`, which must hold exactly as many. Neither needs to be aligned.
pub fn cast(from: DType, to: DType, src: &[u8], dst: &mut [u8], options: CastOptions) -> Result<()> {
    cast_at(Level::chosen()?, from, to, src, dst, options)
}

/// [`cast`] with the instructions of a level, which must be available.
pub fn cast_at(level: Level, from: DType, to: DType, src: &[u8], dst: &mut [u8], options: CastOptions) -> Result<()> {
    level.require()?;
    if !is_supported(from, to) {
        return Err(Error::CastPair(format!("{from} cannot be converted to {to}")));
    }
    let (elements, capacity) = (elements(from, src.len())?, elements(to, dst.len())?);
    if elements != capacity {
        return Err(Error::Argument(format!(
            "a cast of {elements} elements of {from} ({} bytes) into room for {capacity} of {to} ({} bytes)",
            src.len(),
            dst.len()
        )));
    }
    convert(level, from, to, src, dst, options);
    Ok(())
}

/// [`cast`] by the oracle alone: one element after the other, without any shortcut. For tests.
pub fn cast_by_oracle(from: DType, to: DType, src: &[u8], dst: &mut [u8], options: CastOptions) -> Result<()> {
    if from == to || !is_supported(from, to) || elements(from, src.len())? != elements(to, dst.len())? {
        return cast_at(Level::Scalar, from, to, src, dst, options);
    }
    scalar::convert(from, to, src, dst, options.saturate);
    Ok(())
}

/// Makes streamed stores visible to other threads in order.
pub(crate) fn fence() {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    crate::simd::fence();
}

/// The number of elements in `bytes` bytes.
fn elements(dtype: DType, bytes: usize) -> Result<usize> {
    let group = elements_per_group(dtype);
    let group_bytes = group * dtype.bits() / 8;
    if bytes.is_multiple_of(group_bytes) {
        return Ok(bytes / group_bytes * group);
    }
    Err(Error::Argument(format!(
        "{bytes} bytes are not a whole number of {dtype} elements ({} bits each)",
        dtype.bits()
    )))
}

/// The conversion itself; everything was checked.
pub(crate) fn convert(level: Level, from: DType, to: DType, src: &[u8], dst: &mut [u8], options: CastOptions) {
    if from == to {
        dst.copy_from_slice(src);
    } else if !convert_directly(level, from, to, src, dst, options)
        && !convert_through_f32(level, from, to, src, dst, options)
    {
        scalar::convert(from, to, src, dst, options.saturate);
    }
}

/// Converts in one pass, if there is a way.
fn convert_directly(level: Level, from: DType, to: DType, src: &[u8], dst: &mut [u8], options: CastOptions) -> bool {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if lanes::kernel::convert(level, from, to, src, dst, options) {
        return true;
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = level;
    // A table pays off once there are more elements than entries; the oracle computes both.
    if let Some(table) = table::table(from, to, options) {
        table::lookup(table, src, dst);
        return true;
    }
    if let Some(convert) = portable::plain(from, to).or_else(|| portable::narrowing(from, to, options)) {
        convert(src, dst);
        return true;
    }
    false
}

/// In blocks through f32 on the stack, where that loses nothing.
fn convert_through_f32(level: Level, from: DType, to: DType, src: &[u8], dst: &mut [u8], options: CastOptions) -> bool {
    const BLOCK: usize = 1024;
    const F32: DType = DType::Float32;
    if from == F32 || to == F32 {
        return false;
    }
    // Types of more precision than f32 go through it rounded to odd, which serves only a target of at most half its precision.
    let wide = matches!(from, DType::Float64 | DType::Int32 | DType::Int64 | DType::UInt32 | DType::UInt64);
    let narrow = matches!(
        to,
        DType::Float16
            | DType::BFloat16
            | DType::Float8E4M3Fn
            | DType::Float8E4M3Fnuz
            | DType::Float8E5M2
            | DType::Float8E5M2Fnuz
    );
    if (wide && !narrow) || (to.bits() < 8) || to == DType::Float8E8M0Fnu {
        return false;
    }
    let mut block = CacheAligned([0; BLOCK * 4]);
    let (from_bytes, to_bytes) = (BLOCK * from.bits() / 8, BLOCK * to.bits() / 8);
    for (src, dst) in src.chunks(from_bytes).zip(dst.chunks_mut(to_bytes)) {
        let block = &mut block.0[..src.len() * 8 / from.bits() * 4];
        if !portable::to_f32_for_rounding(from, src, block) {
            convert(level, from, F32, src, block, CastOptions::default());
        }
        convert(level, F32, to, block, dst, options);
    }
    true
}
