//! Checkpoints in the layout of other libraries: rules compose their weights from those of the files. Conversion reads nothing; the recipe of a
//! weight is computed when it is loaded (`load/composition.rs`).

mod converted;
mod groups;
mod heads;
mod plain;
mod rule;

pub(crate) use converted::{Composition, WeightRecipe};
pub use plain::PlainRule;
pub(crate) use rule::sizes_of_parts;
pub use rule::{ConversionRule, ConversionStep};
