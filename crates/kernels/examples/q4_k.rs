//! Decodes a block of Q4_K, the type that most GGUF files have, and compares it with the formula: `cargo run --example q4_k`.
//!
//! 256 elements in 144 bytes: a scale and a minimum for all, eight small ones of 6 bits, and an integer of 4 bits for each element.

use max_weights_kernels::quant::dequantize;
use max_weights_kernels::{DType, Encoding, Result};

fn main() -> Result<()> {
    let mut block = vec![0; Encoding::Q4_K.bytes_per_block()];
    block[..2].copy_from_slice(&[0x00, 0x34]); // float16: the scale, 0.25
    block[2..4].copy_from_slice(&[0x00, 0x38]); // and the minimum, 0.5
    block[4..8].fill(2); // the first four groups of 32 elements: twice the scale,
    block[8..12].fill(3); // less three times the minimum
    for (at, byte) in block[16..].iter_mut().enumerate() {
        *byte = (at % 16) as u8; // low nibbles are of one group, high ones of the next
    }

    let mut values = vec![0; 256 * 4];
    dequantize(Encoding::Q4_K, &block, DType::Float32, &mut values, false)?;
    let values: Vec<f32> = values.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    println!("the first group: {:?}", &values[..32]);
    println!("the second one:  {:?}", &values[32..64]);
    for (at, value) in values[..32].iter().enumerate() {
        let expected = 0.25 * 2.0 * (at % 16) as f32 - 0.5 * 3.0;
        assert_eq!(value.to_bits(), expected.to_bits());
    }
    Ok(())
}
