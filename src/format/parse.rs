//! How parsers get the bytes of their file, without doing I/O themselves. A parser names the parts of the file that it needs, lends the memory for
//! them, and continues once they are filled, be it from a file, over a network or by a fuzzer.

use crate::error::Result;
use crate::source::{ReadRange, Source};
use crate::workers::Interrupt;

/// The state of a parser.
#[derive(Debug)]
pub enum ParseProgress<'a, T> {
    /// These parts of the file must be filled before the next call: all that can be requested now.
    Need(Vec<ReadRange<'a>>),
    /// The result of the parser.
    Done(T),
}

/// Parses a file from its parts.
pub trait Parse {
    /// The result.
    type Output;

    /// Continues as far as the available bytes allow. Must not be called again once it is done.
    fn advance(&mut self) -> Result<ParseProgress<'_, Self::Output>>;
}

/// Feeds a parser, with one request of the source for each of its requests.
pub fn drive<P: Parse>(mut parser: P, source: &dyn Source, interrupt: Interrupt<'_>) -> Result<P::Output> {
    loop {
        match parser.advance()? {
            ParseProgress::Need(mut parts) => source.read_without_gaps(&mut parts, interrupt)?,
            ParseProgress::Done(output) => return Ok(output),
        }
    }
}
