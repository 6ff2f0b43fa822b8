"""Options that say how several ranks work together: for one process alone they have no effect, which is an error."""

from __future__ import annotations

from max_weights.errors import ArgumentError

__all__ = ["TIMEOUT", "refuse_group_options", "require_spread", "require_timeout"]

TIMEOUT = 600.0
"""For how many seconds ranks wait for one that does not answer, unless the caller says otherwise."""

_MAX_TIMEOUT = 1_000_000_000
"""Seconds: 31 years, with which no clock of torch overflows."""


def refuse_group_options(verb: str, *, rank_timeout: float = TIMEOUT, spread: str = "auto") -> None:
    """Refuse the options of several ranks where there is one process.

    Args:
        verb: What is called, for messages.
        rank_timeout: For how many seconds ranks wait.
        spread: Who reads for whom.

    Raises:
        ArgumentError: one of them is set (a ValueError).
    """
    require_timeout(rank_timeout)
    for option, is_set in (("rank_timeout", rank_timeout != TIMEOUT), ("spread", spread != "auto")):
        if is_set:
            raise ArgumentError(
                f"{verb}: {option}= has no effect without ranks that work together: give their group=, or leave "
                f"{option} out"
            )


def require_spread(spread: str) -> None:
    """Check who reads for whom.

    Raises:
        ArgumentError: it is none of the words for that (a ValueError).
    """
    if spread not in ("auto", "rank", "node", "world"):
        raise ArgumentError(f"spread must be 'auto', 'rank', 'node' or 'world', not {spread!r}")


def require_timeout(timeout: float) -> None:
    """Check for how many seconds ranks wait.

    Raises:
        ArgumentError: it is no number above 0, or is longer than clocks count (a ValueError).
    """
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ArgumentError(f"rank_timeout must be a number of seconds above 0, not {timeout!r}")
    if timeout > _MAX_TIMEOUT:
        raise ArgumentError(f"rank_timeout must be at most {_MAX_TIMEOUT:,} seconds, not {timeout!r}")
