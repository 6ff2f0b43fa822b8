//! Dequantization in many processes, whose stacks begin at different addresses: the slowest compared with the median.
//!
//! `cargo bench -p max-weights-kernels --bench processes [ENCODING]…`: each process decodes 4 MiB of f32 on one thread, some hundred times, and its
//! figure is the best of them, in GB/s, so that other load on the machine counts little. The address of a stack is random, which `setarch -R` (of
//! util-linux) switches off here. The length of an environment variable moves it by 64 bytes from process to process, over all offsets in a page.
//! Each offset has three processes, of which the best counts, for the same reason.

#![allow(clippy::expect_used)] // a bench that cannot run stops

use std::env;
use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use max_weights_kernels::DType;
use max_weights_kernels::quant::{Encoding, dequantize};

const OUTPUT: usize = 4 << 20;
const TIMES: usize = 200;
const PLACES: usize = 64;
const EACH: usize = 3;
/// Set in the processes that decode.
const ONE: &str = "PROCESSES_ENCODING";
const PADDING: &str = "PROCESSES_PADDING";

/// The best speed of this process.
fn speed(encoding: Encoding) -> f64 {
    let blocks = OUTPUT / 4 / encoding.elements_per_block();
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let packed: Vec<u8> = (0..blocks * encoding.bytes_per_block()).map(|_| next()).collect();
    let mut out = vec![0; blocks * encoding.elements_per_block() * 4];
    let mut best = f64::INFINITY;
    for _ in 0..TIMES {
        let begun = Instant::now();
        dequantize(encoding, black_box(&packed), DType::Float32, black_box(&mut out), true).expect("whole blocks");
        best = best.min(begun.elapsed().as_secs_f64());
    }
    out.len() as f64 / best / 1e9
}

fn main() {
    if let Ok(name) = env::var(ONE) {
        println!("{}", speed(Encoding::from_name(&name).expect("an encoding")));
        return;
    }
    let requested: Vec<String> = env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_requested =
        |encoding: &Encoding| requested.is_empty() || requested.iter().any(|name| *name == encoding.name());
    println!("output in GB/s | {:>6} {:>6} {:>13}", "worst", "median", "median/worst");
    for encoding in Encoding::all().filter(is_requested) {
        let one = |place: usize| {
            let mut command = Command::new("setarch");
            command.arg("-R").arg(env::current_exe().expect("this program"));
            command.env(ONE, encoding.name()).env(PADDING, "x".repeat(1 + 64 * place));
            let output = command.output().expect("setarch of util-linux runs it");
            String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
        };
        let of_place = |place: usize| (0..EACH).map(|_| one(place)).fold(0.0, f64::max);
        let mut speeds: Vec<f64> = (0..PLACES).map(of_place).collect();
        speeds.sort_by(f64::total_cmp);
        let (worst, median) = (speeds[0], speeds[PLACES / 2]);
        println!("{:<14} | {worst:>6.2} {median:>6.2} {:>13.2}", encoding.name(), median / worst);
    }
}
