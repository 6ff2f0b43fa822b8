//! The step after the product of a value and its scale, in codebooks with such a step.

/// An operation on the product of a value and its scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum After {
    /// Nothing.
    Nothing,
    /// It is multiplied by this factor: rows of int8 whose scales are their greatest magnitudes.
    Times(f32),
    /// This offset is added: scales that are themselves codes, about their mean.
    Plus(f32),
}
