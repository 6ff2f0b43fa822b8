"""Lowering of subgraphs: each is an ONNX function, defined once, that gets the values and weights of each call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from max_weights.errors import UnsupportedError
from max_weights.graph.lowering.table import lowers

if TYPE_CHECKING:
    import onnx

    from max_weights.graph.graph import Graph
    from max_weights.graph.lowering.scope import Scope
    from max_weights.graph.value import Node

__all__ = ["DOMAIN", "Functions", "opsets"]

DOMAIN = "max_weights"
"""The domain of the functions that subgraphs become."""
_OPSET = 23

# A parameter of a function: one of the values of a call, or a part of one that is a weight (encoding, parts, which).
_Taken: TypeAlias = tuple[int, tuple[str, tuple[str, ...], str] | None]


def opsets() -> list[Any]:
    """Return the versions of the operators in models."""
    from onnx import helper

    return [helper.make_opsetid(*pair) for pair in (("", _OPSET), ("com.microsoft", 1), (DOMAIN, 1))]


class Functions:
    """What all scopes of one model share: its functions, numbers for names, and the operations of its nodes."""

    def __init__(self, lays_out: bool, weights: Iterable[str]) -> None:
        self.prefix = "%"
        """The prefix of the names of results, which no weight's name has."""
        while any(name.startswith(self.prefix) for name in weights):
            self.prefix += "%"
        self.lays_out = lays_out
        """Whether weights in packed blocks are laid out anew when the model is loaded."""
        self.places: dict[str, Node] = {}
        """The recorded operations by the names of their ONNX nodes."""
        self.prints: list[tuple[str, str | None]] = []
        """Labels to print after a run, with the tensors to print."""
        self._made: dict[Graph, onnx.FunctionProto] = {}
        self._takes: dict[Graph, list[_Taken]] = {}
        self._numbers = count()

    def next_number(self) -> int:
        """Return a number that no name has yet."""
        return next(self._numbers)

    @property
    def all(self) -> list[onnx.FunctionProto]:
        """Return the functions so far; a function comes after those that it calls."""
        return list(self._made.values())

    def function(self, graph: Graph) -> onnx.FunctionProto:
        """Return the function of a subgraph: it takes its inputs, then its weights, and gives its outputs."""
        made = self._made.get(graph)
        if made is None:
            made = self._make(graph)
            self._made[graph] = made
        return made

    def _make(self, graph: Graph) -> onnx.FunctionProto:
        from onnx import helper

        from max_weights.graph.lowering.scope import Scope

        given = [*graph.inputs, *graph.weight_values]
        names = [f"given{index}" for index in range(len(given))]
        inputs = len(graph.inputs)
        scope, printed = Scope(self, dict(zip(given[inputs:], names[inputs:], strict=True))), len(self.prints)
        for value, name in zip(given, names, strict=True):
            scope.bind(value, name)
        scope.lower(graph)
        if len(self.prints) > printed:
            raise UnsupportedError(f"subgraph {graph.name!r} prints, which only the graph being run can do")
        results = scope.results(graph, [f"result{index}" for index in range(len(graph.outputs))])
        taken = {function.name for function in self._made.values()} | {""}
        names_left = (f"{graph.name}.{number}" if number else graph.name for number in count())
        name = next(candidate for candidate in names_left if candidate not in taken)
        nodes = scope.needed(results)
        used = {name for node in nodes for name in node.input}
        takes: list[_Taken] = [(index, None) for index in range(len(names)) if index < inputs or names[index] in used]
        names_taken = [names[index] for index, _ in takes]
        for (weight, encoding, parts), laid_out in scope.laid_out.items():
            takes += [(names.index(weight), (encoding, parts, part)) for part in parts]
            names_taken += laid_out.values()
        self._takes[graph] = takes
        return helper.make_function(DOMAIN, name, names_taken, results, nodes, opsets())

    def arguments(self, scope: Scope, node: Node) -> list[str]:
        """Return the names of the arguments of a call: values, weights that it uses, and parts of weights."""
        made = []
        for index, part in self._takes[node.attributes["graph"]]:
            value = node.inputs[index]
            if part is None:
                made.append(scope[value])
            else:
                names = scope.parts(value, *part[:2])
                assert names is not None
                made.append(names[part[2]])
        return made


@lowers("call")
def call(scope: Scope, node: Node) -> Sequence[str]:
    """Write a call of the function with the arguments of this call."""
    function = scope.functions.function(node.attributes["graph"])
    return scope.add_several(function.name, scope.functions.arguments(scope, node), len(node.outputs), domain=DOMAIN)


@lowers("print")
def print_(scope: Scope, node: Node) -> Sequence[str]:
    """Write nothing: what is printed becomes another result of the model."""
    scope.functions.prints.append((node.attributes["label"], scope[node.inputs[0]] if node.inputs else None))
    return []
