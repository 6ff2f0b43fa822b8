"""Operations that concern the run: on which device a value is, what is printed, which graph is called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

import max_weights.graph._infer as infer
from max_weights._devices import DeviceRef
from max_weights._dim import Dim, SymbolicDim
from max_weights._shape import Shape
from max_weights.graph._call_site import graph_error
from max_weights.graph._graph import Graph
from max_weights.graph._stack import current
from max_weights.graph._type import BufferType, TensorType
from max_weights.graph._value import BufferValue, TensorValue
from max_weights.graph.ops._operands import operand, record

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValueLike

    Argument: TypeAlias = TensorValueLike | BufferValue


def transfer_to(x: TensorValueLike, device: DeviceRef | str) -> TensorValue:
    """Move a tensor to another device; the value itself if it is there already."""
    value, target = operand("transfer_to", x), DeviceRef.from_device(device)
    if value.device == target:
        return value
    return record("transfer_to", [value], TensorType(value.dtype, value.shape, target), device=target)


def print(value: TensorValueLike | str, label: str = "debug_tensor") -> None:
    """Print a label and the elements of a tensor, or only a string, when the graph is run."""
    if isinstance(value, str):
        current("print").record("print", (), (), {"label": value})
    else:
        shown = operand("print", value)
        current("print").record("print", (shown,), (), {"label": str(label)})


def call(graph: Graph, *args: Argument | Sequence[Argument], prefix: str = "") -> list[TensorValue]:
    """Call a subgraph with values, and with the weights of this call.

    Args:
        graph: A graph with outputs, from `Module.build_subgraph` or `Graph.add_subgraph`.
        *args: Its inputs, in order; a list of values counts as several. For a BufferType, a `BufferValue`, which holds
            what the subgraph stored in it afterwards.
        prefix: The prefix of the names of this call's weights. Weights whose names begin with the subgraph's
            `weight_prefix` differ in each call: `prefix` replaces it.

    Returns:
        The outputs, in order. A symbol in their shapes that the subgraph creates itself, for example by `rebind` or
        `nonzero`, is a different one in each call: `m`, then `m_1`, `m_2` and so on, unless the caller has such a
        symbol already.

    Raises:
        GraphError: another number of values, or one whose dtype, device or shape does not fit (a ValueError).
    """
    caller = cast("Graph", current("call"))
    if graph is caller:
        raise graph_error("call", f"graph {graph.name!r} cannot call itself")
    arguments = list(_flat(args))
    types = graph.input_types
    if len(arguments) != len(types):
        raise graph_error("call", f"graph {graph.name!r} takes {len(types)} values, not {len(arguments)}")
    dims: dict[str, Dim] = {}
    values = []
    for index, (argument, kind) in enumerate(zip(arguments, types, strict=True)):
        values.append(_fit(caller, graph, index, argument, kind, dims))
    _name_own(graph, caller, dims)
    outputs, stored = graph.outputs, graph.stored
    if len({id(arguments[index]) for index in stored}) < len(stored):
        raise graph_error(
            "call", f"graph {graph.name!r} stores in several of its buffers, and two of them are one here"
        )
    result_types = [
        TensorType(value.dtype, [dim.substitute(dims) for dim in value.shape], value.device)
        for value in (*outputs, *stored.values())
    ]
    weights = [caller.weight_of_call(graph, weight, prefix) for weight in graph.parameters.values()]
    attributes = {"graph": graph, "prefix": prefix, "dims": dims}
    results = caller.record("call", [*values, *weights], result_types, attributes).outputs
    for index, contents in zip(stored, results[len(outputs) :], strict=True):
        cast("BufferValue", arguments[index])._contents = contents
    return list(results[: len(outputs)])


def _flat(values: Iterable[Argument | Sequence[Argument]]) -> Iterator[Argument]:
    for value in values:
        if isinstance(value, list | tuple) and not isinstance(value, Shape):
            yield from _flat(value)
        else:
            yield cast("Argument", value)


def _fit(
    caller: Graph, graph: Graph, index: int, argument: Argument, kind: TensorType | BufferType, dims: dict[str, Dim]
) -> TensorValue:
    """Return the tensor of an argument, and record what the symbols of its type stand for in this call."""
    if isinstance(argument, BufferValue) is not isinstance(kind, BufferType):
        advice = "load it, `buffer[...]`" if isinstance(argument, BufferValue) else "give it a BufferValue"
        raise graph_error(
            "call", f"input {index} of graph {graph.name!r} is {kind}, found a {type(argument).__name__}: {advice}"
        )
    value = caller.own("call", argument._contents) if isinstance(argument, BufferValue) else operand("call", argument)
    fits = value.dtype is kind.dtype and value.device == kind.device and value.rank == kind.rank
    if fits:
        for size, dim in zip(value.shape, kind.shape, strict=True):
            if isinstance(dim, SymbolicDim):
                dims.setdefault(dim.name, size)
        fits = all(size == dim.substitute(dims) for size, dim in zip(value.shape, kind.shape, strict=True))
    if not fits:
        raise graph_error("call", f"input {index} of graph {graph.name!r} is {kind}, found {value.type}")
    return value


def _name_own(graph: Graph, caller: Graph, dims: dict[str, Dim]) -> None:
    """Record the names in this call of the symbols of the outputs that the subgraph creates itself."""
    own = [symbol.name for kind in graph.output_types for symbol in kind.parameters if symbol.name in graph.own_symbols]
    if own:
        names = caller.taken_symbols()
        dims |= {name: infer.new_symbol(name, names) for name in dict.fromkeys(own)}
