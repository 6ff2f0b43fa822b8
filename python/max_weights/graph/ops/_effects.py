"""Operations with effects in a run: devices, prints, calls of graphs, and memory that a graph changes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, cast

import max_weights.graph._infer as infer
from max_weights._devices import DeviceRef
from max_weights._dim import Dim, SymbolicDim
from max_weights._shape import Shape, listed
from max_weights.graph._graph import Graph
from max_weights.graph._stack import current, graph_error
from max_weights.graph._type import BufferType, TensorType
from max_weights.graph._value import BufferValue, TensorValue, TensorValueLike
from max_weights.graph.ops._creation import range as positions
from max_weights.graph.ops._indexing import slice_tensor
from max_weights.graph.ops._operands import is_array, is_scalar, operand, operands, record
from max_weights.graph.ops._scattering import scatter
from max_weights.graph.ops._shaping import broadcast_to, flatten, reshape

Argument: TypeAlias = "TensorValueLike | BufferValue"


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
        The outputs, in order. Some symbols in their shapes are created by the subgraph, for example by `rebind` or
        `nonzero`. Such a symbol differs in each call: `m`, then `m_1`, `m_2` and so on, unless the caller has one of
        that name already.

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
    weights = [caller._weight_of_call(graph, weight, prefix) for weight in graph.parameters.values()]
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
    value = caller._own("call", argument._contents) if isinstance(argument, BufferValue) else operand("call", argument)
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
        names = caller._taken_symbols()
        dims |= {name: infer.new_symbol(name, names) for name in dict.fromkeys(own)}


def buffer_load(x: BufferValue) -> TensorValue:
    """Return the tensor that a buffer holds at this point of the graph; what is stored later does not change it."""
    return _contents("buffer_load", x)


def buffer_store(destination: BufferValue, source: TensorValueLike) -> None:
    """Store a tensor in a buffer.

    Args:
        destination: The buffer.
        source: A tensor of its dtype, shape and device.

    Raises:
        GraphError: the dtype, shape or device is another one (a ValueError).
    """
    _store("buffer_store", destination, operand("buffer_store", source))


def buffer_store_slice(destination: BufferValue, source: TensorValueLike, indices: object) -> None:
    """Store elements in a part of a buffer, as `destination[indices] = source`.

    Args:
        destination: The buffer.
        source: A number, or a tensor that can be broadcast to the shape of the part.
        indices: NumPy's basic indices; see `ops.slice_tensor`.

    Raises:
        GraphError: the dtype, shape or device does not fit (a ValueError).
    """
    op = "buffer_store_slice"
    old = _contents(op, destination)
    part = slice_tensor(old, indices)
    source = operands(op, part, source)[1] if is_scalar(source) or is_array(source) else operand(op, source)
    if source.dtype is not old.dtype:
        raise graph_error(op, f"the buffer holds {old.dtype!r}, not {source.dtype!r}; convert it with `.cast(...)`")
    new = broadcast_to(source, part.shape)
    if list(part.shape) != list(old.shape):
        # Each element has a number; the part has those of the elements that are replaced.
        count = math.prod(old.shape, start=Dim(1))
        numbers = reshape(positions(0, count, 1, count, device=old.device), old.shape)
        flat = scatter(_row(old), _row(new), _row(slice_tensor(numbers, indices)), axis=0)
        new = reshape(flat, old.shape)
    _store(op, destination, new)


def _row(x: TensorValue) -> TensorValue:
    return flatten(x) if x.rank else reshape(x, [1])


def _contents(op: str, buffer: BufferValue) -> TensorValue:
    """Return what a buffer of the current graph holds."""
    if not isinstance(buffer, BufferValue):
        raise TypeError(f"{op}: takes a BufferValue, an input whose type is a BufferType, not {type(buffer).__name__}")
    return current(op)._own(op, buffer._contents)


def _store(op: str, buffer: BufferValue, value: TensorValue) -> None:
    old = _contents(op, buffer)
    if value.type != old.type:
        raise graph_error(
            op,
            f"the buffer holds {old.dtype!r} {listed(old.shape)} on {old.device}, not {value.dtype!r} "
            f"{listed(value.shape)} on {value.device}",
        )
    buffer._contents = record("buffer_store", [value], value.type)
