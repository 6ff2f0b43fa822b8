#![no_main]
//! See `bodies::dialects`.

use bodies::layout::Layout;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|input: &[u8]| bodies::dialects::check(input));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    bodies::mutate::or_by(fuzzer_mutate, data, size, max_size, seed, Layout::Program)
});
