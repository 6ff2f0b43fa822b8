//! What the fuzz targets do with an input, apart from libFuzzer: `tests/fuzz_corpus.rs` includes this file too, and runs the committed
//! inputs and random changes of them through the same functions in every `make test`.
//!
//! A function panics if a promise is broken. The promises are documented at each of them and in docs/security.md.

pub mod archive;
pub mod buffer;
pub mod codebook;
pub mod delta;
pub mod dialects;
pub mod distributed;
mod floats;
pub mod folder;
pub mod gguf;
pub mod groups;
pub mod header;
pub mod index;
pub mod json;
pub mod layout;
pub mod memory;
pub mod mutate;
pub mod names;
pub mod open;
pub mod pickle;
pub mod printing;
mod program;
pub mod random;
pub mod sniff;
pub mod torch;
pub mod torch_open;

use layout::Layout;
use printing::{check_bounded, check_message};

/// One fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name of the target, and of the folder of its inputs.
    pub name: &'static str,
    /// Runs one input.
    pub check: fn(&[u8]),
    /// What an input consists of.
    pub layout: Layout,
}

/// Every target, by name.
pub const TARGETS: [Target; 17] = [
    Target { name: "safetensors_header", check: header::check, layout: Layout::Header },
    Target { name: "safetensors_open", check: open::check, layout: Layout::File },
    Target { name: "gguf_header", check: gguf::header::check, layout: Layout::GgufHeader },
    Target { name: "gguf_open", check: gguf::open::check, layout: Layout::Gguf },
    Target { name: "index", check: index::check, layout: Layout::Index },
    Target { name: "sniff", check: sniff::check, layout: Layout::File },
    Target { name: "pickle", check: pickle::check, layout: Layout::Pickle },
    Target { name: "torch_zip", check: torch::check_zip, layout: Layout::Torch },
    Target { name: "torch_legacy", check: torch::check_legacy, layout: Layout::Torch },
    Target { name: "torch_open", check: torch_open::check, layout: Layout::Archive },
    Target { name: "distributed", check: distributed::check, layout: Layout::Pickle },
    Target { name: "delta", check: delta::check, layout: Layout::File },
    Target { name: "delta_dialects", check: dialects::check, layout: Layout::Program },
    Target { name: "names", check: names::check, layout: Layout::Names },
    Target { name: "buffer", check: buffer::check, layout: Layout::Program },
    Target { name: "codebook", check: codebook::check, layout: Layout::Program },
    Target { name: "groups", check: groups::check, layout: Layout::Program },
];
