"""Counts of the calls of a replacement: those that we served, and those that went to the original."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

from max_weights._core import printable
from max_weights._fork_lock import ForkLock

__all__ = ["Calls", "Counter", "Refused", "log"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_counting = ForkLock()


def log(message: str, *arguments: str) -> None:
    """Write one line to the logger `max_weights.dropin`, at level INFO."""
    import logging

    logging.getLogger("max_weights.dropin").info(message, *arguments)


class Refused(Exception):
    """Raised with the reason why a call is not served here."""


class Calls(NamedTuple):
    """How many calls of a replaced function max_weights answered, and how many fell back to the original."""

    fast: int
    fallback: int


class Counter:
    """Counts the calls of one replacement, and logs once for each reason why a call went to the original."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.active = True
        """Whether calls are answered here; code that still holds the replacement after `unpatch` calls the original."""
        self._fast = 0
        self._fallback = 0
        self._reasons: set[str] = set()

    def count_fast(self) -> None:
        """Count a call that was answered here."""
        with _counting:
            self._fast += 1

    def count_fallback(self, reason: str | Exception) -> None:
        """Count a call that goes to the original; a reason is logged once, exceptions by their kind."""
        kind = reason if isinstance(reason, str) else type(reason).__name__
        with _counting:
            self._fallback += 1
            is_repeated = kind in self._reasons
            self._reasons.add(kind)
        if not is_repeated:
            text = kind if isinstance(reason, str) else f"{kind}: {printable(reason)}"
            log("%s: fell back to the original: %s", self.name, text)

    def attempt(self, serve: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T | None:
        """Return what `serve` gives, and count it; `None` if the call goes to the original."""
        try:
            result = serve(*arguments, **options)
        except Refused as refused:
            self.count_fallback(str(refused))
        except Exception as error:
            self.count_fallback(error)
        else:
            self.count_fast()
            return result
        return None

    @property
    def calls(self) -> Calls:
        """Return the counts so far."""
        with _counting:
            return Calls(self._fast, self._fallback)
