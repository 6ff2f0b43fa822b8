"""`Scope`: the ONNX nodes of a graph, or of a function, while it is lowered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from max_weights._dim import Dim, StaticDim, SymbolicDim, terms_of
from max_weights._dtype import DType
from max_weights._typing import known
from max_weights.errors import UnsupportedError
from max_weights.graph._lowering.division import quotient
from max_weights.graph._lowering.writer import CONTRIB, Shared, Writer, name_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights.graph._graph import Graph
    from max_weights.graph._value import Node, TensorValue

__all__ = ["DOMAIN", "Repacked", "Scope"]

DOMAIN = "max_weights"
"""The domain of the functions that subgraphs become."""
_OPSETS = {"": 23, CONTRIB: 1, DOMAIN: 1}


class Repacked(NamedTuple):
    """A tensor that replaces packed blocks."""

    source: str
    """The name of the weight or input."""
    encoding: str
    """The encoding of its blocks."""
    part: str
    """Which tensor."""


class Scope(Writer):
    """The ONNX nodes of one graph in order, and its values and dimensions.

    Args:
        shared: What the scopes of one model share.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.repacked: dict[Repacked, ir.Value] = {}
        """What replaces packed blocks of weights and inputs."""
        self._values: dict[TensorValue, ir.Value] = {}
        # Where a symbol can be read: a tensor and one of its axes.
        self._symbols: dict[str, tuple[ir.Value, int]] = {}
        self._dims: dict[Dim, ir.Value] = {}
        self._shapes: dict[tuple[Dim, ...], ir.Value] = {}
        self._rows: dict[tuple[ir.Value, int], ir.Value] = {}
        self._uses: Counter[TensorValue] = Counter()

    def count_uses(self, graph: Graph) -> None:
        """Count how often each value of a graph is used, for `is_used_once`."""
        self._uses = Counter(value for node in graph.nodes for value in node.inputs)
        self._uses.update(graph.results)

    def bind(self, value: TensorValue, to: ir.Value) -> None:
        """Set the value of the model for a value of the graph."""
        self._values[value] = to
        for axis, dim in enumerate(value.type.shape):
            if type(dim) is SymbolicDim and dim.name not in self._symbols:
                self._symbols[dim.name] = to, axis

    def add_results(self, graph: Graph, stem: str) -> list[ir.Value]:
        """Give the results of a graph unique names."""
        import onnx_ir as ir

        results = [ir.val(self.shared.free_name(f"{stem}{index}")) for index in range(len(graph.results))]
        for value, result in zip(graph.results, results, strict=True):
            self.nodes.append(ir.node("Identity", [self._values[value]], outputs=[result]))
        return results

    def to_graph(self, name: str, inputs: Iterable[ir.Value], outputs: Iterable[ir.Value]) -> ir.Graph:
        """Return the nodes that the outputs need; for example, not a transpose that went into a product."""
        import onnx_ir as ir

        graph = ir.Graph([*inputs], [*outputs], nodes=self.nodes, opset_imports=_OPSETS.copy(), name=name)
        for node in reversed(graph):
            if not any(output.uses() or output.is_graph_output() for output in node.outputs):
                graph.remove(node, safe=True)
        return graph

    def __getitem__(self, value: TensorValue) -> ir.Value:
        """Return the value of the model for a value of the graph."""
        return self._values[value]

    def is_used_once(self, value: TensorValue) -> bool:
        """Whether only one operation needs a value."""
        return self._uses[value] == 1

    def inputs(self, node: Node) -> list[ir.Value]:
        """Return an operation's operands."""
        return [self._values[value] for value in node.inputs]

    def dim(self, dim: Dim) -> ir.Value:
        """Write the size of a dimension, as int64 `[1]`."""
        known = self._dims.get(dim)
        if known is None:
            known = self._dims[dim] = self._dim(dim)
        return known

    def _dim(self, dim: Dim) -> ir.Value:
        if isinstance(dim, StaticDim):
            return self.constant([int(dim)])
        if isinstance(dim, SymbolicDim):
            if dim.name not in self._symbols:
                location = self.node.location if self.node else ""
                raise UnsupportedError(
                    f"the size of {dim} is unknown: no earlier tensor has it as a dimension (at {location})",
                    rule="unsupported.operation",
                )
            x, axis = self._symbols[dim.name]
            return self.add("Shape", [x], start=axis, end=axis + 1)
        total = None
        for product, coefficient in terms_of(dim).items():
            term = None if product and coefficient == 1 else self.constant([coefficient])
            for atom in product:
                factor = self.dim(atom) if isinstance(atom, Dim) else self._quotient(*atom)
                term = factor if term is None else self.add("Mul", [term, factor])
            total = known(term) if total is None else self.add("Add", [total, known(term)])
        return self.constant([0]) if total is None else total

    def _quotient(self, left: Dim, right: Dim) -> ir.Value:
        """Write a floor division; a plain one if both sides are certain to be positive."""
        above, below, safe = self.dim(left), self.dim(right), isinstance(right, StaticDim)
        if safe and all(coefficient > 0 for coefficient in terms_of(left).values()):
            return self.add("Div", [above, below])
        return quotient(self, above, below, DType.int64, safe=safe)

    def dims(self, dims: Sequence[Dim]) -> ir.Value:
        """Write several dimensions, as int64 `[n]`."""
        if all(isinstance(dim, StaticDim) for dim in dims):
            return self.constant([int(dim) for dim in dims])
        key = tuple(dims)
        if key not in self._shapes:
            self._shapes[key] = self.add("Concat", [self.dim(dim) for dim in dims], axis=0)
        return self._shapes[key]

    def repacked_part(self, value: TensorValue, encoding: str, part: str) -> ir.Value:
        """Return a tensor that replaces a weight or an input in packed blocks; see `packed.repack`."""
        import onnx_ir as ir

        key = Repacked(name_of(self._values[value]), encoding, part)
        if key not in self.repacked:
            self.repacked[key] = ir.val(self.shared.free_name(".".join(key)))
        return self.repacked[key]

    def check_shape(self, x: ir.Value, dims: Sequence[Dim]) -> ir.Value:
        """Write a result with a shape that the user states; it fails if that is wrong, where sizes are known before."""
        known = all(symbol.name in self._symbols for dim in dims for symbol in dim.parameters)
        return self.add("Reshape", [x, self.dims(dims)], allowzero=1) if known else x

    def rows(self, x: ir.Value, size: int) -> ir.Value:
        """Write a tensor as a matrix, with rows of this size, which is not 0."""
        if (x, size) not in self._rows:
            self._rows[x, size] = self.add("Reshape", [x, self.constant([-1, size])])
        return self._rows[x, size]

    def reshape(self, x: ir.Value, dims: Sequence[Dim], before: Sequence[Dim] = ()) -> ir.Value:
        """Write a reshape to these dimensions; `before` are those of the operand, if they are known."""
        unknown = [axis for axis, dim in enumerate(dims) if not isinstance(dim, StaticDim)]
        # In a shape with a 0, -1 could be anything.
        empty = any(isinstance(dim, StaticDim) and int(dim) == 0 for dim in dims)
        stay = all(axis < len(before) and before[axis] == dims[axis] for axis in unknown)
        if empty or (len(unknown) != 1 and not stay):
            return self.add("Reshape", [x, self.dims(dims)], allowzero=int(empty or len(unknown) > 1))
        represents = -1 if len(unknown) == 1 else 0  # 0 is the size of the operand
        sizes = [int(dim) if isinstance(dim, StaticDim) else represents for dim in dims]
        return self.add("Reshape", [x, self.constant(sizes)])
