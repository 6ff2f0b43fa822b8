"""Names that are nearly the one that was meant, found fast among many."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from max_weights._core import shown

# On each side of the place where the name would stand, how many neighbours are looked at.
_NEIGHBOURS = 24
_MOST = 3
# The part of the longer name that must be shared at the two ends, or at one of them.
_SHARED = 0.6


class NearNames:
    """Names, sorted from the front and from the back.

    A name with one slip shares all before it and all after it with the right one, so that the two are neighbours in one
    of the orders; so a search looks at some dozens of names, however many there are.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._forward = sorted(names)
        self._backward: list[str] | None = None

    def of(self, name: str) -> list[str]:
        """Up to three near names, the nearest first; ties by name."""
        if self._backward is None:
            self._backward = sorted(other[::-1] for other in self._forward)
        found = {*_around(self._forward, name), *(other[::-1] for other in _around(self._backward, name[::-1]))}
        scored = [(_likeness(name, other), other) for other in found if other != name]
        near = sorted((-score, other) for score, other in scored if score >= _SHARED)
        return [other for _, other in near[:_MOST]]


def suggestion(near: list[str]) -> str:
    """What a message says about near names; nothing, if there are none."""
    if not near:
        return ""
    quoted = [f"'{shown(name)}'" for name in near]
    return f" (did you mean {' or '.join(filter(None, [', '.join(quoted[:-1]), quoted[-1]]))}?)"


def _around(names: list[str], name: str) -> list[str]:
    place = bisect.bisect_left(names, name)
    return names[max(0, place - _NEIGHBOURS) : place + _NEIGHBOURS]


def _likeness(name: str, other: str) -> float:
    """The part of the longer name that the two share at their ends."""
    front = _shared_start(name, other)
    back = _shared_start(name[front:][::-1], other[front:][::-1])
    return (front + back) / max(len(name), len(other), 1)


def _shared_start(name: str, other: str) -> int:
    shared = 0
    for one, two in zip(name, other, strict=False):
        if one != two:
            break
        shared += 1
    return shared
