#!/usr/bin/env python3
"""Write the test vectors of quantization: blocks with their decoded floats, floats with their quantized blocks.

    make_quant_vectors.py [FOLDER]        (default: crates/kernels/tests/data/quant)

The expected values come from the packages `gguf` and, for Q1_0, `libgguf`. Neither decodes Q8_1, Q8_K and Q2_0: these
follow ggml's block definitions below.

`dequantize.bin` is a sequence of little-endian records: name (8 bytes, padded with zeros), ggml id, elements and bytes
per block, number of blocks (u32 each), the blocks, the expected f32. Likewise `quantize.bin`: name, ggml id, number of
blocks, the f32, the expected blocks.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import libgguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

BLOCKS = 6

# Byte offsets of the f16 scales in a block; `set_scales` handles the encodings with other scales.
F16_SCALES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q8_1": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ1_S": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "Q1_0": (0,),
    "Q2_0": (0,),
}
# Ggml id, elements and bytes per block. gguf 0.19 gives Q8_1 40 bytes and lacks the others.
OWN_SIZES = {"Q8_1": (9, 32, 36), "Q1_0": (41, 128, 18), "Q2_0": (42, 64, 18)}
PLAIN = {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"}


def encodings() -> dict[str, tuple[int, int, int]]:
    """Return id, elements and bytes per block of every quantized type, by name."""
    known = {kind.name: (int(kind), *size) for kind, size in GGML_QUANT_SIZES.items() if kind.name not in PLAIN}
    return dict(sorted((known | OWN_SIZES).items(), key=lambda item: item[1]))


def set_scales(name: str, block: Bytes, scale: float) -> None:
    """Give a block this scale, in every scale field it has."""
    half = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    if name in F16_SCALES:
        for offset in F16_SCALES[name]:
            block[offset : offset + 2] = half
    elif name == "Q8_K":
        block[:4] = np.frombuffer(np.float32(scale).tobytes(), np.uint8)
    elif name == "IQ1_M":
        bits = int(np.float16(scale).view(np.uint16))
        for word in range(4):
            high = 48 + 2 * word + 1
            block[high] = (int(block[high]) & 15) | (bits >> (4 * word) & 15) << 4
    elif name == "MXFP4":
        block[0] = 255 if np.isnan(scale) else 254 if np.isinf(scale) else 120
    elif name == "NVFP4":
        block[:4] = (
            (0x7F, 0xFF, 0x80, 0x7E)
            if np.isnan(scale)
            else (0, 1, 7, 8)
            if np.isinf(scale)
            else (0x30, 0x38, 0x2A, 0x45)
        )
    else:
        raise KeyError(name)


def dequantize(name: str, blocks: Bytes) -> Floats:
    """Return the elements of blocks of one encoding, by the best available reference."""
    values: Any
    if name == "Q1_0":
        values = libgguf.dequantize_rows(blocks, 41, n_per_row=128)
    elif name == "Q8_1":
        values = blocks[:, :2].copy().view(np.float16).astype(np.float32) * blocks[:, 4:].view(np.int8).astype(
            np.float32
        )
    elif name == "Q8_K":
        values = blocks[:, :4].copy().view(np.float32) * blocks[:, 4:260].view(np.int8).astype(np.float32)
    elif name == "Q2_0":
        two_bits = (blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(len(blocks), 64)
        values = blocks[:, :2].copy().view(np.float16).astype(np.float32) * (two_bits.astype(np.float32) - 1)
    else:
        values = quants.dequantize(blocks, GGMLQuantizationType[name])
    flat: Floats = np.array(values, np.float32).reshape(-1)
    flat[np.isnan(flat)] = np.nan  # the bits of a NaN are not promised
    return flat


def blocks_of(name: str, size: int, random: np.random.Generator) -> Bytes:
    """Return blocks: two of ordinary scale, one of any bytes, one of zeros, one of NaN scales, one of infinite ones."""
    blocks = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    blocks[3] = 0
    for block, scale in ((0, 0.0123), (1, -1.5e-7), (4, np.nan), (5, np.inf)):
        set_scales(name, blocks[block], scale)
    return blocks


def values_for_blocks(random: np.random.Generator) -> Floats:
    """Return rows of 32 values with a quantizer's edge cases."""
    ordinary = random.normal(size=(6, 32)).astype(np.float32)
    scaled = ordinary * np.float32(2.0) ** np.array([[-140], [-30], [0], [5], [60], [120]], np.float32)
    ties = (random.integers(-254, 255, (2, 32)) / 2).astype(np.float32)
    ties[:, 3] = 127
    signs = random.choice(np.array([0.0, -0.0], np.float32), (2, 32))
    few = random.choice(np.array([0, -0.0, 1, -1, 2, -2, 1e-40, -1e-40], np.float32), (4, 32))
    special = ordinary.copy()[:3]
    special[0, 5], special[1, 9], special[2, 30] = np.nan, np.inf, -np.inf
    return np.concatenate([scaled, ties, signs, few, np.zeros((1, 32), np.float32), special]).astype(np.float32)


def main() -> None:
    """Write both files."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "crates/kernels/tests/data/quant")
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(5)
    with np.errstate(all="ignore"), (folder / "dequantize.bin").open("wb") as file:
        for name, (number, elements, size) in encodings().items():
            blocks = blocks_of(name, size, random)
            values = dequantize(name, blocks)
            assert values.size == BLOCKS * elements, name
            file.write(struct.pack("<8s4I", name.encode(), number, elements, size, BLOCKS))
            file.write(blocks.tobytes() + values.astype("<f4").tobytes())
    with np.errstate(all="ignore"), (folder / "quantize.bin").open("wb") as file:
        for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
            rows = values_for_blocks(random)
            packed = quants.quantize(rows, GGMLQuantizationType[name])
            file.write(struct.pack("<8s2I", name.encode(), int(GGMLQuantizationType[name]), len(rows)))
            file.write(rows.astype("<f4").tobytes() + packed.tobytes())


if __name__ == "__main__":
    main()
