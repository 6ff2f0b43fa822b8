//! Every level of instructions decodes each encoding to the bits of the scalar code, for all blocks, lengths and alignments of the output.

use max_weights_kernels::dtype::DType;
use max_weights_kernels::quant::{Encoding, dequantize_at};
use max_weights_kernels::simd::Level;
use proptest::prelude::*;

const TARGETS: [DType; 3] = [DType::Float32, DType::Float16, DType::BFloat16];
/// More blocks of 32 elements than are decoded at once.
const MANY: usize = 150;

/// The f32 of an element, and whether its bits are promised: the payload of a NaN is not.
fn bits(dtype: DType, element: &[u8]) -> Option<Vec<u8>> {
    let is_nan = match dtype {
        DType::Float32 => f32::from_ne_bytes(element.try_into().expect("four bytes")).is_nan(),
        DType::Float16 => half::f16::from_ne_bytes(element.try_into().expect("two bytes")).is_nan(),
        _ => half::bf16::from_ne_bytes(element.try_into().expect("two bytes")).is_nan(),
    };
    (!is_nan).then(|| element.to_vec())
}

/// Decodes to an address that is `start` bytes off the alignment of streamed stores; nothing around the output may change.
fn decoded(level: Level, encoding: Encoding, blocks: &[u8], to: DType, start: usize, stream: bool) -> Vec<u8> {
    let size = blocks.len() / encoding.bytes_per_block() * encoding.elements_per_block() * to.bits() / 8;
    let mut buffer = vec![0xa5; size + 256];
    let start = buffer.as_ptr().align_offset(64) + start;
    dequantize_at(level, encoding, blocks, to, &mut buffer[start..start + size], stream).expect("whole blocks");
    let (before, after) = (&buffer[..start], &buffer[start + size..]);
    assert!(before.iter().chain(after).all(|byte| *byte == 0xa5), "{encoding} at {level} wrote outside its output");
    buffer[start..start + size].to_vec()
}

fn assert_equal(encoding: Encoding, blocks: &[u8], start: usize, stream: bool) {
    for to in TARGETS {
        let expected = decoded(Level::Scalar, encoding, blocks, to, 0, false);
        for level in Level::available() {
            let found = decoded(level, encoding, blocks, to, start, stream);
            if found == expected {
                continue;
            }
            let size = to.bits() / 8;
            for (i, (found, expected)) in found.chunks(size).zip(expected.chunks(size)).enumerate() {
                let (found, expected) = (bits(to, found), bits(to, expected));
                assert_eq!(found, expected, "element {i} of {encoding} as {to} at {level}");
            }
        }
    }
}

fn random_bytes(count: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn every_number_of_blocks_is_decoded() {
    for encoding in Encoding::all() {
        for blocks in (0..9).chain([63, 64, 65, MANY]) {
            let bytes = random_bytes(blocks * encoding.bytes_per_block(), blocks as u64);
            assert_equal(encoding, &bytes, 0, false);
            assert_equal(encoding, &bytes, 0, true);
        }
    }
}

#[test]
fn any_address_is_written_to() {
    for encoding in Encoding::all() {
        let bytes = random_bytes(70 * encoding.bytes_per_block(), 1);
        for start in [1, 2, 3, 4, 8, 16, 30, 32, 60] {
            assert_equal(encoding, &bytes, start, start % 3 == 0);
            assert_equal(encoding, &bytes, start, start % 3 != 0);
        }
    }
}

#[test]
fn every_bit_is_decoded_in_every_place_of_a_block() {
    let values = || (0..8).flat_map(|bit| [1 << bit, !(1 << bit)]).chain([0, u8::MAX]);
    for encoding in Encoding::all() {
        let bytes = encoding.bytes_per_block();
        let plain = random_bytes(bytes, 7);
        let blocks: Vec<u8> = (0..bytes)
            .flat_map(|place| values().map(move |byte| (place, byte)))
            .flat_map(|(place, byte)| {
                let mut block = plain.clone();
                block[place] = byte;
                block
            })
            .collect();
        assert_equal(encoding, &blocks, 0, false);
    }
}

proptest! {
    #[test]
    fn blocks_of_small_and_large_scales_are_decoded(
        encoding in prop::sample::select(Encoding::all().collect::<Vec<_>>()),
        seed in any::<u64>(),
        // Denormal, tiny, ordinary, huge and infinite f16 in place of random scales.
        scale in prop::sample::select(&[0x0001_u16, 0x03ff, 0x0400, 0x1000, 0x3c00, 0x7bff, 0xfbff, 0x7c00, 0x8000][..]),
        place in any::<prop::sample::Index>(),
    ) {
        let mut bytes = random_bytes(3 * encoding.bytes_per_block(), seed);
        for block in bytes.chunks_mut(encoding.bytes_per_block()) {
            let at = place.index(block.len() / 2) * 2;
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
        assert_equal(encoding, &bytes, 0, false);
    }
}
