"""The costs of a model in addition to its weights and operations, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from max_weights._core import shown
from max_weights.graph._lowering.dtypes import ONNX_TYPES
from max_weights.graph._lowering.packed import ELEMENTS
from max_weights.graph._lowering.subgraphs import DOMAIN

if TYPE_CHECKING:
    import onnx

    from max_weights._buffer import Buffer
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
    said = []
    for name, encoding in lowered.decoded_inputs.values():
        said.append(f"{name} of {encoding} is decoded to float32 in each run")
    repacked: Counter[tuple[str, str, bool]] = Counter()
    for key, name in lowered.repacked.items():
        if name in sizes:
            repacked[key.source, key.encoding, key.part == ELEMENTS] += sizes[name]
    for (name, encoding, decoded), size in repacked.items():
        how = "decoded to float32" if decoded else "rearranged for products of blocks"
        said.append(f"weight '{shown(name)}' of {encoding} is {how} when the model is loaded: {size} bytes")
    when = "when the model is loaded" if lowered.initializers else "in each run"
    functions = {function.name: function for function in lowered.model.functions}
    known = {name: name for name in weights}
    for name, op, kind in dict.fromkeys(_moved(lowered.model.graph.node, known, functions)):
        weight = weights[name]
        if kind:
            dtype = _DTYPES[kind]
            what, size = f"of {weight.dtype!r} is converted to {dtype!r}", weight.num_elements * dtype.size_in_bits // 8
        else:
            what, size = f"of {weight.dtype!r} is transposed", weight.nbytes
        said.append(f"weight '{shown(name)}' {what} where {op} uses it: {size} bytes {when}")
    return said


def _moved(
    nodes: Iterable[onnx.NodeProto], weights: Mapping[str, str], functions: Mapping[str, onnx.FunctionProto]
) -> Iterator[tuple[str, str, int]]:
    """Return the weights that are converted (to which dtype) or transposed (0), and by which operation."""
    known = dict(weights)
    for node in nodes:
        if node.domain == DOMAIN:
            function = functions[node.op_type]
            given = {
                inner: known[outer] for inner, outer in zip(function.input, node.input, strict=True) if outer in known
            }
            yield from _moved(function.node, given, functions)
        elif node.input and node.input[0] in known:
            weight = known[node.input[0]]
            op = node.name.partition("#")[0]
            if node.op_type in _SAME_BYTES:
                known[node.output[0]] = weight
            elif node.op_type == "Cast":
                yield weight, op, _target(node)
            elif node.op_type == "Transpose":
                known[node.output[0]] = weight
                yield weight, op, 0


def _target(node: onnx.NodeProto) -> int:
    return next(int(attribute.i) for attribute in node.attribute if attribute.name == "to")
