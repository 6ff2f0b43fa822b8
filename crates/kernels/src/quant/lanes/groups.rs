//! Packed integers with separate scales: a row of them as f32.
//!
//! Nibbles are unpacked in registers; codes of other widths in memory, to bytes. They become floats sixteen at a time.

use super::{Bytes16, Lanes};
use crate::cast::VALUES;
use crate::quant::groups::{Columns, TileRow, runs, unpack};
use crate::simd::CacheAligned;
#[cfg(target_arch = "aarch64")]
use crate::simd::Neon;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Level, with_default_rounding};

/// Sixteen f32 in memory.
type GroupStep = [[u8; 4]; 16];

/// Decodes at most [`VALUES`] columns of a row from `start` on, a multiple of that, if the level, which is available, has vectors.
pub(in crate::quant) fn decode(level: Level, row: &TileRow<'_>, start: usize, values: &mut [[u8; 4]]) -> bool {
    // SAFETY: the level is available, as the caller checked.
    with_default_rounding(|| unsafe {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => decode_avx2(row, start, values),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => decode_avx512(row, start, values),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => decode_neon(row, start, values),
            _ => return false,
        }
        true
    })
}

macro_rules! at_level {
    ($features:literal, $lanes:ty: $name:ident) => {
        #[target_feature(enable = $features)]
        fn $name(row: &TileRow<'_>, start: usize, values: &mut [[u8; 4]]) {
            // SAFETY: the instructions are enabled here.
            unsafe { columns::<$lanes>(row, start, values) }
        }
    };
}
#[cfg(target_arch = "x86_64")]
at_level!("avx2,f16c", Avx2: decode_avx2);
#[cfg(target_arch = "x86_64")]
at_level!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl", Avx512: decode_avx512);
#[cfg(target_arch = "aarch64")]
at_level!("neon", Neon<false>: decode_neon);

/// # Safety
/// As for [`Lanes`], here and below.
#[inline(always)]
unsafe fn columns<V: Lanes>(row: &TileRow<'_>, start: usize, values: &mut [[u8; 4]]) {
    // Groups of an even number of columns begin at a byte.
    if let (Columns::Consecutive(size), true) = (row.columns, row.is_dense(4))
        && size.is_multiple_of(2)
    {
        for (group, run) in runs(*size, start, values.len()) {
            let packed = &row.codes[(start - row.first) / 2 + run.start / 2..];
            // SAFETY: the only requirement are the instructions of the lanes, which the caller has enabled.
            unsafe { nibbles::<V>(packed, row.zeros[group], row.scales[group], &mut values[run]) };
        }
        return;
    }
    let mut unpacked = CacheAligned([0; VALUES]);
    let codes = if row.is_dense(8) {
        &row.codes[start - row.first..][..values.len()]
    } else {
        let codes = &mut unpacked.0[..values.len()];
        unpack(row.codes, row.form, row.bits, start - row.first, codes);
        codes
    };
    match row.columns {
        Columns::Consecutive(size) => {
            for (group, run) in runs(*size, start, values.len()) {
                // SAFETY: the only requirement are the instructions of the lanes, which the caller has enabled.
                unsafe { bytes::<V>(&codes[run.clone()], row.zeros[group], row.scales[group], &mut values[run]) };
            }
        }
        // SAFETY: the only requirement are the instructions of the lanes, which the caller has enabled.
        Columns::Indexed(groups) => unsafe { indexed::<V>(row, codes, &groups[start..], values) },
    }
}

/// A run of packed nibbles with one scale.
#[inline(always)]
unsafe fn nibbles<V: Lanes>(packed: &[u8], zero: u8, scale: f32, values: &mut [[u8; 4]]) {
    let (pairs, rest) = values.as_chunks_mut::<32>();
    let (sixteens, _) = packed.as_chunks::<16>();
    // SAFETY: only registers and referents of references are accessed; the caller has enabled the instructions of the lanes.
    unsafe {
        let (zero, scale) = (Bytes16::splat(zero), V::splat(scale.to_bits()));
        for (pair, packed) in pairs.iter_mut().zip(sixteens) {
            thirty_two(packed, zero, scale, pair);
        }
        if !rest.is_empty() {
            let (mut last, mut pair) = ([0; 16], CacheAligned([[0; 4]; 32]));
            let left = &packed[pairs.len() * 16..][..rest.len().div_ceil(2)];
            last[..left.len()].copy_from_slice(left);
            thirty_two(&last, zero, scale, &mut pair.0);
            rest.copy_from_slice(&pair.0[..rest.len()]);
        }
    }
}

/// Two steps of packed nibbles, whose difference from the zero point fits in signed bytes.
#[inline(always)]
unsafe fn thirty_two<V: Lanes>(packed: &[u8; 16], zero: Bytes16, scale: V, pair: &mut [[u8; 4]; 32]) {
    let (steps, _) = pair.as_chunks_mut();
    // SAFETY: only registers and referents of references are accessed; the caller has enabled the instructions of the lanes.
    unsafe {
        let packed = Bytes16::load(packed);
        let (low, high) = (packed.bits(0, 4), packed.bits(4, 4));
        for (step, codes) in steps.iter_mut().zip([low.interleave_low(high), low.interleave_high(high)]) {
            store(V::from_signed_bytes(codes.sub(zero)).to_f32().mul_f32(scale), step);
        }
    }
}

/// A run of codes with one scale.
#[inline(always)]
unsafe fn bytes<V: Lanes>(codes: &[u8], zero: u8, scale: f32, values: &mut [[u8; 4]]) {
    let (steps, rest) = values.as_chunks_mut::<16>();
    let (sixteens, left) = codes.as_chunks::<16>();
    // SAFETY: sixteen bytes are loaded, each time of an array of sixteen; the caller has enabled the instructions of the lanes.
    unsafe {
        let (zero, scale) = (V::splat(u32::from(zero)), V::splat(scale.to_bits()));
        for (step, codes) in steps.iter_mut().zip(sixteens) {
            store(scaled(V::load_8(codes.as_ptr()), zero, scale), step);
        }
        if !rest.is_empty() {
            let (mut codes, mut step) = ([0; 16], CacheAligned([[0; 4]; 16]));
            codes[..left.len()].copy_from_slice(left);
            store(scaled(V::load_8(codes.as_ptr()), zero, scale), &mut step.0);
            rest.copy_from_slice(&step.0[..rest.len()]);
        }
    }
}

/// Columns with a group for each.
#[inline(always)]
unsafe fn indexed<V: Lanes>(row: &TileRow<'_>, codes: &[u8], groups: &[u32], values: &mut [[u8; 4]]) {
    for ((codes, groups), values) in codes.chunks(16).zip(groups.chunks(16)).zip(values.chunks_mut(16)) {
        let (mut sixteen, mut zeros, mut scales) = ([0; 16], [0; 16], CacheAligned([0f32; 16]));
        sixteen[..codes.len()].copy_from_slice(codes);
        for ((zero, scale), group) in zeros.iter_mut().zip(&mut scales.0).zip(groups) {
            (*zero, *scale) = (row.zeros[*group as usize], row.scales[*group as usize]);
        }
        let mut step = CacheAligned([[0; 4]; 16]);
        // SAFETY: the arrays have sixteen elements of the widths that are loaded; the caller has enabled the instructions of the lanes.
        unsafe {
            let (zeros, scales) = (V::load_8(zeros.as_ptr()), V::load_32(scales.0.as_ptr().cast()));
            store(scaled(V::load_8(sixteen.as_ptr()), zeros, scales), &mut step.0);
        }
        values.copy_from_slice(&step.0[..values.len()]);
    }
}

/// `(code - zero point) * scale`.
#[inline(always)]
unsafe fn scaled<V: Lanes>(codes: V, zero: V, scale: V) -> V {
    // SAFETY: only registers are accessed; the caller has enabled the instructions of the lanes.
    unsafe { codes.sub(zero).to_f32().mul_f32(scale) }
}

#[inline(always)]
unsafe fn store<V: Lanes>(values: V, step: &mut GroupStep) {
    // SAFETY: sixteen f32 are written to an array of sixteen; the caller has enabled the instructions of the lanes.
    unsafe { values.store_32::<false>(step.as_mut_ptr().cast()) }
}
