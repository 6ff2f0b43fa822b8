"""`ShardingStrategy`: how a weight is split over devices, as plain data.

A strategy and a shape give `Pieces`, the ranges of a shard. Code that cuts, loads or plans works on the pieces and
never on the strategy, so that the same split applies to a declared weight, a tensor in memory and a mapped file.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, overload

from max_weights._core import escape
from max_weights._dim import StaticDim
from max_weights._quantization import QuantizationEncoding
from max_weights._shape import Shape, listed
from max_weights._weight_data import WeightData
from max_weights.sharding._data import readable, take
from max_weights.sharding._pieces import Pieces, Size
from max_weights.sharding._rules import Evenly, GateUp, Heads, Rule, Segment, Segmented, StackedQKV, count
from max_weights.sharding._shape_only import ShapeOnly, concat, pieces_of

if TYPE_CHECKING:
    from max_weights._dim import DimLike

__all__ = ["Segment", "ShapeOnly", "ShardingStrategy", "Sliceable", "Split", "concat"]

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

ShardFunction: TypeAlias = Callable[[Any, int, int], object]
"""`shard(weight, i, num_devices)` gives shard `i` of `num_devices` shards of a weight."""


class Sliceable(Protocol[_T_co]):
    """A value of a graph, or its stand-in: it computes its part itself."""

    def _part(self, pieces: Pieces) -> _T_co: ...


@dataclass(frozen=True)
class Split:
    """How the strategies of this package split; called as `split(weight, i, num_devices)`, like a function of your own.

    Args:
        kind: The class method of `ShardingStrategy` that creates it.
        axis: The axis that is split, as given.
        rule: How the axis is split; `None` for `replicate` and for the markers, which modules interpret.
    """

    kind: str
    axis: int | None = None
    rule: Rule | None = None

    def __call__(self, weight: Sliceable[_T], i: int, num_devices: int) -> _T:
        """Return what the strategy gives for the weight."""
        return ShardingStrategy(num_devices, self)(weight, i)

    def pieces(self, whole: tuple[Size, ...], index: int, num_devices: int) -> Pieces:
        """Return the ranges of shard `index` of a tensor of this shape."""
        if self.axis is None or self.rule is None:
            return Pieces.complete(whole)
        rank = len(whole)
        if not -rank <= self.axis < rank:
            raise ValueError(f"there is no axis {self.axis}")
        axis = self.axis % rank
        size = whole[axis]
        if not isinstance(size, int):
            raise ValueError(f"axis {axis} is the dimension {size}; a size must be known to be split")
        return Pieces.along(axis, whole, self.rule.ranges(size, num_devices, index))

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments of the class method other than the number of devices."""
        axis = {"axis": self.axis} if self.kind in ("axiswise", "gate_up", "segmented") else {}
        return {**axis, **({} if self.rule is None else vars(self.rule))}


class _IsKind(property):
    """Whether a strategy is of a kind."""

    def __init__(self, kind: str) -> None:
        super().__init__(lambda strategy: strategy.kind == kind, doc=f"Whether it is of the kind `{kind}`.")

    if TYPE_CHECKING:

        def __get__(self, strategy: Any, owner: type | None = None) -> bool: ...  # type: ignore[override]


ROWWISE: Split = Split("rowwise", 0, Evenly())
COLUMNWISE: Split = Split("columnwise", 1, Evenly())
REPLICATE: Split = Split("replicate")
TENSOR_PARALLEL: Split = Split("tensor_parallel")
EXPERT_PARALLEL: Split = Split("expert_parallel")


@dataclass(frozen=True, repr=False)
class ShardingStrategy:
    """How a weight is split over devices. Immutable; equal arguments make equal strategies.

    Create one with a class method, or from a function of your own. If a size does not divide evenly, the first shards
    have one more; with fewer rows than devices, the last shards are empty.

    Args:
        num_devices: The number of shards that a weight is split into; at least 1.
        shard: `shard(weight, i, num_devices)` slices a `ShapeOnly` and returns shard `i`. It must always return the
            same for the same shape.
    """

    num_devices: int
    shard: ShardFunction

    def __post_init__(self) -> None:
        if not callable(self.shard):
            raise TypeError(
                "shard must be a function of a weight, the number of a shard and the number of shards, not "
                f"{self.shard!r}"
            )
        count(self.num_devices, "num_devices")

    @classmethod
    def rowwise(cls, num_devices: int) -> ShardingStrategy:
        """Split axis 0 into ranges.

        Args:
            num_devices: The number of shards.

        Returns:
            The strategy.

        Raises:
            ValueError: `num_devices` is not positive.

        Example:
            >>> max_weights.sharding.ShardingStrategy.rowwise(2).pieces([5, 3], 0).boxes
            (((0, 3), (0, 3)),)
        """
        return cls(num_devices, ROWWISE)

    @classmethod
    def columnwise(cls, num_devices: int) -> ShardingStrategy:
        """Split axis 1 into ranges.

        Args:
            num_devices: The number of shards.

        Returns:
            The strategy.

        Raises:
            ValueError: `num_devices` is not positive.

        Example:
            >>> max_weights.sharding.ShardingStrategy.columnwise(2).pieces([5, 4], 1).boxes
            (((0, 5), (2, 4)),)
        """
        return cls(num_devices, COLUMNWISE)

    @classmethod
    def axiswise(cls, axis: int, num_devices: int) -> ShardingStrategy:
        """Split any axis into ranges.

        Args:
            axis: The axis; a negative one counts from the last.
            num_devices: The number of shards.

        Returns:
            The strategy.

        Raises:
            ValueError: `num_devices` is not positive.

        Example:
            >>> max_weights.sharding.ShardingStrategy.axiswise(-1, 2).pieces([5, 4], 1).slices
            ((slice(0, 5, None), slice(2, 4, None)),)
        """
        return cls(num_devices, Split("axiswise", operator.index(axis), Evenly()))

    @classmethod
    def replicate(cls, num_devices: int) -> ShardingStrategy:
        """Keep the whole weight on each device.

        Args:
            num_devices: The number of shards.

        Returns:
            The strategy.

        Raises:
            ValueError: `num_devices` is not positive.

        Example:
            >>> max_weights.sharding.ShardingStrategy.replicate(2).pieces([5, 4], 1).is_complete
            True
        """
        return cls(num_devices, REPLICATE)

    @classmethod
    def stacked_qkv(
        cls, num_devices: int, num_heads: int, head_dim: int, *, num_kv_heads: int | None = None
    ) -> ShardingStrategy:
        """Split queries, keys and values that are stacked on axis 0, each by heads.

        Args:
            num_devices: The number of shards.
            num_heads: The number of query heads.
            head_dim: The number of rows of a head.
            num_kv_heads: The number of key heads, and of value heads, if queries share them; by default, as many as
                query heads. Queries that share a head go to the device that has it.

        Returns:
            The strategy.

        Raises:
            ValueError: A number is not positive, or heads do not share key and value heads evenly.

        Example:
            >>> max_weights.sharding.ShardingStrategy.stacked_qkv(2, 2, 1).pieces([6], 0).slices
            ((slice(0, 1, None),), (slice(2, 3, None),), (slice(4, 5, None),))
        """
        rule = StackedQKV(num_heads, head_dim, num_heads if num_kv_heads is None else num_kv_heads)
        return cls(num_devices, Split("stacked_qkv", 0, rule))

    @classmethod
    def head_aware_columnwise(cls, num_devices: int, num_heads: int, head_dim: int) -> ShardingStrategy:
        """Split axis 1 between heads; its size is that of the heads, a half of it (FP4) or three quarters (MXFP6).

        Args:
            num_devices: The number of shards.
            num_heads: The number of heads.
            head_dim: The number of columns of a head.

        Returns:
            The strategy.

        Raises:
            ValueError: A number is not positive.

        Example:
            >>> max_weights.sharding.ShardingStrategy.head_aware_columnwise(2, 4, 3).pieces([2, 12], 1).slices
            ((slice(0, 2, None), slice(6, 12, None)),)
        """
        return cls(num_devices, Split("head_aware_columnwise", 1, Heads(num_heads, head_dim)))

    @classmethod
    def gate_up(cls, num_devices: int, axis: int = 2) -> ShardingStrategy:
        """Split gate and up, the two halves of an axis, each evenly.

        Args:
            num_devices: The number of shards.
            axis: The axis; a negative one counts from the last.

        Returns:
            The strategy.

        Raises:
            ValueError: `num_devices` is not positive.

        Example:
            >>> max_weights.sharding.ShardingStrategy.gate_up(2, axis=0).pieces([8], 1).slices
            ((slice(2, 4, None),), (slice(6, 8, None),))
        """
        return cls(num_devices, Split("gate_up", operator.index(axis), GateUp()))

    @classmethod
    def segmented(cls, num_devices: int, axis: int, segments: Iterable[Segment]) -> ShardingStrategy:
        """Split parts of an axis, each on its own; their sum is the size of the axis, or twice that (FP4).

        Args:
            num_devices: The number of shards.
            axis: The axis; a negative one counts from the last.
            segments: The parts, in order.

        Returns:
            The strategy.

        Raises:
            ValueError: A size is not positive, or there is no segment.

        Example:
            >>> parts = [max_weights.sharding.Segment.even(4), max_weights.sharding.Segment.even(2)]
            >>> max_weights.sharding.ShardingStrategy.segmented(2, 0, parts).pieces([6], 0).slices
            ((slice(0, 2, None),), (slice(4, 5, None),))
        """
        return cls(num_devices, Split("segmented", operator.index(axis), Segmented(segments)))

    @classmethod
    def tensor_parallel(cls, num_devices: int) -> ShardingStrategy:
        """Return a marker: a module decides how each of its weights is split.

        Args:
            num_devices: The number of shards.

        Returns:
            The strategy.

        Raises:
            ValueError: `num_devices` is not positive.

        Example:
            >>> max_weights.sharding.ShardingStrategy.tensor_parallel(2).is_tensor_parallel
            True
        """
        return cls(num_devices, TENSOR_PARALLEL)

    @classmethod
    def expert_parallel(cls, num_devices: int) -> ShardingStrategy:
        """Return a marker: a module gives each device some of its experts.

        Args:
            num_devices: The number of shards.

        Returns:
            The strategy.

        Raises:
            ValueError: `num_devices` is not positive.

        Example:
            >>> max_weights.sharding.ShardingStrategy.expert_parallel(2).is_expert_parallel
            True
        """
        return cls(num_devices, EXPERT_PARALLEL)

    @property
    def kind(self) -> str:
        """The name of the class method that created it; `custom` for a function of your own."""
        return self.shard.kind if isinstance(self.shard, Split) else "custom"

    @property
    def sharded_axis(self) -> int | None:
        """The axis that is split, as given; `None` for `replicate`, the markers, and functions of your own."""
        return self.shard.axis if isinstance(self.shard, Split) else None

    is_rowwise = _IsKind("rowwise")
    is_colwise = _IsKind("columnwise")
    is_axiswise = _IsKind("axiswise")
    is_replicate = _IsKind("replicate")
    is_stacked_qkv = _IsKind("stacked_qkv")
    is_head_aware_colwise = _IsKind("head_aware_columnwise")
    is_gate_up = _IsKind("gate_up")
    is_segmented = _IsKind("segmented")
    is_tensor_parallel = _IsKind("tensor_parallel")
    is_expert_parallel = _IsKind("expert_parallel")
    is_custom = _IsKind("custom")

    def pieces(self, weight_or_shape: object, index: int) -> Pieces:
        """Return the ranges of shard `index`.

        Args:
            weight_or_shape: A shape, or an object that has one: a `Weight`, a `WeightData`, a tensor. Dimensions that
                are not split may be symbolic. The shape of quantized weights counts bytes, and is split between blocks.
            index: The number of the shard, from 0.

        Returns:
            The boxes that make up the shard.

        Raises:
            IndexError: There is no such shard.
            ValueError: The strategy does not fit the shape, the axis is symbolic, or a shard would begin inside a block
                of a quantized weight.
            NotImplementedError: `tensor_parallel` and `expert_parallel`, which modules interpret.

        Example:
            >>> max_weights.sharding.ShardingStrategy.rowwise(2).pieces([5, 3], 0).boxes
            (((0, 3), (0, 3)),)
        """
        if self.is_tensor_parallel or self.is_expert_parallel:
            raise NotImplementedError(
                f"{self.kind} is for modules, which decide how each of their weights is split; for one weight use "
                "another strategy, such as rowwise"
            )
        if not 0 <= index < self.num_devices:
            raise IndexError(f"there is no shard {index} of {self.num_devices} devices")
        what, shape, encoding = _described(weight_or_shape)
        whole = tuple(dim.dim if isinstance(dim, StaticDim) else dim for dim in shape)
        try:
            if encoding is None or not encoding.is_gguf or not whole or not isinstance(whole[-1], int):
                return self._split(whole, index)
            return self._split_blocks(whole, whole[-1], index, encoding)
        except ValueError as error:
            # In a user's function, the position of the error helps; in a rule it does not.
            cause = error if self.is_custom else None
            raise ValueError(f"{what} cannot be sharded as {self!r}: {error}") from cause

    @overload
    def __call__(self, weight_or_shape: Sliceable[_T], index: int) -> _T: ...
    @overload
    def __call__(self, weight_or_shape: Iterable[DimLike], index: int) -> Pieces: ...
    def __call__(self, weight_or_shape: object, index: int) -> Any:
        """Return shard `index`; for a `Weight` or another value in a graph, as a `TensorValue`.

        For everything else this is what `pieces` returns.
        """
        pieces = self.pieces(weight_or_shape, index)
        # Values are defined above this module, so a value computes its parts itself.
        part_of = getattr(type(weight_or_shape), "_part", None)
        return pieces if part_of is None else part_of(weight_or_shape, pieces)

    def take(self, value: object, index: int) -> Any:
        """Return shard `index` of a loaded value: a view if it is one run of memory, otherwise one gathered copy.

        Args:
            value: A `Buffer`, a `WeightData`, a weight of a checkpoint, a NumPy array, a torch tensor, or any other
                tensor that supports DLPack.
            index: The number of the shard, from 0.

        Returns:
            The same kind of object; a `WeightData` for a weight of a checkpoint, a `Buffer` for other DLPack tensors.

        Raises:
            IndexError, ValueError, NotImplementedError: As for `pieces`.
            FileChangedError: The file of a mapped value was truncated.

        Example:
            >>> max_weights.sharding.ShardingStrategy.rowwise(2).take(np.arange(5), 1)
            array([3, 4])
        """
        value = readable(value)
        name = f"{value.name}[{index}]" if isinstance(value, WeightData) else ""
        return take(value, self.pieces(value, index), name)

    def _split_blocks(self, whole: tuple[Size, ...], row: int, index: int, encoding: QuantizationEncoding) -> Pieces:
        """Return the ranges in a shape whose last axis counts bytes of blocks; rules count elements."""
        elements, size = encoding.elements_per_block, encoding.block_size
        blocks, rest = divmod(row, size)
        if rest:
            raise ValueError(f"its rows of {row} bytes are not whole blocks of {encoding.value} ({size} bytes)")
        pieces = self._split((*whole[:-1], blocks * elements), index)
        for box in pieces:
            for edge in box[-1]:
                if isinstance(edge, int) and edge % elements:
                    raise ValueError(
                        f"shard {index} has an edge at element {edge} of a row, inside a block: {encoding.value} packs "
                        f"{elements} elements in {size} bytes, and a row has {blocks} blocks; split another axis, or "
                        "into shards of whole blocks"
                    )
        return pieces._scaled(len(whole) - 1, row, elements, size)

    def _split(self, whole: tuple[Size, ...], index: int) -> Pieces:
        if isinstance(self.shard, Split):
            return self.shard.pieces(whole, index, self.num_devices)
        return pieces_of(self.shard(ShapeOnly(Pieces.complete(whole)), index, self.num_devices), whole)

    def __repr__(self) -> str:
        if not isinstance(self.shard, Split):
            return f"ShardingStrategy(num_devices={self.num_devices}, shard={self.shard!r})"
        arguments = {"num_devices": self.num_devices, **self.shard.arguments}
        text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        return f"ShardingStrategy.{self.kind}({text})"


def _described(weight_or_shape: object) -> tuple[str, Shape, QuantizationEncoding | None]:
    """Return the name to use in errors, the shape, and how the elements are packed."""
    shape: Any = getattr(weight_or_shape, "shape", weight_or_shape)
    if type(shape) is not Shape:
        shape = Shape(shape)
    name: object = getattr(weight_or_shape, "name", None)
    encoding = getattr(weight_or_shape, "quantization_encoding", None)
    what = f"weight '{escape(name)}' of shape" if isinstance(name, str) else "the shape"
    return f"{what} {listed(shape)}", shape, encoding if isinstance(encoding, QuantizationEncoding) else None
