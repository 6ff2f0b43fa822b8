"""Which scheme a group of tensors is quantized by: the decisions of `max-weights validate`, in the same order."""

from __future__ import annotations

from max_weights._core import shown
from max_weights._quantized_weights import bitsandbytes
from max_weights._quantized_weights.group import Group
from max_weights._quantized_weights.integers import awq, gptq, is_awq, packed_integers, pairs_of_outputs
from max_weights._quantized_weights.layout import Layout
from max_weights._quantized_weights.names import BARE, FLOAT8, WEIGHT
from max_weights._quantized_weights.scaled import mxfp4_of_blocks, nvfp4, packed_floats, scaled
from max_weights.dtype import DType

__all__ = ["layout_of"]

_FOUR_BITS = ("weight.absmax", "weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
_METHODS = ("gptq", "awq", "auto-round", "fp8", "compressed-tensors", "modelopt", "mxfp4", "bitsandbytes", None)


def layout_of(group: Group) -> Layout:
    """Return how a weight is quantized, after checking that its parts fit together.

    Raises:
        FormatError: a part is missing, or has a dtype or a shape that does not fit.
        Refused: a scheme that is known, and cannot be decoded.
    """
    weight, scale = group.get(WEIGHT) or group.get(BARE), group.get("weight_scale")
    if "qweight" in group:
        if group.declared.method not in _METHODS:
            method = shown(group.declared.method or "")
            raise group.refused(group.need("qweight"), method, f"packed integers of {method} are not known")
        return awq(group) if is_awq(group) else gptq(group)
    if (packed := group.get("weight_packed")) is not None:
        if "weight_codebook" in group:
            raise group.refused(packed, "codebook", "a codebook of compressed-tensors is known, but cannot be decoded")
        return packed_floats(group) if packed.dtype is DType.uint8 else packed_integers(group)
    if "_blocks" in group:
        return mxfp4_of_blocks(group)
    if weight is None:
        raise group.fault("quantized.scale-orphan", None, "there is no weight for its scales")
    if "SCB" in group:
        return bitsandbytes.int8(group)
    if any(part in group for part in _FOUR_BITS):
        return bitsandbytes.four_bits(group)
    if weight.dtype is DType.uint8 and scale is not None:
        if scale.dtype in FLOAT8:
            return nvfp4(group)
        if scale.dtype is DType.float32:
            return pairs_of_outputs(group)
    return scaled(group)
