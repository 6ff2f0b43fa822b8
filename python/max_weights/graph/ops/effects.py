"""Operations that are about running: where a value lives, what is printed, which graph is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from max_weights.devices import DeviceRef
from max_weights.errors import UnsupportedError
from max_weights.graph.ops.operands import operand, record
from max_weights.graph.stack import current
from max_weights.graph.type import TensorType
from max_weights.graph.value import TensorValue

if TYPE_CHECKING:
    from max_weights.graph.graph import Graph
    from max_weights.graph.value import TensorValueLike


def transfer_to(x: TensorValueLike, device: DeviceRef | str) -> TensorValue:
    """The same tensor on another device; the value itself if it is there."""
    value, target = operand("transfer_to", x), DeviceRef.from_device(device)
    if value.device == target:
        return value
    return record("transfer_to", [value], TensorType(value.dtype, value.shape, target), device=target)


def print(value: TensorValueLike | str, label: str = "debug_tensor") -> None:
    """Print a label and the elements of a tensor, or a text alone, when the graph is run."""
    if isinstance(value, str):
        current("print").record("print", (), (), {"label": value})
    else:
        shown = operand("print", value)
        current("print").record("print", (shown,), (), {"label": str(label)})


def call(graph: Graph, *args: TensorValueLike, prefix: str = "") -> NoReturn:
    """Call a subgraph with values, and with the weights whose names begin with `prefix`.

    Raises:
        UnsupportedError: always: this version records graphs and cannot run them, so nothing could come of a call.
    """
    raise UnsupportedError(
        f"call: graph {graph.name!r} (prefix {prefix!r}, {len(args)} values) cannot be called: this version records "
        "graphs and works out their shapes, but does not run them; call the layer itself to record its operations"
    )
