//! Writing files.

mod write_conversions;
mod write_files;
mod write_metadata;
mod write_parts;
mod write_safetensors;
mod write_shards;
