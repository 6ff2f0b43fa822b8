//! Dequantisation on one thread, in GB/s of output, beside a memset of as many bytes in the same run.
//!
//! `cargo bench --bench quant [ENCODING]…`: 64 MiB of output as f32, f16 and bf16, outputs reused, medians of several rounds in which
//! the decoder and the memset alternate. The last column is f32 against memset.

#![allow(clippy::expect_used)] // a bench that cannot run stops

use std::hint::black_box;
use std::time::Instant;

use max_weights::dtype::DType;
use max_weights::quant::{Encoding, dequantize};

const ROUNDS: usize = 7;
const OUTPUT: usize = 64 << 20;

fn time(mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

/// Gigabytes of output per second: the decoder's and memset's.
fn speeds(encoding: Encoding, blocks: &[u8], to: DType, out: &mut [u8]) -> (f64, f64) {
    let (mut decoding, mut filling) = (Vec::new(), Vec::new());
    let decode = |out: &mut [u8]| dequantize(encoding, black_box(blocks), to, out).expect("whole blocks");
    decode(out);
    for round in 0..ROUNDS {
        decoding.push(time(|| decode(black_box(out))));
        filling.push(time(|| black_box(&mut *out).fill(round as u8)));
    }
    let speed = |mut seconds: Vec<f64>| {
        seconds.sort_by(f64::total_cmp);
        out.len() as f64 / seconds[ROUNDS / 2] / 1e9
    };
    (speed(decoding), speed(filling))
}

/// Random bytes: any bytes are blocks. The f32 scale of Q8_K alone is set, lest most of its products overflow.
fn random_blocks(encoding: Encoding, blocks: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut bytes: Vec<u8> = (0..blocks * encoding.bytes_per_block())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    if encoding == Encoding::Q8_K {
        for block in bytes.chunks_exact_mut(encoding.bytes_per_block()) {
            block[..4].copy_from_slice(&0.01f32.to_le_bytes());
        }
    }
    bytes
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    println!("{OUTPUT} bytes of output, one thread; GB/s of output, medians of {ROUNDS}");
    println!("{:8} {:>8} {:>8} {:>8} {:>8} {:>8}", "encoding", "f32", "f16", "bf16", "memset", "f32/");
    let mut out = vec![0u8; OUTPUT];
    for encoding in Encoding::all().filter(|encoding| wanted.is_empty() || wanted.iter().any(|w| w == encoding.name()))
    {
        let blocks = random_blocks(encoding, OUTPUT / 2 / encoding.elements_per_block());
        let (f32_blocks, _) = blocks.split_at(blocks.len() / 2);
        let (f32_speed, memset) = speeds(encoding, f32_blocks, DType::Float32, &mut out);
        let (f16_speed, _) = speeds(encoding, &blocks, DType::Float16, &mut out);
        let (bf16_speed, _) = speeds(encoding, &blocks, DType::BFloat16, &mut out);
        println!(
            "{encoding:8} {f32_speed:8.1} {f16_speed:8.1} {bf16_speed:8.1} {memset:8.1} {:8.2}",
            f32_speed / memset
        );
    }
}
