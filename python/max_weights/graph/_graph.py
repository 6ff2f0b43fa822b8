"""`Graph`: typed operations in the order in which they were recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from max_weights._core import escape, printable
from max_weights._fork_lock import ForkLock
from max_weights.errors import UnsupportedError
from max_weights.graph._declared import Declarations, DeclaredWeights
from max_weights.graph._listing import listing
from max_weights.graph._stack import caller_location, current, enter, graph_error, leave
from max_weights.graph._type import BufferType, TensorType, input_type_error
from max_weights.graph._value import BufferValue, Node, TensorValue
from max_weights.graph._weight import Weight

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Graph"]

_adding = ForkLock()


class _Current:
    """The innermost graph of this thread or task."""

    def __get__(self, _instance: object, _owner: object) -> Graph:
        return cast("Graph", current("Graph.current"))


class Graph:
    """A recorded computation: inputs, weights, operations and outputs, each with its type.

    Inside `with graph:`, everything that is computed from values is recorded. You can enter the same graph again until
    it has outputs. Graphs may be nested; each thread and each task has its own innermost one. A graph only describes a
    computation; `max_weights.engine.InferenceSession` runs it.

    Args:
        name: The name that messages use.
        forward: Called once with the inputs and the further arguments; its result (a value, several, or `None`) becomes
            the outputs.
        input_types: The types of the inputs.
        path: A file to read the graph from, as in MAX; any value is an UnsupportedError in this version.
        *args: Passed to `forward` after the inputs.
        **kwargs: Passed to `forward`.
    """

    current = _Current()
    """The innermost graph of this thread or task. LookupError, which is also a ValueError, if there is none."""

    name: str
    """The name."""
    input_tensors: Sequence[TensorValue]
    """The inputs as tensors; for buffers, their initial content."""

    def __init__(
        self,
        name: str,
        forward: Callable[..., Any] | None = None,
        input_types: Iterable[TensorType | BufferType] = (),
        path: str | os.PathLike[str] | None = None,
        *args: object,
        **kwargs: object,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a graph must be a string, not {name!r}")
        if path is not None:
            raise UnsupportedError(
                f"graph {name!r} cannot be read from {printable(os.fspath(path))!r}: this version reads no graphs. "
                "The fourth argument is a path, as in MAX; further arguments for `forward` come after it, or by "
                "keyword",
                rule="unsupported.operation",
            )
        types = [input_types] if isinstance(input_types, TensorType | BufferType) else list(input_types)
        for kind in types:
            if not isinstance(kind, TensorType | BufferType):
                raise input_type_error("a TensorType or a BufferType", kind)
        if forward is None and (args or kwargs):
            raise TypeError(f"graph {name!r}: further arguments are for `forward`, which is missing")
        self.name = name
        self._nodes: list[Node] = []
        self._outputs: tuple[TensorValue, ...] | None = None
        self._by_weight: dict[Weight, TensorValue] = {}
        self._by_name: dict[str, Weight] = {}
        self._of_calls: set[str] = set()
        self._symbols: set[str] = set()  # of the first nodes, as many as were counted
        self._counted = 0
        self._own_symbols: frozenset[str] | None = None  # set once the graph has its outputs
        self._subgraphs: dict[str, Graph] = {}
        self._weight_prefix = ""
        self._declarations = Declarations(name)
        self.input_tensors = tuple(self._input(index, kind) for index, kind in enumerate(types))
        self._inputs = tuple(
            BufferValue(tensor) if isinstance(kind, BufferType) else tensor
            for kind, tensor in zip(types, self.input_tensors, strict=True)
        )
        if forward is not None:
            self._record(forward, *args, **kwargs)

    def _input(self, index: int, kind: TensorType | BufferType) -> TensorValue:
        if isinstance(kind, BufferType):
            return self.record("input", (), (kind.as_tensor(),), {"index": index, "buffer": True}).outputs[0]
        return self.record("input", (), (kind,), {"index": index}).outputs[0]

    def _record(self, forward: Callable[..., Any], *args: object, **kwargs: object) -> None:
        with self:
            result = forward(*self._inputs, *args, **kwargs)
            if result is None:
                self.output()
            elif isinstance(result, TensorValue):
                self.output(result)
            else:
                self.output(*result)

    def __enter__(self) -> Self:
        enter(self)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        leave(self)

    @property
    def inputs(self) -> Sequence[TensorValue]:
        """The values of each run; those whose type is a BufferType are BufferValues, also `inputs[0].buffer`."""
        return cast("Sequence[TensorValue]", self._inputs)

    @property
    def input_types(self) -> list[TensorType | BufferType]:
        """The types of the inputs."""
        return [value.type for value in self._inputs]

    @property
    def nodes(self) -> Sequence[Node]:
        """The operations recorded so far, including inputs and weights; operands come before their users."""
        return tuple(self._nodes)

    @property
    def symbols(self) -> set[str]:
        """The names of the symbols in the shapes of all values so far."""
        return set(self._taken_symbols())

    def _taken_symbols(self) -> set[str]:
        """Return the same as one set that grows with the graph: an added name is taken from then on."""
        end = len(self._nodes)
        new, self._counted = self._nodes[self._counted : end], end
        self._symbols.update(symbol.name for node in new for value in node.outputs for symbol in value.type.parameters)
        return self._symbols

    @property
    def own_symbols(self) -> frozenset[str]:
        """The names of the symbols that no input and no weight has, because operations create them."""
        if self._own_symbols is not None:
            return self._own_symbols
        values = (*self.input_tensors, *self._by_weight.values())
        own = frozenset(self.symbols.difference(symbol.name for value in values for symbol in value.type.parameters))
        if self._outputs is not None:
            self._own_symbols = own
        return own

    def output(self, *values: TensorValue) -> None:
        """Declare the results of the graph, once; nothing can be recorded after that.

        Args:
            *values: The results: values of this graph.

        Raises:
            GraphError: it has its outputs already (a ValueError).
            TypeError: a result is no value of a graph.

        Example:
            >>> with Graph("double", input_types=[x.type]) as double:
            ...     double.output(double.inputs[0] * 2.0)
        """
        if self._outputs is not None:
            raise graph_error("output", f"graph {self.name!r} has its outputs already")
        for value in values:
            if not isinstance(value, TensorValue):
                raise TypeError(f"output: a {type(value).__name__} is not a value of a graph; see ops.constant")
        self._outputs = tuple(self._own("output", value) for value in values)

    @property
    def results(self) -> Sequence[TensorValue]:
        """The outputs, then what is `stored`, in the order of the inputs."""
        return (*self.outputs, *self.stored.values())

    @property
    def stored(self) -> Mapping[int, TensorValue]:
        """The last tensor that the graph stores in each buffer, by the number of the input."""
        return {
            index: value._contents
            for index, (value, tensor) in enumerate(zip(self._inputs, self.input_tensors, strict=True))
            if isinstance(value, BufferValue) and value._contents is not tensor
        }

    @property
    def outputs(self) -> Sequence[TensorValue]:
        """The results of the graph. ValueError before `output` is called."""
        if self._outputs is None:
            raise graph_error("outputs", f"graph {self.name!r} has no outputs yet; call `output(...)` in it")
        return self._outputs

    @property
    def output_types(self) -> list[TensorType]:
        """The types of the outputs. ValueError before `output` is called."""
        return [value.type for value in self.outputs]

    def record(
        self, op: str, inputs: Iterable[TensorValue], types: Iterable[TensorType], attributes: Mapping[str, object]
    ) -> Node:
        """Add an operation without checks; the functions of `ops` check operands and compute types.

        Args:
            op: The name of the operation.
            inputs: Values of this graph.
            types: The type of each result.
            attributes: Everything else that decides the result.

        Returns:
            The operation, whose `outputs` are its results.

        Raises:
            GraphError: the graph has its outputs already (a ValueError).

        Example:
            >>> graph.record("sqrt", [x], [x.type], {}).op
            'sqrt'
        """
        if self._outputs is not None:
            raise graph_error(op, f"graph {self.name!r} has its outputs already, so nothing can be added to it")
        node = Node(self, op, tuple(inputs), MappingProxyType(dict(attributes)), types, caller_location())
        self._nodes.append(node)
        return node

    def _own(self, op: str, value: TensorValue) -> TensorValue:
        """Return a value as one of this graph: itself, or that of a weight, which joins.

        Args:
            op: The operation that uses it, for messages.
            value: A value of this graph, or a `Weight`.

        Raises:
            GraphError: it is a value of another graph (a ValueError).
        """
        if isinstance(value, Weight):
            return self.add_weight(value)
        if value.node.graph is not self:
            raise graph_error(
                op,
                f"a value {value.type} of graph {value.node.graph.name!r} is used in graph {self.name!r}; "
                "make it an input of that graph",
            )
        return value

    def add_weight(self, weight: Weight) -> TensorValue:
        """Return the value of a weight in this graph; the same value for the same object.

        From then on, the weight's dtype, shape and device are fixed.

        Args:
            weight: The weight.

        Raises:
            GraphError: another weight of this name is in the graph (a ValueError).

        Example:
            >>> graph.add_weight(Weight("up", DType.float32, [4, 3], CPU)).shape
            [Dim(4), Dim(3)]
        """
        if not isinstance(weight, Weight):
            raise TypeError(f"add_weight: takes a Weight, not {type(weight).__name__}")
        with _adding:
            value = self._by_weight.get(weight)
            if value is not None:
                return value
            other = self._by_name.get(weight.name)
            if other is not None and other.name in self._of_calls and other.type == weight.type:
                value = self._by_weight[weight] = self._by_weight.pop(other)
                self._by_name[weight.name] = weight
                self._of_calls.discard(weight.name)
                return value
            if other is not None and other.name == weight.name:  # it may have been renamed since
                raise graph_error(
                    "add_weight",
                    f"weight '{escape(weight.name)}' already exists in graph {self.name!r}, as another object: "
                    f"{other!r}. Weights of one model get unique names from Module.state_dict() or load_state_dict()",
                )
            value = self.record("weight", (), (weight.type,), {"weight": weight}).outputs[0]
            weight._join(self.name)
            self._by_weight[weight] = value
            self._by_name[weight.name] = weight
            return value

    def _weight_of_call(self, subgraph: Graph, weight: Weight, prefix: str) -> TensorValue:
        """Return the value in this graph of a weight of a subgraph that is called with a prefix.

        Raises:
            GraphError: this graph has a weight of that name with another type (a ValueError).
        """
        own = subgraph._weight_prefix
        name = prefix + weight.name.removeprefix(own) if own and weight.name.startswith(own) else weight.name
        if name == weight.name and weight not in self._by_weight and name not in self._by_name:
            return self.add_weight(weight)
        joined = self._by_name.get(name)
        if joined is None:
            joined = Weight(name, weight.dtype, weight.shape, weight.device, weight.quantization_encoding)
            self._of_calls.add(name)
        elif joined.type != weight.type:
            raise graph_error(
                "call", f"weight '{escape(name)}' is {joined.type} here, and {weight.type} in graph {subgraph.name!r}"
            )
        return self.add_weight(joined)

    def _adopt(self, weights: Mapping[str, Weight]) -> None:
        """Replace the weights that calls of subgraphs named by a model's weights, by name, which have values."""
        for name in list(self._of_calls):
            weight = weights.get(name)
            if weight is not None and weight.name == name and weight.type == self._by_name[name].type:
                self.add_weight(weight)

    @property
    def parameters(self) -> dict[str, Weight]:
        """The weights in this graph, by their current names.

        Raises:
            GraphError: two of them were given the same name after they joined (a ValueError).
        """
        weights: dict[str, Weight] = {}
        for weight in self._by_weight:
            if weights.setdefault(weight.name, weight) is not weight:
                raise graph_error("parameters", f"two weights of graph {self.name!r} are named '{escape(weight.name)}'")
        return weights

    @property
    def weight_values(self) -> Sequence[TensorValue]:
        """The values of the weights in this graph, in the order in which they joined, which is that of `parameters`."""
        return tuple(self._by_weight.values())

    def weights(self) -> DeclaredWeights:
        """Return a tree of names whose `allocate` creates new weights, from `dtype` and `shape`.

        They join the graph when they are first used, or by `add_weight`.

        Example:
            >>> graph.weights().up.weight.allocate(DType.float32, [4, 3])
            Weight(up.weight, DType.float32, [Dim(4), Dim(3)], cpu:0)
        """
        return DeclaredWeights(self._declarations, "")

    def add_subgraph(
        self,
        name: str,
        forward: Callable[..., Any] | None = None,
        input_types: Iterable[TensorType | BufferType] = (),
        path: str | os.PathLike[str] | None = None,
        *args: object,
        weight_prefix: str = "",
        **kwargs: object,
    ) -> Graph:
        """Add a subgraph to this graph, for `ops.call`. The arguments are those of `Graph`.

        Args:
            name: The name, unique in this graph.
            forward: As in `Graph`.
            input_types: As in `Graph`.
            path: As in `Graph`.
            *args: As in `Graph`.
            weight_prefix: The prefix of the names of weights that differ in each call.
            **kwargs: As in `Graph`.

        Returns:
            The subgraph.

        Raises:
            GraphError: this graph already has a subgraph of that name (a ValueError).

        Example:
            >>> graph.add_subgraph("double", lambda x: x * 2.0, [x.type]).name
            'double'
        """
        if name in self._subgraphs:
            raise graph_error("add_subgraph", f"graph {self.name!r} has a subgraph {name!r} already")
        graph = Graph(name, None, input_types, path)
        graph._weight_prefix = weight_prefix
        if forward is not None:
            graph._record(forward, *args, **kwargs)
        elif args or kwargs:
            raise TypeError(f"graph {name!r}: further arguments are for `forward`, which is missing")
        self._subgraphs[name] = graph
        return graph

    @property
    def subgraphs(self) -> Mapping[str, Graph]:
        """The subgraphs, by name."""
        return MappingProxyType(self._subgraphs)

    def __repr__(self) -> str:
        return f"Graph {self.name!r}\n{listing(self._nodes, self._outputs)}".rstrip()
