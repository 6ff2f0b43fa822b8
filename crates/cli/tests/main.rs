//! The tests of the command line, in one program.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod commands;
mod common;
mod completion;
mod ends;
mod pages;
mod shells;
