//! The shortest, fastest and safest way from a checkpoint file to a tensor.
//!
//! [`open`] takes a safetensors, GGUF or PyTorch file, a folder or an index, and reads headers only; a tensor is a view of the mapped file.
//!
//! ```
//! use max_weights::DType;
//!
//! # fn example(path: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
//! let checkpoint = max_weights::open(path)?;
//! for tensor in checkpoint.catalog().table().iter() {
//!     println!("{} {} {:?}", tensor.name, tensor.element, tensor.shape);
//! }
//!
//! let weight = checkpoint.get("encoder.weight")?;
//! assert_eq!((weight.dtype(), weight.shape()), (DType::Float32, &[2, 2][..]));
//! assert_eq!(weight.bytes().map(<[u8]>::len), Some(16)); // no byte of them was copied
//! let half = weight.astype(DType::BFloat16, false, &max_weights::uninterrupted)?;
//! assert_eq!(half.bytes(), Some(&[0x80, 0x3f, 0, 0, 0, 0, 0x80, 0x3f][..]));
//!
//! let error = checkpoint.get("encoder.wieght").unwrap_err();
//! assert_eq!(error.to_string(), "no weight named 'encoder.wieght'; did you mean 'encoder.weight'?");
//! # Ok(())
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! #     let header = br#"{"encoder.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#;
//! #     let data = [1f32, 0.0, 0.0, 1.0].map(f32::to_le_bytes);
//! #     let file = [&(header.len() as u64).to_le_bytes()[..], header, data.as_flattened()].concat();
//! #     let folder = tempfile::tempdir()?;
//! #     std::fs::write(folder.path().join("model.safetensors"), file)?;
//! #     example(folder.path())
//! # }
//! ```
//!
//! An [`Error`] says which file, which tensor, at which byte, what is wrong and what to do. Its `Debug` is the same sentence, so that a `main` that
//! returns `Result<(), Box<dyn std::error::Error>>` ends with it.
//!
//! [`checkpoint::Checkpoint`] opens files and finds their tensors by name; [`buffer::Buffer`] is a tensor; [`mod@format`] has the parsers alone.
//! [`cast`] and [`quant`] work on slices, and are in a separate crate, `max-weights-kernels`. The modules import in one direction: `check, write ->
//! load -> checkpoint -> format -> names -> buffer -> source -> memory -> device -> tensor -> error -> quant -> cast -> simd -> dtype`.

// Elements are exposed in the file's byte order, which is little-endian, and 64-bit offsets become addresses.
#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!(
    "max_weights maps files of little-endian numbers, larger than 4 GB: it needs a 64-bit little-endian target"
);

#[doc(hidden)] // for the binding
pub mod budget;
pub mod buffer;
pub mod check;
pub mod checkpoint;
pub mod device;
pub mod error;
pub mod format;
mod huge_pages;
pub mod load;
pub mod memory;
pub mod names;
pub mod rules;
pub mod source;
mod sync;
pub mod tensor;
#[doc(hidden)] // for the binding
pub mod text;
#[doc(hidden)] // for the binding
pub mod workers;
pub mod write;

/// The numerics are in a separate crate without dependencies on this one. Its modules and errors are exported from here.
pub use max_weights_kernels::{cast, delta, dtype, fingerprint, quant, simd};

pub use buffer::Buffer;
pub use checkpoint::{Backend, Catalog, Checkpoint, OpenOptions, open};
pub use dtype::DType;
pub use error::{Diagnostic, Error, Result};
pub use quant::Encoding;
pub use workers::uninterrupted;

// The snippets of the page are compiled with the examples of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
mod page_on_the_crate {}
