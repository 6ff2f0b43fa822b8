"""`lower`: a graph as an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from max_weights._buffer import Buffer
from max_weights._dim import Dim, StaticDim, SymbolicDim
from max_weights.errors import GraphError
from max_weights.graph._lowering.layouts import repack
from max_weights.graph._lowering.scope import Scope
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
    repacked: dict[tuple[str, str, tuple[str, ...]], dict[str, str]]
    """The layouts of weights in packed blocks: by the weight, its encoding and the parts, their names in the model."""
    initializers: bool
    """Whether weights are initializers."""

    def repack_weights(self, values: Mapping[str, Buffer]) -> dict[str, Buffer]:
        """Create the parts of weights in packed blocks, and add them to the model.

        Args:
            values: The values of the weights by name.
        """
        made: dict[str, Buffer] = {}
        for (weight, encoding, parts), names in self.repacked.items():
            arrays = repack(encoding, parts, values[weight])
            for part, array in zip(parts, arrays, strict=True):
                value = made[names[part]] = Buffer.from_numpy(array)
                number = onnx_type(value.dtype, f"weight {weight!r}")
                self._add(names[part], number, array.shape, part != "elements" or self.initializers)
        return made

    @property
    def decoded(self) -> list[str]:
        """The parts that are matrices of floats, and are treated like weights."""
        return [names["elements"] for names in self.repacked.values() if "elements" in names]

    def _add(self, name: str, number: int, shape: Sequence[int], initializer: bool) -> None:
        from onnx import helper

        if initializer:
            self.model.graph.initializer.append(_without_data(name, number, shape))
        else:
            self.model.graph.input.append(helper.make_tensor_value_info(name, number, shape))


def lower(
    graph: Graph, shapes: Mapping[str, Sequence[int]], *, initializers: bool, repacks: bool = False
) -> LoweredModel:
    """Return a graph as an ONNX model.

    Args:
        graph: A graph with outputs.
        shapes: The shapes of weights whose types have symbols.
        initializers: Whether weights are initializers whose data is elsewhere; otherwise they are inputs.
        repacks: Whether weights in packed blocks are laid out anew for products; otherwise they are decoded in each
            run.

    Raises:
        GraphError: the graph has no outputs (a ValueError).
        UnsupportedError: an operation or a dtype that cannot be run; the message names it, and the line of the user's
            code.
    """
    from onnx import helper

    weights = graph.parameters
    shared = Shared(repacks, weights)
    scope = Scope(shared, dict(zip(graph.weight_values, weights, strict=True)))
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
    unused = {name for name, _, _ in scope.repacked} - used
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
    return LoweredModel(model, inputs, outputs, weights, shared.operations, shared.prints, scope.repacked, initializers)


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
