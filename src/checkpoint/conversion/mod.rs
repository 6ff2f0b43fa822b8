//! Checkpoints as other libraries have them: weights that are made of those of the files, by rules. Nothing is read for that; what a weight is made of
//! is worked out when it is taken (`load/composition.rs`).

mod converted;
mod groups;
mod heads;
mod plain;
mod rule;

pub(crate) use converted::{Composition, Made};
pub use plain::PlainRule;
pub(crate) use rule::sizes_of_parts;
pub use rule::{ConversionRule, Step};
