"""`ShardingStrategy`: how a weight is split over devices, as plain data.

A strategy and a shape give `Pieces`, the ranges of a shard. What cuts, loads or plans works on those and never on the
strategy, so that the same split holds for a declared weight, a tensor in memory and a mapped file.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, overload

from max_weights._core import shown
from max_weights.dim import StaticDim
from max_weights.quantization import QuantizationEncoding
from max_weights.shape import Shape
from max_weights.sharding.pieces import Pieces, Size
from max_weights.sharding.rules import Evenly, GateUp, Heads, Rule, Segment, Segmented, StackedQKV, count
from max_weights.sharding.shape_only import ShapeOnly, concat, pieces_of

if TYPE_CHECKING:
    from max_weights.dim import DimLike
    from max_weights.graph.value import TensorValue

__all__ = ["Segment", "ShapeOnly", "ShardingStrategy", "concat"]

# A model has a few dozen shapes; a program that makes up shapes without end must not keep all of them.
_MOST_KEPT = 4096
_CUSTOM, _REPLICATE = "custom", "replicate"
_MARKERS = ("tensor_parallel", "expert_parallel")


class ShardingStrategy:
    """How a weight is split over devices. Immutable; equal arguments make equal strategies.

    Made by one of the class methods, or from a function of one's own. Sizes that do not divide evenly give the first
    shards one more; fewer rows than devices leave the last shards empty.

    Args:
        num_devices: Into how many shards; at least 1.
        shard: `shard(weight, i)` slices a `ShapeOnly` and gives back shard `i`. It runs once for a shape and an `i`.
    """

    __slots__ = ("__weakref__", "_arguments", "_axis", "_kept", "_kind", "_rule", "_shard", "num_devices")

    num_devices: int
    """Into how many shards a weight is split."""
    _kind: str
    _axis: int | None
    _rule: Rule | None
    _shard: Callable[[Any, int], Any] | None
    _arguments: tuple[tuple[str, object], ...]
    _kept: dict[tuple[tuple[Size, ...], int], Pieces]

    def __init__(self, num_devices: int, shard: Callable[[Any, int], Any]) -> None:
        if not callable(shard):
            raise TypeError(f"shard is a function of a weight and the number of a shard, not {shard!r}")
        self._fill(_CUSTOM, num_devices, shard=shard, arguments=(("shard", shard),))

    @classmethod
    def rowwise(cls, num_devices: int) -> ShardingStrategy:
        """Ranges of axis 0."""
        return cls._made("rowwise", num_devices, 0, Evenly())

    @classmethod
    def columnwise(cls, num_devices: int) -> ShardingStrategy:
        """Ranges of axis 1."""
        return cls._made("columnwise", num_devices, 1, Evenly())

    @classmethod
    def axiswise(cls, axis: int, num_devices: int) -> ShardingStrategy:
        """Ranges of any axis; a negative one counts from the last."""
        return cls._made("axiswise", num_devices, axis, Evenly(), {"axis": axis})

    @classmethod
    def replicate(cls, num_devices: int) -> ShardingStrategy:
        """The whole weight on each device."""
        return cls._made(_REPLICATE, num_devices)

    @classmethod
    def stacked_qkv(
        cls, num_devices: int, num_heads: int, head_dim: int, *, num_kv_heads: int | None = None
    ) -> ShardingStrategy:
        """Queries, keys and values stacked on axis 0, each split by heads.

        Args:
            num_devices: Into how many shards.
            num_heads: Heads of queries.
            head_dim: Rows of a head.
            num_kv_heads: Heads of keys, and of values, where queries share them; by default as many as of queries. The
                queries that share a head go to the device that has it.
        """
        rule = StackedQKV(num_heads, head_dim, num_kv_heads)
        return cls._made("stacked_qkv", num_devices, 0, rule, _given(rule))

    @classmethod
    def head_aware_columnwise(cls, num_devices: int, num_heads: int, head_dim: int) -> ShardingStrategy:
        """Axis 1 split between heads; its size is that of the heads, a half of it (FP4) or three quarters (MXFP6)."""
        rule = Heads(num_heads, head_dim)
        return cls._made("head_aware_columnwise", num_devices, 1, rule, _given(rule))

    @classmethod
    def gate_up(cls, num_devices: int, axis: int = 2) -> ShardingStrategy:
        """Gate and up, the two halves of an axis, each split evenly."""
        return cls._made("gate_up", num_devices, axis, GateUp(), {"axis": axis})

    @classmethod
    def segmented(cls, num_devices: int, axis: int, segments: Iterable[Segment]) -> ShardingStrategy:
        """Parts of an axis, each split on its own; their sum is the size of the axis, or twice that (FP4)."""
        rule = Segmented(segments)
        return cls._made("segmented", num_devices, axis, rule, {"axis": axis, "segments": rule.segments})

    @classmethod
    def tensor_parallel(cls, num_devices: int) -> ShardingStrategy:
        """A marker: a module decides how each of its weights is split."""
        return cls._made("tensor_parallel", num_devices)

    @classmethod
    def expert_parallel(cls, num_devices: int) -> ShardingStrategy:
        """A marker: a module gives each device some of its experts."""
        return cls._made("expert_parallel", num_devices)

    @property
    def shard(self) -> Callable[[Any, int], Any]:
        """The function of one's own; for the others, what calling the strategy does."""
        return self if self._shard is None else self._shard

    @property
    def sharded_axis(self) -> int | None:
        """The axis that is split, as it was given; none for `replicate`, the markers, and functions of one's own."""
        return self._axis

    @property
    def is_rowwise(self) -> bool:
        """Whether `rowwise` made it."""
        return self._kind == "rowwise"

    @property
    def is_colwise(self) -> bool:
        """Whether `columnwise` made it."""
        return self._kind == "columnwise"

    @property
    def is_axiswise(self) -> bool:
        """Whether `axiswise` made it."""
        return self._kind == "axiswise"

    @property
    def is_replicate(self) -> bool:
        """Whether `replicate` made it."""
        return self._kind == _REPLICATE

    @property
    def is_stacked_qkv(self) -> bool:
        """Whether `stacked_qkv` made it."""
        return self._kind == "stacked_qkv"

    @property
    def is_head_aware_colwise(self) -> bool:
        """Whether `head_aware_columnwise` made it."""
        return self._kind == "head_aware_columnwise"

    @property
    def is_gate_up(self) -> bool:
        """Whether `gate_up` made it."""
        return self._kind == "gate_up"

    @property
    def is_segmented(self) -> bool:
        """Whether `segmented` made it."""
        return self._kind == "segmented"

    @property
    def is_tensor_parallel(self) -> bool:
        """Whether `tensor_parallel` made it."""
        return self._kind == "tensor_parallel"

    @property
    def is_expert_parallel(self) -> bool:
        """Whether `expert_parallel` made it."""
        return self._kind == "expert_parallel"

    @property
    def is_custom(self) -> bool:
        """Whether it was made from a function of one's own."""
        return self._kind == _CUSTOM

    def pieces(self, weight_or_shape: Any, index: int) -> Pieces:
        """The ranges of shard `index`.

        Args:
            weight_or_shape: A shape, or anything that has one: a `Weight`, a `WeightData`, a tensor. Dimensions that
                are not split may be symbolic. The shape of quantized weights counts bytes, and is split between blocks.
            index: Which shard, from 0.

        Raises:
            IndexError: there is no such shard.
            ValueError: the strategy does not fit the shape, the axis is symbolic, or a shard would begin inside a block
                of a quantized weight.
            NotImplementedError: `tensor_parallel` and `expert_parallel`, which modules interpret.
        """
        if self._kind in _MARKERS:
            raise NotImplementedError(
                f"{self._kind} is for modules, which decide how each of their weights is split; for one weight take "
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
            # The place in a function of the user's own is worth showing, that in a rule is not.
            cause = None if self._shard is None else error
            raise ValueError(f"{what} cannot be sharded as {self!r}: {error}") from cause

    @overload
    def __call__(self, weight_or_shape: TensorValue, index: int) -> Any: ...
    @overload
    def __call__(self, weight_or_shape: Iterable[DimLike], index: int) -> Pieces: ...
    def __call__(self, weight_or_shape: Any, index: int) -> Any:
        """Shard `index`: of a `Weight` or another value inside a graph its part as a `TensorValue`, of everything else
        what `pieces` gives.
        """
        pieces = self.pieces(weight_or_shape, index)
        # Values stand above this module, so that a value itself says what its parts are.
        part_of = getattr(type(weight_or_shape), "_part", None)
        return pieces if part_of is None else part_of(weight_or_shape, pieces)

    def _split_blocks(self, whole: tuple[Size, ...], row: int, index: int, encoding: QuantizationEncoding) -> Pieces:
        """The ranges in a shape whose last axis counts bytes of blocks; rules count elements."""
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
        return pieces.scaled(len(whole) - 1, row, elements, size)

    def _split(self, whole: tuple[Size, ...], index: int) -> Pieces:
        if self._kind == _REPLICATE:
            return Pieces.everything(whole)
        if self._shard is not None:
            return self._recorded(self._shard, whole, index)
        assert self._axis is not None
        assert self._rule is not None
        rank = len(whole)
        if not -rank <= self._axis < rank:
            raise ValueError(f"there is no axis {self._axis}")
        axis = self._axis % rank
        size = whole[axis]
        if not isinstance(size, int):
            raise ValueError(f"axis {axis} is the dimension {size}; a size must be known to be split")
        return Pieces.along(axis, whole, self._rule.ranges(size, self.num_devices, index))

    def _recorded(self, shard: Callable[[Any, int], Any], whole: tuple[Size, ...], index: int) -> Pieces:
        found = self._kept.get((whole, index))
        if found is None:
            found = pieces_of(shard(ShapeOnly(Pieces.everything(whole)), index), whole)
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[whole, index] = found
        return found

    @classmethod
    def _made(
        cls,
        kind: str,
        num_devices: int,
        axis: int | None = None,
        rule: Rule | None = None,
        arguments: dict[str, object] | None = None,
    ) -> ShardingStrategy:
        strategy = cls.__new__(cls)
        strategy._fill(kind, num_devices, axis, rule, arguments=tuple((arguments or {}).items()))
        return strategy

    def _fill(
        self,
        kind: str,
        num_devices: int,
        axis: int | None = None,
        rule: Rule | None = None,
        shard: Callable[[Any, int], Any] | None = None,
        arguments: tuple[tuple[str, object], ...] = (),
    ) -> None:
        axis = None if axis is None else operator.index(axis)
        values = {"num_devices": count(num_devices, "num_devices"), "_kind": kind, "_axis": axis, "_rule": rule}
        for name, value in (values | {"_shard": shard, "_arguments": arguments, "_kept": {}}).items():
            object.__setattr__(self, name, value)

    def _key(self) -> tuple[object, ...]:
        return self._kind, self.num_devices, self._arguments

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, ShardingStrategy) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        arguments = {"num_devices": self.num_devices, **dict(self._arguments)}
        text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        return f"ShardingStrategy{'' if self.is_custom else '.' + self._kind}({text})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a ShardingStrategy is immutable; make another one instead of setting {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a ShardingStrategy is immutable; {name!r} cannot be deleted")

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._kind, self.num_devices, self._arguments)


def _again(kind: str, num_devices: int, arguments: tuple[tuple[str, object], ...]) -> ShardingStrategy:
    """What a pickle or a copy calls."""
    make: Any = ShardingStrategy if kind == _CUSTOM else getattr(ShardingStrategy, kind)
    strategy: ShardingStrategy = make(num_devices=num_devices, **dict(arguments))
    return strategy


def _given(rule: Rule) -> dict[str, object]:
    return dict(zip(rule.__slots__, rule._values(), strict=True))


def _described(weight_or_shape: Any) -> tuple[str, Shape, QuantizationEncoding | None]:
    """What to call it in an error, its shape, and how its elements are packed."""
    shape: Any = getattr(weight_or_shape, "shape", weight_or_shape)
    if type(shape) is not Shape:
        shape = Shape(shape)
    name: object = getattr(weight_or_shape, "name", None)
    encoding = getattr(weight_or_shape, "quantization_encoding", None)
    sizes = ", ".join(map(str, shape))
    what = f"weight '{shown(name)}' of shape [{sizes}]" if isinstance(name, str) else f"the shape [{sizes}]"
    return what, shape, encoding if isinstance(encoding, QuantizationEncoding) else None
