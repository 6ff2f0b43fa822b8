"""`lower`: a graph as an ONNX model, and what it costs in addition to its weights and operations, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from max_weights._buffer import Buffer
from max_weights._core import escape
from max_weights._dim import Dim, StaticDim, SymbolicDim
from max_weights._dtype import DType
from max_weights._typing import known
from max_weights.graph._errors import GraphError
from max_weights.graph._lowering.dtypes import ONNX_TYPES
from max_weights.graph._lowering.products import ELEMENTS, repack
from max_weights.graph._lowering.scope import DOMAIN, Repacked, Scope
from max_weights.graph._lowering.table import lower_nodes
from max_weights.graph._lowering.writer import Shared, name_of, onnx_type

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights.graph._graph import Graph
    from max_weights.graph._value import Node
    from max_weights.graph._weight import Weight


__all__ = ["LoweredModel", "cost_notes", "lower"]

_IR_VERSION = 11


@dataclass
class LoweredModel:
    """A model, and its relations to the graph."""

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
    """The replacements for packed blocks of weights and inputs."""
    initializers: bool
    """Whether weights are initializers."""

    def repack_weights(self, values: Mapping[str, Buffer]) -> dict[str, Buffer]:
        """Return the replacements for weights in packed blocks, by name, and add them to the model."""
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
        """The names of the elements of inputs, with the input and the encoding of each."""
        return {name_of(value): key[:2] for key, value in self.repacked.items() if key.source in self.inputs}

    def serialize(self) -> bytes:
        """Return the model in the form of ONNX files."""
        import onnx_ir as ir

        data: bytes = ir.serde.serialize_model(self.model).SerializeToString()
        return data


def lower(graph: Graph, shapes: Mapping[str, Sequence[int]], *, initializers: bool) -> LoweredModel:
    """Return a graph as an ONNX model."""
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


_DTYPES = {number: dtype for dtype, number in ONNX_TYPES.items()}
_SAME_BYTES = ("Identity", "Reshape", "Squeeze", "Unsqueeze")


def cost_notes(lowered: LoweredModel, weights: Mapping[str, Buffer], sizes: Mapping[str, int]) -> list[str]:
    """Return the sentences, one for each weight and conversion."""
    sentences = []
    for name, encoding in lowered.decoded_inputs.values():
        sentences.append(f"{name} of {encoding} is decoded to float32 in each run")
    repacked: Counter[tuple[str, str, bool]] = Counter()
    for key, value in lowered.repacked.items():
        if key.source not in lowered.inputs:
            repacked[key.source, key.encoding, key.part == ELEMENTS] += sizes[name_of(value)]
    for (name, encoding, decoded), size in repacked.items():
        how = "decoded to float32" if decoded else "rearranged for products of blocks"
        sentences.append(f"weight '{escape(name)}' of {encoding} is {how} when the model is loaded: {size} bytes")
    when = "when the model is loaded" if lowered.initializers else "in each run"
    graph = lowered.model.graph
    names = ((value, name_of(value)) for value in [*graph.inputs, *graph.initializers.values()])
    known: dict[ir.Value | None, str] = {value: name for value, name in names if name in weights}
    for name, op, dtype in dict.fromkeys(_moved(graph, known, lowered.model.functions)):
        weight = weights[name]
        if dtype is None:
            what, size = f"of {weight.dtype!r} is transposed", weight.nbytes
        else:
            what, size = f"of {weight.dtype!r} is converted to {dtype!r}", weight.num_elements * dtype.size_in_bits // 8
        sentences.append(f"weight '{escape(name)}' {what} where {op} uses it: {size} bytes {when}")
    return sentences


def _moved(
    nodes: Iterable[ir.Node],
    weights: Mapping[ir.Value | None, str],
    functions: Mapping[tuple[str, str, str], ir.Function],
) -> Iterator[tuple[str, str, DType | None]]:
    """Return the weights that are converted (to which dtype) or transposed (None), and by which operation."""
    known = dict(weights)
    for node in nodes:
        if node.domain == DOMAIN:
            function = functions[node.op_identifier()]
            arguments = zip(function.inputs, node.inputs, strict=True)
            yield from _moved(function, {inner: known[x] for inner, x in arguments if x in known}, functions)
        elif node.inputs and node.inputs[0] in known:
            weight, op = known[node.inputs[0]], str(node.name).partition("#")[0]
            if node.op_type in _SAME_BYTES:
                known[node.outputs[0]] = weight
            elif node.op_type == "Cast":
                yield weight, op, _DTYPES[node.attributes["to"].as_int()]
            elif node.op_type == "Transpose":
                known[node.outputs[0]] = weight
                yield weight, op, None
