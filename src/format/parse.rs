//! How parsers come by the bytes of their file: they open nothing and read nothing. A parser says which parts of the file it needs, lends the
//! memory for them, and goes on when they are filled; whether from a file, over a network or by a fuzzer is not its business.

use crate::error::Result;
use crate::source::{Part, Source};
use crate::workers::Interrupt;

/// What a parser says.
#[derive(Debug)]
pub enum Progress<'a, T> {
    /// These parts of the file have to be filled before it is asked again: all that can be asked for at the time.
    Need(Vec<Part<'a>>),
    /// This is what it made of them.
    Done(T),
}

/// Makes something of a file that it is given piece by piece.
pub trait Parse {
    /// What is made.
    type Output;

    /// Goes on as far as the bytes lead that are there. Not to be called again once it is done.
    fn advance(&mut self) -> Result<Progress<'_, Self::Output>>;
}

/// Gives a parser what it needs, one request of the source for each time that it asks.
pub fn drive<P: Parse>(mut parser: P, source: &dyn Source, interrupt: Interrupt<'_>) -> Result<P::Output> {
    loop {
        match parser.advance()? {
            Progress::Need(mut parts) => source.read_apart(&mut parts, interrupt)?,
            Progress::Done(output) => return Ok(output),
        }
    }
}
