"""Plug-ins for the extension points of other libraries: torch's distributed checkpoints, Lightning, vLLM and sglang.

Each is imported when it is used, with its library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from max_weights.integrations._distributed import WeightsReader, WeightsWriter
    from max_weights.integrations._lightning import WeightsCheckpointIO
    from max_weights.integrations._sglang import register_sglang
    from max_weights.integrations._vllm import register_vllm

__all__ = ["WeightsCheckpointIO", "WeightsReader", "WeightsWriter", "register_sglang", "register_vllm"]

_HOMES = {
    "WeightsCheckpointIO": "_lightning",
    "WeightsReader": "_distributed",
    "WeightsWriter": "_distributed",
    "register_sglang": "_sglang",
    "register_vllm": "_vllm",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    except ModuleNotFoundError as error:  # `hasattr` asks whether it is there, and does not ask for this error
        raise AttributeError(f"module {__name__!r} has {name!r} only with its library: {error}") from error
    value: object = globals().setdefault(name, getattr(home, name))
    return value


def __dir__() -> list[str]:
    return list(__all__)
