//! `--expect`: what a checkpoint is to be, by a specification, by another checkpoint, or by the configuration of a model.

use std::path::{Path, PathBuf};
use std::process::Command;

use max_weights::checkpoint::ModelCache;
use max_weights::{Checkpoint, Diagnostic, OpenOptions, rules, text, uninterrupted};
use max_weights_check::ValidateOptions;
use max_weights_check::expectation::{self, Expectation};

use crate::failure::CommandFailure;
use crate::host::Host;
use crate::screen::Screen;

/// The name of the configuration of a model, which transformers reads.
const CONFIG: &str = "config.json";

/// Reads what is expected.
pub(super) fn read(path: &Path, host: &Host, screen: &Screen) -> Result<Expectation, CommandFailure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name == CONFIG || name.ends_with(&format!(".{CONFIG}")) {
        return of_config(path, host, screen);
    }
    if path.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("json")) && path.is_file() {
        return Ok(Expectation::read(path)?);
    }
    Ok(Expectation::of_catalog(open(&[path.to_path_buf()])?.catalog()))
}

/// The names and shapes of the model that transformers builds by a configuration, on a device without memory.
fn of_config(path: &Path, host: &Host, screen: &Screen) -> Result<Expectation, CommandFailure> {
    let python = host.interpreter()?;
    screen.tell(&format!("asking transformers what {} requires; importing it may take a while", text::path(path)));
    let run = Command::new(&python).args(["-m", "max_weights._expected_config"]).arg(path).output();
    let failed = |why: &str| {
        CommandFailure::Needs(format!(
            "torch and transformers in Python cannot tell what {} requires: {why}",
            text::path(path)
        ))
    };
    let output = run.map_err(|error| failed(&error.to_string()))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(failed(stderr.trim().lines().next_back().unwrap_or("it said nothing")));
    }
    Ok(Expectation::parse(&output.stdout)?)
}

/// The deviations from the expectation.
pub(super) fn check(
    paths: &[PathBuf],
    expected: &Expectation,
    options: &ValidateOptions,
) -> Result<Vec<Diagnostic>, CommandFailure> {
    let checkpoint = match open(paths) {
        Ok(checkpoint) => checkpoint,
        Err(CommandFailure::Checkpoint(error)) => {
            let path = paths.first().map_or(Path::new(""), PathBuf::as_path);
            let message = format!("it cannot be compared with what is expected: {error}");
            return Ok(vec![Diagnostic::new(rules::FILE_UNREADABLE, message).path(path)]);
        }
        Err(failure) => return Err(failure),
    };
    let mut found = expectation::check(checkpoint.catalog(), expected);
    found.extend(expectation::check_ties(&checkpoint, expected, &uninterrupted)?);
    found.retain(|finding| options.selection.has(finding.rule) && finding.rule.severity >= options.severity);
    Ok(found)
}

pub(super) fn open(paths: &[PathBuf]) -> Result<Checkpoint, CommandFailure> {
    let options = OpenOptions::default().strict(false);
    Ok(Checkpoint::open_named(paths, &ModelCache::from_environment(), &options)?)
}
