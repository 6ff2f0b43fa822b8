//! The errors of commands, how they are reported to people and to programs, and the exit status.

use std::io::{self, Write as _};

use max_weights::{Error, text};
use serde::Serialize;

use crate::record::MessageJson;
use crate::screen::Screen;
use crate::{INTERRUPTED, UNREADABLE, USAGE};

/// What ends a command.
#[derive(Debug)]
pub(crate) enum CommandFailure {
    /// Something about the files.
    Checkpoint(Error),
    /// Something that the machine lacks.
    Needs(String),
    /// Arguments that do not go together.
    Usage(String),
    /// Standard output could not be written.
    Output(io::Error),
}

impl From<Error> for CommandFailure {
    fn from(error: Error) -> Self {
        Self::Checkpoint(error)
    }
}

impl From<io::Error> for CommandFailure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<serde_json::Error> for CommandFailure {
    fn from(error: serde_json::Error) -> Self {
        Self::Output(error.into())
    }
}

impl From<csv::Error> for CommandFailure {
    fn from(error: csv::Error) -> Self {
        // Its own conversion hides which kind of error it was, and with it that the reader has gone.
        Self::Output(match error.into_kind() {
            csv::ErrorKind::Io(error) => error,
            other => io::Error::other(format!("{other:?}")),
        })
    }
}

/// The object on standard output where JSON was asked for.
#[derive(Serialize)]
struct FailureJson<'a> {
    schema: &'static str,
    error: MessageJson<'a>,
}

impl CommandFailure {
    /// Says what is wrong: a line on standard error, and an object on standard output where JSON was asked for and nothing of it is there yet.
    pub(crate) fn end(&self, screen: &mut Screen) -> u8 {
        if let Self::Output(error) = self
            && error.kind() == io::ErrorKind::BrokenPipe
        {
            return screen.status; // the reader has seen enough: `max-weights ls … | head`
        }
        let message = self.to_string();
        if screen.is_for_json && !screen.was_written() {
            let error = match self {
                Self::Checkpoint(error) => MessageJson::of_error(error, &message),
                _ => MessageJson::new(self.kind(), &message),
            };
            let object = FailureJson { schema: "max-weights.error/1", error };
            // If that fails, standard error reports it.
            let _ = serde_json::to_writer(&mut *screen, &object).map(|()| screen.write_all(b"\n"));
        }
        let _ = screen.flush();
        screen.complain(&message);
        match self {
            Self::Checkpoint(Error::Interrupted) => INTERRUPTED,
            Self::Checkpoint(Error::Argument(_)) | Self::Usage(_) => USAGE,
            // That a report cannot be written does not hide what it would say.
            _ => UNREADABLE.max(screen.status),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Checkpoint(_) => "checkpoint",
            Self::Needs(_) => "missing",
            Self::Usage(_) => "usage",
            Self::Output(_) => "output",
        }
    }
}

impl std::fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Checkpoint(error) => error.fmt(f),
            Self::Needs(text) | Self::Usage(text) => f.write_str(&text::printable(text)),
            Self::Output(error) => write!(f, "standard output cannot be written: {error}"),
        }
    }
}

/// Prints help, the version, or what is wrong with the command line, which shells put names of files into.
pub(crate) fn print_usage(error: &clap::Error) -> io::Result<()> {
    use clap::error::{ContextValue, ErrorKind};
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    let is_safe = |value: &ContextValue| match value {
        ContextValue::String(value) => text::printable(value) == *value,
        ContextValue::Strings(values) => values.iter().all(|value| text::printable(value) == *value),
        _ => true,
    };
    if is_help || error.context().all(|(_, value)| is_safe(value)) {
        return error.print();
    }
    // A new error lacks the details of the original, such as the possible values of an option.
    let mut safe = clap::Error::new(error.kind()).with_cmd(&crate::command());
    for (kind, value) in error.context() {
        let value = match value {
            ContextValue::String(text) => ContextValue::String(text::printable(text).into_owned()),
            ContextValue::Strings(texts) => {
                ContextValue::Strings(texts.iter().map(|text| text::printable(text).into_owned()).collect())
            }
            ContextValue::StyledStrs(_) => continue, // tips, which quote it, too
            other => other.clone(),
        };
        safe.insert(kind, value);
    }
    safe.print()
}
