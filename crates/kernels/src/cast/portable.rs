//! Plain loops over Rust's own number types, for every processor: the compiler makes vector code of them.
//!
//! Rust's `as` follows the rules of the docs page "dtypes" for every pair here: it rounds to nearest even, truncates and saturates from
//! float to integer with NaN as zero, and wraps between integers. Only NaN bits between float types are not its promise, so those
//! pairs are written out.

use half::f16;
use half::slice::HalfFloatSliceExt as _;

use crate::cast::CastOptions;
use crate::dtype::DType;
use crate::simd::CacheAligned;

/// Converts a slice; the lengths were checked.
pub(super) type ConvertSlice = fn(&[u8], &mut [u8]);

/// A number in its representation in memory.
trait RawElement: Copy {
    const BYTES: usize;
    fn load(bytes: &[u8]) -> Self;
    fn store(self, bytes: &mut [u8]);
}

/// A conversion of one number.
trait To<T> {
    fn to(self) -> T;
}

macro_rules! elements {
    ($($t:ty),*) => {$(
        impl RawElement for $t {
            const BYTES: usize = size_of::<$t>();
            fn load(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<$t>()];
                array.copy_from_slice(bytes);
                <$t>::from_le_bytes(array)
            }
            fn store(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
elements!(i8, i16, i32, i64, u8, u16, u32, u64, f32, f64);

macro_rules! to {
    ($from:ty => $($t:ty),*) => {$(
        impl To<$t> for $from {
            fn to(self) -> $t {
                self as $t
            }
        }
    )*};
}
macro_rules! to_every {
    ($($from:ty),*) => {$(
        to!($from => i8, i16, i32, i64, u8, u16, u32, u64, f32, f64);
    )*};
}
to_every!(i8, i16, i32, i64, u8, u16, u32, u64);
to!(f32 => i8, i16, i32, i64, u8, u16, u32, u64);
to!(f64 => i8, i16, i32, i64, u8, u16, u32, u64);

/// A byte of a bool: anything but zero is true.
#[derive(Clone, Copy)]
struct Flag(bool);

impl RawElement for Flag {
    const BYTES: usize = 1;
    fn load(bytes: &[u8]) -> Self {
        Self(bytes[0] != 0)
    }
    fn store(self, bytes: &mut [u8]) {
        bytes[0] = u8::from(self.0);
    }
}

macro_rules! to_flag {
    ($($from:ty: $zero:expr),*) => {$(
        impl To<Flag> for $from {
            // Exact: NaN is true, both zeros are false.
            #[allow(clippy::float_cmp)]
            fn to(self) -> Flag {
                Flag(self != $zero)
            }
        }
    )*};
}
to_flag!(i8: 0, i16: 0, i32: 0, i64: 0, u8: 0, u16: 0, u32: 0, u64: 0, f32: 0.0, f64: 0.0);

fn map<S: RawElement + To<T>, T: RawElement>(src: &[u8], dst: &mut [u8]) {
    for (from, to) in src.chunks_exact(S::BYTES).zip(dst.chunks_exact_mut(T::BYTES)) {
        S::load(from).to().store(to);
    }
}

macro_rules! pick {
    ($from:ty, $to:expr, $($dtype:ident: $t:ty),*) => {
        match $to {
            $(DType::$dtype => Some(map::<$from, $t> as ConvertSlice),)*
            _ => None,
        }
    };
}
macro_rules! pick_any {
    ($from:ty, $to:expr) => {
        pick!($from, $to, Bool: Flag, Int8: i8, Int16: i16, Int32: i32, Int64: i64, UInt8: u8, UInt16: u16, UInt32: u32,
            UInt64: u64, Float32: f32, Float64: f64)
    };
}
macro_rules! pick_integer {
    ($from:ty, $to:expr) => {
        pick!($from, $to, Bool: Flag, Int8: i8, Int16: i16, Int32: i32, Int64: i64, UInt8: u8, UInt16: u16, UInt32: u32,
            UInt64: u64)
    };
}

/// The plain loop for this pair.
pub(super) fn plain(from: DType, to: DType) -> Option<ConvertSlice> {
    match from {
        DType::Int8 => pick_any!(i8, to),
        DType::Int16 => pick_any!(i16, to),
        DType::Int32 => pick_any!(i32, to),
        DType::Int64 => pick_any!(i64, to),
        DType::UInt8 => pick_any!(u8, to),
        DType::UInt16 => pick_any!(u16, to),
        DType::UInt32 => pick_any!(u32, to),
        DType::UInt64 => pick_any!(u64, to),
        DType::Float32 if to == DType::Float64 => Some(f32_to_f64),
        DType::Float32 => pick_integer!(f32, to),
        DType::Float64 => pick_integer!(f64, to),
        DType::BFloat16 if to == DType::Float32 => Some(bf16_to_f32),
        DType::Float16 if to == DType::Float32 => Some(f16_to_f32),
        _ => None,
    }
}

/// The loop for float pairs that may overflow, where saturation matters.
pub(super) fn narrowing(from: DType, to: DType, options: CastOptions) -> Option<ConvertSlice> {
    match (from, to, options.saturate) {
        (DType::Float32, DType::BFloat16, false) => Some(f32_to_bf16),
        (DType::Float32, DType::Float16, false) => Some(f32_to_f16),
        (DType::Float64, DType::Float32, false) => Some(f64_to_f32),
        _ => None,
    }
}

fn map_bits<const IN: usize, const OUT: usize>(src: &[u8], dst: &mut [u8], f: impl Fn([u8; IN]) -> [u8; OUT]) {
    let (src, _) = src.as_chunks::<IN>();
    let (dst, _) = dst.as_chunks_mut::<OUT>();
    for (from, to) in src.iter().zip(dst) {
        *to = f(*from);
    }
}

fn bf16_to_f32(src: &[u8], dst: &mut [u8]) {
    map_bits(src, dst, |code| {
        let bits = u32::from(u16::from_le_bytes(code)) << 16;
        let quiet = if bits & 0x7fff_ffff > 0x7f80_0000 { 0x0040_0000 } else { 0 };
        (bits | quiet).to_le_bytes()
    });
}

/// Elements per call; each call checks the processor's features.
const AT_ONCE: usize = 256;

fn f16_to_f32(src: &[u8], dst: &mut [u8]) {
    let (mut halves, mut values) = (CacheAligned([f16::ZERO; AT_ONCE]), CacheAligned([0.0; AT_ONCE]));
    for (src, dst) in src.as_chunks().0.chunks(AT_ONCE).zip(dst.as_chunks_mut().0.chunks_mut(AT_ONCE)) {
        let (halves, values) = (&mut halves.0[..src.len()], &mut values.0[..src.len()]);
        halves.iter_mut().zip(src).for_each(|(half, code)| *half = f16::from_le_bytes(*code));
        halves.convert_to_f32_slice(values);
        dst.iter_mut().zip(values).for_each(|(code, value)| *code = value.to_le_bytes());
    }
}

fn f32_to_bf16(src: &[u8], dst: &mut [u8]) {
    map_bits(src, dst, |code| {
        let bits = u32::from_le_bytes(code);
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        let nan = bits & 0x7fff_ffff > 0x7f80_0000;
        ((if nan { bits | 0x0040_0000 } else { rounded } >> 16) as u16).to_le_bytes()
    });
}

fn f32_to_f16(src: &[u8], dst: &mut [u8]) {
    let (mut values, mut halves) = (CacheAligned([0.0; AT_ONCE]), CacheAligned([f16::ZERO; AT_ONCE]));
    for (src, dst) in src.as_chunks().0.chunks(AT_ONCE).zip(dst.as_chunks_mut().0.chunks_mut(AT_ONCE)) {
        let (values, halves) = (&mut values.0[..src.len()], &mut halves.0[..src.len()]);
        values.iter_mut().zip(src).for_each(|(value, code)| *value = f32::from_le_bytes(*code));
        halves.convert_from_f32_slice(values);
        dst.iter_mut().zip(halves).for_each(|(code, half)| *code = half.to_le_bytes());
    }
}

fn f32_to_f64(src: &[u8], dst: &mut [u8]) {
    map_bits(src, dst, |code| {
        let bits = u32::from_le_bytes(code);
        let nan = bits & 0x7fff_ffff > 0x7f80_0000;
        let sign = u64::from(bits >> 31) << 63;
        let quiet = sign | 0x7ff8 << 48 | u64::from(bits & 0x007f_ffff) << 29;
        (if nan { quiet } else { f64::from(f32::from_bits(bits)).to_bits() }).to_le_bytes()
    });
}

fn f64_to_f32(src: &[u8], dst: &mut [u8]) {
    map_bits(src, dst, |code| {
        let bits = u64::from_le_bytes(code);
        let nan = bits & !(1 << 63) > 0x7ff << 52;
        (if nan { f64_to_odd(bits) } else { (f64::from_bits(bits) as f32).to_bits() }).to_le_bytes()
    });
}

/// Converts elements to f32, as an intermediate for a type of at most half its precision. The result is exact if f32 holds every value of the type.
/// Otherwise it is rounded "to odd" (toward zero, with the lowest bit set if anything was lost), so that only the final rounding counts.
pub(super) fn to_f32_for_rounding(from: DType, src: &[u8], dst: &mut [u8]) -> bool {
    match from {
        DType::Float64 => map_bits(src, dst, |code| f64_to_odd(u64::from_le_bytes(code)).to_le_bytes()),
        DType::Int32 => map_bits(src, dst, |code| integer_to_odd(i32::from_le_bytes(code).into()).to_le_bytes()),
        DType::Int64 => map_bits(src, dst, |code| integer_to_odd(i64::from_le_bytes(code).into()).to_le_bytes()),
        DType::UInt32 => map_bits(src, dst, |code| integer_to_odd(u32::from_le_bytes(code).into()).to_le_bytes()),
        DType::UInt64 => map_bits(src, dst, |code| integer_to_odd(u64::from_le_bytes(code).into()).to_le_bytes()),
        _ => return false,
    }
    true
}

/// The bits of f32 that hold the f64 of these bits, rounded to odd.
fn f64_to_odd(bits: u64) -> u32 {
    const INFINITY: u64 = 0x7ff << 52;
    let sign = (bits >> 32) as u32 & 0x8000_0000;
    let magnitude = bits & !(1 << 63);
    let exponent = (magnitude >> 52) as i32 - 1023;
    let result = match exponent {
        _ if magnitude > INFINITY => 0x7fc0_0000 | (magnitude >> 29) as u32 & 0x003f_ffff,
        _ if magnitude == INFINITY => 0x7f80_0000,
        _ if magnitude == 0 => 0,
        128.. => 0x7f7f_ffff,
        -126..128 => {
            // 29 bits of the mantissa go; the exponent is rebiased from 1023 to 127.
            let kept = ((magnitude >> 29) - (896 << 23)) as u32;
            kept | u32::from(magnitude << 35 != 0)
        }
        _ => {
            // A denormal of f32; anything below all of them becomes the smallest one, so that it is not mistaken for zero.
            let digits = magnitude & ((1 << 52) - 1) | 1 << 52;
            let shift = (29 - 126 - exponent).min(63);
            let kept = digits >> shift;
            kept as u32 | u32::from(kept << shift != digits)
        }
    };
    sign | result
}

/// The bits of f32 that hold this integer, rounded to odd.
fn integer_to_odd(value: i128) -> u32 {
    let magnitude = value.unsigned_abs() as u64;
    let excess = (64 - magnitude.leading_zeros()).saturating_sub(24);
    let kept = magnitude >> excess;
    let odd = kept | u64::from(kept << excess != magnitude);
    // Both factors are exact in f32, and so is their product.
    let result = odd as f32 * f32::from_bits((127 + excess) << 23);
    if value < 0 { (-result).to_bits() } else { result.to_bits() }
}
