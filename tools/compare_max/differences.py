"""The deliberate differences from MAX: the meaning of a mark `# differs: ID` in a program, and the reason."""

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
    "documents": "Where MAX differs from its documentation, and this package does not",
    "more": "What works only here, or differently",
    "kind": "What both refuse, with different exceptions",
    "printed": "Printing",
    "later": "Missing",
}

DIFFERENCES = {
    "whole-components": Difference(
        "better", "`items()` matches whole components of names: `layers[1]` does not match `layers.10`."
    ),
    "same-name-twice": Difference(
        "better", "A name in two files of one checkpoint is an error. In MAX the last file wins."
    ),
    "no-iteration": Difference("better", "A node is not iterable. In MAX, `for` and `in` never end."),
    "name-clash": Difference(
        "better", "Two weights of one name in a module are an error. In MAX the second replaces the first."
    ),
    "encodings-differ": Difference(
        "better",
        "Blocks in another encoding are an error without `override_quantization_encoding`. MAX takes them, and the"
        " weight keeps its encoding.",
    ),
    "copies": Difference("better", "Tensors, nodes and `WeightData` can be deep-copied and pickled."),
    "all-or-nothing": Difference("better", "A failed call leaves no allocated weight and no half-loaded state dict."),
    "alignment": Difference("better", "`Weight.align` is the alignment of the bytes in the file. In MAX it is 1."),
    "sub-byte": Difference("better", "A dtype below a byte has no size in bytes. MAX returns 1."),
    "device-count": Difference("better", "A number of devices below 1, or not the strategy's, is an error at once."),
    "misfits": Difference(
        "better", "A size that a strategy cannot split is an error. MAX drops columns, or fails on use."
    ),
    "markers": Difference(
        "better",
        "`tensor_parallel` and `expert_parallel` do not shard a weight; modules do. The error is immediate.",
    ),
    "negative": Difference(
        "better", "Negative dimensions and device numbers are errors, and a bool is not a dimension. MAX accepts them."
    ),
    "truth": Difference("better", "`bool()` of a tensor with one element is its value. In MAX it is always true."),
    "contiguous": Difference("better", "A value that is not contiguous is refused when you load it. MAX fails on use."),
    "layer-lists": Difference(
        "better", "A `LayerList` is a list. In MAX, `extend` takes one layer, and appending breaks the names."
    ),
    "bool-arithmetic": Difference(
        "better", "Meaningless arithmetic on bool is refused when it is recorded. MAX cannot compile it."
    ),
    "functions-of-floats": Difference(
        "better",
        "Functions of floats refuse integers, and `-x` refuses unsigned integers. In MAX the results are integers.",
    ),
    "no-third-dtype": Difference(
        "better",
        "Two tensors are promoted to the dtype of one of them, by MAX's own rule. MAX promotes some small floats to"
        " float16, which does not hold all values.",
    ),
    "stated-sizes": Difference("better", "The stated size of a slice of a known dimension is checked."),
    "tensor-bounds": Difference(
        "better", "A slice between tensors without a stated size is refused with an explanation."
    ),
    "lists": Difference(
        "better", "A list of ints is not an index: MAX takes one element, NumPy several rows. `slice_tensor` takes it."
    ),
    "axes": Difference("better", "An axis out of range is an error in every operation."),
    "no-elements": Difference(
        "better", "The largest of no elements, its position, and a norm over them are refused when they are recorded."
    ),
    "pieces": Difference(
        "better", "Pieces must make up the whole; one piece of a symbolic dimension is that dimension."
    ),
    "index-of-a-scalar": Difference(
        "better", "A tensor of rank 0 has no index 0 for writing; `[()]` and `[...]` write to it."
    ),
    "rebind": Difference("better", "A wrong `rebind` is refused when it is recorded."),
    "allocate-dtype": Difference(
        "documents", "`allocate(dtype=…)` converts. MAX refuses a dtype other than the file's."
    ),
    "graph-weights": Difference("documents", "`Graph.weights()` exists."),
    "original-shape": Difference("documents", "`original_dtype_and_shape` keeps the declaration, whatever is loaded."),
    "gptq-bytes": Difference(
        "documents", "A GPTQ weight is loaded as uint8, even if its encoding comes from the value."
    ),
    "shared-weights": Difference("documents", "A weight set by `set_shared_weight` is not in `raw_state_dict()`."),
    "group-norm": Difference(
        "more", "The weights of a `GroupNorm` are on the CPU by default. In MAX they are on GPU 0."
    ),
    "rounded-numbers": Difference(
        "more", "A number combined with a tensor of floats is rounded to their dtype. MAX refuses large integers."
    ),
    "backward": Difference("more", "The size of a backward slice of a known dimension is computed."),
    "rows": Difference("more", "A tensor of several integers is an index, as in NumPy."),
    "packed": Difference("more", "`qmatmul` and `dequantize` also take other floats, and Q4_1, Q5_K and Q8_0."),
    "pytorch-files": Difference("more", "PyTorch files can be read. Nothing in them is executed."),
    "file-order": Difference("more", "`items()` yields the order of the file, in which reading is fastest. MAX sorts."),
    "missing-names": Difference(
        "more", "`items()` of an unknown name is an error with near names. In MAX it yields nothing."
    ),
    "children": Difference("more", "A node has `len()`, `in` and `children()`."),
    "equality": Difference("more", "`WeightData` compares by identity. Compare values with NumPy."),
    "arrays": Difference("more", "A value needs no `WeightData`, and may be anything that NumPy makes an array from."),
    "symbolic-shapes": Difference("more", "A symbolic dimension matches any size in an asserted shape."),
    "read-only": Difference(
        "more",
        "A tensor shares the memory of a read-only array, and cannot be written to. MAX copies it, as `copy()` does.",
    ),
    "ml-dtypes": Difference(
        "more",
        "`to_numpy()` and `from_numpy()` support bfloat16, fp8, fp6 and fp4 through ml_dtypes. MAX returns uint8 for"
        " some, and an error for others.",
    ),
    "names": Difference("more", "Dtypes and encodings are found by name, in the usual spellings."),
    "encodings": Difference("more", "Every GGUF type can be read. MAX supports Q4_0, Q4_K, Q5_K and Q6_K."),
    "rank": Difference("more", "A `Weight` outside a graph has a rank."),
    "shards-without-graph": Difference("more", "Shards and their shapes need no graph."),
    "shapes": Difference(
        "more", "A slice or a sum of shapes is a `Shape`, a shape equals a tuple, and a `Dim` is an index."
    ),
    "indexing": Difference("more", "`Buffer` has NumPy's basic indexing, and `len()`."),
    "numbers": Difference("more", "A tensor with one element converts to `int` and `float`."),
    "load-report": Difference("more", "`load_state_dict(strict=False)` returns missing and unexpected names."),
    "logical-shapes": Difference(
        "more", "A weight declared with its logical dtype and shape takes packed blocks of its encoding."
    ),
    "fields": Difference(
        "more", "`WeightData` has a sixth field, keyword-only: the error that `astype` raises for an unknown type."
    ),
    "modules": Difference("more", "A `Module` needs no subclass, and can be given weights."),
    "symbolic-sizes": Difference("kind", "The number of elements of a symbolic shape is a ValueError."),
    "negative-sizes": Difference("kind", "A negative size is a ValueError."),
    "no-such-dtype": Difference("kind", "An unknown dtype name is a ValueError that lists the valid names."),
    "gptq-blocks": Difference("kind", "GPTQ has no blocks: a ValueError."),
    "columns-of-a-vector": Difference("kind", "Columns of a vector are a ValueError."),
    "indices": Difference("kind", "An index out of range, or one index too many, is an IndexError."),
    "symbolic-pieces": Difference("kind", "Pieces of a symbolic dimension are a ValueError."),
    "not-arrays": Difference("kind", "A value whose dtype no tensor can have is a ValueError."),
    "printed": Difference("printed", "Tensors print with name and size, and devices print as `cpu:0`."),
    "pinned": Difference("later", "A tensor does not report whether its memory is pinned."),
    "facts-of-devices": Difference("later", "A device does not report its memory and model: ask the system, or torch."),
}
