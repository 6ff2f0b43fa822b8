"""The attacks: files of all 36 classes, put together by hand."""

from __future__ import annotations

from collections.abc import Iterator

from corpora.attacks import calls, containers, formats, machine, nested, repositories
from corpora.item import Item


def items() -> Iterator[Item]:
    """All of them, by classes."""
    for module in (calls, nested, machine, containers, formats, repositories):
        yield from module.items()
