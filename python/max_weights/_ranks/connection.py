"""`Connection`: the communication of the ranks of one session.

It is a backend of torch.distributed without a process group. The names of groups that are created and destroyed
repeatedly depend on how many each rank has created; two releases of torch then hang, in two different cases.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

__all__ = ["Connection"]

_given_up: list[Any] = []
"""Backends on which something has failed: to free them waits for the operations in flight."""


class Connection:
    """A separate backend: gloo for memory of the host and NCCL for that of GPUs.

    Args:
        store: Where the ranks find each other; nothing else uses it.
        rank: The rank of this process.
        size: The number of ranks.
        timeout: After how many seconds the backend itself gives up.
        device: The device of the memory that is sent.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: float, device: torch.device) -> None:
        limit = timedelta(seconds=timeout)
        self._backend: Any
        if device.type == "cpu":
            self._backend = dist.ProcessGroupGloo(store, rank, size, limit)
        else:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = limit
            self._backend = dist.ProcessGroupNCCL(store, rank, size, options)

    def all_gather(self, parts: list[torch.Tensor], own: torch.Tensor) -> dist.Work:
        """Send `own` to all, and receive that of each rank into `parts`."""
        work: dist.Work = self._backend.allgather([parts], [own])
        return work

    def all_to_all(
        self, arrived: torch.Tensor, message: torch.Tensor, of: Sequence[int], to: Sequence[int]
    ) -> dist.Work:
        """Send `to[rank]` elements of `message` to each rank, and receive `of[rank]` elements of it."""
        work: dist.Work = self._backend.alltoall_base(arrived, message, list(of), list(to))
        return work

    def broadcast(self, tensor: torch.Tensor, source: int) -> dist.Work:
        """Send a tensor from one rank to all others."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        work: dist.Work = self._backend.broadcast([tensor], options)
        return work

    def close(self, *, failed: bool) -> None:
        """Close it; after a failure, without waiting for it."""
        if failed:
            _given_up.append(self._backend)
            return
        if hasattr(self._backend, "shutdown"):
            self._backend.shutdown()
        if isinstance(self._backend, dist.ProcessGroupGloo):
            # Freeing it takes 20 ms: it joins threads that poll every 10 ms.
            threading.Thread(target=[self.__dict__.pop("_backend")].clear, name="max_weights-connection").start()
