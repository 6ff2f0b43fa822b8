//! Names for the values of a pickle: nested dicts become names with dots.

use super::object::ObjectId;
use super::tensor::TensorId;
use super::{Limits, Pickled};
use crate::error::Result;

/// The name of a tensor that is the whole pickle.
pub const ROOT_TENSOR: &str = "tensor";
/// The name of anything else that is the whole pickle and has no parts.
pub const ROOT_OBJECT: &str = "object";

/// A value with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// The name: the keys that lead to the value, with dots between them.
    pub name: String,
    /// The value as the pickle has it, which may be a parameter or a tensor of a subclass.
    pub object: ObjectId,
    /// The tensor that it is.
    pub tensor: Option<TensorId>,
}

/// What came of naming the values of a pickle.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Every leaf, in the order of the file. No two have one name.
    pub leaves: Vec<Leaf>,
}

/// Names every tensor of a pickle, and every other value that is not a container of named ones.
///
/// - A dict gives its keys, joined with dots: `{"model": {"fc.weight": …}}` has `model.fc.weight`. An integer, a truth value, `None` and
///   bytes that are UTF-8 become text as Python prints them; an entry with any other key is a leaf of its own with the key's number.
/// - A list or tuple that leads to a tensor gives the indices of its elements; any other is one leaf, whole.
/// - An empty dict is a leaf.
/// - A placeholder ([`super::Opaque`]) is a leaf, and the tensors in it have names below its own: attributes by name (those in the
///   `_parameters`, `_buffers` and `_modules` of a module stand directly below it, as in its state dict), arguments by index, items by key.
/// - A tensor of a subclass is a leaf; the tensors of its state have names below its own (of a `DTensor`, `_local_tensor` alone).
/// - A value that contains itself is a leaf where it comes again.
/// - The whole, if it is a leaf, is called [`ROOT_TENSOR`] or [`ROOT_OBJECT`].
///
/// Two values of one name (`{"a.b": …, "a": {"b": …}}`) are an error: which one a name means would be a guess.
pub fn leaves(pickled: &Pickled, limits: &Limits) -> Result<Names> {
    let _ = (pickled, limits);
    todo!()
}
