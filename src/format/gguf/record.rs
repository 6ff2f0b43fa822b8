//! The record of one tensor in the header.

use super::MAX_DIMENSIONS;
use super::cursor::{CursorStep, HeaderCursor};
use crate::error::Diagnostic;
use crate::rules;

/// The sizes that the records are checked against.
pub(super) struct RecordBounds {
    pub(super) count: u64,
    pub(super) alignment: u64,
    pub(super) file_len: u64,
}

/// One record of the header, not yet checked.
pub(super) struct GgufTensorRecord<'a> {
    pub(super) at: u64,
    pub(super) name: &'a [u8],
    pub(super) dims: [u64; MAX_DIMENSIONS],
    pub(super) rank: usize,
    pub(super) type_id: u32,
    pub(super) type_at: u64,
    pub(super) offset: u64,
    pub(super) offset_at: u64,
}

impl<'a> GgufTensorRecord<'a> {
    pub(super) fn read(cursor: &mut HeaderCursor<'a>) -> CursorStep<Self> {
        let at = cursor.position() as u64;
        let name = cursor.string("the name of a tensor")?;
        let rank_at = cursor.position() as u64;
        let rank = cursor.u32()? as usize;
        if rank > MAX_DIMENSIONS {
            let cause = format!("the tensor has {rank} dimensions; the format allows {MAX_DIMENSIONS}");
            let fault = Diagnostic::new(rules::GGUF_RANK, cause).offset(rank_at);
            return Err(fault.tensor(String::from_utf8_lossy(name)).into());
        }
        let mut dims = [0; MAX_DIMENSIONS];
        // The file has the fastest dimension first.
        for dim in dims.iter_mut().take(rank).rev() {
            *dim = cursor.length()?;
        }
        let type_at = cursor.position() as u64;
        let type_id = cursor.u32()?;
        let offset_at = cursor.position() as u64;
        let offset = cursor.u64()?;
        Ok(Self { at, name, dims, rank, type_id, type_at, offset, offset_at })
    }

    pub(super) fn shape(&self) -> &[u64] {
        self.dims.get(..self.rank).unwrap_or_default()
    }

    /// The name, empty if it is not UTF-8; such names were refused before.
    pub(super) fn name(&self) -> &'a str {
        std::str::from_utf8(self.name).unwrap_or_default()
    }
}
