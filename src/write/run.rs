//! Runs of tensors' bytes that are written to a file from memory.

use super::layout::{DeclaredTensor, StoredElements};
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::workers::Interrupt;

/// Bytes per system call: enough to hide its cost, and few enough to react to Ctrl-C within 100 ms on a slow disk.
pub(super) const AT_A_TIME: u64 = 4 << 20;

/// Bytes of one tensor that are contiguous in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileRun<'a> {
    /// The position of the tensor in the layout.
    pub(super) tensor: usize,
    pub(super) source: &'a Buffer,
    /// The offset in the tensor.
    pub(super) start: u64,
    pub(super) len: u64,
}

/// Declares a tensor with its type and shape in memory.
pub fn declare(name: &str, buffer: &Buffer) -> DeclaredTensor {
    DeclaredTensor {
        name: name.to_owned(),
        stored: StoredElements::Plain(buffer.dtype()),
        shape: buffer.shape().iter().map(|dim| *dim as u64).collect(),
    }
}

/// Some bytes of a tensor: in place, or in `scratch`. If a mapped file is truncated meanwhile, only the system's own reads report an error.
pub(super) fn piece<'a>(
    tensor: &'a Buffer,
    start: usize,
    len: usize,
    scratch: &'a mut Vec<u8>,
    interrupt: Interrupt<'_>,
) -> Result<&'a [u8]> {
    if tensor.device() == Device::Cpu
        && let Some(bytes) = tensor.bytes()
    {
        return Ok(&bytes[start..start + len]);
    }
    scratch.resize(len, 0);
    tensor.read_bytes(start, scratch, interrupt)?;
    Ok(scratch)
}

/// The cause of a failed write of tensor bytes: on an address error, the mapped file was truncated.
#[cfg_attr(not(unix), allow(unused_variables))] // only Unix reports the address error
pub(super) fn cut_off(tensor: &Buffer, error: Error) -> Error {
    #[cfg(unix)]
    if let (Error::Io { source, .. }, Some(origin)) = (&error, tensor.storage().origin())
        && rustix::io::Errno::from_io_error(source) == Some(rustix::io::Errno::FAULT)
    {
        return origin.truncated();
    }
    error
}
