//! Where bytes come from: a local file, read at offsets or mapped.
#![allow(unsafe_code)]

mod file;

pub use file::LocalFile;
