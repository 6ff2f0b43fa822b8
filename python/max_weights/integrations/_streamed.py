"""(name, tensor) pairs for inference engines, from consecutive files, read ahead in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from max_weights._weights import load_weights

if TYPE_CHECKING:
    import torch

__all__ = ["streamed"]


def streamed(files: Iterable[str | os.PathLike[str]], **options: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Iterate over the tensors of these files, file after file, on the CPU.

    Args:
        files: Paths of checkpoint files; a name may be in several.
        **options: Those of `WeightsNode.stream`, such as `max_memory`.
    """
    for file in files:
        with load_weights(file) as weights, weights.stream(framework="torch", **options) as stream:
            yield from stream
