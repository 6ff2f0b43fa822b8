"""`experts`: selects the experts of one rank as whole weights; the other experts are not loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass

from max_weights._core import escape
from max_weights.errors import ArgumentError
from max_weights.sharding._rules import even

__all__ = ["Experts", "experts"]

# `block_sparse_moe.experts.7.w1.weight`, `mlp.experts.7.up_proj.weight`; never `shared_experts.up_proj.weight`.
_EXPERT = re.compile(r"(?P<layer>(?:.*\.)?experts)\.(?P<number>\d+)\..*", re.DOTALL)
_STACKED = re.compile(r"(?:.*\.)?experts\.[^.]*(?:proj|weight|blocks)[^.]*(?:\.weight)?", re.DOTALL)


@dataclass(frozen=True)
class Experts:
    """The selection that `experts` returns, for `select=`."""

    rank: int
    world_size: int
    only: bool = False

    def among(self, names: list[str]) -> list[str]:
        """Return the names of the rank's experts and, unless `only`, of all weights that belong to no expert."""
        matches = {name: match for name in names if (match := _EXPERT.fullmatch(name))}
        numbers: dict[str, set[int]] = {}
        for match in matches.values():
            numbers.setdefault(match["layer"], set()).add(int(match["number"]))
        for layer, have in numbers.items():
            if len(have) <= max(have):
                missing = next(number for number in range(max(have)) if number not in have)
                raise ArgumentError(
                    f"'{escape(layer)}' has {len(have)} experts, and number {missing} is not one of them",
                    rule="argument.strategy",
                )
        if stacked := next((name for name in names if name not in matches and _STACKED.fullmatch(name)), None):
            raise _error(
                stacked,
                "holds all experts of its layer; split it along axis 0: ShardingStrategy.rowwise(world_size) in shard=",
            )
        if not matches:
            raise ArgumentError(
                "none of these weights belongs to an expert: their names do not have '.experts.' and a number",
                rule="argument.strategy",
            )
        mine = {layer: range(*even(len(have), self.world_size, self.rank)) for layer, have in numbers.items()}
        return [
            name
            for name in names
            if (int(matches[name]["number"]) in mine[matches[name]["layer"]] if name in matches else not self.only)
        ]


def experts(rank: int, world_size: int, *, only: bool = False) -> Experts:
    """Select the experts of one rank, for `select=`: `weights.load(select=experts(rank, world_size))`.

    Each layer's experts are divided in order. If they do not divide evenly, the first ranks have one more: of 60
    experts on 8 ranks, the first four have 8 and the others 7. Weights that belong to no expert are selected as well.

    Args:
        rank: The number of the rank, from 0.
        world_size: The number of ranks.
        only: Select experts only.

    Returns:
        The selection. Loading with it is an error if no weight belongs to an expert.

    Raises:
        ArgumentError: There is no such rank (a ValueError).

    Example:
        >>> max_weights.sharding.experts(1, 2).among(["norm", "mlp.experts.0.up", "mlp.experts.1.up"])
        ['norm', 'mlp.experts.1.up']
    """
    if not 0 <= rank < world_size:
        raise ArgumentError(
            f"there is no rank {rank} of {world_size}; ranks are counted from 0", rule="argument.number"
        )
    return Experts(rank, world_size, only)


def _error(name: str, why: str) -> ArgumentError:
    error = ArgumentError(f"weight '{escape(name)}' {why}", rule="argument.strategy")
    error.tensor = name
    return error
