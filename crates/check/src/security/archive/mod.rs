//! Archives: what is in them, by every view that a reader can have of them.

use max_weights::Result;

use crate::bytes::Bytes;
use crate::context::Context;

/// A member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name; what is no UTF-8 is replaced.
    pub name: String,
    /// Where its bytes begin in the archive.
    pub start: u64,
    /// How many bytes it has there.
    pub packed: u64,
    /// How many bytes it has when it is unpacked, as the archive says.
    pub size: u64,
    /// Whether its bytes stand in the archive as they are.
    pub stored: bool,
}

/// An archive whose members can be looked at.
pub trait Archive {
    /// The members, in the order of the archive's directory.
    fn members(&self) -> &[Member];

    /// The bytes of a member, unpacked within the limits of `context`; none if it cannot be unpacked, which was reported.
    fn open<'a>(&'a self, number: usize, context: &mut Context<'_>) -> Result<Option<Box<dyn Bytes + 'a>>>;
}
