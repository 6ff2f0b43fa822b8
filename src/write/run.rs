//! Bytes of tensors that are in memory, on their way into a file.

use super::layout::{Declared, Stored};
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::workers::Interrupt;

/// What is written by one call of the system: long enough that calls cost nothing, short enough that Ctrl-C is answered within 100 ms on a slow disk.
pub(super) const AT_A_TIME: u64 = 4 << 20;

/// Bytes of one tensor that are in a row in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run<'a> {
    /// The position of the tensor in the layout.
    pub(super) tensor: usize,
    pub(super) source: &'a Buffer,
    /// The first byte within the tensor.
    pub(super) start: u64,
    pub(super) len: u64,
}

/// A tensor that is written as it is in memory.
pub fn declare(name: &str, buffer: &Buffer) -> Declared {
    Declared {
        name: name.to_owned(),
        stored: Stored::Plain(buffer.dtype()),
        shape: buffer.shape().iter().map(|dim| *dim as u64).collect(),
    }
}

/// Some bytes of a tensor: where they are, or in `scratch`. A mapping may be cut off meanwhile, which the system answers with an error where it is
/// the one who reads it.
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

/// Why bytes of a tensor could not be written: where the system found no memory there, the file that it is mapped from was cut off.
#[cfg_attr(not(unix), allow(unused_variables))] // elsewhere the system does not tell so
pub(super) fn cut_off(tensor: &Buffer, error: Error) -> Error {
    #[cfg(unix)]
    if let (Error::Io { source, .. }, Some(origin)) = (&error, tensor.storage().origin())
        && rustix::io::Errno::from_io_error(source) == Some(rustix::io::Errno::FAULT)
    {
        return origin.truncated();
    }
    error
}
