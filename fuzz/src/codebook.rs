//! Target `codebook`: codes that are looked up in a table, with a scale for each block, whose parts may lie about their sizes.

use max_weights::buffer::{Buffer, PackedCodes, dequantize_codebook};
use max_weights::dtype::DType;
use max_weights::memory::Storage;
use max_weights::quant::{After, Codebook, dequantize_codes};
use max_weights::workers::uninterrupted;

use super::floats::{FLOATS, check_element};
use super::program::Program;
use super::random::Random;
use super::{check_message, memory};

/// The parts of a tensor, which own their memory.
struct Parts {
    bits: u32,
    elements: usize,
    packed: Vec<u8>,
    values: Vec<f32>,
    scales: Vec<u8>,
    block: usize,
    after: After,
}

/// Some elements are decoded: to those of the definition, or not at all.
pub fn check(input: &[u8]) {
    memory::bounded(input.len(), || {
        let mut program = Program::new(input);
        let mut parts = make(&mut program);
        let lies = program.one_in(2);
        if lies {
            lie(&mut program, &mut parts);
        }
        let dtype = FLOATS[program.below(3)];
        let (first, last) = (program.below(8), program.below(8));
        let range = if lies {
            first..last
        } else {
            parts.elements * first.min(last) / 14 * 2..parts.elements * first.max(last) / 7
        };
        let mut out = vec![0xa5; range.len() * dtype.bits() / 8 + usize::from(lies && program.one_in(8))];
        match dequantize_codes(&parts.codes(), range.clone(), &mut out, dtype, program.one_in(2)) {
            Ok(()) => parts.compare(range, &out, dtype),
            Err(error) => {
                check_message(&error.to_string());
                assert!(lies, "the parts fit together: {error}");
                assert!(out.iter().all(|byte| *byte == 0xa5), "an error leaves the output alone");
            }
        }
        whole(&parts, lies);
    });
}

/// A tensor whose parts fit together.
fn make(program: &mut Program<'_>) -> Parts {
    let bits = [4, 8][program.below(2)];
    let per_byte = 8 / bits;
    let elements = program.below(256) * [1, 1, 1, 40][program.below(4)];
    let block = (1 + program.below(64)) * per_byte;
    let after = match program.below(3) {
        0 => After::Nothing,
        1 => After::Times(f32::from(program.byte()) / 127.0),
        _ => After::Plus(f32::from(program.byte()) - 3.5),
    };
    let mut random = Random::new(u64::from(program.byte()));
    let mut content = |bytes: usize| -> Vec<u8> { (0..bytes).map(|_| random.next() as u8).collect() };
    Parts {
        bits: bits as u32,
        elements,
        packed: content(elements.div_ceil(per_byte)),
        values: content(1 << bits).into_iter().map(|value| (f32::from(value) - 100.0) / 37.0).collect(),
        scales: content(elements.div_ceil(block) * 4),
        block,
        after,
    }
}

/// Changes something, which need not be a lie in the end.
fn lie(program: &mut Program<'_>, parts: &mut Parts) {
    for _ in 0..=program.below(2) {
        let (number, byte) = (program.dim() as usize, program.byte());
        match program.below(7) {
            0 => parts.elements = number,
            1 => parts.bits = number as u32,
            2 => parts.block = number,
            3 => parts.packed.resize(number % 4096, byte),
            4 => parts.scales.resize(number % 4096, byte),
            5 => parts.values.resize(number % 512, byte.into()),
            _ => parts.after = After::Times(f32::from_bits(u32::from_le_bytes([byte; 4]))),
        }
    }
}

impl Parts {
    fn codes(&self) -> Codebook<'_> {
        Codebook {
            bits: self.bits,
            packed: &self.packed,
            elements: self.elements,
            values: &self.values,
            scales: &self.scales,
            block: self.block,
            after: self.after,
        }
    }

    /// An element by the definition.
    fn element(&self, at: usize) -> f32 {
        let code = match (self.bits, at % 2) {
            (8, _) => self.packed[at],
            (_, 0) => self.packed[at / 2] >> 4,
            _ => self.packed[at / 2] & 15,
        };
        let scale = f32::from_le_bytes(self.scales.as_chunks().0[at / self.block]);
        let product = self.values[usize::from(code)] * scale;
        match self.after {
            After::Nothing => product,
            After::Times(factor) => product * factor,
            After::Plus(offset) => product + offset,
        }
    }

    fn compare(&self, range: std::ops::Range<usize>, out: &[u8], dtype: DType) {
        for (at, bytes) in range.zip(out.chunks_exact(dtype.bits() / 8)) {
            check_element(bytes, self.element(at), dtype, at);
        }
    }
}

/// The same as tensors.
fn whole(parts: &Parts, lies: bool) {
    let tensor = |bytes: &[u8], dtype: DType| {
        let shape = [(bytes.len() * 8 / dtype.bits()) as i64];
        Storage::of_bytes(bytes).and_then(|storage| Buffer::contiguous_at(storage, 0, dtype, &shape))
    };
    let values: Vec<u8> = parts.values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let whole_floats = parts.scales.len() / 4 * 4;
    let Ok(packed) = tensor(&parts.packed, DType::UInt8) else { return };
    let Ok(values) = tensor(&values, DType::Float32) else { return };
    let Ok(scales) = tensor(&parts.scales[..whole_floats], DType::Float32) else { return };
    let codes = PackedCodes {
        bits: parts.bits,
        shape: &[parts.elements as i64],
        packed: &packed,
        values: &values,
        scales: &scales,
        block: parts.block,
        after: parts.after,
    };
    match dequantize_codebook(&codes, DType::Float32, None, &uninterrupted) {
        Ok(tensor) => parts.compare(0..parts.elements, tensor.bytes().unwrap_or_default(), DType::Float32),
        Err(error) => {
            check_message(&error.to_string());
            assert!(lies, "the tensors fit together: {error}");
        }
    }
}
