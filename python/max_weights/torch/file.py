"""`load_file`: the tensors of a checkpoint, as torch tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch.utils.dlpack import from_dlpack

from max_weights._core import PytorchWeights, export_dlpack
from max_weights.devices import torch_gpu
from max_weights.loading import as_they_are, own_dtype
from max_weights.weights import load_weights

if TYPE_CHECKING:
    from typing import Unpack

    from max_weights.loading import LoadOptions

__all__ = ["load_file"]


def load_file(
    filename: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    device: str | torch.device | int = "cpu",
    **options: Unpack[LoadOptions],
) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, by name, in file order.

    On the CPU they are views of private pages of the file where they are wanted as the file has them: nothing is read
    before it is used, writing to them changes neither the file nor another process, and they stay valid for as long as
    they are held. For a CUDA device they are loaded there without a detour over as much host memory, unless `shard`,
    `copy=False` or a device of torch's alone is asked for: those are copied there. Elements of a PyTorch file have the
    dtype of torch, complex128 and the like too.

    Args:
        filename: What `load_weights` takes.
        device: Where the tensors go.
        **options: Those of `WeightsNode.load`: select, rename, dtype, packed, shard, copy, storage, backend,
            max_host_bytes, threads, progress, drop_cache, verify. With any of them the tensors are in memory when
            this returns.

    Raises:
        FormatError: the file is damaged.
        WeightNotFoundError: `select` names what is not there.
        UnsupportedError: a tensor of a PyTorch file that is no array, such as a sparse one; `load` builds it, and
            `load_weights` has the arrays that it is made of.
        BufferError: an element type that torch does not have.
        DeviceError: the CUDA device has too little memory, or a copy fails.
    """
    place = torch.device(device)
    gpu = torch_gpu(torch, place)
    with load_weights(filename) as weights:
        if gpu is not None and options.get("shard") is None and options.get("copy") is not False:
            return weights.load(framework="torch", device=gpu, **options)
        if as_they_are(weights, options):
            tensors: dict[str, torch.Tensor] = export_dlpack(weights, from_dlpack)
            if isinstance(weights, PytorchWeights):
                tensors.update(_of_torch(weights, tensors))
        else:
            tensors = weights.load(framework="torch", **options)
    if place.type == "cpu":
        return tensors
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _of_torch(weights: PytorchWeights, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What came as bytes because only torch has its dtype, in that dtype."""
    return {info.name: own_dtype(tensors[info.name], info) for info in weights.infos() if isinstance(info.dtype, str)}
