//! What the decoders share: the fields of a block, and the ways in which small integers are packed into bytes.
//!
//! Everything works on arrays whose lengths are types, so that no access can be out of bounds and the loops compile to vector code.

/// The `N` bytes of a block from byte `AT` on.
#[inline(always)]
pub(super) fn field<const AT: usize, const N: usize, const BYTES: usize>(block: &[u8; BYTES]) -> &[u8; N] {
    const { assert!(AT + N <= BYTES, "a field beyond its block") };
    // The assertion above makes the second arm unreachable; it is there because nothing else proves it to the compiler.
    match block[AT..].first_chunk() {
        Some(field) => field,
        None => const { &[0; N] },
    }
}

/// The f16 of a block at byte `AT`, as f32.
#[inline(always)]
pub(super) fn f16_field<const AT: usize, const BYTES: usize>(block: &[u8; BYTES]) -> f32 {
    f16_to_f32(u16::from_le_bytes(*field::<AT, 2, BYTES>(block)))
}

/// The value of an f16, without branches: `half` asks the processor for its features on each call.
#[inline(always)]
pub(super) fn f16_to_f32(bits: u16) -> f32 {
    const SIGNLESS: u32 = 0x7fff;
    const INFINITE: u32 = 0x7c00;
    let signless = u32::from(bits) & SIGNLESS;
    // The exponent moves from bias 15 to bias 127 by a multiplication, which also normalises the subnormals.
    let finite = f32::from_bits(signless << 13) * f32::from_bits((127 + 112) << 23);
    let special = if signless >= INFINITE { 0x7f80_0000 } else { 0 };
    f32::from_bits(finite.to_bits() | special | (u32::from(bits) & !SIGNLESS) << 16)
}

/// Eight bits as eight bytes of 0 or 1, the lowest bit first.
#[inline(always)]
pub(super) fn bits_to_bytes(bits: u8) -> u64 {
    const EVERY: u64 = 0x0101_0101_0101_0101;
    // A copy of the byte in each lane, one bit of it kept; 0x7f lifts a bit that is there to the top of its lane.
    let kept = (u64::from(bits) * EVERY) & 0x8040_2010_0804_0201;
    ((kept + 0x7f * EVERY) >> 7) & EVERY
}

/// `bytes` with the sign of each lane flipped where the bit is set. Every lane must be 1..=127: a zero would borrow from its neighbour.
#[inline(always)]
pub(super) fn with_signs(bytes: u64, signs: u8) -> u64 {
    let flips = bits_to_bytes(signs);
    (bytes ^ (flips * 0xff)) + flips
}

/// `scale * quant` for each signed byte.
#[inline(always)]
pub(super) fn scaled<const N: usize>(out: &mut [f32; N], quants: [i8; N], scale: f32) {
    for (value, quant) in out.iter_mut().zip(quants) {
        *value = scale * f32::from(quant);
    }
}

/// `scale * quant + offset` for each byte.
#[inline(always)]
pub(super) fn scaled_from<const N: usize>(out: &mut [f32; N], quants: [u8; N], scale: f32, offset: f32) {
    for (value, quant) in out.iter_mut().zip(quants) {
        *value = scale * f32::from(quant) + offset;
    }
}

/// The eight lanes as signed bytes.
#[inline(always)]
pub(super) fn signed(lanes: u64) -> [i8; 8] {
    lanes.to_le_bytes().map(u8::cast_signed)
}

/// The `N` values from `AT` on.
#[inline(always)]
pub(super) fn part<const N: usize>(out: &mut [f32], index: usize) -> &mut [f32; N] {
    let (parts, _) = out.as_chunks_mut::<N>();
    &mut parts[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_becomes_the_f32_of_its_value() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32_const());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#06x}");
            assert_eq!(ours.is_sign_negative(), theirs.is_sign_negative(), "{bits:#06x}");
        }
    }

    #[test]
    fn every_byte_becomes_its_bits() {
        for byte in 0..=u8::MAX {
            let lanes = bits_to_bytes(byte).to_le_bytes();
            let signed = signed(with_signs(0x0108_1019_2b3e_7f02, byte));
            for (i, lane) in lanes.into_iter().enumerate() {
                let bit = byte >> i & 1;
                assert_eq!(lane, bit);
                let magnitude = 0x0108_1019_2b3e_7f02_u64.to_le_bytes()[i].cast_signed();
                assert_eq!(signed[i], if bit == 1 { -magnitude } else { magnitude });
            }
        }
    }
}
