"""Lowering of operations that join tensors, split them, and take parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from max_weights._dim import Dim, to_dim
from max_weights._dtype import DType
from max_weights.graph._lowering.dtypes import computed_as
from max_weights.graph._lowering.table import register_lowering
from max_weights.graph.ops._indexing import size_of_slice

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph._value import Node

__all__ = ["write_gather", "write_slice"]

_END = 2**63 - 1


@register_lowering("concat")
def lower_concat(scope: Scope, node: Node) -> ir.Value:
    """Lower concatenation along an axis."""
    return scope.compute("Concat", scope.inputs(node), node.outputs[0].dtype, axis=node.attributes["axis"])


@register_lowering("stack")
def lower_stack(scope: Scope, node: Node) -> ir.Value:
    """Lower stacking along a new axis."""
    dtype, axis = node.outputs[0].dtype, node.attributes["axis"]
    places = [scope.constant([axis])]
    parts = [scope.compute("Unsqueeze", [name], dtype, extra_inputs=places) for name in scope.inputs(node)]
    return scope.compute("Concat", parts, dtype, axis=axis)


@register_lowering("split")
def lower_split(scope: Scope, node: Node) -> Sequence[ir.Value]:
    """Lower splitting along an axis."""
    sizes = scope.dims(node.attributes["sizes"])
    dtype, (x,) = node.inputs[0].dtype, scope.inputs(node)
    wide = computed_as("Split", dtype)
    result = scope.add_several(
        "Split", [scope.cast(x, dtype, wide), sizes], len(node.outputs), axis=node.attributes["axis"]
    )
    return [scope.cast(name, wide, dtype) for name in result]


@register_lowering("gather")
def lower_gather(scope: Scope, node: Node) -> ir.Value:
    """Lower slices at positions."""
    return write_gather(scope, node, scope.inputs(node)[0])


def write_gather(scope: Scope, node: Node, x: ir.Value) -> ir.Value:
    """Write the slices of a tensor at the positions of `node`, which ONNX takes as integers of 32 or 64 bits."""
    positions, dtype = scope[node.inputs[1]], node.inputs[1].dtype
    if dtype not in (DType.int32, DType.int64):
        positions = scope.cast(positions, dtype, DType.int64)
    return scope.compute("Gather", [x], node.outputs[0].dtype, extra_inputs=[positions], axis=node.attributes["axis"])


@register_lowering("slice_tensor")
def lower_slice_tensor(scope: Scope, node: Node) -> ir.Value:
    """Lower slices."""
    return write_slice(scope, node, scope.inputs(node)[0], node.outputs[0].shape)


def write_slice(scope: Scope, node: Node, x: ir.Value, dims: Sequence[Dim]) -> ir.Value:
    """Write the slices of a tensor with the index of `node` as Slice; ints and new axes as Reshape to `dims`.

    Reshape also takes a size that is stated, and fails if it is another.
    """
    shape, (result,) = node.inputs[0].shape, node.outputs
    starts: list[int | Dim] = []
    ends: list[int | Dim] = []
    axes, steps = [], []
    axis, place = 0, 0  # of the operand, of the result
    has_other_axes = is_stated = False
    for entry in node.attributes["index"]:
        if entry is None:
            has_other_axes, place = True, place + 1
            continue
        if isinstance(entry, tuple):
            start, stop, step = entry
            is_stated = is_stated or size_of_slice(entry, shape[axis], shape) != result.shape[place]
            if (start, stop, step) != (None, None, 1):
                forward = step > 0
                starts.append((0 if forward else _END) if start is None else start)
                ends.append((_END if forward else -_END) if stop is None else stop)
                axes.append(axis)
                steps.append(step)
            place += 1
        else:
            has_other_axes = True
            starts.append(entry)
            ends.append(_END if entry == -1 else entry + 1)
            axes.append(axis)
            steps.append(1)
        axis += 1
    if axes:
        bounds = [_bounds(scope, starts), _bounds(scope, ends), scope.constant(axes), scope.constant(steps)]
        x = scope.compute("Slice", [x], result.dtype, extra_inputs=bounds)
    if has_other_axes:
        x = scope.reshape(x, dims)
    return scope.check_shape(x, dims) if is_stated else x


def _bounds(scope: Scope, bounds: Sequence[int | Dim]) -> ir.Value:
    if all(isinstance(bound, int) for bound in bounds):
        return scope.constant(bounds)
    parts = [scope.dim(to_dim(bound)) if isinstance(bound, Dim) else scope.constant([bound]) for bound in bounds]
    return scope.add("Concat", parts, axis=0)
