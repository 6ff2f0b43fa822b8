"""Lowering of operations on each element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from max_weights.dtype import DType
from max_weights.graph.lowering.dtypes import computed_as
from max_weights.graph.lowering.scope import CONTRIB
from max_weights.graph.lowering.table import lowers

if TYPE_CHECKING:
    from max_weights.graph.lowering.scope import Scope
    from max_weights.graph.value import Node

_SAME = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "neg": "Neg",
    "abs": "Abs",
    "relu": "Relu",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "log": "Log",
    "sin": "Sin",
    "cos": "Cos",
    "tanh": "Tanh",
    "erf": "Erf",
    "floor": "Floor",
    "sigmoid": "Sigmoid",
    "maximum": "Max",
    "minimum": "Min",
}


@lowers(*_SAME)
def same(scope: Scope, node: Node) -> str:
    """Operations that ONNX has as they are."""
    return scope.compute(_SAME[node.op], scope.inputs(node), node.outputs[0].dtype)


@lowers("pow")
def power(scope: Scope, node: Node) -> str:
    """ONNX Runtime's Pow of integers goes through double; that is exact up to 2**53."""
    return scope.compute("Pow", scope.inputs(node), node.outputs[0].dtype)


@lowers("mod")
def mod(scope: Scope, node: Node) -> str:
    """Of integers, Mod has the sign of the divisor, as Python has it; of floats, fmod has that of the dividend."""
    dtype = node.outputs[0].dtype
    left, right = scope.inputs(node)
    if dtype.is_integral():
        return scope.compute("Mod", [left, right], dtype)
    rest = scope.compute("Mod", [left, right], dtype, fmod=1)
    zero = scope.constant(0, dtype)
    negative = [scope.compute("Less", [name, zero], dtype, made=DType.bool) for name in (rest, right)]
    differ = scope.add("Xor", negative)
    some = scope.add("Not", [scope.compute("Equal", [rest, zero], dtype, made=DType.bool)])
    moved = scope.compute("Add", [rest, right], dtype)
    return choose(scope, scope.add("And", [differ, some]), moved, rest, dtype)


@lowers("floordiv")
def floordiv(scope: Scope, node: Node) -> str:
    """ONNX divides integers toward zero: one less where there is a rest and the signs differ."""
    dtype = node.outputs[0].dtype
    left, right = scope.inputs(node)
    quotient = scope.compute("Div", [left, right], dtype)
    if dtype.is_float():
        return scope.compute("Floor", [quotient], dtype)
    if dtype.is_unsigned_integral():
        return quotient
    zero, one = scope.constant(0, dtype), scope.constant(1, dtype)
    rest = scope.compute("Mod", [left, right], dtype)
    whole = scope.compute("Equal", [rest, zero], dtype, made=DType.bool)
    signs = [scope.compute("Less", [name, zero], dtype, made=DType.bool) for name in (left, right)]
    down = scope.add("And", [scope.add("Not", [whole]), scope.add("Xor", signs)])
    return choose(scope, down, scope.compute("Sub", [quotient, one], dtype), quotient, dtype)


def choose(scope: Scope, condition: str, left: str, right: str, dtype: DType) -> str:
    """The elements of `left` where the condition is true, else those of `right`."""
    wide = computed_as("Where", dtype)
    made = scope.add("Where", [condition, scope.cast(left, dtype, wide), scope.cast(right, dtype, wide)])
    return scope.cast(made, wide, dtype)


@lowers("rsqrt")
def rsqrt(scope: Scope, node: Node) -> str:
    """`1 / sqrt(x)`."""
    dtype = node.outputs[0].dtype
    return scope.compute("Reciprocal", [scope.compute("Sqrt", scope.inputs(node), dtype)], dtype)


@lowers("silu")
def silu(scope: Scope, node: Node) -> str:
    """`x * sigmoid(x)`."""
    dtype, (x,) = node.outputs[0].dtype, scope.inputs(node)
    return scope.compute("Mul", [x, scope.compute("Sigmoid", [x], dtype)], dtype)


@lowers("gelu")
def gelu(scope: Scope, node: Node) -> str:
    """By the error function, by tanh, or by the logistic function."""
    dtype, (x,) = node.outputs[0].dtype, scope.inputs(node)
    approximate = node.attributes["approximate"]
    if approximate == "quick":
        return scope.compute("QuickGelu", [x], dtype, domain=CONTRIB, alpha=1.702)
    if dtype is DType.float64:  # the kernel is for float32
        scale = scope.constant(1 / math.sqrt(2), dtype)
        inner = scope.add("Erf", [scope.compute("Mul", [x, scale], dtype)])
        half = scope.compute("Mul", [x, scope.constant(0.5, dtype)], dtype)
        return scope.compute("Mul", [half, scope.compute("Add", [inner, scope.constant(1, dtype)], dtype)], dtype)
    return scope.compute("Gelu", [x], dtype, approximate=approximate)


@lowers("cast")
def cast(scope: Scope, node: Node) -> str:
    """A conversion."""
    return scope.cast(scope.inputs(node)[0], node.inputs[0].dtype, node.attributes["dtype"])


@lowers("transfer_to")
def transfer_to(scope: Scope, node: Node) -> str:
    """There is one device: the tensor itself."""
    return scope.inputs(node)[0]
