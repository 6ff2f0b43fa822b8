"""`out=`: outputs are checked before a byte is written, by one rule for all functions."""

from typing import Any

import numpy as np
import pytest

from max_weights import dequantize
from max_weights.driver import Buffer
from max_weights.graph.quantization import QuantizationEncoding
from refusals import refuses

BLOCKS = 4096
BLOCK_BYTES, BLOCK_VALUES = 34, 32


def overlapping(shift: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Q8_0 blocks and the output for their float32 values in one allocation, the output `shift` bytes further."""
    size = BLOCKS * BLOCK_VALUES * 4
    memory = np.random.default_rng(0).integers(0, 60, 3 * size, dtype=np.uint8)
    start = size
    blocks = memory[start : start + BLOCKS * BLOCK_BYTES]
    buffer = memory[start + shift : start + shift + size].view(np.float32)
    return blocks, buffer


@pytest.mark.parametrize("shift", [-BLOCKS * BLOCK_VALUES * 4 + 4, -400, 0, 4, 40_000, BLOCKS * BLOCK_BYTES - 4])
def test_decoding_over_its_own_blocks_is_refused_and_changes_nothing(shift: int) -> None:
    blocks, buffer = overlapping(shift)
    before = blocks.copy()
    with refuses(ValueError):
        dequantize(blocks, "Q8_0", out=buffer)
    assert np.array_equal(blocks, before)


@pytest.mark.parametrize("shift", [-BLOCKS * BLOCK_VALUES * 4, BLOCKS * BLOCK_BYTES])
def test_decoding_right_beside_its_blocks_is_right(shift: int) -> None:
    blocks, buffer = overlapping(shift)
    expected = dequantize(blocks.copy(), "Q8_0").to_numpy()
    dequantize(blocks, "Q8_0", out=buffer)
    assert np.array_equal(buffer, expected, equal_nan=True)


def test_rows_of_blocks_with_gaps_are_checked_as_far_as_they_reach() -> None:
    memory = np.zeros((8, 4 * BLOCK_VALUES * 4), np.uint8)
    blocks = memory[:, :BLOCK_BYTES]
    between = memory[3:4, BLOCK_BYTES * 2 :][0, : 8 * BLOCK_VALUES * 0 + 4].view(np.float32)
    assert between.size == 1
    buffer = memory.reshape(-1)[1024 : 1024 + 8 * BLOCK_VALUES * 4].view(np.float32).reshape(8, BLOCK_VALUES)
    with refuses(ValueError):
        dequantize(blocks, "Q8_0", out=buffer)


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((4, 64), np.float16),
        np.zeros((4, 63), np.float32),
        np.zeros((4, 128), np.float32)[:, ::2],
        np.zeros((64, 4), np.float32).T,
        np.frombuffer(bytes(4 * 64 * 4), np.float32).reshape(4, 64),
        np.zeros((4, 64), ">f4"),
    ],
)
def test_what_does_not_fit_is_refused_by_every_taker_of_out(out: Any) -> None:
    blocks = np.zeros((4, 2 * BLOCK_BYTES), np.uint8)
    source = Buffer.zeros((4, 64), "float64")
    with refuses(ValueError):
        dequantize(blocks, QuantizationEncoding.Q8_0, out=out)
    with refuses(ValueError):
        source.astype("float32", out=out)
