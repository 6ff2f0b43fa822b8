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
    "documents": "Where the documents of the API say something else than MAX does",
    "more": "Where more is possible here",
    "kind": "Where both refuse, with exceptions of different kinds",
    "printed": "What is printed",
    "later": "Not there yet",
}

DIFFERENCES = {
    "whole-components": Difference(
        "better", "`items()` matches whole components of names: `layers[1]` is not the beginning of `layers.10`."
    ),
    "same-name-twice": Difference(
        "better", "A name that stands in two files of one checkpoint is an error. In MAX the file that comes last wins."
    ),
    "no-iteration": Difference(
        "better", "A node of a tree is not iterable. In MAX a `for` goes through the numbers without end, and `in` too."
    ),
    "name-clash": Difference(
        "better",
        "Two weights of one name in a module are an error; in MAX the second takes the place of the first.",
    ),
    "encodings-differ": Difference(
        "better",
        "Blocks of another encoding than the weight's are an error without `override_quantization_encoding`. MAX takes "
        "them, and the weight goes on saying that they are of its own encoding.",
    ),
    "copies": Difference("better", "Tensors, nodes and `WeightData` can be copied deeply and pickled."),
    "all-or-nothing": Difference(
        "better", "A call that fails leaves nothing behind: no allocated weight, and no half of a state dict."
    ),
    "alignment": Difference(
        "better", "`Weight.align` says what the bytes of the file are aligned to, by which kernels can go faster."
    ),
    "sub-byte": Difference("better", "A dtype of less than a byte has no size in bytes; MAX says 1."),
    "device-count": Difference(
        "better", "A number of devices below 1, or another one than the strategy's, is an error when it is given."
    ),
    "misfits": Difference(
        "better", "A size that a strategy cannot split is an error; MAX leaves columns out, or fails when it is used."
    ),
    "markers": Difference(
        "better",
        "A weight is not sharded by `tensor_parallel` and `expert_parallel`, which modules interpret: an error "
        "says so at once, and not when the shard is used.",
    ),
    "negative": Difference(
        "better", "Negative dimensions and device numbers are errors, and a bool is no dimension. MAX keeps them."
    ),
    "truth": Difference("better", "`bool()` of a tensor of one element is its value; in MAX it is always true."),
    "contiguous": Difference(
        "better",
        "A value whose memory is not contiguous is refused when it is loaded. MAX takes it, and fails when it is used.",
    ),
    "layer-lists": Difference(
        "better",
        "A `LayerList` is a list: layers can be appended, inserted, replaced and extended with, whatever the order. "
        "In MAX `extend` takes one layer, and what is appended spoils the names.",
    ),
    "bool-arithmetic": Difference(
        "better",
        "Arithmetic on bool that has no meaning is refused when it is recorded; MAX records it, and cannot compile it.",
    ),
    "functions-of-floats": Difference(
        "better",
        "Functions of floats refuse integers, and `-x` unsigned ones; in MAX the results are such integers.",
    ),
    "no-third-dtype": Difference(
        "better",
        "Two tensors meet in the dtype of one of them, as MAX's own rule says too; it makes float16 of some small "
        "floats, which does not hold all of them.",
    ),
    "stated-sizes": Difference("better", "The size that is stated for a slice of a known dimension is checked."),
    "tensor-bounds": Difference("better", "A slice between tensors without a stated size is refused with a sentence."),
    "lists": Difference(
        "better",
        "A list of ints is no index: it is one element in MAX and several rows in NumPy. `slice_tensor` takes it.",
    ),
    "axes": Difference("better", "An axis that is out of range is an error in every operation."),
    "rebind": Difference("better", "A `rebind` that is known to be wrong is refused when it is recorded."),
    "allocate-dtype": Difference(
        "documents", "`allocate(dtype=…)` converts, as its document says; MAX refuses another dtype than the file's."
    ),
    "graph-weights": Difference("documents", "`Graph.weights()` is there, as its document says."),
    "original-shape": Difference(
        "documents", "`original_dtype_and_shape` stays what the weight was declared as, whatever is loaded."
    ),
    "gptq-bytes": Difference(
        "documents", "A GPTQ weight is loaded as uint8, also where its encoding comes from the value."
    ),
    "shared-weights": Difference(
        "documents",
        "A weight that is set by `set_shared_weight` is left out of `raw_state_dict()`, as the document says.",
    ),
    "rounded-numbers": Difference(
        "more", "A number beside a tensor of floats is rounded to them, as a fraction is; MAX refuses large integers."
    ),
    "backward": Difference("more", "The size of a backward slice of a known dimension is worked out."),
    "rows": Difference("more", "A tensor of several integers is an index, as in NumPy."),
    "packed": Difference("more", "`qmatmul` and `dequantize` take other floats, and Q4_1, Q5_K and Q8_0 too."),
    "pytorch-files": Difference("more", "PyTorch files are read too; nothing in them is executed."),
    "file-order": Difference("more", "`items()` is in the order of the file, in which it is read fastest; MAX sorts."),
    "children": Difference("more", "A node has `len()`, `in` and `keys()`."),
    "equality": Difference("more", "`WeightData` compares by identity: values are compared with NumPy."),
    "arrays": Difference("more", "A value needs no `WeightData` around it, and no array where NumPy makes one."),
    "symbolic-shapes": Difference("more", "A symbolic dimension stands for any, wherever a shape is asserted."),
    "ml-dtypes": Difference(
        "more",
        "`to_numpy()` and `from_numpy()` know bfloat16, fp8, fp6 and fp4 by ml_dtypes. MAX gives uint8 for some of "
        "them, and an error for others.",
    ),
    "names": Difference("more", "Dtypes and encodings are found by their names in any of the usual spellings."),
    "encodings": Difference("more", "Every type of GGUF is read; MAX knows Q4_0, Q4_K, Q5_K and Q6_K."),
    "rank": Difference("more", "A `Weight` outside of a graph has a rank."),
    "shards-without-graph": Difference("more", "Shards and their shapes need no graph."),
    "shapes": Difference(
        "more", "A slice or a sum of shapes is a `Shape`, a shape equals a tuple, and a `Dim` is an index."
    ),
    "indexing": Difference("more", "`Buffer` has basic indexing as NumPy has it, and `len()`."),
    "numbers": Difference("more", "A tensor of one element is a number: `int()`, `float()`."),
    "load-report": Difference("more", "`load_state_dict(strict=False)` returns what was missing and unexpected."),
    "logical-shapes": Difference(
        "more", "A weight that is declared by its logical dtype and shape takes packed blocks of its encoding."
    ),
    "fields": Difference(
        "more",
        "`WeightData` has a sixth field, for keywords alone: what `astype` raises where the file's type is not known.",
    ),
    "modules": Difference("more", "A `Module` of no class of its own can be made, and given weights."),
    "symbolic-sizes": Difference("kind", "The number of elements of a symbolic shape is a ValueError."),
    "negative-sizes": Difference("kind", "A negative size is a ValueError wherever it stands."),
    "no-such-dtype": Difference("kind", "A name that is no dtype is a ValueError that lists them."),
    "gptq-blocks": Difference("kind", "GPTQ has no blocks: a ValueError says so."),
    "columns-of-a-vector": Difference("kind", "Columns of a vector are refused with a ValueError that says so."),
    "indices": Difference("kind", "An index that is out of range, or one too many, is an IndexError."),
    "not-arrays": Difference("kind", "What has no dtype that a tensor can have is refused with a ValueError."),
    "printed": Difference("printed", "Tensors print with name and size, devices as `cpu:0`."),
}
