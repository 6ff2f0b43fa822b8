//! Dequantizing and quantizing give the bits that the reference packages give: vectors written by tools/make_quant_vectors.py.

use half::{bf16, f16};
use max_weights_kernels::dtype::DType;
use max_weights_kernels::quant::{Encoding, dequantize, quantize};

/// The rest of a file of vectors.
struct Reader(&'static [u8]);

impl Reader {
    fn bytes(&mut self, count: usize) -> &'static [u8] {
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes
    }

    fn number(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes(4).try_into().expect("four bytes"))
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        self.bytes(4 * count).as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    /// The encoding of the next record, whose id and name must agree.
    fn encoding(&mut self) -> Option<Encoding> {
        if self.0.is_empty() {
            return None;
        }
        let name = std::str::from_utf8(self.bytes(8)).expect("a name").trim_end_matches('\0');
        let encoding = Encoding::from_ggml(self.number()).expect("an id");
        assert_eq!(encoding.name(), name);
        Some(encoding)
    }
}

struct Vector {
    encoding: Encoding,
    blocks: &'static [u8],
    expected: Vec<f32>,
}

fn vectors() -> Vec<Vector> {
    let mut reader = Reader(include_bytes!("data/quant/dequantize.bin"));
    let mut found = Vec::new();
    while let Some(encoding) = reader.encoding() {
        let [elements, bytes, blocks] = [(); 3].map(|()| reader.number() as usize);
        assert_eq!((encoding.elements_per_block(), encoding.bytes_per_block()), (elements, bytes), "{encoding}");
        let blocks_bytes = reader.bytes(blocks * bytes);
        found.push(Vector { encoding, blocks: blocks_bytes, expected: reader.floats(blocks * elements) });
    }
    found
}

fn decoded<const SIZE: usize>(vector: &Vector, to: DType) -> Vec<[u8; SIZE]> {
    let mut out = vec![0; vector.expected.len() * SIZE];
    dequantize(vector.encoding, vector.blocks, to, &mut out, false).expect("whole blocks");
    out.as_chunks::<SIZE>().0.to_vec()
}

#[test]
fn every_encoding_has_vectors_with_ordinary_nan_and_zero_blocks() {
    let vectors = vectors();
    assert!(Encoding::all().eq(vectors.iter().map(|vector| vector.encoding)));
    for vector in &vectors {
        let counted = |test: fn(f32) -> bool| vector.expected.iter().filter(|value| test(**value)).count();
        assert!(counted(|value| value.is_finite() && value != 0.0) >= 2 * vector.encoding.elements_per_block() / 5);
        assert!(counted(|value| value == 0.0) > 0 || matches!(vector.encoding, Encoding::MXFP4), "{}", vector.encoding);
        let no_nan = matches!(vector.encoding, Encoding::MXFP4 | Encoding::NVFP4);
        assert_eq!(counted(f32::is_nan) > 0, !no_nan, "{}", vector.encoding);
    }
}

#[test]
fn every_encoding_decodes_to_the_reference_f32_bit_for_bit() {
    for vector in vectors() {
        for (i, (ours, theirs)) in decoded::<4>(&vector, DType::Float32).into_iter().zip(&vector.expected).enumerate() {
            let ours = f32::from_ne_bytes(ours);
            let same = ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan());
            assert!(same, "{} element {i}: {ours} is not {theirs}", vector.encoding);
        }
    }
}

#[test]
fn f16_and_bf16_are_the_f32_rounded_once() {
    for vector in vectors() {
        let halves = decoded::<2>(&vector, DType::Float16).into_iter().map(f16::from_ne_bytes);
        let brains = decoded::<2>(&vector, DType::BFloat16).into_iter().map(bf16::from_ne_bytes);
        for ((value, half), brain) in vector.expected.iter().zip(halves).zip(brains) {
            if value.is_nan() {
                assert!(half.is_nan() && brain.is_nan());
            } else {
                assert_eq!(half.to_bits(), f16::from_f32_const(*value).to_bits(), "{} {value}", vector.encoding);
                assert_eq!(brain.to_bits(), bf16::from_f32(*value).to_bits(), "{} {value}", vector.encoding);
            }
        }
    }
}

#[test]
fn a_range_of_blocks_decodes_without_the_rest() {
    for vector in vectors() {
        let (bytes, elements) = (vector.encoding.bytes_per_block(), vector.encoding.elements_per_block());
        let all = decoded::<2>(&vector, DType::BFloat16);
        let mut out = vec![[0; 2]; 2 * elements];
        let part = &vector.blocks[2 * bytes..4 * bytes];
        dequantize(vector.encoding, part, DType::BFloat16, out.as_flattened_mut(), false).expect("whole blocks");
        assert_eq!(out, all[2 * elements..4 * elements], "{}", vector.encoding);
    }
}

#[test]
fn quantizing_gives_the_reference_blocks() {
    let mut reader = Reader(include_bytes!("data/quant/quantize.bin"));
    let mut seen = Vec::new();
    while let Some(encoding) = reader.encoding() {
        let blocks = reader.number() as usize;
        let values = reader.floats(blocks * encoding.elements_per_block());
        let expected = reader.bytes(blocks * encoding.bytes_per_block());
        let mut out = vec![0; expected.len()];
        quantize(encoding, &values, &mut out).expect("whole blocks");
        for (i, (ours, theirs)) in
            out.chunks(encoding.bytes_per_block()).zip(expected.chunks(encoding.bytes_per_block())).enumerate()
        {
            assert_eq!(ours, theirs, "{encoding} block {i}: {:?}", &values[32 * i..32 * (i + 1)]);
        }
        seen.push(encoding.name());
    }
    assert_eq!(seen, ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]);
}
