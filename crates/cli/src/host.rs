//! What the command line runs in.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::CommandFailure;

/// What the command line runs in: a separate program, or a Python interpreter.
#[derive(Debug, Default)]
pub struct Host {
    /// The interpreter; `None` in a separate program.
    pub python: Option<Python>,
}

/// A Python interpreter.
#[derive(Debug)]
pub struct Python {
    /// Its program.
    pub executable: PathBuf,
    /// Its version, such as `3.12.4`.
    pub version: String,
    /// Where it looks for modules: `sys.path`.
    pub folders: Vec<PathBuf>,
}

/// Programs that may be Python, in the order in which they are tried.
const PROGRAMS: [&str; 2] = ["python3", "python"];

impl Host {
    /// An interpreter to run something with: this one, that of the virtual environment, or the first on the path.
    pub(crate) fn interpreter(&self) -> Result<PathBuf, CommandFailure> {
        if let Some(python) = &self.python {
            return Ok(python.executable.clone());
        }
        let environment = std::env::var_os("VIRTUAL_ENV").map(|folder| Path::new(&folder).join("bin"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = environment.into_iter().chain(std::env::split_paths(&path));
        let mut programs = folders.flat_map(|folder| PROGRAMS.map(|program| folder.join(program)));
        programs.find(|program| program.is_file()).ok_or_else(|| {
            CommandFailure::Needs(
                "this needs Python, but there is no python3 on the path: install it and `pip install max-weights`"
                    .into(),
            )
        })
    }

    /// A command that runs a module of the Python package.
    pub(crate) fn module(&self, name: &str) -> Result<Command, CommandFailure> {
        let mut command = Command::new(self.interpreter()?);
        command.args(["-m", name]);
        Ok(command)
    }
}

/// Runs a command to its end, and gives its exit status.
pub(crate) fn instead(command: &mut Command) -> Result<u8, CommandFailure> {
    finish(command).map_err(|error| {
        let program = max_weights::text::path(Path::new(command.get_program()));
        CommandFailure::Needs(format!("{program} cannot be run: {error}; VIRTUAL_ENV and PATH say where Python is"))
    })
}

/// Becomes this program, so that Ctrl-C and the exit status are its own.
#[cfg(unix)]
fn finish(command: &mut Command) -> std::io::Result<u8> {
    use std::os::unix::process::CommandExt as _;
    Err(command.exec())
}

/// Waits for this program.
#[cfg(not(unix))]
fn finish(command: &mut Command) -> std::io::Result<u8> {
    Ok(command.status()?.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(crate::UNREADABLE))
}
