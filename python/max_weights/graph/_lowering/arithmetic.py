"""Lowering of operations on each element: arithmetic, comparisons, logic, and the choice between tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from max_weights._dtype import DType
from max_weights._typing import known
from max_weights.graph._lowering.division import choose, quotient, remainder
from max_weights.graph._lowering.dtypes import wider
from max_weights.graph._lowering.table import register_lowering
from max_weights.graph._lowering.writer import CONTRIB

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph._value import Node, TensorValue

# Operations that ONNX has unchanged: the operator, and the attributes that both have.
_SAME: dict[str, tuple[str, ...]] = {
    **{op: (op.title(),) for op in ("sub", "mul", "div", "neg", "abs", "sqrt", "exp", "log", "sin", "cos", "tanh")},
    **{op: (op.title(),) for op in ("erf", "floor", "ceil", "round", "acos", "sigmoid")},
    "maximum": ("Max",),
    "minimum": ("Min",),
    "logical_and": ("And",),
    "logical_or": ("Or",),
    "logical_xor": ("Xor",),
    "logical_not": ("Not",),
    "concat": ("Concat", "axis"),
    "softmax": ("Softmax", "axis"),
    "logsoftmax": ("LogSoftmax", "axis"),
}
# The same, with bool as the result.
_QUESTIONS = {
    "equal": "Equal",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "is_nan": "IsNaN",
    "is_inf": "IsInf",
}


@register_lowering(*_SAME)
def lower_same_operator(scope: Scope, node: Node) -> ir.Value:
    operator, *names = _SAME[node.op]
    attributes = {name: node.attributes[name] for name in names}
    return scope.compute(operator, scope.inputs(node), node.outputs[0].dtype, **attributes)


@register_lowering(*_QUESTIONS)
def lower_question(scope: Scope, node: Node) -> ir.Value:
    return scope.compute(_QUESTIONS[node.op], scope.inputs(node), node.inputs[0].dtype, result_dtype=DType.bool)


@register_lowering("not_equal")
def lower_not_equal(scope: Scope, node: Node) -> ir.Value:
    equal = scope.compute("Equal", scope.inputs(node), node.inputs[0].dtype, result_dtype=DType.bool)
    return scope.add("Not", [equal])


@register_lowering("relu")
def lower_relu(scope: Scope, node: Node) -> ir.Value:
    """Lower relu; integers use Max, as Relu has no kernels for them."""
    dtype, (x,) = node.outputs[0].dtype, scope.inputs(node)
    if dtype.is_float():
        return scope.compute("Relu", [x], dtype)
    return scope.compute("Max", [x, scope.constant(0, dtype)], dtype)


@register_lowering("pow")
def lower_power(scope: Scope, node: Node) -> ir.Value:
    """Lower powers: integers to a constant power are multiplied, which is exact; Pow uses double, exact up to 2**53."""
    dtype, (x, exponent) = node.outputs[0].dtype, scope.inputs(node)
    if dtype.is_float():
        return scope.compute("Pow", [x, exponent], dtype)
    number = constant_of(node.inputs[1])
    if number is not None and number.size == 1 and number.item() > 0 and node.inputs[0].shape == node.outputs[0].shape:
        result, rest = None, int(number.item())
        while True:
            if rest % 2:
                result = x if result is None else scope.compute("Mul", [result, x], dtype)
            rest //= 2
            if not rest:
                return known(result)
            x = scope.compute("Mul", [x, x], dtype)
    wide = [scope.cast(name, dtype, DType.int64) for name in (x, exponent)]
    return scope.cast(scope.add("Pow", wide), DType.int64, dtype)


def constant_of(value: TensorValue) -> np.ndarray | None:
    """Return the elements of a constant."""
    import numpy as np

    return np.asarray(value.node.attributes["value"]) if value.node.op == "constant" else None


@register_lowering("mod", "floordiv")
def lower_division(scope: Scope, node: Node) -> ir.Value:
    dtype = node.outputs[0].dtype
    wide = wider(dtype)
    left, right = (scope.cast(name, dtype, wide) for name in scope.inputs(node))
    divisor = constant_of(node.inputs[1])
    safe = divisor is not None and not ((divisor == 0) | (divisor == -1)).any()
    return scope.cast((remainder if node.op == "mod" else quotient)(scope, left, right, wide, safe=safe), wide, dtype)


@register_lowering("rsqrt", "silu", "gelu", "atanh")
def lower_composed(scope: Scope, node: Node) -> ir.Value:
    """Lower operations that take several operators; computed as float32 at least, and rounded at the end."""
    dtype, (x,) = node.outputs[0].dtype, scope.inputs(node)
    wide = wider(dtype)
    x = scope.cast(x, dtype, wide)
    if node.op == "rsqrt":
        result = scope.add("Reciprocal", [scope.add("Sqrt", [x])])
    elif node.op == "atanh":
        result = _atanh(scope, x, wide)
    elif node.op == "silu":
        result = scope.add("Mul", [x, scope.add("Sigmoid", [x])])
    else:
        result = _gelu(scope, x, wide, node.attributes["approximate"])
    return scope.cast(result, wide, dtype)


def _atanh(scope: Scope, x: ir.Value, dtype: DType) -> ir.Value:
    """Lower the operation, whose operator supports float32 alone."""
    if dtype is DType.float32:
        return scope.add("Atanh", [x])
    one = scope.constant(1, dtype)
    ratio = scope.add("Div", [scope.add("Add", [one, x]), scope.add("Sub", [one, x])])
    return scope.add("Mul", [scope.add("Log", [ratio]), scope.constant(0.5, dtype)])


def _gelu(scope: Scope, x: ir.Value, dtype: DType, approximate: str) -> ir.Value:
    """Lower gelu by the error function, by tanh, or by the logistic function. The kernels support float32."""

    def times(left: ir.Value, right: ir.Value | float) -> ir.Value:
        return scope.add("Mul", [left, scope.constant(right, dtype) if isinstance(right, float) else right])

    if dtype is DType.float32:
        if approximate == "quick":
            return scope.add("QuickGelu", [x], domain=CONTRIB, alpha=1.702)
        return scope.add("Gelu", [x], approximate=approximate)
    if approximate == "quick":
        return times(x, scope.add("Sigmoid", [times(x, 1.702)]))
    if approximate == "tanh":
        inner = scope.add("Add", [x, times(times(x, times(x, x)), 0.044715)])
        inner = scope.add("Tanh", [times(inner, math.sqrt(2 / math.pi))])
    else:
        inner = scope.compute("Erf", [times(x, math.sqrt(0.5))], dtype)
    return times(times(x, 0.5), scope.add("Add", [inner, scope.constant(1, dtype)]))


@register_lowering("cast")
def lower_cast(scope: Scope, node: Node) -> ir.Value:
    return scope.cast(scope.inputs(node)[0], node.inputs[0].dtype, node.attributes["dtype"])


@register_lowering("transfer_to", "buffer_store", "rebind")
def lower_the_same(scope: Scope, node: Node) -> ir.Value:
    """Pass a tensor on: there is one device, what is stored is a result, and names are checked before a run."""
    return scope.inputs(node)[0]


@register_lowering("where")
def lower_where(scope: Scope, node: Node) -> ir.Value:
    condition, left, right = scope.inputs(node)
    return choose(scope, condition, left, right, node.outputs[0].dtype)
