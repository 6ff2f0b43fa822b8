"""From a module to a graph of its call, to a subgraph, and to a model that is ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from max_weights._core import escape
from max_weights.graph._graph import Graph
from max_weights.graph._stack import current, graph_error
from max_weights.graph._type import BufferType, TensorType, Type, input_type_error
from max_weights.graph._value import BufferValue, TensorValue, Value
from max_weights.graph._weight import WeightShard
from max_weights.nn._named_weights import NamedWeights

if TYPE_CHECKING:
    from max_weights.engine._model import InferenceSession, Memory, Model
    from max_weights.nn._walk import ModuleNode

InputTypes: TypeAlias = "Sequence[Type | Value | InputTypes]"
"""The types of arguments, or values of these types; a list for an argument that is a list."""

__all__ = ["build_subgraph", "compile_module", "trace"]


def build_subgraph(module: ModuleNode, name: str, input_types: InputTypes, weight_prefix: str) -> Graph:
    """Build a subgraph; see `Module.build_subgraph`."""
    if not isinstance(name, str) or not isinstance(weight_prefix, str):
        raise TypeError(
            f"the name and the weight_prefix of a subgraph must be strings, not {name!r} and {weight_prefix!r}"
        )
    if isinstance(input_types, (str, bytes)) or not isinstance(input_types, Sequence):
        raise TypeError(f"input_types must be a list of types or values, not {input_types!r}")
    types: list[TensorType | BufferType] = []
    arguments = [_numbered(argument, types) for argument in input_types]

    def forward(*inputs: TensorValue) -> object:
        return module(*[_with_values(argument, inputs) for argument in arguments])

    graph = cast("Graph", current("build_subgraph")).add_subgraph(name, forward, types, weight_prefix=weight_prefix)
    names = _own_names(module, graph)
    if names and not any(own.startswith(weight_prefix) for own in names):
        raise graph_error(
            "build_subgraph",
            f"no weight of '{escape(name)}' is named '{escape(weight_prefix)}...', but '{escape(names[0])}': names are "
            "complete once state_dict or load_state_dict of the whole model has been called",
        )
    return graph


def _own_names(module: ModuleNode, graph: Graph) -> list[str]:
    """Return the names of the weights in a graph that the module owns; shared ones keep their names in every call."""
    owned = set(map(id, NamedWeights(module).weights.values()))
    weights = graph.parameters.items()
    return [
        name for name, weight in weights if id(weight.whole if isinstance(weight, WeightShard) else weight) in owned
    ]


def trace(module: ModuleNode, input_types: Sequence[TensorType | BufferType], name: str | None) -> Graph:
    """Trace a call; see `Module.trace`."""
    graph = Graph(type(module).__name__ if name is None else name, module, input_types)
    graph._adopt(NamedWeights(module).weights)
    return graph


def compile_module(
    module: ModuleNode,
    input_types: Sequence[TensorType | BufferType],
    session: InferenceSession | None,
    weights: Mapping[str, object],
    name: str | None,
    memory: Memory,
) -> Model:
    """Compile a module; see `Module.compile`."""
    from max_weights.engine._model import InferenceSession

    graph = trace(module, input_types, name)
    return (session or InferenceSession()).load(graph, weights_registry=weights, memory=memory)


def _numbered(argument: object, types: list[TensorType | BufferType]) -> object:
    """Return an argument with types replaced by numbers of inputs; record these types."""
    if isinstance(argument, list | tuple):
        return [_numbered(one, types) for one in argument]
    kind = argument.type if isinstance(argument, TensorValue | BufferValue) else argument
    if not isinstance(kind, TensorType | BufferType):
        raise input_type_error("a TensorType or a BufferType, or a value of such a type", argument)
    types.append(kind)
    return len(types) - 1


def _with_values(argument: Any, inputs: Sequence[TensorValue]) -> object:
    return [_with_values(one, inputs) for one in argument] if isinstance(argument, list) else inputs[argument]
