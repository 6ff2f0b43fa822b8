//! Quantized weights: which tensors are one, by which scheme they are packed, and with which sizes; or why they cannot be one.
//!
//! Validation and decoding use the same [`WeightLayout`], so that they agree. Headers say nearly all; a few tensors that hold sizes are read by what the
//! caller gives the [`QuantizedGroup`].

mod bitsandbytes;
mod declared;
mod decode;
mod decoded;
mod floats;
mod group;
mod integers;
mod layout;
mod order;
mod parts;
mod rows;
mod scheme;
mod torchao;

pub use declared::{DeclaredQuantization, QuantizationMethod, Scheme};
pub use decode::WeightDecoder;
pub use decoded::{DAMAGED, QuantizedWeight, QuantizedWeights};
pub use group::{NoLayout, PartFault, QuantizedGroup};
pub use layout::{Family, ScaleRule, WeightLayout};
pub use order::with_parts_together;
pub(crate) use parts::is_float;
pub use parts::{Layers, QuantizedLayer, TensorRole, is_eight_bit, layers, part_of};
pub use torchao::entries;
