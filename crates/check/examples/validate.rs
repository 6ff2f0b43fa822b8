//! Prints the findings of files and folders, a line each: `cargo run -p max-weights-check --example validate -- PATH…`.

use std::path::PathBuf;

use max_weights::uninterrupted;
use max_weights_check::{Level, ValidateOptions, ValidateProgress, validate};

fn main() -> max_weights::Result<()> {
    let mut options = ValidateOptions::default();
    let mut paths = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--content" => options.level = Level::Content,
            "--header" => options.level = Level::Header,
            path => paths.push(PathBuf::from(path)),
        }
    }
    let report = validate(&paths, &options, &ValidateProgress::default(), &uninterrupted)?;
    for file in &report.files {
        println!("{}: {} ({}), {}", file.path.display(), file.kind, file.depth.name(), file.answer.name());
    }
    for finding in &report.findings {
        println!("{} {} {finding:?}", finding.rule.code, finding.rule.id);
    }
    Ok(())
}
