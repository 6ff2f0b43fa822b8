//! Archives and the files of other formats: what is hidden in them, and what could not be looked at. Every archive is built by hand.

mod arrays;
mod build;
mod compressed;
mod disguises;
mod formats;
mod models;
mod names;
mod onnx;
mod random;
mod tflite;
mod unpickled;
mod zip;
