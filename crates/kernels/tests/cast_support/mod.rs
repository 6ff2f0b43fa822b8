//! Helpers of the cast tests: inputs that cover a type, and the comparison of every level with the oracle.

#![allow(dead_code)] // each test program uses a part

use max_weights_kernels::cast::{CastOptions, cast_at, cast_by_oracle, elements_per_group};
use max_weights_kernels::dtype::DType;
use max_weights_kernels::simd::Level;

/// A small generator of repeatable noise (splitmix64).
pub(crate) struct Noise(pub(crate) u64);

impl Iterator for Noise {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(word ^ (word >> 31))
    }
}

/// All dtypes that convert to each other.
pub(crate) fn real_dtypes() -> impl Iterator<Item = DType> {
    DType::all().filter(|dtype| *dtype != DType::Complex64)
}

/// Elements of `dtype` that cover it: every code of the types of up to 16 bits, else boundaries and noise. A whole number of groups.
pub(crate) fn covering(dtype: DType) -> Vec<u8> {
    let mut bytes: Vec<u8> = match dtype.bits() {
        4 | 8 => (0..=u8::MAX).collect(),
        // Every byte triple that holds one code four times over, and with its complement.
        6 => (0..64u32)
            .flat_map(|code| [(code, code), (code, 63 - code)])
            .flat_map(|(a, b)| (a | b << 6 | a << 12 | b << 18).to_le_bytes().into_iter().take(3))
            .collect(),
        16 => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
        32 if dtype == DType::Float32 => f32_boundaries().into_iter().flat_map(u32::to_le_bytes).collect(),
        64 if dtype == DType::Float64 => f64_boundaries().into_iter().flat_map(u64::to_le_bytes).collect(),
        bits => {
            integer_boundaries().into_iter().flat_map(|word| word.to_le_bytes().into_iter().take(bits / 8)).collect()
        }
    };
    let elements = bytes.len() * 8 / dtype.bits();
    bytes.truncate(elements / 4 * 4 * dtype.bits() / 8);
    bytes
}

/// Every exponent and sign with the mantissas where some narrower type rounds: each bit pattern next to a halfway case.
pub(crate) fn f32_boundaries() -> Vec<u32> {
    let mut mantissas: Vec<u32> = vec![0, 1, 2, 0x7f_ffff, 0x7f_fffe, 0x40_0000, 0x3f_ffff, 0x55_5555, 0x2a_aaaa];
    // Halfway cases of types with 0..=10 bits of mantissa, at even and odd last digits, exact and one ulp to each side; the same a few
    // bits lower for their denormals.
    for bits in 0..=20u32 {
        let half = 1u32 << (22 - bits);
        for digits in [0, 1, 2, 3, (1 << bits) - 1, (1 << bits) >> 1] {
            let exact = (digits << (23 - bits) | half) & 0x7f_ffff;
            mantissas.extend([exact, exact.wrapping_sub(1) & 0x7f_ffff, (exact + 1) & 0x7f_ffff, exact & !half]);
        }
    }
    mantissas.sort_unstable();
    mantissas.dedup();
    let boundaries = (0..512u32).flat_map(|high| mantissas.iter().map(move |low| high << 23 | low));
    let noise = Noise(32).take(1 << 16).map(|word| word as u32);
    // Noise of moderate size too, where the narrow types have their normal values.
    let moderate = Noise(33).take(1 << 17).map(|word| {
        let exponent = 127 - 30 + (word >> 32) as u32 % 60;
        (word as u32 & 0x807f_ffff) | exponent << 23
    });
    boundaries.chain(noise).chain(moderate).collect()
}

/// Like [`f32_boundaries`]: these values, their neighbours at one ulp of f64, and the halfway cases of f32 itself.
pub(crate) fn f64_boundaries() -> Vec<u64> {
    let from_f32 = f32_boundaries().into_iter().step_by(3).flat_map(|bits| {
        let exact = f64::from(f32::from_bits(bits)).to_bits();
        let half = exact ^ (1 << 28);
        [exact, exact.wrapping_add(1), exact.wrapping_sub(1), half, half.wrapping_add(1), half.wrapping_sub(1)]
    });
    let exponents = (0..4096u64).flat_map(|high| {
        [0, 1, 1 << 51, (1 << 51) + 1, (1 << 51) - 1, (1 << 52) - 1, 1 << 29, 0x5_5555_5555_5555]
            .map(move |low| high << 52 | low)
    });
    from_f32.chain(exponents).chain(Noise(64).take(1 << 16)).collect()
}

/// Powers of two and their neighbours, halfway cases of every float type, and noise of every size.
pub(crate) fn integer_boundaries() -> Vec<u64> {
    let mut words = Vec::new();
    for bit in 0..64u32 {
        for other in 0..=bit {
            let word = 1u64 << bit | 1u64 << other;
            words.extend([word, word.wrapping_add(1), word.wrapping_sub(1), word.wrapping_neg()]);
        }
    }
    words.extend(Noise(7).take(1 << 14).enumerate().map(|(i, word)| word >> (i % 64)));
    words
}

/// Casts `src` at every available level and asserts that each equals the oracle, bit for bit.
pub(crate) fn assert_levels_equal_oracle(from: DType, to: DType, src: &[u8], options: CastOptions) {
    let elements = src.len() * 8 / from.bits();
    let mut expected = vec![0xa5; elements * to.bits() / 8];
    cast_by_oracle(from, to, src, &mut expected, options).expect("the oracle does every pair");
    for level in Level::available() {
        let mut actual = vec![0x5a; expected.len()];
        cast_at(level, from, to, src, &mut actual, options).expect("every level does every pair");
        if actual != expected {
            let group = elements_per_group(from).max(elements_per_group(to));
            let (from_bytes, to_bytes) = (group * from.bits() / 8, group * to.bits() / 8);
            let at = actual.iter().zip(&expected).position(|(a, b)| a != b).expect("they differ") / to_bytes;
            panic!(
                "{from} -> {to} ({options:?}) at level {level}: element {at} of {elements}: {:02x?} gives {:02x?}, the oracle {:02x?}",
                &src[at * from_bytes..(at + 1) * from_bytes],
                &actual[at * to_bytes..(at + 1) * to_bytes],
                &expected[at * to_bytes..(at + 1) * to_bytes],
            );
        }
    }
}
