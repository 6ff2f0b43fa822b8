"""Lightning: a `CheckpointIO` that reads checkpoints by several threads; Lightning copies them through a stream."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from max_weights._dropin.calls import Counter
from max_weights._dropin.torch_load import replacement

if TYPE_CHECKING:
    import torch

__all__ = ["WeightsCheckpointIO"]


def _as_saved(storage: torch.UntypedStorage, _: str) -> torch.UntypedStorage:
    return storage


class WeightsCheckpointIO(TorchCheckpointIO):
    """A plug-in for Lightning, `Trainer(plugins=[WeightsCheckpointIO()])`, that loads checkpoints with max_weights.

    Use it with `Fabric(plugins=…)`, too. Lightning itself loads checkpoints that need code (`weights_only=False`), are
    remote, or are refused here, and saves as usual.

    Args:
        mmap: With False everything is read at once, as Lightning does. True maps the file, so that nothing is read
            before it is used; it must not be changed in place while the loaded tensors are in use.
    """

    def __init__(self, *, mmap: bool = False) -> None:
        super().__init__()
        self._mmap = mmap
        self._counter = Counter("lightning.fabric.plugins.TorchCheckpointIO.load_checkpoint")

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: object = _as_saved,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Load the checkpoint at a path, with the errors and results of Lightning."""
        lightnings = super().load_checkpoint

        def original(f: str, map_location: Any, *_: object, weights_only: bool | None, mmap: object) -> dict[str, Any]:
            del mmap
            return lightnings(f, map_location, weights_only)

        load: Callable[..., dict[str, Any]] = replacement(original, self._counter)
        return load(path, map_location, weights_only=weights_only, mmap=self._mmap)
