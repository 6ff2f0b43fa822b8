//! Checkpoints against each other, and against what is expected of them.

mod content;
mod difference;
mod expectation;
mod manifest;
mod manifest_bom;
