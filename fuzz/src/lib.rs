//! What the fuzz targets do with an input, apart from libFuzzer: `tests/fuzz_corpus.rs` includes this file too, and runs the committed
//! inputs and random changes of them through the same functions in every `make test`.
//!
//! A function panics if a promise is broken. What is promised is said at each of them and in docs/security.md.

pub mod folder;
pub mod gguf;
pub mod header;
pub mod index;
pub mod json;
pub mod layout;
pub mod memory;
pub mod mutate;
pub mod open;
pub mod pickle;
pub mod random;
pub mod sniff;
pub mod torch;

use layout::Layout;

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
pub const TARGETS: [Target; 9] = [
    Target { name: "safetensors_header", check: header::check, layout: Layout::Header },
    Target { name: "safetensors_open", check: open::check, layout: Layout::File },
    Target { name: "gguf_header", check: gguf::header::check, layout: Layout::GgufHeader },
    Target { name: "gguf_open", check: gguf::open::check, layout: Layout::Gguf },
    Target { name: "index", check: index::check, layout: Layout::Index },
    Target { name: "sniff", check: sniff::check, layout: Layout::File },
    Target { name: "pickle", check: pickle::check, layout: Layout::Pickle },
    Target { name: "torch_zip", check: torch::check_zip, layout: Layout::Torch },
    Target { name: "torch_legacy", check: torch::check_legacy, layout: Layout::Torch },
];

/// A message about a hostile file is short, and holds no character that a terminal obeys.
fn check_message(message: &str) {
    const LONGEST: usize = 4000;
    assert!(message.len() <= LONGEST, "a message of {} bytes", message.len());
    assert!(!message.contains(char::is_control), "{message:?} holds a control character");
}
