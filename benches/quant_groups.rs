//! Dequantization of packed integers with a scale for each group, in GB/s of output, compared with a memset of the same
//! size and number of threads.
//!
//! `cargo bench --bench quant_groups [LAYOUT]…`: a matrix of 14336 columns (rows a power of two apart would share cache
//! sets), with bf16 scales and reused output memory. Each figure is the median of several rounds in which the decoder
//! and the memset alternate, on one thread and on all.

#![allow(clippy::expect_used)] // a bench that cannot run stops

use std::hint::black_box;
use std::num::NonZero;
use std::time::Instant;

use max_weights::buffer::{Buffer, PackedGroups, dequantize_groups};
use max_weights::dtype::DType;
use max_weights::memory::Storage;
use max_weights::quant::CodeLayout;
use max_weights::workers::{self, uninterrupted};

const ROUNDS: usize = 7;
const COLS: usize = 14336;
const OUTPUT: usize = 14336 * 5120 * 4;

fn time(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

/// Gigabytes of output per second.
fn speed(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    OUTPUT as f64 / seconds[ROUNDS / 2] / 1e9
}

fn fill(part_buffer: &mut [u8], threads: usize, byte: u8) {
    std::thread::scope(|scope| {
        for part in part_buffer.chunks_mut(part_buffer.len().div_ceil(threads)) {
            scope.spawn(move || black_box(part).fill(byte));
        }
    });
}

fn tensor(dtype: DType, shape: [usize; 2], byte: impl Fn(usize) -> u8) -> Buffer {
    let bytes: Vec<u8> = (0..shape[0] * shape[1] * dtype.bits() / 8).map(byte).collect();
    of_bytes(&bytes, dtype, &shape.map(|dim| dim as i64))
}

fn of_bytes(bytes: &[u8], dtype: DType, shape: &[i64]) -> Buffer {
    Buffer::contiguous_at(Storage::of_bytes(bytes).expect("memory"), 0, dtype, shape).expect("bytes of the shape")
}

fn main() {
    let requested: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    println!("output in GB/s, {OUTPUT} bytes | bits group |  f32 memset |  bf16 memset | threads");
    let mut part_buffer = vec![1u8; OUTPUT];
    let noise = |i: usize| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    for (name, layout, bits, group, zeros, index) in [
        ("rows", CodeLayout::Rows, 4, 128, false, false),
        ("rows", CodeLayout::Rows, 4, 32, false, false),
        ("rows", CodeLayout::Rows, 4, 32, true, false),
        ("rows", CodeLayout::Rows, 8, 128, false, false),
        ("rows", CodeLayout::Rows, 3, 128, true, false),
        ("gptq", CodeLayout::Gptq, 4, 128, true, false),
        ("gptq", CodeLayout::Gptq, 8, 128, true, false),
        ("gptq order", CodeLayout::Gptq, 4, 128, true, true),
        ("awq", CodeLayout::Awq, 4, 128, true, false),
    ] {
        if !requested.is_empty() && !requested.iter().any(|requested| name.starts_with(requested.as_str())) {
            continue;
        }
        for threads in [1, std::thread::available_parallelism().map_or(1, usize::from)] {
            workers::set_threads(NonZero::new(threads));
            print!("{name:<30} | {bits:>4} {group:>5}");
            for dtype in [DType::Float32, DType::BFloat16] {
                let rows = OUTPUT * 8 / dtype.bits() / COLS;
                let (groups, words) = (COLS / group, COLS * bits / 32);
                let (packed, points, scales) = match layout {
                    CodeLayout::Rows => ([rows, words], [rows * bits / 32, groups], [rows, groups]),
                    CodeLayout::Gptq => ([words, rows], [groups, rows * bits / 32], [groups, rows]),
                    CodeLayout::Awq => ([COLS, rows / 8], [groups, rows / 8], [groups, rows]),
                };
                let packed = tensor(DType::Int32, packed, noise);
                let points = tensor(DType::Int32, points, noise);
                let scales = tensor(DType::BFloat16, scales, |i| if i % 2 == 0 { noise(i) } else { 0x3c });
                let of_column: Vec<u8> =
                    (0..COLS).flat_map(|col| ((col * 61 % COLS / group) as i32).to_le_bytes()).collect();
                let of_column = of_bytes(&of_column, DType::Int32, &[COLS as i64]);
                let parts = PackedGroups {
                    layout,
                    bits: bits as u32,
                    shape: [rows as i64, COLS as i64],
                    packed: &packed,
                    scales: &scales,
                    zero_points: zeros.then_some(&points),
                    zero_point_offset: 0,
                    group_index: index.then_some(&of_column),
                    group_size: None,
                };
                let (mut decoding, mut filling) = (Vec::new(), Vec::new());
                for round in 0..=ROUNDS {
                    let seconds = time(|| {
                        let made = dequantize_groups(&parts, dtype, None, &uninterrupted).expect("parts that fit");
                        black_box(made);
                    });
                    let of_memset = time(|| fill(&mut part_buffer, threads, round as u8));
                    if round > 0 {
                        decoding.push(seconds);
                        filling.push(of_memset);
                    }
                }
                print!(" | {:>5.2} {:>6.2}", speed(decoding), speed(filling));
            }
            println!(" | {threads}");
        }
    }
}
