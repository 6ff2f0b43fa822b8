"""The compared properties of a parameter and its weight: kinds of numbers, shapes, and values that do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from max_weights._core import fingerprint_of
from max_weights._dtype import DType
from max_weights._memory_source import host_buffer
from max_weights.torch._slots import local

if TYPE_CHECKING:
    from max_weights._core import Buffer, WeightInfo

__all__ = [
    "dtype_of",
    "kind_of",
    "kind_of_weight",
    "may_overflow",
    "part_of",
    "shape_of",
    "signs_differ",
    "values_of",
    "wrapped",
]


def kind_of(dtype: DType) -> str:
    """The kind of the elements: those of two kinds are never equal."""
    if dtype.is_float():
        return "float"
    return "integer" if dtype is DType.bool or dtype.is_integral() else dtype.name


def kind_of_weight(info: WeightInfo) -> str:
    if info.encoding is not None:
        return "float"
    return kind_of(info.dtype) if isinstance(info.dtype, DType) else str(info.dtype)


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape in elements: elements of four bits are stored in pairs in torch."""
    shape = tuple(tensor.shape)
    return (*shape[:-1], 2 * shape[-1]) if dtype_of(tensor) is DType.float4_e2m1fn and shape else shape


def values_of(tensor: Buffer) -> torch.Tensor:
    """The values in a dtype that torch computes with."""
    if tensor.dtype.is_float():
        is_small = tensor.dtype.size_in_bits < 16
        return (tensor.astype(DType.float32) if is_small else tensor).torch()
    if tensor.dtype.is_unsigned_integral():
        return tensor.astype(DType.int64).torch()
    return tensor.torch()


def may_overflow(tensor: torch.Tensor, info: WeightInfo) -> bool:
    """Whether a parameter that is equal to its converted weight has values that may have been finite before."""
    own = dtype_of(tensor)
    if own is info.dtype or not own.is_float():
        return False
    return not bool(values_of(host_buffer(info.name, local(tensor))).isfinite().all())


def wrapped(own: Buffer, weight: Buffer) -> str | None:
    """Report integers that are the low bits of those of the weight, and so do not fit; else return `None`."""
    if own.dtype is weight.dtype or kind_of(own.dtype) != "integer":
        return None
    if fingerprint_of(weight.astype(own.dtype))[4] != fingerprint_of(own)[4]:
        return None
    values, originals = (one.astype(DType.int64).torch().reshape(-1) for one in (own, weight))
    places = (values != originals).nonzero().flatten()
    where = int(places[0])
    return (
        f"{len(places)} values of the weight do not fit {own.dtype.name}: {int(originals[where])} became "
        f"{int(values[where])}"
    )


def signs_differ(own: Buffer, weight: Buffer) -> bool:
    """Whether equal 64 bits are other numbers: those of uint64 above the range of int64 are negative ones there."""
    dtypes = (own.dtype, weight.dtype)
    if DType.uint64 not in dtypes or not any(dtype.is_signed_integral() for dtype in dtypes):
        return False
    signed = own if own.dtype.is_signed_integral() else weight
    return signed.num_elements > 0 and int(signed.torch().min()) < 0


def part_of(whole: Buffer, tensor: Any) -> Buffer:
    """This rank's part of a weight, as torch itself distributes it."""
    from torch.distributed.tensor import distribute_tensor

    shaped = whole.torch().reshape(tensor.shape)
    part = local(distribute_tensor(shaped, tensor.device_mesh, tensor.placements, src_data_rank=None))
    return host_buffer("a part", part)


def dtype_of(tensor: torch.Tensor) -> DType:
    return DType.from_torch(tensor.dtype)
