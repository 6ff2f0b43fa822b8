//! Casts on one thread, in GB/s of input + output bytes, compared with a memcpy of as many bytes in the same run.
//!
//! `cargo bench -p max-weights-kernels --bench cast [LEVEL] [ELEMENTS] [TEXT]`: 48 Mi elements, the rows whose names contain a text, outputs reused,
//! the best and the median of several rounds in which the pairs and their memcpy alternate.

#![allow(clippy::expect_used)] // a bench that cannot run stops

use std::hint::black_box;
use std::time::Instant;

use max_weights_kernels::cast::{BlockScaled, CastOptions, cast_at, scale_block_rows_at};
use max_weights_kernels::dtype::DType;
use max_weights_kernels::simd::Level;

const ROUNDS: usize = 9;

/// The pairs that whole models are converted between.
const PAIRS: [(DType, DType); 20] = {
    use DType::{
        BFloat16 as Bf16, Float8E4M3Fn as E4m3, Float8E5M2 as E5m2, Float16 as F16, Float32 as F32, Float64 as F64,
    };
    [
        (Bf16, F32),
        (F16, F32),
        (F32, Bf16),
        (F32, F16),
        (Bf16, F16),
        (F16, Bf16),
        (E4m3, F32),
        (E4m3, Bf16),
        (E4m3, F16),
        (E5m2, F32),
        (E5m2, Bf16),
        (E5m2, F16),
        (F32, E4m3),
        (F32, E5m2),
        (F16, E4m3),
        (F16, E5m2),
        (Bf16, E4m3),
        (Bf16, E5m2),
        (F32, F64),
        (F64, F32),
    ]
};

/// The time of one pair, against a memcpy of half of its bytes to the other half.
struct Timing {
    seconds: Vec<f64>,
    memcpy_seconds: Vec<f64>,
    bytes: usize,
}

impl Timing {
    fn row(mut self, name: &str) {
        self.seconds.sort_by(f64::total_cmp);
        self.memcpy_seconds.sort_by(f64::total_cmp);
        let speed = |seconds: f64| self.bytes as f64 / seconds / 1e9;
        let (best, median) = (speed(self.seconds[0]), speed(self.seconds[self.seconds.len() / 2]));
        let memcpy = speed(self.memcpy_seconds[0]);
        let memcpy_median = speed(self.memcpy_seconds[self.memcpy_seconds.len() / 2]);
        println!(
            "{name:38} {best:6.1} {median:6.1} {memcpy:6.1} {memcpy_median:6.1} {:6.2} {:6.2}",
            best / memcpy,
            median / memcpy_median
        );
    }
}

fn time(mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

/// Values as weights have them: mostly normal, small, some zero, some denormal in the narrow types.
fn weights(elements: usize) -> Vec<u8> {
    let mut state = 1u64;
    (0..elements)
        .flat_map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = (state >> 40) as f32 / 8_388_608.0 - 1.0;
            (uniform * uniform * uniform * 0.5).to_le_bytes()
        })
        .collect()
}

fn compare(name: &str, src: &[u8], out: &mut [u8], mut run: impl FnMut(&[u8], &mut [u8])) {
    let bytes = src.len() + out.len();
    let from = vec![1u8; bytes / 2];
    let mut to = vec![0u8; bytes / 2];
    let mut timing = Timing { seconds: Vec::new(), memcpy_seconds: Vec::new(), bytes };
    run(src, out);
    to.copy_from_slice(&from);
    for _ in 0..ROUNDS {
        timing.seconds.push(time(|| run(black_box(src), black_box(out))));
        timing.memcpy_seconds.push(time(|| black_box(&mut to).copy_from_slice(black_box(&from))));
    }
    timing.row(name);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let level = Level::available()
        .rfind(|level| arguments.first().is_none_or(|name| name == level.name()))
        .expect("an available level: scalar, avx2 or avx512");
    let elements = arguments.get(1).map_or(48 << 20, |count| count.parse().expect("a number of elements"));
    let requested = |name: &str| arguments.get(2).is_none_or(|text| name.contains(text.as_str()));
    let options = CastOptions { stream: elements >= 8 << 20, ..CastOptions::default() };
    let values = weights(elements);

    println!("{elements} elements, one thread, level {level}; GB/s of input + output");
    println!(
        "{:38} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}",
        "cast", "best", "median", "memcpy", "median", "best/", "med/"
    );
    let mut buffer = vec![0u8; elements * 8 + 64];
    // Aligned, as the outputs of the library are.
    let start = buffer.as_ptr().align_offset(64);
    let out = &mut buffer[start..start + elements * 8];
    for (from, to) in PAIRS {
        let name = format!("{from} -> {to}");
        if !requested(&name) {
            continue;
        }
        let mut src = vec![0u8; elements * from.bits() / 8 + 2048];
        let src = &mut src[2048 - 16..][..elements * from.bits() / 8];
        cast_at(level, DType::Float32, from, &values, src, options).expect("a pair");
        let out = &mut out[..elements * to.bits() / 8];
        compare(&name, src, out, |src, out| {
            cast_at(level, from, to, src, out, options).expect("a pair");
        });
    }

    let cols = 4096;
    let rows = elements / cols;
    let scaled = [
        (DType::Float8E4M3Fn, DType::Float32, (128, 128)),
        (DType::Float8E5M2, DType::Float32, (128, 128)),
        (DType::Float4E2M1Fn, DType::Float8E8M0Fnu, (1, 32)),
        (DType::Float4E2M1Fn, DType::Float8E4M3Fn, (1, 16)),
        (DType::Int8, DType::Float32, (1, cols)),
    ];
    for (dtype, scales_dtype, block) in scaled {
        let mut data = vec![0u8; rows * cols * dtype.bits() / 8];
        let values = &values[..rows * cols * 4];
        cast_at(level, DType::Float32, dtype, values, &mut data, options).expect("a pair");
        let count = rows.div_ceil(block.0) * cols.div_ceil(block.1);
        let mut scales = vec![0u8; count * scales_dtype.bits() / 8];
        let ones: Vec<u8> = (0..count).flat_map(|i| (0.5 + (i % 7) as f32).to_le_bytes()).collect();
        cast_at(level, DType::Float32, scales_dtype, &ones, &mut scales, options).expect("a pair");
        for out_dtype in [DType::BFloat16, DType::Float16, DType::Float32] {
            let out = &mut out[..rows * cols * out_dtype.bits() / 8];
            let name = format!("{dtype} x {scales_dtype} -> {out_dtype}");
            if !requested(&name) {
                continue;
            }
            compare(&name, &data, out, |data, out| {
                let matrix = BlockScaled { data, dtype, scales: &scales, scales_dtype, rows, cols, block };
                scale_block_rows_at(level, &matrix, 0..rows, out, out_dtype, options).expect("a matrix");
            });
        }
    }
}
