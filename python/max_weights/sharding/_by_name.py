"""One rank of several: its pieces of weights, by name. They are determined before anything is read."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeAlias

from max_weights._core import WeightInfo, WeightsNode, escape, infos
from max_weights._quantization import QuantizationEncoding
from max_weights._selection import Pattern, fits, require_effect
from max_weights._shape import listed
from max_weights.errors import ArgumentError
from max_weights.sharding import _companions as companions
from max_weights.sharding._model_config import model_config
from max_weights.sharding._pieces import Pieces, static
from max_weights.sharding._strategies import ShardingStrategy
from max_weights.sharding._tables import Table, named

__all__ = ["Shard", "ShardBox", "Strategies", "parts_of_rank", "shape_of"]

Strategies: TypeAlias = (
    ShardingStrategy | Mapping[Pattern, ShardingStrategy | None] | Callable[[str], ShardingStrategy | None] | str
)
"""A strategy for all weights, one for each pattern of names, a function of the name, or the name of a table."""


class Shard(NamedTuple):
    """The shard of one of several ranks: `Shard(0, 8, "llama")` is the part of the first of eight."""

    rank: int
    """The number of the rank, from 0."""
    world_size: int
    """How many ranks there are."""
    strategies: Strategies
    """How weights are split among them: a ShardingStrategy, a mapping of names and patterns to them (None, or no match:
    the whole weight), a function of the name, or the name of a `Table`.
    """


ShardBox: TypeAlias = list[tuple[int, list[tuple[int, int]]]]
"""The axes that are cut, with ranges of each, in elements; the ranges are joined along the axis."""


def parts_of_rank(node: WeightsNode, chosen: Iterable[WeightInfo], shard: Shard) -> list[ShardBox | None]:
    """Return the part of each weight that a rank has, or `None` for the whole weight.

    Args:
        node: The node below which the weights are.
        chosen: The weights to load.
        shard: The rank, the number of ranks, and the strategies.

    Raises:
        ArgumentError: the shard is not valid, or a weight, which the message names, cannot be split this way (a
            ValueError).
        WeightNotFoundError: a name or pattern of the strategies that matches nothing.
    """
    rank, world, strategies = _checked(shard)
    if isinstance(strategies, str):
        strategies = named(strategies, world, *model_config(node))
    ranks = _Rank(rank, world, _lookup(strategies), strategies if isinstance(strategies, Table) else None)
    # Only in a mapping can a weight be omitted, or follow another.
    every = {info.name: info for info in infos(node)} if isinstance(strategies, Mapping) else {}
    own = strategies.own if isinstance(strategies, Table) else strategies  # a table is for many models
    if isinstance(own, Mapping) and not (isinstance(strategies, Table) and not own):
        require_effect("shard", own, every, lambda: [info.name for info in infos(node._root)])
    return [_part(ranks.pieces(info, every), info) for info in chosen]


def _part(pieces: Pieces | None, info: WeightInfo) -> ShardBox | None:
    if pieces is None:
        return None
    cut: ShardBox = []
    for axis in pieces.split_axes:
        boxes = pieces.boxes if axis == pieces.axis else pieces.boxes[:1]
        ranges = [(box[axis][0], static(box[axis][1])) for box in boxes]
        if info.encoding is not None and axis == len(info.shape) - 1:
            per, size = info.encoding.elements_per_block, info.encoding.block_size
            ranges = [(start // size * per, stop // size * per) for start, stop in ranges]
        cut.append((axis, ranges))
    return cut or None


def shape_of(cut: ShardBox | None, whole: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a part of a tensor of this shape, both in elements."""
    shape = list(whole)
    for axis, ranges in cut or []:
        shape[axis] = sum(stop - start for start, stop in ranges)
    return tuple(shape)


_Lookup = Callable[[str], tuple[bool, ShardingStrategy | None]]


@dataclass(frozen=True)
class _Rank:
    rank: int
    world: int
    lookup: _Lookup
    table: Table | None

    def pieces(self, info: WeightInfo, every: Mapping[str, WeightInfo]) -> Pieces | None:
        """Return the pieces of a weight, `None` for all of it; `every` also has weights that are not loaded."""
        is_named, strategy = self.lookup(info.name)
        if is_named:
            return None if strategy is None else self.split(info, strategy)
        weight = companions.weight_of(info.name, every)
        if weight is not None and self.lookup(weight)[0]:
            pieces = self.pieces(every[weight], every)
            try:
                return companions.pieces(info.shape, pieces)
            except ValueError as error:
                _refuse(info, f"cannot be split as '{escape(weight)}' is: {error}")
        if self.table is not None and (len(info.shape) > 1 or companions.is_of_packed_layer(info.name)):
            self.unknown(info, self.table)
        return None

    def split(self, info: WeightInfo, strategy: ShardingStrategy) -> Pieces | None:
        if strategy.num_devices != self.world:
            _refuse(info, f"has a strategy for {strategy.num_devices} devices, but there are {self.world} ranks")
        # Elements of PyTorch's own types, in lower case, come as bytes along an additional axis; others as one row of
        # bytes.
        if isinstance(info.dtype, str) and not info.dtype[:1].islower():
            _refuse(info, f"has elements of the type '{escape(info.dtype)}', which is unknown; use None for it")
        try:
            pieces = strategy.pieces(_Described(info.name, info.shape, info.encoding), self.rank)
        except ValueError as error:  # its message names the weight
            wrong = ArgumentError(str(error), rule="argument.strategy")
            wrong.tensor = info.name
            raise wrong from error.__cause__
        except (TypeError, IndexError, NotImplementedError) as error:
            _refuse(info, f"cannot be split: {error}", error if strategy.is_custom else None)
        return None if pieces.is_complete else pieces

    def unknown(self, info: WeightInfo, table: Table) -> NoReturn:
        if companions.is_of_packed_layer(info.name):
            why = "belongs to a layer that GPTQ, AWQ or bitsandbytes packed, which the table does not split"
        else:
            is_gguf = info.name.startswith(("token_embd.", "blk."))
            hint = "; rename='hf' gives those of Hugging Face" if is_gguf else ""
            why = f"is not a name that the table '{escape(table.name)}' has{hint}"
        own = f"{{'{escape(info.name)}': None}} | max_weights.sharding.Table({table.name!r}, ...)"
        _refuse(info, f"{why}. Your own rows come first, with None for the whole weight on each rank: {own}")


@dataclass(frozen=True)
class _Described:
    """The view of a weight for a strategy."""

    name: str
    shape: tuple[int, ...]
    quantization_encoding: QuantizationEncoding | None


def _refuse(info: WeightInfo, why: str, cause: Exception | None = None) -> NoReturn:
    error = ArgumentError(f"weight '{escape(info.name)}' of shape {listed(info.shape)} {why}", rule="argument.strategy")
    error.tensor = info.name
    raise error from cause


def _checked(shard: object) -> Shard:
    if not isinstance(shard, Shard):
        raise ArgumentError(
            f"shard must be a max_weights.sharding.Shard(rank, world_size, strategies), not {shard!r}",
            rule="argument.strategy",
        )
    rank, world, strategies = shard
    for number, what in ((rank, "rank"), (world, "world_size")):
        if isinstance(number, bool) or not hasattr(number, "__index__"):
            raise ArgumentError(f"the {what} of shard must be an int, not {number!r}", rule="argument.number")
    rank, world = operator.index(rank), operator.index(world)
    if not 0 <= rank < world:
        raise ArgumentError(f"there is no rank {rank} of {world}; ranks are counted from 0", rule="argument.number")
    return Shard(rank, world, strategies)


def _lookup(strategies: Strategies) -> _Lookup:
    """Return whether a name has a row in the table, and its strategy."""
    if isinstance(strategies, ShardingStrategy):
        return lambda _: (True, strategies)
    if isinstance(strategies, Mapping):
        rows = [(fits(pattern), _row(row, pattern)) for pattern, row in strategies.items()]
        return lambda name: next(((True, row) for fit, row in rows if fit(name)), (False, None))
    if callable(strategies):
        return lambda name: (True, _row(strategies(name), name))
    raise ArgumentError(
        "strategies must be a ShardingStrategy, a mapping of names and patterns to them, a function of the name, or "
        f"the name of a table, not {strategies!r}",
        rule="argument.strategy",
    )


def _row(row: object, pattern: object) -> ShardingStrategy | None:
    if row is None or isinstance(row, ShardingStrategy):
        return row
    raise ArgumentError(
        f"{pattern!r} must map to a ShardingStrategy, or None for the whole weight, not {row!r}",
        rule="argument.strategy",
    )
