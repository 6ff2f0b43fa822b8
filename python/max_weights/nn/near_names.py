"""What a message says about names that are nearly the one that was meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from max_weights._core import near_names, shown


def suggestions(names: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """For each name that is not there, those of `names` that are near it, as the end of a sentence; or nothing."""
    return [_suggestion(near) for near in near_names(list(names), list(wanted))]


def _suggestion(near: list[str]) -> str:
    if not near:
        return ""
    quoted = [f"'{shown(name)}'" for name in near]
    return f" (did you mean {' or '.join(filter(None, [', '.join(quoted[:-1]), quoted[-1]]))}?)"
