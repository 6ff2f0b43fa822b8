"""`lowered`: a graph as an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from max_weights.dim import Dim, StaticDim, SymbolicDim
from max_weights.graph.lowering.scope import Scope, onnx_type
from max_weights.graph.lowering.subgraphs import Functions, opsets

if TYPE_CHECKING:
    import onnx

    from max_weights.graph.graph import Graph
    from max_weights.graph.value import Node
    from max_weights.graph.weight import Weight

__all__ = ["Lowered", "lowered"]

_IR_VERSION = 11


@dataclass
class Lowered:
    """A model, and what ties it to its graph."""

    model: onnx.ModelProto
    """The model. Its weights are inputs, or initializers without data, by their names."""
    inputs: list[str]
    """The names of the graph's inputs, in order."""
    outputs: list[str]
    """The names of the graph's outputs, in order."""
    weights: dict[str, Weight]
    """The weights by name."""
    places: dict[str, Node]
    """The operations by the names of nodes."""
    prints: list[tuple[str, str | None]]
    """Labels to print after a run, and the names of the results beside them."""


def lowered(graph: Graph, shapes: Mapping[str, Sequence[int]], *, initializers: bool) -> Lowered:
    """A graph as a model of ONNX.

    Args:
        graph: It has its outputs.
        shapes: The shapes of weights whose type says them by symbols only.
        initializers: Whether weights are initializers whose data lies elsewhere; otherwise they are inputs.

    Raises:
        UnsupportedError: an operation or a dtype that cannot be run; names it, and the user's line.
    """
    from onnx import helper

    functions = Functions()
    scope = Scope(functions)
    given: list[Any] = []
    shape: list[Any]
    inputs = [f"input{index}" for index in range(len(graph.inputs))]
    for name, value in zip(inputs, graph.inputs, strict=True):
        scope.bind(value, name)
        number = onnx_type(value.dtype, f"{name} of graph {graph.name!r}")
        given.append(helper.make_tensor_value_info(name, number, [_size(dim) for dim in value.shape]))
    held: list[Any] = []
    weights = graph.parameters
    for (name, weight), value in zip(weights.items(), graph.weight_values, strict=True):
        scope.bind(value, name)
        number = onnx_type(weight.dtype, f"weight {name!r}")
        shape = list(shapes.get(name, ())) or [_size(dim) for dim in weight.shape]
        if initializers:
            held.append(_without_data(name, number, shape))
        else:
            given.append(helper.make_tensor_value_info(name, number, shape))
    scope.lower(graph)
    outputs = scope.results(graph, [f"output{index}" for index in range(len(graph.outputs))])
    made = [
        helper.make_tensor_value_info(
            name, onnx_type(value.dtype, f"{name} of graph {graph.name!r}"), [_size(dim) for dim in value.shape]
        )
        for name, value in zip(outputs, graph.outputs, strict=True)
    ]
    printed = dict.fromkeys(name for _, name in functions.prints if name is not None)
    made += [onnx_value(name) for name in printed if name not in outputs]
    nodes = scope.needed([*outputs, *printed])
    model = helper.make_model(
        helper.make_graph(nodes, graph.name, given, made, held),
        producer_name="max_weights",
        opset_imports=opsets(),
        functions=functions.all,
        ir_version=_IR_VERSION,
    )
    return Lowered(model, inputs, outputs, weights, functions.places, functions.prints)


def onnx_value(name: str) -> Any:
    """A result whose type ONNX works out."""
    import onnx

    return onnx.ValueInfoProto(name=name)


def _size(dim: Dim) -> Any:
    """A dimension as ONNX says it: a size, a name, or nothing."""
    if isinstance(dim, StaticDim):
        return int(dim)
    return dim.name if isinstance(dim, SymbolicDim) else None


def _without_data(name: str, number: int, shape: Sequence[Any]) -> Any:
    """A tensor whose data is said to lie in another file, so that a session takes it from whoever gives it."""
    import onnx

    tensor = onnx.TensorProto(name=name, data_type=number, dims=shape, data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights")
    return tensor
