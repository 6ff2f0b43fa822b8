"""Lightning: a `CheckpointIO` that maps checkpoints where Lightning copies them through a stream."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from max_weights.dropin.calls import Counter
from max_weights.dropin.torch_load import replacement

if TYPE_CHECKING:
    import torch

__all__ = ["WeightsCheckpointIO"]


def _as_saved(storage: torch.UntypedStorage, _: str) -> torch.UntypedStorage:
    return storage


class WeightsCheckpointIO(TorchCheckpointIO):
    """`Trainer(plugins=[WeightsCheckpointIO()])`, or `Fabric(plugins=…)`: loads checkpoints of the disk by max_weights.

    What is not loaded without code (`weights_only=False`), is remote, or is refused, Lightning loads as it would have.
    Saving is Lightning's.

    Args:
        mmap: Map the file, so that nothing is read before it is used; a file that is written over in place while it is
            loaded would change what was loaded, and Lightning itself writes new ones. With False everything is read.
    """

    def __init__(self, *, mmap: bool = True) -> None:
        super().__init__()
        self._mmap = mmap
        self._counter = Counter("lightning.fabric.plugins.TorchCheckpointIO.load_checkpoint")

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Any = _as_saved,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """The checkpoint at a path; errors and results are those of Lightning."""
        lightnings = super().load_checkpoint

        def original(f: Any, map_location: Any, *_: Any, weights_only: bool | None, mmap: Any) -> dict[str, Any]:
            del mmap
            return lightnings(f, map_location, weights_only)

        load: Callable[..., dict[str, Any]] = replacement(original, self._counter)
        return load(path, map_location, weights_only=weights_only, mmap=self._mmap)
