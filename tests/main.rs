//! The tests of the core, in one program: linking one takes longer than running most of them. Tests that need a separate process are separate
//! programs, listed in Cargo.toml.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod architecture;
mod circles;
mod dequantization;
mod distributed;
mod distributed_compressed;
mod distributed_files;
mod error_sentences;
mod findings;
mod gguf_files;
mod gguf_hostile;
mod gguf_oracle;
mod gguf_split;
mod legacy_files;
mod limits;
mod load;
mod load_cuts;
mod load_verified;
mod modelled_disk;
mod passes;
mod pickle_costs;
mod pickle_hostile;
mod pickle_names;
mod pickle_oracle;
mod python_source;
mod recipes;
mod rules;
mod rules_raised;
mod safetensors_hostile;
mod safetensors_oracle;
mod slices;
mod sniff;
mod source;
mod source_support;
mod statistics;
mod statistics_support;
mod threads;
mod torch_files_oracle;
mod torch_legacy_hostile;
mod torch_zip_contents;
mod torch_zip_hostile;
mod write_conversions;
mod write_files;
mod write_metadata;
mod write_parts;
mod write_safetensors;
mod write_shards;
mod zip_files;
