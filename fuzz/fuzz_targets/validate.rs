#![no_main]
//! See `src/validate.rs`, which is not part of the library, as the core's tests include that and know nothing of validation.

use bodies::layout::Layout;
use bodies::printing;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

#[path = "../src/validate.rs"]
#[allow(dead_code, unreachable_pub)] // what only the tests call
mod validate;

fuzz_target!(|input: &[u8]| validate::check(input));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    bodies::mutate::or_by(fuzzer_mutate, data, size, max_size, seed, Layout::File)
});
