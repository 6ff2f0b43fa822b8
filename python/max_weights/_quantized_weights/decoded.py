"""Trees with quantized weights decoded, for requests with a dtype of weights that are stored as several tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from max_weights._core import GGUFWeights, _decode_weights, escape, infos, may_be_quantized, quantized_names
from max_weights._dtype import DType
from max_weights._quantized_weights.config import config_of
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from max_weights._core import WeightsNode

__all__ = ["CODES", "KEEP", "DecodedAs", "StoredWeights", "require_no_codes", "stored_weights"]

CODES = frozenset({DType.float8_e4m3fn, DType.float8_e4m3fnuz, DType.float8_e5m2, DType.float8_e5m2fnuz})
"""The floats that quantized weights hold as codes."""
DecodedAs: TypeAlias = Literal["same", "turned"]
"""Whether a decoded weight has its shape in the model; those of gpt-oss's experts have outputs before inputs."""
KEEP = 'packed="keep" keeps its tensors unchanged, and max_weights.quantized(weights) has them by their roles'


class StoredWeights:
    """The quantized weights of a tree, by their names after decoding."""

    def __init__(self, node: WeightsNode) -> None:
        self._config = config_of(node)
        self._node = node
        found = quantized_names(node._root, self._config)
        self.packed = {weight: packed for weight, packed, _ in found.weights}
        """{weight: its packed numbers}."""
        self.parts = {part: weight for weight, _, parts in found.weights for part in parts}
        """{tensor: the weight that it belongs to}."""
        self.unknown = frozenset(found.unknown)
        """Tensors of codes whose scales are unknown."""
        self._turned = frozenset(found.turned)
        self.is_converted = found.is_converted
        """Whether a conversion gave the tree other weights than the files, which have quantized ones."""

    def __bool__(self) -> bool:
        return bool(self.packed or self.unknown or self.is_converted)

    def names(self, weights: Iterable[str]) -> list[str]:
        """Return the names at and below the node if these weights are decoded."""
        decoded = set(weights)
        front = f"{self._node.name}." if self._node.name else ""
        names = []
        for info in infos(self._node):
            weight = self.parts.get(info.name)
            if weight not in decoded:
                names.append(info.name)
                continue
            if weight != self._node.name and not weight.startswith(front):
                raise self.is_part(info.name)
            if self.packed[weight] == info.name:
                names.append(weight)
        return names

    def decode(self, dtypes: Mapping[str, DType]) -> WeightsNode:
        """Return the node with these weights decoded."""
        for name, dtype in dtypes.items():
            if not dtype.is_float():
                raise ArgumentError(
                    f"'{escape(name)}' is quantized, and {dtype.name} would cut off the fractions of what it decodes "
                    f"to: give a dtype of floats, or {KEEP}",
                    rule="argument.packed",
                )
        return _decode_weights(self._node, self._config, dict(dtypes), KEEP) if dtypes else self._node

    def decoded_as(self, weight: str) -> DecodedAs:
        """Return how a weight is decoded."""
        return "turned" if weight in self._turned else "same"

    def named_otherwise(self) -> ArgumentError:
        """Return the error for a converted tree, in which parts of a weight may be parts of others."""
        return ArgumentError(
            "the files have quantized weights, and this tree has them in another library's layout: give the tree of "
            "the files, and rename= together with dtype=, so that they are decoded first",
            rule="argument.packed",
        )

    def is_part(self, name: str) -> ArgumentError:
        """Return the error for a dtype of a tensor that belongs to a quantized weight."""
        weight = self.parts[name]
        error = ArgumentError(
            f"'{escape(name)}' is a part of the quantized weight '{escape(weight)}': a dtype is for what that is "
            f"decoded to; name '{escape(weight)}', or {KEEP}",
            rule="argument.packed",
        )
        error.tensor = name
        return error

    def not_known(self, name: str) -> ArgumentError:
        """Return the error for codes whose scales are not known."""
        where = "the checkpoint declares a quantization, or has scales for it"
        error = ArgumentError(
            f"'{escape(name)}' holds codes of a quantized weight ({where}), in a layout that is not known here: a "
            f"dtype would give its codes without their scales; {KEEP}",
            rule="argument.packed",
        )
        error.tensor = name
        return error


def stored_weights(node: WeightsNode) -> StoredWeights | None:
    """Return the quantized weights of the tree of a node; `None` if none is stored as several tensors."""
    if isinstance(node, GGUFWeights) or not may_be_quantized(node):
        return None
    stored = StoredWeights(node)
    return stored if stored else None


def require_no_codes(node: WeightsNode) -> None:
    """Refuse a weight whose elements are codes of a quantized one, for callers that convert only elements."""
    stored = stored_weights(node)
    if stored is None:
        return
    if node.name in stored.unknown:
        raise stored.not_known(node.name)
    if node.name in stored.parts:
        error = ArgumentError(
            f"'{escape(node.name)}' holds codes of the quantized weight '{escape(stored.parts[node.name])}', "
            "and a dtype alone would give them without their scales: load(dtype=...) and "
            "max_weights.quantized(weights) decode it",
            rule="argument.packed",
        )
        error.tensor = node.name
        raise error
