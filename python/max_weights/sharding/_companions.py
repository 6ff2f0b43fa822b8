"""Weights that belong to others, such as scales and zero points of quantized weights, and are split with them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from max_weights.sharding._pieces import Pieces

__all__ = ["is_of_packed_layer", "pieces", "weight_of"]

_COMPANION = re.compile(r"(.+)_(?:scale|scale_inv|scale_2|scales|zero_point)", re.DOTALL)
# GPTQ and AWQ pack [in, out]; bitsandbytes flattens the weight.
_PACKED_LAYER = re.compile(
    r".*(?:\.(?:qweight|qzeros|scales|g_idx)|_g_idx|\.absmax|\.quant_map|\.quant_state\..*)", re.DOTALL
)


def weight_of(name: str, names: Collection[str]) -> str | None:
    """Return the name of the weight that a companion belongs to, if this is a companion."""
    match = _COMPANION.fullmatch(name)
    bases = (match[1], f"{match[1]}_packed") if match else ()
    return next((base for base in bases if base in names), None)


def is_of_packed_layer(name: str) -> bool:
    """Whether the name belongs to a layer whose weight is packed in several tensors of other shapes."""
    return _PACKED_LAYER.fullmatch(name) is not None


def pieces(shape: Sequence[int], weight: Pieces | None) -> Pieces | None:
    """Return the pieces of a companion of this shape: the ranges of the weight, counted in blocks that share a scale.

    A companion with one number for the whole axis, or without such an axis, is whole on each rank.

    Raises:
        ValueError: the block size is not the same everywhere or not a power of two, or a shard of the weight cuts a
            block.
    """
    if weight is None:
        return None
    split = weight.split_axes
    if len(split) != 1:
        raise ValueError(f"that is split along the axes {split}")
    axis = split[0]
    if axis >= len(shape) or shape[axis] == 1:
        return None
    size = weight.whole[axis]
    block, rest = divmod(size, shape[axis]) if isinstance(size, int) and shape[axis] else (0, 1)
    # The last block may be shorter, and then no other number could be a power of two.
    if rest or block & (block - 1):
        raise ValueError(
            f"its {shape[axis]} numbers of axis {axis} do not stand for blocks of one size, with {size} in all"
        )
    ranges = []
    for box in weight.boxes:
        edges = [edge for edge in box[axis] if isinstance(edge, int)]
        cut = next((edge for edge in edges if edge % block), None)
        if cut is not None:
            raise ValueError(
                f"a shard has an edge at {cut} on axis {axis}, inside a block of {block} that share a scale"
            )
        ranges.append((edges[0] // block, edges[1] // block))
    return Pieces.along(axis, shape, ranges)
