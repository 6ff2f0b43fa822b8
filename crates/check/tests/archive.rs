//! Archives and the files of other formats: what is hidden in them, and what could not be looked at. Every archive is built by hand.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)] // a test fails by panicking

#[path = "archive/arrays.rs"]
mod arrays;
#[path = "archive/build.rs"]
mod build;
#[path = "archive/compressed.rs"]
mod compressed;
#[path = "archive/disguises.rs"]
mod disguises;
#[path = "archive/formats.rs"]
mod formats;
#[path = "archive/models.rs"]
mod models;
#[path = "archive/names.rs"]
mod names;
#[path = "archive/onnx.rs"]
mod onnx;
#[path = "archive/random.rs"]
mod random;
#[path = "archive/tflite.rs"]
mod tflite;
#[path = "archive/zip.rs"]
mod zip;
