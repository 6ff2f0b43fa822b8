"""Which torch tensors share memory: what `load_model` needs, and helpers of safetensors that others import."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch

__all__ = [
    "_end_ptr",
    "_filter_shared_not_shared",
    "_find_shared_tensors",
    "_is_complete",
    "_remove_duplicate_names",
    "storage_ptr",
    "storage_size",
]


def storage_ptr(tensor: torch.Tensor) -> int:
    """Return the address of the first byte of a tensor's storage; 0 if it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except NotImplementedError:
        return 0


def storage_size(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's storage, which may be more than its own; its own if it has no storage."""
    try:
        return tensor.untyped_storage().nbytes()
    except NotImplementedError:
        return tensor.nelement() * tensor.element_size()


def _end_ptr(tensor: torch.Tensor) -> int:
    """Return the address after the last element."""
    if tensor.nelement() == 0:
        return tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def _is_complete(tensor: torch.Tensor) -> bool:
    """Whether a tensor covers all of its storage."""
    return tensor.data_ptr() == storage_ptr(tensor) and tensor.nelement() * tensor.element_size() == storage_size(
        tensor
    )


def _find_shared_tensors(state_dict: Mapping[str, torch.Tensor]) -> list[set[str]]:
    """Return the names of tensors in groups whose tensors have bytes in common; most tensors are alone."""
    by_storage: defaultdict[tuple[torch.device, int, int], set[str]] = defaultdict(set)
    for name, tensor in state_dict.items():
        if tensor.device.type != "meta" and storage_ptr(tensor) != 0 and storage_size(tensor) != 0:
            by_storage[tensor.device, storage_ptr(tensor), storage_size(tensor)].add(name)
    return _filter_shared_not_shared(by_storage.values(), state_dict)


def _filter_shared_not_shared(tensors: Iterable[set[str]], state_dict: Mapping[str, torch.Tensor]) -> list[set[str]]:
    """Split groups of tensors of one storage where their bytes do not overlap."""
    groups: list[set[str]] = []
    for names in tensors:
        if len(names) < 2:
            groups.append(names)
            continue
        areas = sorted((state_dict[name].data_ptr(), _end_ptr(state_dict[name]), name) for name in names)
        end = -1
        for start, stop, name in areas:
            if start >= end:
                groups.append(set())
            groups[-1].add(name)
            end = max(end, stop)
    return groups


def _remove_duplicate_names(
    state_dict: Mapping[str, torch.Tensor],
    *,
    preferred_names: Iterable[str] | None = None,
    discard_names: Iterable[str] | None = None,
) -> dict[str, list[str]]:
    """Return {name that stays: the other names of the same bytes}.

    Args:
        state_dict: Tensors by name.
        preferred_names: Names that stay rather than others.
        discard_names: Names that stay only if no other can.

    Raises:
        RuntimeError: no tensor of a group covers all of its storage, so that none of its names can stay.
    """
    preferred_names, discard_names = set(preferred_names or ()), set(discard_names or ())
    removed: defaultdict[str, list[str]] = defaultdict(list)
    for names in _find_shared_tensors(state_dict):
        complete = {name for name in names if _is_complete(state_dict[name])}
        if not complete:
            raise RuntimeError(
                "Error while trying to find names to remove to save state dict, but found no suitable name to keep for "
                f"saving amongst: {names}. None is covering the entire storage: clone() the tensors first"
            )
        kept = min(complete & preferred_names or complete - discard_names or complete)
        removed[kept].extend(sorted(names - {kept}))
    return {kept: others for kept, others in removed.items() if others}
