"""Functions of one tensor that layers are built with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from max_weights._core import shown
from max_weights.errors import ArgumentError
from max_weights.graph import ops

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValue

__all__ = ["Activation", "activation_function_from_name", "clamp"]

Activation: TypeAlias = "Callable[[TensorValue], TensorValue]"

_BY_NAME: dict[str, Activation] = {
    "silu": ops.silu,
    "gelu": ops.gelu,
    "gelu_tanh": partial(ops.gelu, approximate="tanh"),
    "relu": ops.relu,
    "tanh": ops.tanh,
    "sigmoid": ops.sigmoid,
}


def activation_function_from_name(name: str) -> Activation:
    """Return the function named `silu`, `gelu`, `gelu_tanh`, `relu`, `tanh` or `sigmoid`.

    Args:
        name: The name.

    Raises:
        ArgumentError: there is no such function (a ValueError).

    Example:
        >>> nn.activation_function_from_name("silu")(x).shape
        [Dim(2), Dim(3)]
    """
    function = _BY_NAME.get(name)
    if function is None:
        raise ArgumentError(f"there is no activation function '{shown(str(name))}'; there are {', '.join(_BY_NAME)}")
    return function


def clamp(x: TensorValue, min: float | None = None, max: float | None = None) -> TensorValue:
    """Limit each element to at least `min` and at most `max`; `None` for no limit.

    Args:
        x: A tensor of numbers.
        min: The least value.
        max: The largest value.

    Returns:
        A tensor of the same type.

    Raises:
        GraphError: a limit does not fit the dtype (a ValueError).

    Example:
        >>> nn.clamp(x, 0.0, 1.0).shape
        [Dim(2), Dim(3)]
    """
    if min is not None:
        x = ops.max(x, min)
    if max is not None:
        x = ops.min(x, max)
    return x
