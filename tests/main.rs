//! The tests of the core, in one program: linking one takes longer than running most of them. Tests that need a separate process are separate
//! programs, listed in Cargo.toml.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod distributed_files;
mod format;
mod gguf_files;
mod legacy_files;
mod load;
mod open;
mod project;
mod save;
mod source_support;
mod statistics_support;
mod zip_files;
