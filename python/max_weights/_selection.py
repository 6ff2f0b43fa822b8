"""Select weights by names, globs, regular expressions, or functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from typing import Protocol, runtime_checkable

from max_weights._core import escape, near_names
from max_weights.errors import ArgumentError, WeightNotFoundError

__all__ = ["Chooser", "Pattern", "Select", "fits", "not_found", "require_effect", "selected"]


@runtime_checkable
class Chooser(Protocol):
    """A selection among all names at once, for cases where a single name is not enough to decide."""

    def among(self, names: list[str]) -> list[str]:
        """Return the selected names, in their order."""


Pattern = str | re.Pattern[str]
"""A name (that weight, or everything below it), a glob, or a regular expression that matches the whole name."""
Select = Pattern | Chooser | Callable[[str], bool] | Iterable[Pattern]
"""Which weights: a pattern, several of these, a function of the name, or a `Chooser` among all names."""

_GLOB = re.compile(r"[*?\[]")


def selected(names: list[str], select: Select) -> list[str]:
    """Return the selected names, in their order.

    Raises:
        ArgumentError: there is no pattern (a ValueError).
        WeightNotFoundError: a name, glob or regular expression that selects nothing; for a name, the message suggests
            up to three similar ones.
    """
    if isinstance(select, Chooser):
        return select.among(names)
    if callable(select):
        return [name for name in names if select(name)]
    patterns = [select] if isinstance(select, str | re.Pattern) else list(select)
    if not patterns:
        raise ArgumentError(
            "select is empty, so that it selects nothing: leave it out for all weights", rule="argument.no-effect"
        )
    selection: set[str] = set()
    for pattern in patterns:
        fit = fits(pattern)
        fitting = [name for name in names if fit(name)]
        if not fitting:
            raise not_found(pattern if isinstance(pattern, str) else pattern.pattern, names, "select asks for")
        selection.update(fitting)
    return [name for name in names if name in selection]


def fits(pattern: Pattern) -> Callable[[str], bool]:
    """Return a function that tells whether a name matches the pattern."""
    if not isinstance(pattern, str | re.Pattern):
        raise TypeError(f"a weight is selected by a string or a regular expression, not {pattern!r}")
    if isinstance(pattern, re.Pattern):
        return lambda name: pattern.fullmatch(name) is not None
    if _GLOB.search(pattern):
        return lambda name: fnmatchcase(name, pattern)
    return lambda name: name == pattern or name.startswith(f"{pattern}.")


def not_found(name: str, names: list[str], asker: str) -> WeightNotFoundError:
    """Return the error for an unknown name, with similar ones."""
    (near,) = near_names(names, [name])
    quoted = " or ".join(f"'{escape(one)}'" for one in near)
    suggestion = f"; did you mean {quoted}?" if near else ""
    error = WeightNotFoundError(f"{asker} '{escape(name)}', and there is no such weight{suggestion}")
    error.tensor = name
    return error


def require_effect(
    option: str,
    patterns: Collection[Pattern],
    names: Iterable[str],
    every: Callable[[], Iterable[str]] | None = None,
    *,
    fits: Callable[[Pattern], Callable[[str], bool]] = fits,
) -> None:
    """Refuse an option without effect: one without a pattern, or with a pattern that matches no weight."""
    if not patterns:
        raise ArgumentError(f"{option} is empty, so that it changes nothing: leave it out", rule="argument.no-effect")
    among = list(names)
    unused = _fitting_none(patterns, among, fits)
    if unused and every is not None:
        among = list(every())
        unused = _fitting_none(unused, among, fits)
    if unused:
        pattern = unused[0]
        raise not_found(pattern if isinstance(pattern, str) else pattern.pattern, among, f"{option} names")


def _fitting_none(
    patterns: Iterable[Pattern], names: list[str], fits: Callable[[Pattern], Callable[[str], bool]]
) -> list[Pattern]:
    """Return the patterns that match none of the names."""
    known_names = set(names)  # a table has a row for each of thousands of names, and is not compared with all of them

    def is_name(pattern: Pattern) -> bool:
        return isinstance(pattern, str) and pattern in known_names and not any(mark in pattern for mark in "*?[")

    return [pattern for pattern in patterns if not is_name(pattern) and not any(map(fits(pattern), names))]
