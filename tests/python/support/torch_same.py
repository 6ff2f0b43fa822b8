"""Whether two nested values are the same to torch: types, values, strides, and shared storages."""

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import torch


def assert_same(ours: Any, theirs: Any) -> None:
    """Fails unless `ours` equals `theirs`, with the same shared storages."""
    storages: dict[int, int] = {}
    _same(ours, theirs, "value", storages, set())
    assert len(set(storages.values())) == len(storages), "storages that are two there are one here"


def _same(ours: Any, theirs: Any, at: str, storages: dict[int, int], seen: set[tuple[int, int]]) -> None:
    assert type(ours) is type(theirs), f"{at}: {type(ours)} is not {type(theirs)}"
    if (id(ours), id(theirs)) in seen:
        return
    if isinstance(theirs, torch.Tensor):
        _same_tensor(ours, theirs, at, storages)
        return
    if isinstance(theirs, torch.TypedStorage):
        assert ours.dtype == theirs.dtype, at
        assert ours.tolist() == theirs.tolist(), at
        return
    if isinstance(theirs, dict | list | tuple):
        seen.add((id(ours), id(theirs)))
        assert len(ours) == len(theirs), at
    if isinstance(theirs, dict):
        for (our_key, our_value), (key, value) in zip(ours.items(), theirs.items(), strict=True):
            _same(our_key, key, f"{at} key", storages, seen)
            _same(our_value, value, f"{at}[{key!r}]", storages, seen)
        if isinstance(theirs, OrderedDict):
            _same(vars(ours), vars(theirs), f"{at}.__dict__", storages, seen)
    elif isinstance(theirs, list | tuple):
        for i, (our_value, value) in enumerate(zip(ours, theirs, strict=True)):
            _same(our_value, value, f"{at}[{i}]", storages, seen)
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype, at
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(theirs, float):
        assert ours == theirs or (math.isnan(ours) and math.isnan(theirs)), at
        assert math.copysign(1, ours) == math.copysign(1, theirs), at
    else:
        assert ours == theirs, at


def _same_tensor(ours: torch.Tensor, theirs: torch.Tensor, at: str, storages: dict[int, int]) -> None:
    for name in ("dtype", "shape", "layout", "device", "requires_grad", "is_quantized"):
        assert getattr(ours, name) == getattr(theirs, name), f"{at}.{name}"
    if theirs.layout is torch.sparse_coo:
        assert ours.is_coalesced() == theirs.is_coalesced(), at
        _same_bits(ours._indices(), theirs._indices(), at)
        _same_bits(ours._values(), theirs._values(), at)
        return
    if theirs.layout is not torch.strided:
        _same_bits(ours.to_dense(), theirs.to_dense(), at)
        return
    assert ours.stride() == theirs.stride(), f"{at}.stride"
    if theirs.device.type == "meta":
        return
    assert ours.storage_offset() == theirs.storage_offset(), f"{at}.storage_offset"
    assert ours.untyped_storage().nbytes() == theirs.untyped_storage().nbytes(), f"{at}.nbytes"
    assert (ours.is_conj(), ours.is_neg()) == (theirs.is_conj(), theirs.is_neg()), at
    if theirs.is_quantized:
        assert ours.qscheme() == theirs.qscheme(), at
        assert torch.equal(ours.dequantize(), theirs.dequantize()), at
        return
    _same_bits(ours, theirs, at)
    if theirs.untyped_storage().nbytes():
        mine, other = ours.untyped_storage().data_ptr(), theirs.untyped_storage().data_ptr()
        assert storages.setdefault(other, mine) == mine, f"{at}: storages that are one there are two here"


def _same_bits(ours: torch.Tensor, theirs: torch.Tensor, at: str) -> None:
    ours, theirs = (tensor.detach().resolve_conj().resolve_neg().contiguous() for tensor in (ours, theirs))
    assert ours.numel() == theirs.numel(), at
    if not ours.numel():
        return
    ours, theirs = (tensor.reshape(-1).view(torch.uint8) for tensor in (ours, theirs))
    assert bytes(ours.numpy()) == bytes(theirs.numpy()), f"{at}: other values"
