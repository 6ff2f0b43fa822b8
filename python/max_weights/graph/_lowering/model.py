"""`lower`: a graph as an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from max_weights._buffer import Buffer
from max_weights._dim import Dim, StaticDim, SymbolicDim
from max_weights.dtype import DType
from max_weights.errors import GraphError
from max_weights.graph._lowering.packed import ELEMENTS, repack
from max_weights.graph._lowering.scope import Repacked, Scope
from max_weights.graph._lowering.subgraphs import opsets
from max_weights.graph._lowering.table import lower_nodes
from max_weights.graph._lowering.writer import Shared, onnx_type

if TYPE_CHECKING:
    import onnx

    from max_weights.graph._graph import Graph
    from max_weights.graph.value import Node
    from max_weights.graph.weight import Weight

__all__ = ["LoweredModel", "lower"]

_IR_VERSION = 11


@dataclass
class LoweredModel:
    """A model, and how it relates to its graph."""

    model: onnx.ModelProto
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
    repacked: dict[Repacked, str]
    """What replaces packed blocks of weights and inputs, and its names in the model."""
    initializers: bool
    """Whether weights are initializers."""

    def repack_weights(self, values: Mapping[str, Buffer]) -> dict[str, Buffer]:
        """Return what replaces weights in packed blocks, by name, and add it to the model.

        Args:
            values: The values of the weights by name.
        """
        made: dict[str, Buffer] = {}
        for (source, encoding, part), name in self.repacked.items():
            if source not in self.inputs:
                value = made[name] = repack(encoding, part, values[source])
                number = onnx_type(value.dtype, f"weight {source!r}")
                if self.initializers or part != ELEMENTS:
                    self.model.graph.initializer.append(_without_data(name, number, value.shape))
                else:
                    self._add_input(name, number, value.shape)
        return made

    @property
    def decoded(self) -> list[str]:
        """The names of decoded weights, which are treated like weights."""
        return [name for key, name in self.repacked.items() if key.part == ELEMENTS and key.source not in self.inputs]

    @property
    def decoded_inputs(self) -> dict[str, tuple[str, str]]:
        """What replaces inputs in packed blocks: by its name, the input and the encoding."""
        return {name: key[:2] for key, name in self.repacked.items() if key.source in self.inputs}

    def _add_input(self, name: str, number: int, shape: Sequence[int] | None) -> None:
        from onnx import helper

        self.model.graph.input.append(helper.make_tensor_value_info(name, number, shape))


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
    from onnx import helper

    weights = graph.parameters
    shared = Shared(weights)
    scope = Scope(shared)
    input_infos: list[onnx.ValueInfoProto] = []
    inputs = [_free(f"input{index}", weights) for index in range(len(graph.input_tensors))]
    for name, value in zip(inputs, graph.input_tensors, strict=True):
        scope.bind(value, name)
        number = onnx_type(value.dtype, f"{name} of graph {graph.name!r}")
        input_infos.append(helper.make_tensor_value_info(name, number, [_size(dim) for dim in value.shape]))
    tensors: list[onnx.TensorProto] = []
    for name, value in zip(weights, graph.weight_values, strict=True):
        scope.bind(value, name)
    lower_nodes(scope, graph)
    outputs = scope.results(graph, [_free(f"output{index}", weights) for index in range(len(graph.results))])
    output_infos = [
        helper.make_tensor_value_info(
            name, onnx_type(value.dtype, f"{name} of graph {graph.name!r}"), [_size(dim) for dim in value.shape]
        )
        for name, value in zip(outputs, graph.results, strict=True)
    ]
    printed = dict.fromkeys(name for _, name in shared.prints if name is not None)
    output_infos += [onnx_value(name) for name in printed if name not in outputs]
    if not output_infos:
        raise GraphError(
            f"graph {graph.name!r} has no outputs, so there is nothing to run; call `output(...)` with values"
        )
    nodes = scope.needed([*outputs, *printed])
    used = {name for node in nodes for name in node.input}
    unused = {key.source for key in scope.repacked} - used
    weights = {name: weight for name, weight in weights.items() if name not in unused}
    for name, weight in weights.items():
        number = onnx_type(weight.dtype, f"weight {name!r}")
        if initializers:
            tensors.append(_without_data(name, number, shapes[name]))
        else:
            shape: list[int | str | None] = [*shapes.get(name, ())] or [_size(dim) for dim in weight.shape]
            input_infos.append(helper.make_tensor_value_info(name, number, shape))
    model = helper.make_model(
        helper.make_graph(nodes, graph.name, input_infos, output_infos, tensors),
        producer_name="max_weights",
        opset_imports=opsets(),
        functions=[function.proto for function in shared.functions.values()],
        ir_version=_IR_VERSION,
    )
    lowered = LoweredModel(
        model, inputs, outputs, weights, shared.operations, shared.prints, scope.repacked, initializers
    )
    for name in lowered.decoded_inputs:
        lowered._add_input(name, onnx_type(DType.float32, name), None)
    return lowered


def _free(name: str, weights: Mapping[str, Weight]) -> str:
    """Return a name that no weight has."""
    while name in weights:
        name += "_"
    return name


def onnx_value(name: str) -> onnx.ValueInfoProto:
    """Return a result whose type ONNX infers."""
    import onnx

    return onnx.ValueInfoProto(name=name)


def _size(dim: Dim) -> int | str | None:
    """Return a dimension in ONNX's form: a size, a name, or nothing."""
    if isinstance(dim, StaticDim):
        return int(dim)
    return dim.name if isinstance(dim, SymbolicDim) else None


def _without_data(name: str, number: int, shape: Sequence[int]) -> onnx.TensorProto:
    """Return a tensor with data declared to be in another file, so that a session accepts it from the caller."""
    import onnx

    tensor = onnx.TensorProto(name=name, data_type=number, dims=shape, data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights")
    return tensor
