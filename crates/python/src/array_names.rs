//! Names that a node does not give as children by attribute, unless it has such a child.

/// What a node answers where it is a weight and has no child of such a name; elsewhere it is an error.
pub(crate) const OF_WEIGHTS: [&str; 2] = ["dtype", "shape"];
/// What else people ask an array for. On a weight that has no child of such a name it is an error: only these, because a hop looks nothing up.
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
