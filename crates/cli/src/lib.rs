//! The command line of max_weights: look into checkpoint files, and write them anew. Nothing in a file is ever executed.
//!
//! [`main`] is all of it. The program of this crate and the Python package's `max-weights` both call it.

mod arguments;
mod bench;
mod complete;
mod convert;
mod delta;
mod diff;
mod failure;
mod file;
mod fit;
mod globals;
mod host;
mod inputs;
mod layers;
mod list;
mod manifest;
mod meta;
mod open;
mod progress;
mod record;
mod report;
mod reshard;
mod screen;
mod show;
mod signals;
mod stdin;
mod validate;
mod versions;
mod warnings;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;

use clap::{CommandFactory as _, FromArgMatches as _};

use crate::arguments::{Command, CommandLine};
use crate::failure::CommandFailure;
pub use crate::host::{Host, Python};
use crate::screen::Screen;
pub use crate::versions::versions;

/// Everything is as it should be.
pub const CLEAN: u8 = 0;
/// Something was found: a global that is not known, a plan that does not fit, a difference.
pub const FINDINGS: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// Something is broken, or could not be read.
pub const UNREADABLE: u8 = 3;
/// Loading something runs code, and needs trust in where it comes from.
pub const NEEDS_TRUST: u8 = 4;
/// Something is made to do harm.
pub const MALICIOUS: u8 = 5;
/// Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// The definitions of all commands, from which help, completions, the man page and the documentation are made.
pub fn command() -> clap::Command {
    CommandLine::command()
}

/// Runs the command line, whose first argument is the name of the program, and returns the exit status.
pub fn main(arguments: impl IntoIterator<Item = OsString>, host: &Host) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(status) = complete::answer(&arguments) {
        return status;
    }
    let parsed = command()
        .try_get_matches_from(with_command(arguments))
        .and_then(|matches| CommandLine::from_arg_matches(&matches).map_err(|error| error.format(&mut command())));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are such errors too, with status 0. A failure to print cannot be reported.
            let _ = failure::print_usage(&error);
            return u8::try_from(error.exit_code()).unwrap_or(USAGE);
        }
    };
    let mut screen = Screen::new(arguments.color);
    let _signals = signals::watch();
    let outcome = run(&arguments.command, host, &mut screen);
    match outcome.and_then(|status| Ok(screen.flush().map(|()| status)?)) {
        Ok(status) => status,
        Err(failure) => failure.end(&mut screen),
    }
}

fn run(command: &Command, host: &Host, screen: &mut Screen) -> Result<u8, CommandFailure> {
    match command {
        Command::Ls(options) => list::run(options, screen.for_json(options.wants_json())),
        Command::Show(options) => show::run(options, screen.for_json(options.json)),
        Command::Globals(options) => globals::run(options, screen.for_json(options.json)),
        Command::Diff(options) => diff::run(options, screen.for_json(options.json)),
        Command::Manifest(options) => manifest::run(options, screen.for_json(options.wants_json())),
        Command::Bom(options) => manifest::bom(options, screen.for_json(true)),
        Command::Convert(options) => convert::run(options, host, screen.for_json(options.wants_json())),
        Command::Delta(options) => delta::run(options, screen.for_json(options.wants_json())),
        Command::Merge(options) => convert::merge(options, host, screen.for_json(options.wants_json())),
        Command::Split(options) => convert::split(options, host, screen.for_json(options.wants_json())),
        Command::Meta(options) => meta::run(options, screen),
        Command::Reshard(options) => {
            screen.for_json(options.json);
            reshard::run(options, host)
        }
        Command::Validate(options) => validate::run(options, host, screen.for_json(options.checking.wants_json())),
        Command::Scan(options) => validate::scan(options, host, screen.for_json(options.checking.wants_json())),
        Command::Explain(options) => validate::explain(options, screen.for_json(options.json)),
        Command::Report(options) => report::run(options, screen.for_json(true)),
        Command::Bench(options) => {
            screen.for_json(options.json);
            bench::run(options, host)
        }
        Command::Versions(options) => versions::run(options, host, screen.for_json(options.json)),
        Command::Completions(options) => complete::script(options, screen),
    }
}

/// `max-weights FILE` means `max-weights ls FILE`.
fn with_command(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let Some(first) = arguments.get(1) else { return arguments };
    let text = first.to_string_lossy();
    let names_a_file = !text.starts_with('-') && (text.contains(['/', '.']) || Path::new(first).exists());
    if names_a_file && command().find_subcommand(&*text).is_none() {
        arguments.insert(1, "ls".into());
    }
    arguments
}
