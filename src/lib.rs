//! The shortest, fastest and safest way from a checkpoint file to a tensor.
//!
//! [`checkpoint::Checkpoint`] opens files and knows their tensors by name; [`buffer::Buffer`] is a tensor. The modules below them import
//! one way: `checkpoint -> format, names, buffer -> source -> memory -> tensor -> quant -> dtype, error`.

// Elements are handed out as they lie in the file, which is little-endian, and offsets of 64 bits become addresses.
#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!(
    "max_weights maps files of little-endian numbers, larger than 4 GB: it needs a 64-bit little-endian target"
);

pub mod budget;
pub mod buffer;
pub mod cast;
pub mod checkpoint;
pub mod device;
pub mod dtype;
pub mod error;
pub mod format;
pub mod load;
pub mod memory;
pub mod names;
pub mod quant;
pub mod rules;
pub mod source;
pub mod tensor;
pub mod text;
pub mod workers;
