"""The deliberate differences from MAX: what a mark `# differs: ID` in a program means, and why it is so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """One deliberate difference."""

    group: str
    """A key of `GROUPS`."""
    reason: str


GROUPS = {
    "better": "Where MAX gives a wrong value, loses data or fails",
    "documents": "Where the documentation of the API differs from what MAX does",
    "more": "Where more is possible here",
    "kind": "Where both refuse, with exceptions of different kinds",
    "printed": "What is printed",
    "later": "Not there yet",
}

DIFFERENCES = {
    "whole-components": Difference(
        "better", "`items()` matches whole components of names: `layers[1]` does not match `layers.10`."
    ),
    "same-name-twice": Difference(
        "better",
        "A name that occurs in two files of one checkpoint is an error. In MAX the file that comes last wins.",
    ),
    "no-iteration": Difference(
        "better",
        "A node of a tree is not iterable. In MAX, a `for` loop over it never ends, and neither does `in`.",
    ),
    "name-clash": Difference(
        "better",
        "Two weights with the same name in a module are an error. In MAX the second replaces the first.",
    ),
    "encodings-differ": Difference(
        "better",
        "Blocks whose encoding is not the weight's are an error without `override_quantization_encoding`. MAX"
        " takes them, and the weight keeps its own encoding.",
    ),
    "copies": Difference("better", "Tensors, nodes and `WeightData` can be deep-copied and pickled."),
    "all-or-nothing": Difference(
        "better",
        "A call that fails leaves nothing behind: no allocated weight, and no half-loaded state dict.",
    ),
    "alignment": Difference(
        "better",
        "`Weight.align` is the alignment of the bytes in the file, which makes faster kernels possible.",
    ),
    "sub-byte": Difference("better", "A dtype of less than a byte has no size in bytes. MAX returns 1."),
    "device-count": Difference(
        "better",
        "A number of devices below 1, or one that is not the strategy's, is an error as soon as you pass it.",
    ),
    "misfits": Difference(
        "better",
        "A size that a strategy cannot split is an error. MAX leaves columns out, or fails when the shard is used.",
    ),
    "markers": Difference(
        "better",
        "`tensor_parallel` and `expert_parallel` do not shard a weight; modules interpret them. An error says"
        " so at once, and not only when the shard is used.",
    ),
    "negative": Difference(
        "better",
        "Negative dimensions and device numbers are errors, and a bool is not a dimension. MAX accepts them.",
    ),
    "truth": Difference("better", "`bool()` of a tensor with one element is its value. In MAX it is always true."),
    "contiguous": Difference(
        "better",
        "A value whose memory is not contiguous is refused when you load it. MAX takes it, and fails when it is used.",
    ),
    "layer-lists": Difference(
        "better",
        "A `LayerList` is a list: you can append, insert, replace and extend layers in any order. In MAX, "
        "`extend` takes one layer, and appending breaks the names.",
    ),
    "bool-arithmetic": Difference(
        "better",
        "Arithmetic on bool that has no meaning is refused when it is recorded. MAX records it, and cannot compile it.",
    ),
    "functions-of-floats": Difference(
        "better",
        "Functions of floats refuse integers, and `-x` refuses unsigned integers. In MAX the results are "
        "integers, too.",
    ),
    "no-third-dtype": Difference(
        "better",
        "Two tensors are promoted to the dtype of one of them, as MAX's own rule says, too. MAX promotes some"
        " small floats to float16, which does not hold all of their values.",
    ),
    "stated-sizes": Difference("better", "The size that you state for a slice of a known dimension is checked."),
    "tensor-bounds": Difference(
        "better", "A slice between tensors without a stated size is refused with an explanation."
    ),
    "lists": Difference(
        "better",
        "A list of ints is not an index: it would be one element in MAX and several rows in NumPy. "
        "`slice_tensor` takes it.",
    ),
    "axes": Difference("better", "An axis that is out of range is an error in every operation."),
    "no-elements": Difference(
        "better",
        "The largest of no elements, its place, and a norm over them are refused when they are recorded.",
    ),
    "pieces": Difference(
        "better",
        "The number of pieces is checked, and pieces have to make up the whole; one piece of a symbolic dimension is "
        "that dimension.",
    ),
    "index-of-a-scalar": Difference(
        "better", "A tensor of rank 0 has no index 0 when it is written to either; `[()]` and `[...]` write to it."
    ),
    "rebind": Difference("better", "A `rebind` that is known to be wrong is refused when it is recorded."),
    "allocate-dtype": Difference(
        "documents",
        "`allocate(dtype=…)` converts, as its documentation says. MAX refuses a dtype other than the file's.",
    ),
    "graph-weights": Difference("documents", "`Graph.weights()` exists, as its documentation says."),
    "original-shape": Difference(
        "documents", "`original_dtype_and_shape` stays what the weight was declared with, whatever is loaded."
    ),
    "gptq-bytes": Difference(
        "documents", "A GPTQ weight is loaded as uint8, even if its encoding comes from the value."
    ),
    "shared-weights": Difference(
        "documents",
        "A weight that is set by `set_shared_weight` is left out of `raw_state_dict()`, as the documentation says.",
    ),
    "group-norm": Difference(
        "more",
        "The weights of a `GroupNorm` are on the CPU by default, where graphs run here. In MAX they are on GPU 0.",
    ),
    "rounded-numbers": Difference(
        "more",
        "A number combined with a tensor of floats is rounded to their dtype, as a fraction is. MAX refuses "
        "large integers.",
    ),
    "backward": Difference("more", "The size of a backward slice of a known dimension is computed."),
    "rows": Difference("more", "A tensor of several integers is an index, as in NumPy."),
    "packed": Difference("more", "`qmatmul` and `dequantize` take other floats, too, and Q4_1, Q5_K and Q8_0."),
    "pytorch-files": Difference("more", "PyTorch files can be read, too. Nothing in them is executed."),
    "file-order": Difference("more", "`items()` yields the order of the file, in which reading is fastest. MAX sorts."),
    "missing-names": Difference(
        "more", "`items()` of a name that is not there is an error with near names. In MAX it yields nothing."
    ),
    "children": Difference("more", "A node has `len()`, `in` and `children()`."),
    "equality": Difference("more", "`WeightData` compares by identity. Compare values with NumPy."),
    "arrays": Difference(
        "more",
        "A value need not be wrapped in a `WeightData`, and need not be an array if NumPy can make one from it.",
    ),
    "symbolic-shapes": Difference("more", "A symbolic dimension matches any size, wherever a shape is asserted."),
    "read-only": Difference(
        "more",
        "A tensor shares the memory of a read-only array, such as a mapped file, and cannot be written to. MAX copies "
        "it; `copy()` does so here.",
    ),
    "ml-dtypes": Difference(
        "more",
        "`to_numpy()` and `from_numpy()` support bfloat16, fp8, fp6 and fp4 through ml_dtypes. MAX returns "
        "uint8 for some of them, and an error for others.",
    ),
    "names": Difference("more", "Dtypes and encodings are found by name, in any of the usual spellings."),
    "encodings": Difference("more", "Every GGUF type can be read. MAX supports Q4_0, Q4_K, Q5_K and Q6_K."),
    "rank": Difference("more", "A `Weight` outside a graph has a rank."),
    "shards-without-graph": Difference("more", "Shards and their shapes need no graph."),
    "shapes": Difference(
        "more", "A slice or a sum of shapes is a `Shape`, a shape equals a tuple, and a `Dim` is an index."
    ),
    "indexing": Difference("more", "`Buffer` has NumPy's basic indexing, and `len()`."),
    "numbers": Difference("more", "A tensor with one element converts to a number: `int()`, `float()`."),
    "load-report": Difference("more", "`load_state_dict(strict=False)` returns what was missing and unexpected."),
    "logical-shapes": Difference(
        "more",
        "A weight that is declared with its logical dtype and shape takes packed blocks of its encoding.",
    ),
    "fields": Difference(
        "more",
        "`WeightData` has a sixth field, keyword-only: the error that `astype` raises if the file's type is not known.",
    ),
    "modules": Difference("more", "A `Module` can be created without a class of its own, and given weights."),
    "symbolic-sizes": Difference("kind", "The number of elements of a symbolic shape is a ValueError."),
    "negative-sizes": Difference("kind", "A negative size is a ValueError wherever it occurs."),
    "no-such-dtype": Difference("kind", "A name that is not a dtype is a ValueError that lists the valid names."),
    "gptq-blocks": Difference("kind", "GPTQ has no blocks, and a ValueError says so."),
    "columns-of-a-vector": Difference("kind", "Columns of a vector are refused with a ValueError that says so."),
    "indices": Difference("kind", "An index that is out of range, or one index too many, is an IndexError."),
    "symbolic-pieces": Difference("kind", "Pieces of a symbolic dimension are refused with a ValueError."),
    "not-arrays": Difference("kind", "A value whose dtype no tensor can have is refused with a ValueError."),
    "printed": Difference("printed", "Tensors print with name and size, and devices print as `cpu:0`."),
    "pinned": Difference("later", "A tensor does not say whether its memory is pinned."),
    "facts-of-devices": Difference(
        "later", "A device does not say how much memory it has, and what it is: ask the system, or torch."
    ),
}
