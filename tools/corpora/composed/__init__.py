"""Random compositions: a payload, written with quirks of pickles, in encodings, in containers; and good files.

Each attack has something that a loader executes: its verdict may be malicious, needs trust or broken, but never clean.
A seed reproduces its files.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from corpora.composed import containers, encodings, harmless, pickles
from corpora.item import CAUGHT, CLEAN, Item

GROUP, GOOD_GROUP = "composed", "composed-good"


def attacks(count: int, seed: int) -> Iterator[Item]:
    """Yield `count` files and folders, none of which is clean."""
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        quirks, data = pickles.attack(chance)
        way, data, suffix = encodings.encoded(chance, data)
        container, name, files = containers.contained(chance, data, suffix, bool(way))
        declared = "-".join([f"{number:05}", container, *way, *quirks])
        yield Item(f"{declared[:180]}{name}", files, GROUP, CAUGHT)


def good(count: int, seed: int) -> Iterator[Item]:
    """Yield `count` files and folders without findings."""
    for number in range(count):
        chance = random.Random(f"good {seed} {number}")
        what, suffix, data = harmless.harmless(chance)
        way, data, more = encodings.usual(chance, data)
        container, name, files = containers.usual(chance, data, suffix + more)
        declared = "-".join([f"{number:05}", container, *way, what])
        yield Item(f"{declared}{name}", files, GOOD_GROUP, frozenset({CLEAN}))
