"""`RotaryEmbedding`: positions as rotations of pairs of features, and its form for Llama 3.

A table of all positions would be a large constant. Instead, each call computes what it needs from the numbers of its
positions; the table itself (`freqs_cis`) is recorded on request.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from max_weights._dim import Dim, to_dim
from max_weights._dtype import DType
from max_weights.graph import ops
from max_weights.graph._graph import Graph
from max_weights.graph._value import TensorValue
from max_weights.graph.ops._operands import operand
from max_weights.nn._module import Module

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValueLike

__all__ = ["Llama3RopeScalingParams", "Llama3RotaryEmbedding", "RotaryEmbedding"]


# Values recorded in a graph are reused in it by each layer of a model. They all go with the graph.
_RECORDED: WeakKeyDictionary[Graph, WeakValueDictionary[tuple[object, ...], TensorValue]] = WeakKeyDictionary()


def _once(module: Module, what: tuple[object, ...], record: Callable[[], TensorValue]) -> TensorValue:
    """Return the result of `record`, recorded once for a module in the current graph."""
    recorded = _RECORDED.setdefault(Graph.current, WeakValueDictionary())
    key = (ref(module), *what)
    value = recorded.get(key)
    if value is None:
        value = recorded[key] = record()
    return value


class RotaryEmbedding(Module):
    """Rotates pairs of features by angles that grow with the position. It has no weights.

    Pair `i` of `head_dim / 2` is rotated by `position * theta ** (-2i / head_dim)` radians.

    Args:
        dim: The size of the hidden states; used if `head_dim` is not given.
        n_heads: The number of heads; used if `head_dim` is not given.
        theta: The base of the frequencies.
        max_seq_len: Half the number of positions in `freqs_cis`.
        head_dim: The size of a head, even; default: `dim // n_heads`.
        _freqs_cis: A table of your own, `[positions, head_dim / 2, 2]` or `[positions, head_dim]`.
        interleaved: Whether features 2i and 2i + 1 are a pair (as in llama.cpp's files and Meta's own), or i and i +
            head_dim / 2 (as in Hugging Face's).
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        theta: float,
        max_seq_len: int,
        head_dim: int | None = None,
        _freqs_cis: TensorValueLike | None = None,
        interleaved: bool = True,
    ) -> None:
        self.dim = dim
        self.n_heads = n_heads
        self.theta = theta
        self.max_seq_len = max_seq_len
        self.head_dim = dim // n_heads if head_dim is None else head_dim
        self.interleaved = interleaved
        self._freqs_cis = _freqs_cis

    def _compute_inv_freqs(self) -> TensorValue:
        """Return the angle between neighbouring positions, for each pair: `[head_dim / 2]`, float32."""
        exponents = ops.range(0, self.head_dim, 2, dtype=DType.float64) / self.head_dim
        return (1.0 / self.theta**exponents).cast(DType.float32)

    def _angles(self, start: Dim, length: Dim) -> TensorValue:
        """Return the angles of `length` positions from `start` on: `[length, head_dim / 2]`, float32."""
        positions = ops.range(start, start + length, dtype=DType.float32)
        return ops.outer(positions, _once(self, ("frequencies",), self._compute_inv_freqs))

    def freqs_cis_base(self) -> TensorValue:
        """Return cosines and sines of all positions, in this graph: `[2 * max_seq_len, head_dim / 2, 2]`, float32.

        Example:
            >>> rope = nn.RotaryEmbedding(8, 2, 10000.0, 16)
            >>> rope.freqs_cis_base().shape
            [Dim(32), Dim(2), Dim(2)]
        """
        if self._freqs_cis is None:
            return _once(self, ("table",), self._table)
        if isinstance(self._freqs_cis, TensorValue):
            return operand(type(self).__name__, self._freqs_cis)
        return _once(self, ("constant",), lambda: ops.constant(self._freqs_cis))

    def _table(self) -> TensorValue:
        angles = self._angles(to_dim(0), to_dim(2 * self.max_seq_len))
        return ops.stack([ops.cos(angles), ops.sin(angles)], axis=-1)

    @property
    def freqs_cis(self) -> TensorValue:
        """The same as `[2 * max_seq_len, head_dim]`, with the cosine and sine of a pair side by side."""
        table = self.freqs_cis_base()
        return table if table.rank == 2 else table.flatten(1)

    def compute_scale(self, user_scale: float | None = None) -> float:
        """Return the factor of the products of queries and keys: `user_scale`, or else `1 / sqrt(head_dim)`.

        Args:
            user_scale: Returned unchanged, if it is given.

        Raises:
            ZeroDivisionError: `head_dim` is 0.

        Example:
            >>> rope = nn.RotaryEmbedding(8, 2, 10000.0, 16)
            >>> rope.compute_scale()
            0.5
        """
        return math.sqrt(1.0 / self.head_dim) if user_scale is None else user_scale

    def __call__(self, x: TensorValueLike, start_pos: Dim | None = None, seq_len: Dim | None = None) -> TensorValue:
        """Return the rotated features.

        Args:
            x: `[..., seq_len, heads, head_dim]`.
            start_pos: The first position; default: 0.
            seq_len: The number of positions; default: that of `x`.

        Returns:
            A tensor of the same shape, dtype and device.
        """
        value = operand(type(self).__name__, x)
        start = to_dim(0 if start_pos is None else start_pos)
        length = value.shape[-3] if seq_len is None else to_dim(seq_len)
        cos, sin = (self._turn(part, start, length).to(value.device).cast(value.dtype) for part in (0, 1))
        pairs = [*value.shape[:-1], self.head_dim // 2, 2]
        if self.interleaved:
            by_pair = value.reshape(pairs)
            real, imaginary = by_pair[..., 0], by_pair[..., 1]
        else:
            real, imaginary = value[..., : self.head_dim // 2], value[..., self.head_dim // 2 :]
        rotated = [real * cos - imaginary * sin, real * sin + imaginary * cos]
        return ops.stack(rotated, axis=-1).reshape(value.shape) if self.interleaved else ops.concat(rotated, axis=-1)

    def _turn(self, part: int, start: Dim, length: Dim) -> TensorValue:
        """Return cosines (0) or sines (1) of the positions of a call: `[length, 1, head_dim / 2]`, for all heads."""

        def record() -> TensorValue:
            base, own = type(self).freqs_cis_base, type(self).freqs_cis
            if self._freqs_cis is None and base is RotaryEmbedding.freqs_cis_base and own is RotaryEmbedding.freqs_cis:
                angles = _once(self, ("angles", start, length), lambda: self._angles(start, length))
                return ops.unsqueeze((ops.cos, ops.sin)[part](angles), 1)
            rows = self.freqs_cis[start : start + length]  # from a table of the caller
            return rows.reshape([length, 1, self.head_dim // 2, 2])[..., part]

        return _once(self, (part, start, length), record)


@dataclass
class Llama3RopeScalingParams:
    """How the frequencies of Llama 3 are lowered for more positions than it was first trained with."""

    factor: float
    """The divisor of the low frequencies."""
    low_freq_factor: float
    """Frequencies with fewer turns than this in `orig_max_position` are low."""
    high_freq_factor: float
    """Frequencies with more turns than this stay; those between are divided by something between."""
    orig_max_position: int
    """The number of positions that the model was first trained with."""


class Llama3RotaryEmbedding(RotaryEmbedding):
    """`RotaryEmbedding` with the frequencies of Llama 3, scaled by `scaling_params` (by default not at all)."""

    def __init__(
        self,
        dim: int,
        n_heads: int,
        theta: float,
        max_seq_len: int,
        head_dim: int | None = None,
        _freqs_cis: TensorValueLike | None = None,
        interleaved: bool = True,
        scaling_params: Llama3RopeScalingParams | None = None,
    ) -> None:
        super().__init__(dim, n_heads, theta, max_seq_len, head_dim, _freqs_cis, interleaved)
        self.scaling_params = scaling_params

    def _compute_inv_freqs(self) -> TensorValue:
        frequencies = super()._compute_inv_freqs()
        scaling = self.scaling_params
        if scaling is None:
            return frequencies
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        turns = frequencies * (scaling.orig_max_position / (2 * math.pi))
        lowered = frequencies / scaling.factor
        if low == high:
            between = lowered
        else:
            share = (turns - low) / (high - low)
            between = (1.0 - share) * lowered + share * frequencies
        return ops.where(turns > high, frequencies, ops.where(turns < low, lowered, between))
