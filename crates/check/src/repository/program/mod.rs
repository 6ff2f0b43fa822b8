//! Programs in Python: what they would call, by their syntax tree. Nothing of them is run.
//!
//! The parser is tree-sitter's: it goes on after what it does not understand, and neither it nor the walk through its tree recurses, so that no
//! nesting of a hostile program is too deep.

mod danger;
mod names;
mod reach;
mod source;
mod walk;

use std::collections::HashSet;
use std::ops::ControlFlow;

use max_weights::Result;
use max_weights::workers::Interrupt;
use tree_sitter::{ParseOptions, Parser};

pub(super) use danger::Danger;
use source::Source;

/// Longer programs are not looked at.
pub(super) const MAX_BYTES: usize = 2 << 20;

/// What a program has.
#[derive(Debug, Default)]
pub(super) struct Program {
    /// Its dangerous calls, in its order.
    pub(super) calls: Vec<Call>,
    /// The line of the first thing that is not Python.
    pub(super) broken: Option<usize>,
    /// The encoding that it declares, if that hides what it says.
    pub(super) hidden_by: Option<String>,
    /// The modules beside it that it imports: `configuration_x` for `from .configuration_x import Config`.
    pub(super) siblings: Vec<String>,
    /// The classes that it defines.
    pub(super) classes: HashSet<String>,
}

/// A dangerous call, or the mention of a dangerous function.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// The full name.
    pub(super) name: String,
    pub(super) danger: Danger,
    pub(super) line: usize,
    /// Whether it happens as soon as the program is imported.
    pub(super) at_import: bool,
    /// How it is there.
    pub(super) text: String,
}

impl Program {
    /// The program of this text; `None` if the parser gives up.
    pub(super) fn read(bytes: &[u8], interrupt: Interrupt<'_>) -> Result<Option<Self>> {
        if bytes.len() > MAX_BYTES {
            return Ok(None);
        }
        let source = Source::new(bytes);
        let mut parser = Parser::new();
        if parser.set_language(&tree_sitter_python::LANGUAGE.into()).is_err() {
            return Ok(None);
        }
        // The parser asks now and then whether to go on; what takes it far more steps than a program of this length is made for that.
        let mut asked = 0_usize;
        let most = source.text.len().max(10_000);
        let mut stopped = Ok(());
        let mut go_on = |_: &tree_sitter::ParseState| {
            asked += 1;
            if asked.is_multiple_of(64) {
                stopped = interrupt();
            }
            if stopped.is_err() || asked > most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let text = source.text.as_bytes();
        let mut from = |at: usize, _| text.get(at..).unwrap_or_default();
        let options = ParseOptions::new().progress_callback(&mut go_on);
        let Some(tree) = parser.parse_with_options(&mut from, None, Some(options)) else {
            return stopped.map(|()| None);
        };
        let mut program = walk::walk(&tree, &source.text, interrupt)?;
        program.hidden_by = source.hidden_by;
        if source.has_zeros {
            program.broken.get_or_insert(1);
        }
        Ok(Some(program))
    }
}
