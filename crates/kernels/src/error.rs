//! Errors of this crate, all about arguments.

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed; nothing was written to the output.
///
/// A variant is a reason that a caller may want to distinguish, and its message has no full stop. There are few variants, and callers that map them
/// to their errors should notice a new one: so the enum is exhaustive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// One of the dtypes cannot be converted to the other.
    #[error("{0}")]
    CastPair(String),
    /// Elements of this dtype cannot be multiplied by such scales, or not with that result dtype.
    #[error("{0}")]
    CastScale(String),
    /// Packed codes cannot be decoded to this dtype.
    #[error("{0}")]
    QuantizationTarget(String),
    /// Blocks of this encoding can be decoded, but not encoded.
    #[error("{0}")]
    QuantizationEncode(String),
    /// An invalid argument, such as slices with inconsistent lengths.
    #[error("{0}")]
    Argument(String),
}
