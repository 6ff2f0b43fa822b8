//! The tests of validation, in one program.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod archive;
mod baseline;
mod checkpoint;
mod comparison_files;
mod content;
mod content_support;
mod difference;
mod exhaustion;
mod expectation;
mod fixture;
mod folders;
mod manifest;
mod manifest_bom;
mod output;
mod output_hostile;
mod output_limits;
mod paths;
mod pickle;
mod pickle_bounds;
mod pickle_torch;
mod repository_code;
mod repository_folders;
mod repository_paths;
mod repository_programs;
mod repository_random;
mod repository_support;
mod repository_targets;
mod repository_templates;
mod settings;
mod support;
