"""The shared texts of the operations: parameters, results, errors, and examples.

The text of an operation has only what is specific to it. `complete` adds the missing sections.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable

_PARAMETERS = {
    "x": "A tensor.",
    "y": "A second tensor.",
    "lhs": "A tensor; or a number, an array or a `Dim` with a tensor on the right.",
    "rhs": "A tensor; or a number, an array or a `Dim` with a tensor on the left.",
    "input": "A tensor.",
    "value": "A tensor.",
    "values": "The tensors.",
    "axis": "The axis; negative ones count from the back.",
    "axis_1": "The first axis.",
    "axis_2": "The second axis.",
    "start_dim": "The first axis.",
    "end_dim": "The last axis.",
    "dims": "Each axis once, in the new order.",
    "dtype": "The dtype of the result.",
    "device": "The device of the result.",
    "shape": "The sizes.",
    "k": "The number of elements.",
    "updates": "The new elements, of the dtype of `input`.",
    "indices": "Positions: integers.",
    "label": "The text in front.",
    "kernel_size": "The height and width of a window.",
    "stride": "The distance between windows, one number or one for each axis.",
    "dilation": "The distance between the elements of a window, one number or one for each axis.",
    "padding": "What is around the image on both sides of height and of width, one number or one for each axis.",
    "ceil_mode": "Whether a last window that extends beyond the padding counts.",
}
_RETURNS = "A tensor, which is computed when the graph is run."
_RAISES = "GraphError: a dtype, a shape or a device does not fit, or there is no graph (a ValueError)."

# The arguments of an example, in a graph with `x` [2, 3] and `y` [3, 2], and the shape of its result; where the result
# is no tensor, the lines themselves. Operations that are not listed are called with `x`, or with `x, 2.0`.
_ROWS, _PLACES = "np.array([1, 0])", "np.array([[0, 1, 0]])"
_IMAGE = "x.reshape([1, 2, 3, 1])"
_POINTS = "x, y[:2, 0], np.array([[0, 1], [1, 1]])"
_PART = f"x, x[:1], {_PLACES}, axis=0"
_MEMORY = '>>> memory = BufferType(DType.float32, [2], CPU)\n>>> Graph("g", '
_TYPE = "...Type(dtype=float32, shape=[Dim(2)], device=cpu:0)"
_EXAMPLES: dict[str, tuple[str, list[int]] | str] = {
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), ("x > 0.0, x < 1.0", [2, 3])),
    **dict.fromkeys(("max_pool2d", "avg_pool2d"), (f"{_IMAGE}, (2, 2)", [1, 1, 2, 1])),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_max", "scatter_min", "scatter_mul"), (_PART, [2, 3])),
    **{f"scatter_nd{how}": (_POINTS, [2, 3]) for how in ("", "_add", "_max", "_min", "_mul")},
    **dict.fromkeys(("max", "min"), ("x, axis=0", [1, 3])),
    **dict.fromkeys(("mean", "sum", "prod", "argmax", "argmin"), ("x", [2, 1])),
    "as_interleaved_complex": ("y", [3, 1, 2]),
    "band_part": ("x, 0, -1", [2, 3]),
    "broadcast_to": ("x, [4, 2, 3]", [4, 2, 3]),
    "buffer_load": f"{_MEMORY}lambda b: ops.buffer_load(b), [memory]).output_types\n[{_TYPE}]",
    "buffer_store": f"{_MEMORY}lambda b: ops.buffer_store(b, b[...] * 2.0), [memory]).input_types\n[{_TYPE}]",
    "buffer_store_slice": f"{_MEMORY}lambda b: ops.buffer_store_slice(b, 0.0, 1), [memory]).input_types\n[{_TYPE}]",
    "call": '>>> twice = graph.add_subgraph("twice", lambda x: x * 2.0, [x.type])\n'
    ">>> ops.call(twice, x)[0].shape\n[Dim(2), Dim(3)]",
    "cast": ("x, DType.float16", [2, 3]),
    "chunk": ">>> ops.chunk(x, 3, axis=1)[0].shape\n[Dim(2), Dim(1)]",
    "concat": ("[x, x]", [4, 3]),
    "constant": ("[1.0, 2.0]", [2]),
    "conv2d": (f"{_IMAGE}, ops.constant(np.ones((2, 2, 1, 4), 'f4'))", [1, 1, 2, 4]),
    "cumsum": ("x, axis=1", [2, 3]),
    "dequantize": ('"Q4_0", Weight("w", DType.uint8, [4, 18], CPU)', [4, 32]),
    "flatten": ("x", [6]),
    "fold": ("y.reshape([1, 2, 3]), (1, 4), (1, 2)", [1, 1, 1, 4]),
    "gather": (f"x, {_ROWS}, axis=1", [2, 2]),
    "gather_nd": ("x, np.array([[0, 1], [1, 1]])", [2]),
    "group_norm": ("x, np.ones(3, 'f4'), np.zeros(3, 'f4'), num_groups=1, epsilon=1e-5", [2, 3]),
    "hann_window": ("8, CPU", [8]),
    "layer_norm": ("x, np.ones(3, 'f4'), np.zeros(3, 'f4'), 1e-5", [2, 3]),
    "logical_not": ("x > 0.0", [2, 3]),
    "masked_scatter": ('x, x > 0.0, y, "positive"', [2, 3]),
    "matmul": ("x, y", [2, 2]),
    "non_maximum_suppression": ("np.zeros((1, 5, 4), 'f4'), np.zeros((1, 2, 5), 'f4'), 3, 0.5, 0.1, 4", [4, 3]),
    "nonzero": ("x, 4", [4, 2]),
    "outer": ("x[0], y[0]", [3, 2]),
    "pad": ("x, [1, 1, 0, 0]", [4, 3]),
    "permute": ("x, [1, 0]", [3, 2]),
    "print": '>>> ops.print(x, "x")',
    "qmatmul": ('"Q4_0", None, np.zeros((2, 32), "f4"), Weight("w", DType.uint8, [4, 18], CPU)', [2, 4]),
    "range": ("0, 6, 2", [3]),
    "rebind": ("x, [2, 3]", [2, 3]),
    "repeat_interleave": ("x, 2, axis=0", [4, 3]),
    "reshape": ("x, [3, -1]", [3, 2]),
    "resize": ("x.reshape([1, 1, 2, 3]), [1, 1, 4, 6]", [1, 1, 4, 6]),
    "resize_bicubic": ("x.reshape([1, 1, 2, 3]), [1, 1, 4, 6]", [1, 1, 4, 6]),
    "resize_linear": ("x, [4, 6]", [4, 6]),
    "resize_nearest": ("x, [4, 6]", [4, 6]),
    "rms_norm": ("x, np.ones(3, 'f4'), 1e-6", [2, 3]),
    "shape_to_tensor": ("[2, 3]", [2]),
    "slice_tensor": ("x, (0, slice(1, None))", [2]),
    "split": ">>> ops.split(x, [1, 2], axis=1)[1].shape\n[Dim(2), Dim(2)]",
    "squeeze": ("x[:1], 0", [3]),
    "stack": ("[x, x]", [2, 2, 3]),
    "tile": ("x, [2, 1]", [4, 3]),
    "top_k": ">>> ops.top_k(x, 2)[0].shape\n[Dim(2), Dim(2)]",
    "bottom_k": ">>> ops.bottom_k(x, 2)[1].shape\n[Dim(2), Dim(2)]",
    "argsort": ("x[0]", [3]),
    "transfer_to": ("x, CPU", [2, 3]),
    "transpose": ("x, 0, 1", [3, 2]),
    "unsqueeze": ("x, 0", [1, 2, 3]),
    "where": ("x > 0.0, x, 0.0", [2, 3]),
}


def complete(functions: Iterable[object]) -> None:
    """Add the missing sections to the text of each function."""
    for function in filter(inspect.isfunction, functions):
        if function.__doc__ is None:  # with `python -OO`
            continue
        text, signature = inspect.cleandoc(function.__doc__), inspect.signature(function)
        name, parameters = function.__name__, signature.parameters
        arguments = "x, 2.0" if "rhs" in parameters else "x"
        example = _EXAMPLES.get(name, (arguments, [2, 3]))
        if isinstance(example, tuple):
            sizes = ", ".join(f"Dim({size})" for size in example[1])
            example = f">>> ops.{name}({example[0]}).shape\n[{sizes}]"
        sections = {
            "Args": "\n".join(f"{name}: {_PARAMETERS[name]}" for name in parameters) if "Args:" not in text else "",
            "Returns": "" if signature.return_annotation == "None" else _RETURNS,
            "Raises": _RAISES,
            "Example": example,
        }
        for title, lines in sections.items():
            if lines and f"\n{title}:" not in text:
                text += f"\n\n{title}:\n{textwrap.indent(lines, '    ')}"
        function.__doc__ = text
