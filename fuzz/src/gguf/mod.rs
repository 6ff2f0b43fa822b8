//! The targets of GGUF files: `gguf_header` and `gguf_open`.

pub mod document;
pub mod header;
pub mod mutate;
pub mod open;
