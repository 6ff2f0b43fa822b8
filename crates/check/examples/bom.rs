//! Prints the bill of materials of a model: `cargo run -p max-weights-check --example bom -- PATH`.

use max_weights::{Error, uninterrupted};
use max_weights_check::ValidateProgress;
use max_weights_check::manifest::bom;

fn main() -> max_weights::Result<()> {
    let path = std::env::args().nth(1).ok_or_else(|| Error::Argument("a path is needed".into()))?;
    println!("{:#}", bom(path.as_ref(), &ValidateProgress::default(), &uninterrupted)?);
    Ok(())
}
