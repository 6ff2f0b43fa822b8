//! Compresses the GPU kernels: a sixth of the text is in the library, which inflates it when a device is first used.

#![allow(clippy::expect_used)] // a build fails by panicking

use std::path::Path;
use std::{env, fs};

const PTX: &str = "src/device/kernels/kernels.ptx";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={PTX}");
    if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        let text = fs::read(PTX).expect("the kernels");
        let folder = env::var_os("OUT_DIR").expect("a folder for what is built");
        let compressed = miniz_oxide::deflate::compress_to_vec(&text, 9);
        fs::write(Path::new(&folder).join("kernels.ptx.deflate"), compressed).expect("room for the kernels");
    }
}
