"""Options of several ranks: with one process they have no effect, which is an error."""

from __future__ import annotations

from max_weights.errors import ArgumentError

__all__ = ["TIMEOUT", "refuse_group_options", "require_spread", "require_timeout"]

TIMEOUT = 600.0
"""The default for how many seconds ranks wait for one that does not answer."""

_MAX_TIMEOUT = 1_000_000_000
"""In seconds: 31 years, with which no clock of torch overflows."""


def refuse_group_options(verb: str, *, rank_timeout: float = TIMEOUT, spread: str = "auto") -> None:
    """Refuse the options of several ranks if there is one process."""
    require_timeout(rank_timeout)
    for option, is_set in (("rank_timeout", rank_timeout != TIMEOUT), ("spread", spread != "auto")):
        if is_set:
            raise ArgumentError(
                f"{verb}: {option}= has no effect without ranks that work together: give their group=, or leave "
                f"{option} out",
                rule="argument.no-effect",
            )


def require_spread(spread: str) -> None:
    """Check `spread=`, which ranks read."""
    if spread not in ("auto", "rank", "node", "world"):
        raise ArgumentError(f"spread must be 'auto', 'rank', 'node' or 'world', not {spread!r}", rule="argument.choice")


def require_timeout(timeout: float) -> None:
    """Check `rank_timeout=`, in seconds."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ArgumentError(
            f"rank_timeout must be a number of seconds above 0, not {timeout!r}", rule="argument.number"
        )
    if timeout > _MAX_TIMEOUT:
        raise ArgumentError(
            f"rank_timeout must be at most {_MAX_TIMEOUT:,} seconds, not {timeout!r}", rule="argument.number"
        )
