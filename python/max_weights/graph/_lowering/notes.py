"""The costs of a model in addition to its weights and operations, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from max_weights._core import shown
from max_weights.graph._lowering.dtypes import ONNX_TYPES
from max_weights.graph._lowering.packed import ELEMENTS
from max_weights.graph._lowering.scope import DOMAIN
from max_weights.graph._lowering.writer import name_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights._buffer import Buffer
    from max_weights._dtype import DType
    from max_weights.graph._lowering.model import LoweredModel

__all__ = ["cost_notes"]

_DTYPES = {number: dtype for dtype, number in ONNX_TYPES.items()}
_SAME_BYTES = ("Identity", "Reshape", "Squeeze", "Unsqueeze")


def cost_notes(lowered: LoweredModel, weights: Mapping[str, Buffer], sizes: Mapping[str, int]) -> list[str]:
    """Return the sentences, one for each weight and conversion.

    Args:
        lowered: The model.
        weights: The values of its weights by name.
        sizes: The bytes of what replaces packed weights, by name.
    """
    sentences = []
    for name, encoding in lowered.decoded_inputs.values():
        sentences.append(f"{name} of {encoding} is decoded to float32 in each run")
    repacked: Counter[tuple[str, str, bool]] = Counter()
    for key, value in lowered.repacked.items():
        if key.source not in lowered.inputs:
            repacked[key.source, key.encoding, key.part == ELEMENTS] += sizes[name_of(value)]
    for (name, encoding, decoded), size in repacked.items():
        how = "decoded to float32" if decoded else "rearranged for products of blocks"
        sentences.append(f"weight '{shown(name)}' of {encoding} is {how} when the model is loaded: {size} bytes")
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
        sentences.append(f"weight '{shown(name)}' {what} where {op} uses it: {size} bytes {when}")
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
