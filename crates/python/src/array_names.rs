//! Names that are not children of a node by attribute, unless it has such a child.

/// Attributes of a node that is a weight without such a child; elsewhere they are an error.
pub(crate) const OF_WEIGHTS: [&str; 2] = ["dtype", "shape"];
/// Further attributes of arrays. They are an error on a weight without such a child: only these, because attribute access looks nothing up.
pub(crate) const OF_ARRAYS: [&str; 21] = [
    "T",
    "astype",
    "bfloat16",
    "contiguous",
    "copy",
    "cpu",
    "cuda",
    "detach",
    "device",
    "flatten",
    "float",
    "half",
    "item",
    "nbytes",
    "ndim",
    "numel",
    "reshape",
    "size",
    "to",
    "tolist",
    "view",
];
