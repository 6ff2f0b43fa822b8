"""What the configuration beside a checkpoint says of its quantization.

It is `quantization_config` of `config.json`, AutoGPTQ's `quantize_config.json`, or ModelOpt's `hf_quant_config.json`.
Sizes are read from the tensors, and this only where they leave something open.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from max_weights._core import files, match_at_start, shown
from max_weights.errors import FormatError

if TYPE_CHECKING:
    from max_weights._core import WeightsNode

__all__ = ["Declared", "declared"]

# A larger file is no configuration.
_MAX_BYTES = 16 << 20
# More than any model has kinds of layers.
_MOST_TARGETS = 4096
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
    groups: tuple[tuple[str, Declared], ...] = ()
    """Where weights are quantized in several ways: the targets, sorted, and what is said of the weights of each."""
    said: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def of_modules(self, names: Iterable[str]) -> dict[str, Declared]:
        """Return what is said of each of these modules.

        Of several groups, the one counts that names a module best, as in compressed-tensors: by its name, by a pattern
        (`re:`), or by its class; of two patterns the one that sorts first. Names of tensors do not tell a class: one
        stands for all that are left.
        """
        left = list(names)
        chosen = dict.fromkeys(left, self)
        for matches in (_by_name, _by_pattern, _by_class) if self.groups else ():
            for target, scheme in self.groups:
                matched = set(matches(target, left))
                chosen |= dict.fromkeys(matched, scheme)
                left = [name for name in left if name not in matched]
        return chosen


def _by_name(target: str, names: list[str]) -> list[str]:
    return [target] if target in names else []


def _by_pattern(target: str, names: list[str]) -> list[str]:
    return match_at_start(target[3:], names) if target.startswith("re:") else []


def _by_class(target: str, names: list[str]) -> list[str]:
    return names if target[:1].isupper() else []


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
        raise _fault(path, str(problem)) from problem
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
    of_all = Declared(
        path=path,
        method=method,
        layout=layout.lower() if layout else None,
        algorithm=_word(said, "quant_algo"),
        block=_pair(said.get("weight_block_size")),
        symmetric=symmetric,
        reordered=said.get("desc_act") is True,
        said=said,
    )
    schemes = _schemes(path, said)
    if not schemes:
        return _with_scheme(of_all, said)
    if all(scheme == schemes[0][1] for _, scheme in schemes):
        return _with_scheme(of_all, schemes[0][1])
    groups = {target: _with_scheme(of_all, scheme) for targets, scheme in schemes for target in targets}
    if len(groups) > _MOST_TARGETS:
        raise _fault(path, f"its groups have {len(groups):,} targets; at most {_MOST_TARGETS:,} are read")
    for target in groups:
        if target.startswith("re:"):
            try:
                match_at_start(target[3:], [])
            except ValueError as problem:
                about = f"the target '{shown(target)}' is no pattern that can be tried: {problem}"
                raise _fault(path, about) from problem
    return replace(of_all, groups=tuple(sorted(groups.items(), key=lambda group: group[0])))


def _with_scheme(of_all: Declared, scheme: dict[str, Any]) -> Declared:
    """Return what is said of weights of one scheme."""
    strategy = _word(scheme, "strategy")
    return replace(
        of_all,
        bits=_number(scheme, "bits") or _number(scheme, "num_bits") or _number(scheme, "w_bit"),
        group_size=None if strategy in ("channel", "tensor") else _number(scheme, "group_size"),
        block=of_all.block or _pair(scheme.get("block_structure")),
        symmetric=scheme["symmetric"] if isinstance(scheme.get("symmetric"), bool) else of_all.symmetric,
        reordered=of_all.reordered or _word(scheme, "actorder") == "group",
    )


def _schemes(path: str, said: dict[str, Any]) -> list[tuple[list[str], dict[str, Any]]]:
    """Return the groups of compressed-tensors: their targets, and the scheme of their weights."""
    groups = said.get("config_groups")
    schemes = []
    for group in groups.values() if isinstance(groups, dict) else ():
        if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
            continue
        targets = group.get("targets", [])
        if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
            raise _fault(path, "the targets of a group are no list of texts")
        schemes.append((targets, group["weights"]))
    return schemes


def _fault(path: str, problem: str) -> FormatError:
    error = FormatError(
        f"{shown(path)}: this is no configuration: {shown(problem)}; "
        "it says how the weights are quantized: repair it, or move the weights away from it"
    )
    error.path = path
    return error


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
