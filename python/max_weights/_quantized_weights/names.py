"""Which tensors belong to one quantized weight, by their names, and what each of them is to it.

The names are those that `max-weights validate` looks for, too (crates/check/src/checkpoint/quantized/parts.rs).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from max_weights._core import infos
from max_weights.dtype import DType

if TYPE_CHECKING:
    from max_weights._core import WeightsNode

__all__ = ["BARE", "EIGHT_BIT", "FLOAT8", "PLAIN", "ROLES", "WEIGHT", "groups", "is_quantized", "parts_of", "split"]

WEIGHT = "weight"
"""The part `MODULE.weight`."""
BARE = ""
"""The part whose name is the group's own: experts in one tensor."""

# What the part of each name is to the weight. Those of a module follow a dot.
_OF_MODULE = {
    "qweight": "packed",
    "qzeros": "zero_points",
    "scales": "scales",
    "g_idx": "group_index",
    "weight_packed": "packed",
    "weight_scale": "scales",
    "weight_zero_point": "zero_points",
    "weight_shape": "shape",
    "weight_global_scale": "global_scale",
    "weight_scale_2": "global_scale",
    "weight_scale_inv": "scales",
    "weight_g_idx": "group_index",
    "weight_codebook": "codebook",
    "scale": "scales",
    "qscale_weight": "scales",
    "SCB": "scales",
    "weight_format": "format",
    "weight.absmax": "scales",
    "weight.quant_map": "codebook",
    "weight.nested_absmax": "nested_scales",
    "weight.nested_quant_map": "nested_codebook",
    "weight.quant_state.bitsandbytes__nf4": "state",
    "weight.quant_state.bitsandbytes__fp4": "state",
}
# These follow the name of the weight itself.
_OF_TENSOR = {"_blocks": "packed", "_scales": "scales", "_scale_inv": "scales"}
# Parts for the activations. They make no weight a quantized one, and are not needed to decode it.
_OF_INPUT = {
    "input_scale": "input_scale",
    "activation_scale": "input_scale",
    "input_global_scale": "input_global_scale",
    "input_zero_point": "input_zero_points",
    "pre_quant_scale": "input_factors",
}
ROLES = {WEIGHT: "packed", BARE: "packed", **_OF_MODULE, **_OF_TENSOR, **_OF_INPUT}
"""The role of a part, by what its name adds to that of the group."""

_LAST = {part.rpartition(".")[2]: part for part in _OF_MODULE}

FLOAT8 = (DType.float8_e4m3fn, DType.float8_e4m3fnuz, DType.float8_e5m2, DType.float8_e5m2fnuz)
EIGHT_BIT = (*FLOAT8, DType.int8)
PLAIN = (DType.bfloat16, DType.float16, DType.float32, DType.float64)


def split(name: str) -> tuple[str, str] | None:
    """Return the group that the name of a part gives, and the part; `None` where it is none. Of weights, nothing."""
    rest, _, last = name.rpartition(".")
    part = _LAST.get(last)
    if part is not None and rest:
        group = name.removesuffix(f".{part}")
        return None if group == name else (group, part)
    for part in _OF_TENSOR:
        if name.endswith(part) and len(name) > len(part):
            return name.removesuffix(part), part
    return None


def parts_of(node: WeightsNode, group: str) -> dict[str, str]:
    """Return the parts of a group that are below a node: {what the name adds: the name}, in the order of `ROLES`.

    The group of the node itself has the name `""` there.
    """
    found = {}
    for part in ROLES:
        of_tensor = part in _OF_TENSOR or part == BARE
        if of_tensor and not group:
            continue
        name = f"{group}{part}" if of_tensor else f"{group}.{part}" if group else part
        if name in node:
            found[part] = name
    return found


def is_quantized(parts: dict[str, str], dtype: DType | str | None, declares_mxfp4: bool) -> bool:
    """Return whether these parts are those of a quantized weight, as validation decides it.

    Args:
        parts: The parts of the group.
        dtype: That of its weight, if it has one.
        declares_mxfp4: Whether the configuration says `mxfp4`: tensors with these names may be anything elsewhere.
    """
    if "qweight" in parts or "weight_packed" in parts:
        return True
    if "_blocks" in parts and ("_scales" in parts or declares_mxfp4):
        return True
    if dtype is not None and "weight.absmax" in parts and any(part in parts for part in _STATES):
        return True  # codes of four bits may be stored as any dtype
    if dtype is None or dtype in PLAIN:
        return False
    if "scale" in parts or "qscale_weight" in parts:
        scales: tuple[str, ...] = ("weight_scale", "weight_scale_2", "weight_scale_inv")
        return dtype in EIGHT_BIT or any(part in parts for part in scales)
    return any(part in parts for part in _SCALES)


_STATES = tuple(part for part in _OF_MODULE if part.startswith("weight.quant_state"))
_SCALES = ("weight_scale", "weight_scale_2", "weight_scale_inv", "_scale_inv", "SCB", "weight.absmax", *_STATES)


def groups(node: WeightsNode, declares_mxfp4: bool) -> Iterator[str]:
    """Iterate over the groups below a node by their full names, in file order: one walk over the names."""
    listed = {info.name: info for info in infos(node)}
    found: dict[str, dict[str, str]] = {}
    for name in listed:
        group, part = split(name) or (None, "")
        if group is not None:
            found.setdefault(group, {})[part] = name
    for group, parts in found.items():
        weight = listed.get(f"{group}.{WEIGHT}") or listed.get(group)
        if is_quantized(parts, None if weight is None else weight.dtype, declares_mxfp4):
            yield group
