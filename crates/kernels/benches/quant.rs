//! Dequantization on one thread, in GB/s of output, compared with a memset of as many bytes in the same run.
//!
//! `cargo bench -p max-weights-kernels --bench quant [LEVEL]… [ENCODING]…`: 64 MiB of output as f32, f16 and bf16, outputs reused, medians of several
//! rounds in which the decoder and the memset alternate. The last column is f32 against memset.

#![allow(clippy::expect_used)] // a bench that cannot run stops

use std::hint::black_box;
use std::time::Instant;

use max_weights_kernels::dtype::DType;
use max_weights_kernels::quant::{Encoding, dequantize_at};
use max_weights_kernels::simd::Level;

const ROUNDS: usize = 7;
const OUTPUT: usize = 64 << 20;

fn time(mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

/// Gigabytes of output per second: the decoder's and memset's.
fn speeds(level: Level, encoding: Encoding, blocks: &[u8], to: DType, out: &mut [u8]) -> (f64, f64) {
    let (mut decoding, mut filling) = (Vec::new(), Vec::new());
    let decode =
        |out: &mut [u8]| dequantize_at(level, encoding, black_box(blocks), to, out, true).expect("whole blocks");
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
    let requested: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let levels: Vec<Level> =
        Level::available().filter(|level| requested.iter().any(|name| *name == level.name())).collect();
    let levels = if levels.is_empty() { Level::available().next_back().into_iter().collect() } else { levels };
    let encodings: Vec<Encoding> =
        Encoding::all().filter(|encoding| requested.iter().any(|name| *name == encoding.name())).collect();
    let encodings = if encodings.is_empty() { Encoding::all().collect() } else { encodings };
    println!(
        "output in GB/s | {:<8} {:>6} {:>6} {:>6} {:>8} {:>8}",
        "level", "f32", "f16", "bf16", "memset", "f32/mem"
    );
    let mut buffer = vec![0u8; OUTPUT + 64];
    let start = buffer.as_ptr().align_offset(64);
    for encoding in encodings {
        let elements = OUTPUT / 4;
        let blocks = random_blocks(encoding, elements / encoding.elements_per_block());
        for &level in &levels {
            let mut to = |dtype: DType| {
                let out = &mut buffer[start..][..elements * dtype.bits() / 8];
                speeds(level, encoding, &blocks, dtype, out)
            };
            let ((f32, memset), (f16, _), (bf16, _)) = (to(DType::Float32), to(DType::Float16), to(DType::BFloat16));
            println!(
                "{encoding:<14} | {level:<8} {f32:>6.2} {f16:>6.2} {bf16:>6.2} {memset:>8.2} {:>8.2}",
                f32 / memset
            );
        }
    }
}
