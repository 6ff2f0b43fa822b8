//! Compiles the kernels that run on a GPU for the host, from the same source.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};

fn main() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let kernels = here.join("../../src/device/kernels");
    let mut sources: Vec<PathBuf> = std::fs::read_dir(&kernels)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .collect();
    sources.sort();
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("kernels.cpp");
    let include = |path: &Path| format!("#include \"{}\"\n", path.display());
    let text: String = [here.join("host.h")].iter().chain(&sources).map(|path| include(path)).collect();
    if let Err(cause) = std::fs::write(&out, text) {
        println!("cargo::error={}: {cause}", out.display());
        return;
    }
    let mut compiler = cc::Build::new();
    compiler.cpp(true).cpp_link_stdlib(None).std("c++20").opt_level(2).file(out).include(&kernels);
    // As a GPU does it: each operation rounds. What no two processors do alike, such as a shift by too much, ends the program.
    for flag in [
        "-ffp-contract=off",
        "-fno-strict-aliasing",
        "-fno-exceptions",
        "-fno-rtti",
        "-fno-threadsafe-statics",
        "-Wno-unknown-pragmas",
        "-Wno-unused-parameter",
        "-Wno-unused-function",
        "-fsanitize=alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero,float-cast-overflow",
    ] {
        compiler.flag(flag);
    }
    compiler.flag_if_supported("-fsanitize-undefined-trap-on-error").flag_if_supported("-fsanitize-trap=all");
    compiler.compile("fake_cuda_kernels");
    for changed in ["build.rs", "host.h", "../../src/device/kernels"] {
        println!("cargo::rerun-if-changed={changed}");
    }
}
