//! The tests of validation, in one program.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod archive;
mod checkpoint;
mod compare;
mod comparison_files;
mod content_support;
mod exhaustion;
mod fixture;
mod folders;
mod paths;
mod pickle;
mod report;
mod repository;
mod repository_support;
mod support;
