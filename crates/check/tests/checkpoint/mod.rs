//! Weights and the folders that they lie in: what is whole has no finding, and each rule has a folder that breaks it and nothing else.

mod adapter;
mod config;
mod files;
mod hostile;
mod quantized;
mod quantized_agreement;
mod quantized_layouts;
mod sets;
mod support;
