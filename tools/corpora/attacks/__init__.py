"""The attacks: files of all 36 classes, put together by hand."""

from __future__ import annotations

from collections.abc import Iterator

from corpora.attacks import calls, containers, disguises, formats, machine, nested, repositories
from corpora.item import Item

# What is clean so far although it should not be, and why.
MISSED: dict[str, str] = {
    "28-keras/lambda-tuple.h5": "an object in place of a Lambda layer's code is taken for one that names a function",
    "28-keras/saved-model-lambda": "configurations of Keras are not looked for in graphs of TensorFlow",
    "28-keras/saved-model-lambda-within": "the same",
    "28-keras/saved-model-as-text": "a graph is not looked for in a text",
}


def items() -> Iterator[Item]:
    """All of them, by classes."""
    for module in (calls, nested, machine, containers, disguises, formats, repositories):
        yield from module.items()
