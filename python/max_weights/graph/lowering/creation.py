"""Lowering of tensors that come from numbers, dimensions and shapes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights.dtype import DType
from max_weights.graph.lowering.dtypes import computed_as
from max_weights.graph.lowering.table import lowers

if TYPE_CHECKING:
    from max_weights.graph.lowering.scope import Scope
    from max_weights.graph.value import Node


@lowers("constant")
def constant(scope: Scope, node: Node) -> str:
    """The elements."""
    return scope.constant(node.attributes["value"], node.outputs[0].dtype)


@lowers("dim")
def dim(scope: Scope, node: Node) -> str:
    """The size of a dimension as a scalar."""
    size = scope.add("Squeeze", [scope.dim(node.attributes["dim"]), scope.constant([0])])
    return scope.cast(size, DType.int64, node.outputs[0].dtype)


@lowers("shape")
def shape(scope: Scope, node: Node) -> str:
    """Several sizes in a row."""
    return scope.dims(node.attributes["dims"])


@lowers("range")
def count(scope: Scope, node: Node) -> str:
    """From start to stop by step."""
    dtype = node.outputs[0].dtype
    wide = computed_as("Range", dtype)
    ends = [scope.cast(name, dtype, wide) for name in scope.inputs(node)]
    return scope.cast(scope.add("Range", ends), wide, dtype)
