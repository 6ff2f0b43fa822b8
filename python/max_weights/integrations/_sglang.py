"""sglang: its iterators over safetensors files, hooked by the entry point of group `sglang.srt.plugins`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from max_weights._switches import is_on

__all__ = ["register_sglang"]

_ITERATORS = ("safetensors_weights_iterator", "buffered_multi_thread_safetensors_weights_iterator")


def register_sglang() -> None:
    """Hook sglang's iterators, if `MAX_WEIGHTS_PATCH=1`. If this fails, also because the value of the variable is
    neither on nor off, sglang logs it and continues.
    """
    if not is_on("MAX_WEIGHTS_PATCH"):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for name in _ITERATORS:
        HookRegistry.register(f"sglang.srt.model_loader.weight_utils.{name}", _iterate, HookType.AROUND)


def _iterate(
    original: Callable[..., Any], hf_weights_files: Iterable[str], *arguments: object, **options: object
) -> Any:
    """Iterate over the tensors of these files, in the order of sglang's iterators."""
    del original, arguments
    from max_weights.integrations._streamed import streamed

    return streamed(hf_weights_files, drop_cache=bool(options.get("drop_cache_after_load", False)))
