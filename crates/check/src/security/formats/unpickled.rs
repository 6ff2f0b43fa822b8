//! Pickles among the values of other formats, which a library unpickles as it reads them.

use max_weights::rules;
use max_weights::{Diagnostic, Result};

use crate::bytes::ByteSlice;
use crate::context::{ByteSpan, FileContext};
use crate::security::pickle::{self, PickleOrigin};

/// Bytes of a value that are tried to find out whether it is a pickle. What is behind them is searched as the rest of the file is.
const TRIED: usize = 16 << 20;
/// Values that are pickles, of which the extents are remembered.
const MAX_VALUES: usize = 1 << 20;
/// Minimum bytes that a value counts for.
const MIN_VALUE_BYTES: u64 = 4 << 10;

/// The pickles that were found among values.
#[derive(Default)]
pub(super) struct Unpickled {
    /// Where they begin and end.
    found: Vec<(u64, u64)>,
}

impl Unpickled {
    /// Looks at a value of `len` bytes at `at`, which a library unpickles if it is a pickle. One that names no class or function only makes plain values.
    pub(super) fn value(
        &mut self,
        piece: &ByteSpan<'_>,
        name: &str,
        (at, len): (u64, u64),
        context: &mut FileContext<'_>,
    ) -> Result<()> {
        let end = at.saturating_add(len).min(piece.bytes.len());
        let tried = piece.bytes.part(at, end.saturating_sub(at).min(TRIED as u64) as usize)?;
        if !may_import(&tried) || !pickle::is_pickle_that_imports(&tried) {
            return Ok(());
        }
        if piece.depth >= context.options.nesting
            || self.found.len() >= MAX_VALUES
            || !context.look(len.max(MIN_VALUE_BYTES))
        {
            let message = "more values are pickles than are examined";
            context.report(piece, Diagnostic::new(rules::CODE_INCOMPLETE, message).offset(at));
            return Ok(());
        }
        self.found.push((at, end));
        let value = ByteSlice::new(piece.bytes, at, end - at);
        let way = piece.way_to(name);
        pickle::scan(&ByteSpan { depth: piece.depth, ..piece.inside(&value, name, &way) }, PickleOrigin::Any, context)?;
        Ok(())
    }

    /// Looks for pickles in all of the file, but for the values that were looked at.
    pub(super) fn anywhere(mut self, piece: &ByteSpan<'_>, context: &mut FileContext<'_>) -> Result<()> {
        self.found.sort_unstable();
        pickle::embedded(piece, &self.found, context)
    }
}

/// Whether these bytes have an instruction that imports: two lines, the name of a class from the stack, or a number of the registry of extensions.
fn may_import(bytes: &[u8]) -> bool {
    memchr::memchr(0x93, bytes).is_some()
        || memchr::memchr3(0x82, 0x83, 0x84, bytes).is_some()
        || memchr::memchr_iter(b'\n', bytes).nth(1).is_some()
}
