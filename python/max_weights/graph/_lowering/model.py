"""`lower`: a graph as an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from max_weights._buffer import Buffer
from max_weights._dim import Dim, StaticDim, SymbolicDim
from max_weights._dtype import DType
from max_weights._typing import known
from max_weights.errors import GraphError
from max_weights.graph._lowering.packed import ELEMENTS, repack
from max_weights.graph._lowering.scope import Repacked, Scope
from max_weights.graph._lowering.table import lower_nodes
from max_weights.graph._lowering.writer import Shared, name_of, onnx_type

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights.graph._graph import Graph
    from max_weights.graph._value import Node
    from max_weights.graph._weight import Weight

__all__ = ["LoweredModel", "lower"]

_IR_VERSION = 11


@dataclass
class LoweredModel:
    """A model, and how it relates to its graph."""

    model: ir.Model
    """The model. Its weights are inputs, or initializers without data, by their names."""
    inputs: list[str]
    """The names of the graph's inputs, in order."""
    outputs: list[str]
    """The names of the graph's outputs, in order, and then those of what it stores in buffers."""
    weights: dict[str, Weight]
    """The weights that it uses, by name."""
    operations: dict[str, Node]
    """The operations by the names of nodes."""
    prints: list[tuple[str, str | None]]
    """Labels to print after a run, with the names of the results to print."""
    repacked: dict[Repacked, ir.Value]
    """What replaces packed blocks of weights and inputs."""
    initializers: bool
    """Whether weights are initializers."""

    def repack_weights(self, values: Mapping[str, Buffer]) -> dict[str, Buffer]:
        """Return what replaces weights in packed blocks, by name, and add it to the model.

        Args:
            values: The values of the weights by name.
        """
        buffers: dict[str, Buffer] = {}
        for (source, encoding, part), value in self.repacked.items():
            if source not in self.inputs:
                buffer = buffers[name_of(value)] = repack(encoding, part, values[source])
                _declare(value, buffer.dtype, buffer.shape, f"weight {source!r}")
                _add_weight(self.model.graph, value, self.initializers or part != ELEMENTS)
        return buffers

    @property
    def decoded_weights(self) -> list[str]:
        """The names of the elements of weights, which are treated like weights."""
        return [
            name_of(value)
            for key, value in self.repacked.items()
            if key.part == ELEMENTS and key.source not in self.inputs
        ]

    @property
    def decoded_inputs(self) -> dict[str, tuple[str, str]]:
        """The names of the elements of inputs, and of which input and encoding they are."""
        return {name_of(value): key[:2] for key, value in self.repacked.items() if key.source in self.inputs}

    def serialize(self) -> bytes:
        """Return the model as ONNX has it in files."""
        import onnx_ir as ir

        data: bytes = ir.serde.serialize_model(self.model).SerializeToString()
        return data


def lower(graph: Graph, shapes: Mapping[str, Sequence[int]], *, initializers: bool) -> LoweredModel:
    """Return a graph as an ONNX model.

    Args:
        graph: A graph with outputs.
        shapes: The shapes of weights whose types have symbols.
        initializers: Whether weights are initializers whose data is elsewhere; otherwise they are inputs.

    Raises:
        GraphError: the graph has no outputs (a ValueError).
        UnsupportedError: an operation or a dtype that cannot be run; the message names it, and the line of the user's
            code.
    """
    import onnx_ir as ir

    shared = Shared(graph.parameters)
    scope = Scope(shared)
    inputs = [ir.val(shared.free_name(f"input{index}")) for index in range(len(graph.input_tensors))]
    sources = [*inputs, *map(ir.val, graph.parameters)]
    for recorded, source in zip([*graph.input_tensors, *graph.weight_values], sources, strict=True):
        scope.bind(recorded, source)
    lower_nodes(scope, graph)
    outputs = scope.add_results(graph, "output")
    for recorded, value in zip([*graph.input_tensors, *graph.results], [*inputs, *outputs], strict=True):
        _declare(value, recorded.dtype, recorded.shape, f"{value.name} of graph {graph.name!r}")
    results = [*outputs, *dict.fromkeys(printed for _, printed in shared.prints if printed is not None)]
    if not results:
        raise GraphError(
            f"graph {graph.name!r} has no outputs, so there is nothing to run; call `output(...)` with values"
        )
    body = scope.to_graph(graph.name, sources, results)  # with all sources, so that their names are taken
    del body.inputs[len(inputs) :]
    weights = {}
    for (name, weight), value in zip(graph.parameters.items(), sources[len(inputs) :], strict=True):
        if value.uses():
            weights[name] = weight
            _declare(value, weight.dtype, shapes.get(name, weight.shape), f"weight {name!r}")
            _add_weight(body, value, initializers)
    functions = [function.function for function in shared.functions.values()]
    lowered = LoweredModel(
        ir.Model(body, ir_version=_IR_VERSION, producer_name="max_weights", functions=functions),
        [name_of(value) for value in inputs],
        [name_of(value) for value in outputs],
        weights,
        shared.operations,
        [(label, name_of(printed) if printed is not None else None) for label, printed in shared.prints],
        scope.repacked,
        initializers,
    )
    for key, value in scope.repacked.items():
        if key.source in lowered.inputs:
            _declare(value, DType.float32, None, key.source)
            body.inputs.append(value)
    return lowered


def _declare(value: ir.Value, dtype: DType, shape: Sequence[int | Dim] | None, where: str) -> None:
    """Set the type of a value; a dimension is a size, a name, or unknown."""
    import onnx_ir as ir

    value.dtype = onnx_type(dtype, where)
    if shape is not None:
        value.shape = ir.Shape([_size(dim) for dim in shape])


def _size(dim: int | Dim) -> int | str | None:
    if isinstance(dim, int | StaticDim):
        return int(dim)
    return dim.name if isinstance(dim, SymbolicDim) else None


def _add_weight(graph: ir.Graph, value: ir.Value, initializer: bool) -> None:
    """Add an input, or an initializer whose data is declared to be in a file, so that a session takes the caller's."""
    import onnx_ir as ir

    if not initializer:
        graph.inputs.append(value)
        return
    dtype, shape = known(value.dtype), known(value.shape)
    value.const_value = ir.ExternalTensor("weights", None, None, dtype, shape=shape, name=name_of(value))
    graph.register_initializer(value)
