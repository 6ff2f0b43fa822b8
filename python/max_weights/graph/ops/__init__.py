"""The operations of a graph: each takes values, records itself in the current graph, and returns its results."""

# isort: off
from max_weights._unsupported import unsupported_names as _unsupported_names
from max_weights.graph.ops import _complex as complex
from max_weights.graph.ops import _elementwise as elementwise
from max_weights.graph.ops import _reduction as reduction
from max_weights.graph.ops._complex import as_interleaved_complex
from max_weights.graph.ops._creation import constant, hann_window, range, shape_to_tensor
from max_weights.graph.ops._effects import buffer_load, buffer_store, buffer_store_slice, call, print, transfer_to
from max_weights.graph.ops._elementwise import (
    abs, acos, add, atanh, cast, ceil, cos, div, equal, erf, exp, floor, floor_div, floordiv, gelu, greater,
    greater_equal, is_inf, is_nan, less, less_equal, log, log1p, logical_and, logical_not, logical_or, logical_xor,
    mod, mul, neg, negate, not_equal, pow, relu, round, rsqrt, sigmoid, silu, sin, sqrt, sub, tanh, trunc, where,
)  # fmt: skip
from max_weights.graph.ops._images import (
    InterpolationMode, non_maximum_suppression, resize, resize_bicubic, resize_linear, resize_nearest,
)  # fmt: skip
from max_weights.graph.ops._indexing import gather, slice_tensor
from max_weights.graph.ops._linear import (
    band_part, dequantize, group_norm, layer_norm, logsoftmax, matmul, outer, qmatmul, rms_norm, softmax,
)  # fmt: skip
from max_weights.graph.ops._methods import bind_methods as _bind_methods
from max_weights.graph.ops._reduction import argmax, argmin, cumsum, mean, prod, sum
from max_weights.graph.ops._scattering import (
    gather_nd, masked_scatter, nonzero, scatter, scatter_add, scatter_max, scatter_min, scatter_mul, scatter_nd,
    scatter_nd_add, scatter_nd_max, scatter_nd_min, scatter_nd_mul,
)  # fmt: skip
from max_weights.graph.ops._selecting import argsort, bottom_k, max, min, top_k
from max_weights.graph.ops._shaping import (
    broadcast_to, chunk, concat, flatten, pad, permute, rebind, repeat_interleave, reshape, split, squeeze, stack,
    tile, transpose, unsqueeze,
)  # fmt: skip
from max_weights.graph.ops._texts import complete as _complete
from max_weights.graph.ops._windows import avg_pool2d, conv2d, fold, max_pool2d
# isort: on

__all__ = [
    "InterpolationMode", "abs", "acos", "add", "argmax", "argmin", "argsort", "as_interleaved_complex", "atanh",
    "avg_pool2d", "band_part", "bottom_k", "broadcast_to", "buffer_load", "buffer_store", "buffer_store_slice",
    "call", "cast", "ceil", "chunk", "complex", "concat", "constant", "conv2d", "cos", "cumsum", "dequantize",
    "div", "elementwise", "equal", "erf", "exp", "flatten", "floor", "floor_div", "floordiv", "fold", "gather",
    "gather_nd", "gelu", "greater", "greater_equal", "group_norm", "hann_window", "is_inf", "is_nan", "layer_norm",
    "less", "less_equal", "log", "log1p", "logical_and", "logical_not", "logical_or", "logical_xor", "logsoftmax",
    "masked_scatter", "matmul", "max", "max_pool2d", "mean", "min", "mod", "mul", "neg", "negate",
    "non_maximum_suppression", "nonzero", "not_equal", "outer", "pad", "permute", "pow", "print", "prod", "qmatmul",
    "range", "rebind", "reduction", "relu", "repeat_interleave", "reshape", "resize", "resize_bicubic",
    "resize_linear", "resize_nearest", "rms_norm", "round", "rsqrt", "scatter", "scatter_add", "scatter_max",
    "scatter_min", "scatter_mul", "scatter_nd", "scatter_nd_add", "scatter_nd_max", "scatter_nd_min",
    "scatter_nd_mul", "shape_to_tensor", "sigmoid", "silu", "sin", "slice_tensor", "softmax", "split", "sqrt",
    "squeeze", "stack", "sub", "sum", "tanh", "tile", "top_k", "transfer_to", "transpose", "trunc", "unsqueeze",
    "where",
]  # fmt: skip

_bind_methods()
_complete([*(globals()[name] for name in __all__), reduction.max, reduction.min])

_ONE_DEVICE = (
    "it moves tensors between devices of one model, but graphs here run on one device. Shards and their data are "
    "available without it: Weight.shard"
)
_COMPILER = (
    "it calls a kernel that MAX's compiler has compiled, but graphs here run on ONNX Runtime: compose it from other ops"
)
_BRANCHES = "a graph here has no branches: compute both sides and choose with ops.where, or decide in Python"
_ORDER = "ONNX Runtime chooses the order in which a graph is computed: record the operations sequentially"

__getattr__ = _unsupported_names(
    __name__,
    **dict.fromkeys(
        (
            "allgather",
            "allgather_rms_norm",
            "allgather_rms_norm_quant_mxfp6",
            "allgather_rms_norm_quant_mxfp8",
            "allreduce",
            "bundled_allreduce",
            "distributed_broadcast",
            "distributed_ep",
            "distributed_scatter",
            "reduce_scatter_rms_norm",
            "reducescatter",
            "shard_and_stack",
        ),
        _ONE_DEVICE,
    ),
    buffer_create="the buffers of a graph are its inputs: give a BufferType as an input type, and memory to each run",
    **dict.fromkeys(("custom", "inplace_custom"), _COMPILER),
    cond=_BRANCHES,
    while_loop="a graph here has no loops: repeat the operations in Python, as many times as is known when it is built",
    **dict.fromkeys(("parallel", "side_stream"), _ORDER),
    constant_external="it names data from outside: make a Weight of that name, and use it in the graph",
    irfft="MAX computes it only on GPUs: multiply by a matrix of cosines, or transform with NumPy",
    random="the numbers would differ from run to run: draw them with NumPy and give them to the graph as an input",
    roi_align="ONNX Runtime has no kernel for it on CPUs: cut the regions out with slices, and "
    "resize them with ops.resize",
    conv2d_transpose="only convolutions are supported: fold and a matrix product do the same",
    conv3d="only convolutions over two axes are supported: conv2d",
)
