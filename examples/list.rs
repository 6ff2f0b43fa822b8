//! Lists the tensors of a checkpoint: `cargo run --example list model.safetensors`, or a folder, an index, a GGUF or PyTorch file.
//!
//! An error that `main` returns is printed as one sentence: which file, which tensor, at which byte, what is wrong and what to do.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("which checkpoint? Give a path")?;
    let checkpoint = max_weights::open(path)?;
    let catalog = checkpoint.catalog();
    for tensor in catalog.table().iter() {
        println!("{:12} {:>14} {}", tensor.element.to_string(), format!("{:?}", tensor.shape), tensor.name);
    }
    for finding in catalog.findings() {
        eprintln!("{finding}");
    }
    Ok(())
}
