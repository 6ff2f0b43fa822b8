"""Lowering of subgraphs: each is an ONNX function, defined once, that gets the values and weights of each call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from max_weights.errors import UnsupportedError
from max_weights.graph._lowering.packed import ELEMENTS, write_elements
from max_weights.graph._lowering.scope import Scope
from max_weights.graph._lowering.table import lower_nodes, register_lowering
from max_weights.graph._lowering.writer import CONTRIB, Function, Parameter, Shared

if TYPE_CHECKING:
    import onnx

    from max_weights.graph._graph import Graph
    from max_weights.graph.value import Node

__all__ = ["DOMAIN", "opsets"]

DOMAIN = "max_weights"
"""The domain of the functions that subgraphs become."""
_OPSET = 23


def opsets() -> list[onnx.OperatorSetIdProto]:
    """Return the versions of the operators in models."""
    from onnx import helper

    return [helper.make_opsetid(*pair) for pair in (("", _OPSET), (CONTRIB, 1), (DOMAIN, 1))]


def _function(shared: Shared, graph: Graph) -> Function:
    """Return the function of a subgraph: it takes its inputs, then its weights, and gives its outputs."""
    function = shared.functions.get(graph)
    if function is None:
        function = _new_function(shared, graph)
        shared.functions[graph] = function
    return function


def _new_function(shared: Shared, graph: Graph) -> Function:
    from onnx import helper

    given = [*graph.input_tensors, *graph.weight_values]
    names = [f"given{index}" for index in range(len(given))]
    inputs = len(graph.input_tensors)
    scope, printed = Scope(shared), len(shared.prints)
    for value, name in zip(given, names, strict=True):
        scope.bind(value, name)
    lower_nodes(scope, graph)
    if len(shared.prints) > printed:
        raise UnsupportedError(f"subgraph {graph.name!r} prints, which only the graph being run can do")
    results = scope.results(graph, [f"result{index}" for index in range(len(graph.results))])
    taken = {function.proto.name for function in shared.functions.values()} | {""}
    names_left = (f"{graph.name}.{number}" if number else graph.name for number in count())
    name = next(candidate for candidate in names_left if candidate not in taken)
    nodes = scope.needed(results)
    used = {name for node in nodes for name in node.input}
    parameters: list[Parameter] = [
        (index, None) for index in range(len(names)) if index < inputs or names[index] in used
    ]
    parameter_names = [names[index] for index, _ in parameters]
    parameters += [(names.index(source), (encoding, part)) for source, encoding, part in scope.repacked]
    parameter_names += scope.repacked.values()
    return Function(helper.make_function(DOMAIN, name, parameter_names, results, nodes, opsets()), parameters)


def _arguments(scope: Scope, node: Node, function: Function) -> list[str]:
    """Return the names of the arguments of a call: values, weights that it uses, and what replaces packed blocks."""
    arguments = []
    for index, part in function.parameters:
        value = node.inputs[index]
        if part is None:
            arguments.append(scope[value])
        elif part[1] == ELEMENTS:
            arguments.append(write_elements(scope, node, value, part[0]))
        else:
            arguments.append(scope.repacked_part(value, *part))
    return arguments


@register_lowering("call")
def call(scope: Scope, node: Node) -> Sequence[str]:
    """Write a call of the function with the arguments of this call."""
    function = _function(scope.shared, node.attributes["graph"])
    return scope.add_several(function.proto.name, _arguments(scope, node, function), len(node.outputs), domain=DOMAIN)


@register_lowering("print")
def lower_print(scope: Scope, node: Node) -> Sequence[str]:
    """Write nothing: what is printed becomes another result of the model."""
    scope.shared.prints.append((node.attributes["label"], scope[node.inputs[0]] if node.inputs else None))
    return []
