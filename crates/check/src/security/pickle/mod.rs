//! Pickles: what loading them would call. A machine runs through their instructions as every reader of Python's would, and calls nothing.
//!
//! The verdict on a pickle depends on the names in it, by the core's list ([`max_weights::format::pickle::names`]), and on what is done with
//! them ([`effects`]). Instructions that readers disagree on, data after the end, and pickles in the bytes of a pickle are examined as well
//! ([`machine`], [`stream`], [`nested`]).

mod effects;
mod found;
mod harmless;
mod imports;
mod joblib;
mod machine;
mod names;
mod nested;
mod plain;
mod reader;
mod source;
mod stream;
mod trial;
mod value;

use max_weights::Result;

use crate::context::{ByteSpan, FileContext};
use crate::security;

pub use stream::scan;
pub(super) use stream::{embedded, one, rest};
pub use trial::{is_pickle_that_imports, may_be_pickle};

/// Which format the pickle belongs to: this determines which external references it may have, and what may follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PickleOrigin {
    /// Any program's.
    Any,
    /// `data.pkl` of a PyTorch archive, with references to its storages.
    TorchZip,
    /// The pickles of a PyTorch file from before 1.6.
    TorchLegacy,
}

/// What a pickle turned out to have.
#[derive(Debug, Clone, Default)]
pub struct PickleContents {
    /// Bytes up to the end of the last pickle.
    pub consumed: u64,
    /// The storages that it refers to.
    pub storages: Vec<StorageSeen>,
}

/// A reference to a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageSeen {
    /// The key: the name of the member in `data/`.
    pub key: String,
    /// Its elements; `None` where they are not known.
    pub elements: Option<u64>,
    /// Its bytes, as its type and its number of elements say; `None` where they are not known.
    pub bytes: Option<u64>,
}

/// What a pickle is in the end, where it is plain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Root {
    /// An integer.
    Integer(i128),
    /// A list of texts.
    Texts(Vec<String>),
    /// Anything else.
    Other,
}

/// One of several pickles that make a file.
pub(super) struct PickleInFile {
    /// Behind its last instruction, or behind the one at which it broke.
    pub(super) end: u64,
    /// Whether it ran to its end.
    pub(super) is_whole: bool,
    /// Whether it names or calls anything.
    pub(super) calls: bool,
    pub(super) root: Root,
    pub(super) storages: Vec<StorageSeen>,
}

/// Whether this is, from its first byte on, a pickle that names a class or function, whatever else it is.
pub(super) fn names_something(piece: &ByteSpan<'_>, context: &FileContext<'_>) -> Result<bool> {
    if !may_be_pickle(&piece.bytes.first(security::PICKLE_BYTES)?, piece.bytes.len(), piece.name) {
        return Ok(false);
    }
    Ok(stream::run(piece.bytes, 0, PickleOrigin::Any, false, context)?.found.imports > 0)
}
