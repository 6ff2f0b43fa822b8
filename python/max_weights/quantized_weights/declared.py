"""What the configuration beside a checkpoint says of its quantization.

It is `quantization_config` of `config.json`, AutoGPTQ's `quantize_config.json`, or ModelOpt's `hf_quant_config.json`.
Sizes are read from the tensors, and this only where they leave something open.
"""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from max_weights._core import files, shown
from max_weights.errors import FormatError

if TYPE_CHECKING:
    from max_weights._core import WeightsNode

__all__ = ["Declared", "declared"]

# A larger file is no configuration.
_MAX_BYTES = 16 << 20
_NAMES = ("config.json", "quantize_config.json", "hf_quant_config.json")


@dataclass(frozen=True)
class Declared:
    """What is said; all of it is empty where there is no configuration."""

    path: str | None = None
    """The file that says it."""
    method: str | None = None
    """The method: `gptq`, `awq`, `fp8`, `compressed-tensors`, `modelopt`, `mxfp4`, `bitsandbytes`, or another word."""
    layout: str | None = None
    """How tensors are laid out: `gptq_v2`, `gemm`, `auto_round:auto_gptq`."""
    algorithm: str | None = None
    """What ModelOpt did, such as `NVFP4`."""
    bits: int | None = None
    group_size: int | None = None
    """How many inputs share a scale; -1 for all."""
    block: tuple[int, int] | None = None
    """Rows and columns that share one."""
    symmetric: bool | None = None
    reordered: bool = False
    """Whether the inputs of a group are anywhere in a row, and an index says which they are."""
    said: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)


def declared(node: WeightsNode) -> Declared:
    """Return what is said beside the files of a tree. It is read again only when a file has changed.

    Raises:
        FormatError: a configuration that is no JSON object, or too large.
    """
    paths = files(node)
    folder = os.path.dirname(paths[0]) if paths else ""
    for name in _NAMES if paths else ():
        path = os.path.join(folder, name)
        try:
            status = os.stat(path)
        except OSError:
            continue
        found = _read(path, (status.st_ino, status.st_size, status.st_mtime_ns))
        if found is not None:
            return found
    return Declared()


@functools.lru_cache(maxsize=64)
def _read(path: str, mark: tuple[int, int, int]) -> Declared | None:  # noqa: ARG001 (a changed file is another key)
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES:,} bytes")
        config = json.loads(text)
        if not isinstance(config, dict):
            raise ValueError(f"it is a {type(config).__name__}, not an object")
    except (ValueError, RecursionError) as problem:
        error = FormatError(
            f"{shown(path)}: this is no configuration: {shown(str(problem))}; "
            "it says how the weights are quantized: repair it, or move the weights away from it"
        )
        error.path = path
        raise error from problem
    return _of(path, config)


def _of(path: str, config: dict[str, Any]) -> Declared | None:
    """Return what one file says; `None` where it says nothing of quantization."""
    name = os.path.basename(path)
    if name == "quantize_config.json":
        return _of_method(path, _word(config, "quant_method") or "gptq", config) if "bits" in config else None
    if name == "hf_quant_config.json":
        said = config.get("quantization")
        return _of_method(path, "modelopt", said) if isinstance(said, dict) and "quant_algo" in said else None
    inner = config.get("text_config")
    candidates = (
        config.get("quantization_config"),
        inner.get("quantization_config") if isinstance(inner, dict) else None,
        config.get("compression_config"),
    )
    said = next((said for said in candidates if isinstance(said, dict)), None)
    if said is None:
        return None
    keys = {"load_in_4bit": "bitsandbytes", "quant_algo": "modelopt", "config_groups": "compressed-tensors"}
    by_key = next((word for key, word in keys.items() if key in said), None)
    return _of_method(path, _word(said, "quant_method") or by_key, said)


def _of_method(path: str, method: str | None, said: dict[str, Any]) -> Declared:
    layout = next((word for key in ("checkpoint_format", "format", "version") if (word := _word(said, key))), None)
    symmetric = next((said[key] for key in ("sym", "symmetric") if isinstance(said.get(key), bool)), None)
    if method in ("auto-round", "intel/auto-round"):
        method = "auto-round"
        layout = next((word for key in ("packing_format", "backend") if (word := _word(said, key))), "auto_round")
    elif method == "awq" and isinstance(said.get("zero_point"), bool):
        symmetric = not said["zero_point"]
    weights = _weights(said)
    if weights is not None:
        symmetric = weights["symmetric"] if isinstance(weights.get("symmetric"), bool) else symmetric
    source = said if weights is None else weights
    strategy = _word(source, "strategy")
    return Declared(
        path=path,
        method=method,
        layout=layout.lower() if layout else None,
        algorithm=_word(said, "quant_algo"),
        bits=_number(source, "bits") or _number(source, "num_bits") or _number(source, "w_bit"),
        group_size=None if strategy in ("channel", "tensor") else _number(source, "group_size"),
        block=_pair(said.get("weight_block_size")) or _pair(source.get("block_structure")),
        symmetric=symmetric,
        reordered=said.get("desc_act") is True or _word(source, "actorder") == "group",
        said=said,
    )


def _weights(said: dict[str, Any]) -> dict[str, Any] | None:
    """Return the scheme of all weights of compressed-tensors; `None` where there are several."""
    groups = said.get("config_groups")
    found = [
        group["weights"]
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict) and isinstance(group.get("weights"), dict)
    ]
    return found[0] if found and all(weights == found[0] for weights in found) else None


def _word(said: dict[str, Any], key: str) -> str | None:
    value = said.get(key)
    return value if isinstance(value, str) else None


def _number(said: dict[str, Any], key: str) -> int | None:
    value = said.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _pair(value: Any) -> tuple[int, int] | None:
    if isinstance(value, list) and len(value) == 2 and all(type(one) is int and one > 0 for one in value):
        return value[0], value[1]
    return None
