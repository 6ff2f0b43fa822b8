"""`load_file`: the tensors of a checkpoint, as torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.dlpack import from_dlpack

from max_weights._checkpoints import opened
from max_weights._core import PytorchWeights, export_dlpack, infos
from max_weights._devices import torch_gpu
from max_weights._loading import chosen, is_lazy, require_options, restore_torch_dtype

if TYPE_CHECKING:
    from typing import Unpack

    from max_weights._checkpoints import Checkpoint
    from max_weights._loading import LoadOptions

__all__ = ["load_file"]


def load_file(
    checkpoint: Checkpoint,
    device: str | torch.device | int = "cpu",
    **options: Unpack[LoadOptions],
) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint as torch tensors, by name, in file order.

    On the CPU, tensors are views of private pages of the file: nothing is read before it is used, and writing to them
    changes neither the file nor another process. They stay valid as long as they exist. For a CUDA device, tensors are
    loaded there without taking as much host memory. With `shard`, `copy=False` or a device that only torch knows, they
    are copied there from the host. Tensors of a PyTorch file have the dtype of torch, such as complex128. Packed blocks
    of a GGUF file need a `dtype`, `packed="decode"` or `packed="keep"`.

    Args:
        checkpoint: A path, a list of paths, a URL, or an open tree, which stays open.
        device: Where the tensors go.
        **options: Those of `WeightsNode.load`: select, rename, dtype, packed, shard, copy, progress, options (a
            `max_weights.types.ReadOptions`) and its fields. Any option other than `select` and `rename` makes the call
            read all tensors before it returns.

    Raises:
        FormatError: the file is damaged.
        WeightNotFoundError: `select` names a weight that does not exist.
        UnsupportedError: a tensor of a PyTorch file that is not a plain array, such as a sparse one; `load` builds it,
            and `load_weights` has its component arrays.
        BufferError: an element type that torch does not have.
        DeviceError: the CUDA device has too little memory, or a copy fails.

    Example:
        >>> max_weights.torch.load_file("model.safetensors")["model.norm.weight"].shape
        torch.Size([8])
    """
    require_options("load_file", options)
    place = torch.device(device)
    gpu = torch_gpu(torch, place)
    tensors: dict[str, torch.Tensor]
    with opened(checkpoint, "load_file") as weights:
        if gpu is not None and options.get("shard") is None and options.get("copy") is not False:
            return weights.load(framework="torch", device=gpu, **options)
        if not is_lazy(options):
            tensors = weights.load(framework="torch", **options)
        elif (some := chosen(weights, options)) is not None:
            tensors = {name: restore_torch_dtype(from_dlpack(buffer), info) for name, buffer, info in some}
        else:
            tensors = export_dlpack(weights, from_dlpack)
            if isinstance(weights, PytorchWeights):
                tensors.update(_of_torch(weights, tensors))
    if place.type == "cpu":
        return tensors
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _of_torch(weights: PytorchWeights, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give the tensors that came as bytes, because only torch has their dtype, that dtype."""
    return {
        info.name: restore_torch_dtype(tensors[info.name], info)
        for info in infos(weights)
        if isinstance(info.dtype, str)
    }
