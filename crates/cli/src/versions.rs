//! `max-weights versions`: what a bug report needs to say about the machine and the packages, none of which is imported.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Args;
use serde::Serialize;

use crate::CLEAN;
use crate::failure::CommandFailure;
use crate::host::Host;
use crate::screen::Screen;

/// Packages of Python that this may meet.
const PACKAGES: [&str; 9] =
    ["numpy", "ml-dtypes", "torch", "jax", "jaxlib", "safetensors", "transformers", "onnxruntime", "gguf"];

#[derive(Serialize)]
struct VersionsJson {
    schema: &'static str,
    max_weights: &'static str,
    platform: String,
    cpu: String,
    /// Whether copies of mapped files answer a truncation with an error.
    guarded_copies: bool,
    /// None where this is not a part of a Python interpreter.
    python: Option<String>,
    /// Those that are installed.
    packages: BTreeMap<&'static str, String>,
}

/// Print the versions that a bug report needs.
#[derive(Debug, Args)]
pub(crate) struct Versions {
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(options: &Versions, host: &Host, screen: &mut Screen) -> Result<u8, CommandFailure> {
    let found = collect(host);
    if options.json {
        serde_json::to_writer_pretty(&mut *screen, &found)?;
        screen.line("")?;
        return Ok(CLEAN);
    }
    let rows = rows(found, host);
    let width = width(&rows);
    for (name, version) in rows {
        let line = format!("{0}{name:width$}{0:#}  {version}", screen.paint.dim);
        screen.line(&line)?;
    }
    Ok(CLEAN)
}

/// The same lines as a string.
pub fn versions(host: &Host) -> String {
    let rows = rows(collect(host), host);
    let width = width(&rows);
    let lines: Vec<String> = rows.iter().map(|(name, version)| format!("{name:width$}  {version}\n")).collect();
    lines.concat()
}

fn width(rows: &[(&str, String)]) -> usize {
    rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0)
}

fn rows(found: VersionsJson, host: &Host) -> Vec<(&'static str, String)> {
    let mut rows = vec![("max_weights", found.max_weights.to_owned())];
    rows.extend(found.python.map(|python| ("python", python)));
    rows.extend([("platform", found.platform), ("cpu", found.cpu)]);
    let guarded = if found.guarded_copies { "guarded" } else { "not guarded: the system does not allow it" };
    rows.push(("copies", guarded.to_owned()));
    if host.python.is_some() {
        rows.extend(
            PACKAGES
                .map(|name| (name, found.packages.get(name).cloned().unwrap_or_else(|| "not installed".to_owned()))),
        );
    }
    rows
}

fn collect(host: &Host) -> VersionsJson {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let python = host.python.as_ref();
    let mut packages = BTreeMap::new();
    for folder in python.map_or(&[][..], |python| &python.folders).iter().rev() {
        packages.extend(installed(folder)); // the first folder of the path wins
    }
    VersionsJson {
        schema: "max-weights.versions/1",
        max_weights: env!("CARGO_PKG_VERSION"),
        platform: format!("{} {} {}", std::env::consts::OS, release.trim(), std::env::consts::ARCH).replace("  ", " "),
        cpu: format!(
            "{cpus} usable, {}",
            max_weights::simd::Level::chosen().map_or("scalar", max_weights::simd::Level::name)
        ),
        guarded_copies: max_weights::memory::copies_are_guarded(),
        python: python.map(|python| format!("{} ({})", python.version, max_weights::text::path(&python.executable))),
        packages,
    }
}

/// The packages of [`PACKAGES`] that are in this folder, by the names of the folders that installers leave: `NAME-VERSION.dist-info`.
fn installed(folder: &Path) -> Vec<(&'static str, String)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let known = entries.filter_map(|entry| {
        let name = entry.file_name();
        let (package, version) = name.to_str()?.strip_suffix(".dist-info")?.split_once('-')?;
        let package = package.to_ascii_lowercase().replace(['_', '.'], "-");
        let package = PACKAGES.into_iter().find(|known| *known == package)?;
        Some((package, max_weights::text::escape(version)))
    });
    known.collect()
}
