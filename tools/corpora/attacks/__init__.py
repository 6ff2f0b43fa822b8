"""The attacks: files of all 36 classes, assembled by hand."""

from __future__ import annotations

from collections.abc import Iterator

from corpora.attacks import calls, containers, disguises, formats, machine, nested, repositories
from corpora.item import Item

# Known false negatives, with reasons: none.
MISSED: dict[str, str] = {}


def items() -> Iterator[Item]:
    """All of them, by classes."""
    for module in (calls, nested, machine, containers, disguises, formats, repositories):
        yield from module.items()
