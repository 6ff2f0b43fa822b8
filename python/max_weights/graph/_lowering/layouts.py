"""Packed blocks in the layout of ONNX Runtime's products, created once when a model is loaded.

Its product of blocks, MatMulNBits, takes 4-bit numbers with a scale for every 32, and has a fast kernel for exactly two
cases: 8, or another 4-bit integer, stands for 0. So a minimum needs a product of its own, with the sums of 32 input
elements each, and 8-bit numbers are split into two 4-bit ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from max_weights.quantization import QuantizationEncoding, dequantize

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from max_weights._buffer import Buffer

__all__ = ["BLOCK", "ELEMENTS", "parts_of", "repack"]

BLOCK = 32
"""The number of elements that share a scale."""

_PARTS = {
    "Q4_0": ("numbers", "scales"),
    "Q4_1": ("numbers", "scales", "offsets"),
    "Q4_K": ("numbers", "scales", "offsets"),
    "Q8_0": ("upper", "lower", "scales", "zeros"),
}
ELEMENTS = ("elements",)
"""The part that stands for a decoded matrix: floats."""


def parts_of(encoding: str) -> tuple[str, ...]:
    """Return the tensors for a matrix in these blocks; only `elements`, floats, if there is no product for them."""
    return _PARTS.get(encoding, ELEMENTS)


def repack(encoding: str, parts: tuple[str, ...], blocks: Buffer) -> list[npt.NDArray[Any]]:
    """Return the tensors for a matrix in blocks.

    Args:
        encoding: The encoding of the blocks.
        parts: Their names, as `parts_of` gives them, or only `elements`.
        blocks: `[n, bytes]`.
    """
    import numpy as np

    if parts == ELEMENTS:
        return [dequantize(blocks, encoding).to_numpy()]
    kind = QuantizationEncoding(encoding)
    given = blocks.to_numpy()
    rows = given.reshape(given.shape[0], given.shape[1] // kind.block_size, kind.block_size)
    if encoding == "Q8_0":
        numbers = rows[..., 2:] ^ 128  # 0 to 255, where 128 stands for 0
        zeros = np.zeros((len(rows), (rows.shape[1] + 1) // 2), np.uint8)
        return [_pairs(numbers >> 4), _pairs(numbers & 15), _halves(rows, 0), zeros]
    if encoding == "Q4_K":
        scale, minimum, numbers = _of_eight(rows)
        return [_pairs(numbers), scale, 8 * scale - minimum]
    start = 4 if encoding == "Q4_1" else 2
    numbers, scale = np.concatenate([rows[..., start:] & 15, rows[..., start:] >> 4], -1), _halves(rows, 0)
    return [_pairs(numbers), scale, *([8 * scale + _halves(rows, 2)] if encoding == "Q4_1" else [])]


def _halves(rows: npt.NDArray[np.uint8], start: int) -> npt.NDArray[np.float32]:
    """Return the float16 at a position in each block."""
    import numpy as np

    made: npt.NDArray[np.float32] = rows[..., start : start + 2].copy().view("<f2")[..., 0].astype(np.float32)
    return made


def _pairs(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return 4-bit numbers, two in a byte, the first in its lower half."""
    made: npt.NDArray[np.uint8] = numbers[..., ::2] | numbers[..., 1::2] << 4
    return made


def _of_eight(rows: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[Any], ...]:
    """Return scales, minima and numbers of Q4_K, whose blocks have eight parts."""
    import numpy as np

    first, second, third = (rows[..., start : start + 4] for start in (4, 8, 12))
    scale = np.concatenate([first & 63, third & 15 | first >> 6 << 4], -1) * _halves(rows, 0)[..., None]
    minimum = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], -1) * _halves(rows, 2)[..., None]
    pairs = rows[..., 16:].reshape(*rows.shape[:2], 4, 1, 32)
    numbers = np.concatenate([pairs & 15, pairs >> 4], -2)
    shape = rows.shape[0], rows.shape[1] * 8
    return scale.reshape(shape), minimum.reshape(shape), numbers.reshape(*shape, 32)
