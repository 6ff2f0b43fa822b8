"""Lowering of subgraphs: each is an ONNX function, defined once, that gets the values and weights of each call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING

from max_weights.errors import UnsupportedError
from max_weights.graph._lowering.products import ELEMENTS, write_elements
from max_weights.graph._lowering.scope import DOMAIN, Scope
from max_weights.graph._lowering.table import lower_nodes, register_lowering
from max_weights.graph._lowering.writer import Function, Parameter, Shared

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights.graph._graph import Graph
    from max_weights.graph._value import Node


def _function(shared: Shared, graph: Graph) -> Function:
    """Return the function of a subgraph: it takes its inputs, then its weights, and gives its outputs."""
    if graph not in shared.functions:
        function = _new_function(shared, graph)  # which puts the functions that it calls before it
        shared.functions[graph] = function
    return shared.functions[graph]


def _new_function(shared: Shared, graph: Graph) -> Function:
    import onnx_ir as ir

    scope, printed = Scope(shared), len(shared.prints)
    sources = {f"argument{index}": value for index, value in enumerate([*graph.input_tensors, *graph.weight_values])}
    for name, value in sources.items():
        scope.bind(value, ir.val(name))
    lower_nodes(scope, graph)
    if len(shared.prints) > printed:
        raise UnsupportedError(
            f"subgraph {graph.name!r} prints, which only the graph being run can do", rule="unsupported.operation"
        )
    names = {function.function.name for function in shared.functions.values()} | {""}
    candidates = (f"{graph.name}.{number}" if number else graph.name for number in count())
    name = next(candidate for candidate in candidates if candidate not in names)
    body = scope.to_graph(name, (), scope.add_results(graph, "result"))
    parameters: list[Parameter] = []
    for index, value in enumerate(sources.values()):
        if index < len(graph.input_tensors) or scope[value].uses():
            parameters.append((index, None))
            body.inputs.append(scope[value])
    for (source, encoding, part), repacked in scope.repacked.items():
        parameters.append((list(sources).index(source), (encoding, part)))
        body.inputs.append(repacked)
    return Function(ir.Function(DOMAIN, name, graph=body, attributes=()), parameters)


def _arguments(scope: Scope, node: Node, function: Function) -> Iterator[ir.Value]:
    """Return the arguments of a call: values, weights that it uses, and what replaces packed blocks."""
    for index, part in function.parameters:
        value = node.inputs[index]
        if part is None:
            yield scope[value]
        elif part[1] == ELEMENTS:
            yield write_elements(scope, node, value, part[0])
        else:
            yield scope.repacked_part(value, *part)


@register_lowering("call")
def lower_call(scope: Scope, node: Node) -> Sequence[ir.Value]:
    function = _function(scope.shared, node.attributes["graph"])
    arguments = list(_arguments(scope, node, function))
    return scope.add_several(function.function.name, arguments, len(node.outputs), domain=DOMAIN)


@register_lowering("print")
def lower_print(scope: Scope, node: Node) -> Sequence[ir.Value]:
    """Write nothing: what is printed becomes another result of the model."""
    scope.shared.prints.append((node.attributes["label"], scope[node.inputs[0]] if node.inputs else None))
    return []
