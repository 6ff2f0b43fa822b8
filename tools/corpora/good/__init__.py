"""Good files, as written by the libraries."""

from __future__ import annotations

from collections.abc import Iterator

from corpora.good import arrays, models, other, python_objects, safetensors_gguf, torch_states
from corpora.item import Item


def items() -> Iterator[Item]:
    """All of them, by their kinds."""
    for module in (torch_states, arrays, safetensors_gguf, models, python_objects, other):
        yield from module.items()
