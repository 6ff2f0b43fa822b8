"""Graphs: dtypes that meet, indices, the shapes of results, and what is refused."""

from itertools import combinations

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, Dim, Graph, TensorType, ops
from max.graph.quantization import QuantizationEncoding

CPU = DeviceRef.CPU()


def inputs(*types):
    """A graph with inputs of these dtypes and shapes."""
    return Graph("g", input_types=[TensorType(dtype, shape, CPU) for dtype, shape in types])


def met(compute, left, right):
    """The dtype of what is computed from two tensors of these dtypes."""
    with inputs((DType[left], [2, 2]), (DType[right], [2, 2])) as graph:
        return compute(*(value.tensor for value in graph.inputs)).dtype


# --- dtypes -----------------------------------------------------------------------------------------------------------
integers = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
numbers = [*integers, "float16", "bfloat16", "float32", "float64"]
pairs = [" ".join(pair) for pair in combinations(numbers, 2)]
for pair in pairs:
    met(ops.add, *pair.split())
    met(ops.div, *pair.split())
    met(ops.equal, *pair.split())
    met(ops.matmul, *pair.split())
    met(lambda x, y: ops.where(x == x, y, x), *pair.split())
    met(lambda x, y: ops.concat([x, y]), *pair.split())
    met(lambda x, y: ops.stack([x, y]), *pair.split())
for name in numbers:
    met(ops.add, name, name)
    met(ops.div, name, name)
    met(ops.add, name, "bool")
    met(ops.mul, "bool", name)
    met(ops.greater, name, "bool")
    met(lambda x, _: ops.mean(x), name, name)
    met(lambda x, _: ops.sum(x), name, name)
    met(lambda x, _: ops.argmax(x), name, name)
    met(lambda x, _: x + 1, name, name)
    met(lambda x, _: x + True, name, name)
for name in ("float16", "bfloat16", "float32", "float64"):
    met(ops.add, name, "float8_e4m3fn")
    met(ops.add, "float8_e5m2", name)
    met(lambda x, _: 0.1 * x, name, name)
for name in integers:
    met(lambda x, _: x + 2.5, name, name)
    met(lambda x, _: x + 2.0, name, name)
met(ops.add, "float8_e4m3fn", "int8")  # differs: no-third-dtype
met(ops.add, "float8_e4m3fn", "float8_e5m2")  # differs: no-third-dtype
met(ops.add, "bool", "bool")
met(ops.mul, "bool", "bool")
met(ops.max, "bool", "bool")
met(ops.sub, "bool", "bool")  # differs: bool-arithmetic
met(ops.div, "bool", "bool")  # differs: bool-arithmetic
met(ops.div, "bool", "int8")  # differs: bool-arithmetic
met(lambda x, _: -x, "bool", "bool")  # differs: bool-arithmetic
met(lambda x, _: x + 1, "bool", "bool")  # differs: bool-arithmetic
met(lambda x, _: x + 2, "bool", "bool")
met(lambda x, _: ops.sum(x), "bool", "bool")  # differs: bool-arithmetic
met(lambda x, _: ops.max(x), "bool", "bool")
met(lambda x, _: ops.argmax(x), "bool", "bool")
for name in ("mean", "prod", "cumsum"):
    met(lambda x, _, name=name: getattr(ops, name)(x), "bool", "bool")  # differs: bool-arithmetic
met(ops.logical_and, "bool", "int32")
met(lambda x, _: ~x, "int32", "int32")
met(lambda x, _: ops.where(x, x, x), "int32", "int32")
met(lambda x, _: x + 128, "int8", "int8")
met(lambda x, _: x + 300, "uint8", "uint8")
met(lambda x, _: x + 257, "bfloat16", "bfloat16")  # differs: rounded-numbers
met(lambda x, _: x + (2**24 + 1), "float32", "float32")  # differs: rounded-numbers
met(lambda x, _: -x, "uint8", "uint8")  # differs: functions-of-floats
for name in ("exp", "log", "sqrt", "tanh", "floor"):
    met(lambda x, _, name=name: getattr(ops, name)(x), "float32", "float32")
    met(lambda x, _, name=name: getattr(ops, name)(x), "int32", "int32")  # differs: functions-of-floats

# --- indices ----------------------------------------------------------------------------------------------------------
with inputs((DType.float32, [4, 3]), (DType.float32, ["n", 3]), (DType.int64, []), (DType.int64, [2])) as graph:
    x, y, at, rows = (value.tensor for value in graph.inputs)
    ops.slice_tensor(x, [slice(0, 2), 1])
    ops.slice_tensor(x, [..., None])
    x[0]
    x[-1, 2]
    x[1:]
    x[:, -1:]
    x[4:]
    x[2:2]
    x[..., None, 0]
    x[5:]
    x[:, 0:1024]
    x[-5:]
    x[:-5]
    x[2:1]
    x[4]
    x[-5]
    x[0, 0, 0]
    x[..., ...]
    x[1.5]
    x[::0]
    x[::2]
    x[::-1]  # differs: backward
    x[3:0:-1]  # differs: backward
    x[(slice(None, None, -1), 4), :]
    x[(slice(0, 1024), "m"), :]
    x[(slice(0, 2), 3), :]  # differs: stated-sizes
    x[(slice(at, None), 2), :]
    x[(slice(at, None), 2), 1]
    x[(slice(1, at), "m"), ...]
    x[at:]  # differs: tensor-bounds
    x[(slice(x[0, 0], None), 2), :]
    x[(slice(rows, None), 2), :]
    x[at]
    x[at, 0]
    x[at, at]
    x[rows]  # differs: rows
    x[[0, 1]]  # differs: lists
    y[0]
    y[:5]
    y[2:5]
    y[-3:]
    y[5:2]
    y[: Dim("m")]
    y[(slice(-3, 5), "m"), :]

# --- axes -------------------------------------------------------------------------------------------------------------
with inputs((DType.float32, [4, 3]), (DType.float32, ["n", 6]), (DType.int64, [2])) as graph:
    x, y, rows = (value.tensor for value in graph.inputs)
    for name in ("sum", "mean", "max", "min", "prod", "argmax", "argmin", "cumsum"):
        getattr(ops, name)(x)
        getattr(ops, name)(y, axis=0)
        getattr(ops, name)(x, axis=2)
    for name in ("max", "min"):
        getattr(ops, name)(x, x)
        getattr(ops, name)(x, x, axis=0)
        getattr(ops.reduction, name)(y, 0)
        getattr(ops.elementwise, name)(y, y)
    for name in ("max", "min", "mean", "var", "stdev", "argmax"):
        getattr(x, name)()
        getattr(y, name)(0)
        getattr(y, name)(axis=-3)
    ops.softmax(x, axis=2)  # differs: axes
    ops.gather(x, rows, axis=2)
    ops.concat([x, x], axis=2)
    ops.stack([x, x], axis=3)
    ops.split(x, [1, 2], axis=2)
    ops.split(x, [1, 3], axis=1)
    ops.chunk(x, 2, axis=2)
    ops.transpose(x, 0, 2)
    ops.permute(x, [0, 2])
    ops.permute(x, [0, 0])
    ops.squeeze(x, 2)
    ops.squeeze(x, 0)
    ops.unsqueeze(x, 3)
    ops.flatten(x, 0, 2)
    ops.flatten(x, 1, 0)
    ops.concat([])
    ops.stack([])
    x @ x
    x + y
    x.reshape([5, 2])
    x.rebind([5, 3])  # differs: rebind
Graph.current

# --- further operations -----------------------------------------------------------------------------------------------
types = (
    (DType.float32, ["b", 6, 4]),
    (DType.int32, ["k", 2]),
    (DType.float32, ["k", 4]),
    (DType.bool, [6, 4]),
    (DType.float32, [2, 8, 7, 3]),
)
with inputs(*types) as graph:
    x, places, some, mask, image = (value.tensor for value in graph.inputs)
    ops.top_k(x, 2)
    ops.top_k(x, 2, axis=1)
    ops.bottom_k(x, 3, 1)
    ops.top_k(x, 5)
    ops.top_k(x, 1, axis=3)
    ops.argsort(x[0, 0])
    ops.argsort(x[:, 0, 0], ascending=False)
    ops.argsort(x)
    ops.chunk(x, 3, axis=1)
    ops.chunk(x, 4, axis=1)
    ops.pad(x, [0, 0, 1, 2, 3, 4])
    ops.pad(x, [0, 0, 1, 2, 3, 3], mode="reflect")
    ops.pad(x, [0, 0, 1, 2, 3, 3], mode="edge")
    ops.pad(x, [0, 0, -1, 0, 0, 0])
    ops.pad(x, [0] * 6, mode="wrap")
    ops.gather_nd(x, places)
    ops.gather_nd(x, places[:, :1])
    ops.gather_nd(some, places, batch_dims=1)
    ops.gather_nd(x, some)
    ops.scatter_nd(x, some, places)
    ops.scatter_nd_add(x, some, places)
    ops.scatter(some, some[:, :2], places)
    ops.scatter_add(some, some[:, :2], places, axis=0)
    ops.scatter(x, places, places)
    ops.scatter(some, some[:, :2], places, axis=2)
    ops.scatter(some, some[:, :2], some[:, :2])
    ops.masked_scatter(x, mask, some, "m")
    ops.nonzero(mask, "m")
    ops.nonzero(x, 7)
    ops.nonzero(x[0, 0, 0], "m")
    ops.repeat_interleave(x, 2, axis=1)
    ops.repeat_interleave(image, 2)
    ops.repeat_interleave(x, places[0, :1], axis=1, out_dim="m")
    ops.repeat_interleave(x, places[0, :1], axis=1)
    ops.repeat_interleave(x, -1)
    ops.band_part(x, 1, 0)
    ops.band_part(x, 6)
    ops.band_part(x, -2)
    ops.band_part(x, -1, 0)
    ops.band_part(x, 0, -1)
    ops.band_part(x, -1, -1, exclude=True)
    ops.band_part(x[0, 0])
    ops.hann_window(8, CPU)
    ops.hann_window(0, CPU, periodic=False, dtype=DType.float16)
    ops.hann_window(-1, CPU)
    ops.hann_window(1.5, CPU)
    ops.shape_to_tensor(x.shape)
    ops.shape_to_tensor([2, 3])
    ops.as_interleaved_complex(x)
    ops.as_interleaved_complex(image)
    ops.tile(x, [1, 2, 3])
    ops.outer(x[0, 0], x[0, :, 0])
    for name in ("ceil", "round", "trunc", "log1p", "atanh", "acos", "negate", "is_nan", "is_inf"):
        getattr(ops, name)(x)
    round(x)
    divmod(x, 2)
    ops.floor_div(x, x)
    ops.max_pool2d(image, (2, 2), stride=2)
    ops.max_pool2d(image, (3, 2), stride=(2, 1), dilation=(2, 1), padding=(1, 0), ceil_mode=True)
    ops.avg_pool2d(image, (2, 2), stride=2, padding=1, count_boundary=False)
    ops.max_pool2d(image, (9, 9))
    ops.fold(image.reshape([2, 28, 6]), (4, 3), (2, 2))
    ops.fold(image.reshape([2, 28, 6]), (4, 4), (2, 2))
    ops.fold(image.reshape([2, 24, 7]), (9, 9), (5, 1), stride=(2, 3))
    ops.resize(image, [2, 8, 14, 6])
    ops.resize(image, [2, 8, 14, 6], ops.InterpolationMode.NEAREST)
    ops.resize_bicubic(image, [2, 8, 14, 6])
    ops.resize_linear(x, ["b", 12, 8], 1)
    ops.resize_linear(x, ["b", 12, 8], 4)
    ops.resize(x, ["b", 12, 8])
    ops.scatter_max(some, some.rebind([3, 4]), ops.constant(np.zeros([3, 4], np.int64), DType.int64, CPU), axis=0)

# --- packed matrices --------------------------------------------------------------------------------------------------
with inputs((DType.float32, ["n", 256]), (DType.uint8, [8, 144]), (DType.float16, ["n", 256])) as graph:
    x, matrix, half = (value.tensor for value in graph.inputs)
    ops.qmatmul(QuantizationEncoding.Q4_K, None, x, matrix)
    ops.qmatmul(QuantizationEncoding.Q4_0, None, x, matrix)
    ops.qmatmul(QuantizationEncoding.Q4_K, None, x, x)
    ops.qmatmul(QuantizationEncoding.Q4_K, None, half, matrix)  # differs: packed
    ops.dequantize(QuantizationEncoding.Q4_K, matrix)
    ops.dequantize(QuantizationEncoding.Q4_0, matrix)
    ops.dequantize(QuantizationEncoding.Q6_K, matrix)
    ops.dequantize(QuantizationEncoding.Q5_K, matrix[:, :0])  # differs: packed

# --- without elements -------------------------------------------------------------------------------------------------
with inputs((DType.float32, [2, 0]), (DType.float32, [0, 3]), (DType.float32, [0]), (DType.float32, [])) as graph:
    rows, columns, row, one = (value.tensor for value in graph.inputs)
    for name in ("mean", "sum", "prod", "cumsum"):
        getattr(ops, name)(rows)
        getattr(ops, name)(columns)
        getattr(ops, name)(one)
    for name in ("max", "min", "argmax", "argmin"):
        getattr(ops, name)(rows)  # differs: no-elements
        getattr(ops, name)(columns)
        getattr(ops, name)(one)
    ops.softmax(rows)
    ops.softmax(one)  # differs: axes
    ops.layer_norm(rows, row, row, 1e-5)  # differs: no-elements
    ops.rms_norm(rows, row, 1e-5)  # differs: no-elements

# --- pieces -----------------------------------------------------------------------------------------------------------
with inputs((DType.float32, [6, 4]), (DType.float32, ["n", 4]), (DType.float32, [0, 4])) as graph:
    x, y, none = (value.tensor for value in graph.inputs)
    ops.chunk(x, 3)
    ops.chunk(x, 3, axis=-1)
    ops.chunk(x, 1)
    ops.chunk(x, 7)
    ops.chunk(x, 0)  # differs: pieces
    ops.chunk(x, -1)  # differs: pieces
    ops.chunk(y, 1)  # differs: pieces
    ops.chunk(y, 2)  # differs: symbolic-pieces
    ops.chunk(none, 2)
    ops.split(x, [6])
    ops.split(x, [0, 6])
    ops.split(x, [])  # differs: pieces
    ops.split(x, [2, 2])
    ops.split(x, [-1, 7])
    ops.split(y, [2, 4])
    ops.split(y, ["a", "b"])  # differs: symbolic-pieces
    ops.split(x, [6], axis=-3)
