//! The tests of the numerics, in one program: linking one takes longer than running most of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod cast_kernels;
mod cast_rules;
mod cast_scale;
mod cast_simd_variable;
mod cast_support;
mod quant_codebook;
mod quant_groups;
mod quant_levels;
mod quant_sizes;
mod quant_vectors;
