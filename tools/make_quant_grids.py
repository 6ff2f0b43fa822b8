#!/usr/bin/env python3
"""Write the grids of the IQ encodings, from the tables that the `gguf` package carries.

They go to crates/kernels/src/quant/grids.bin for the CPU, and to src/device/kernels/grids.h for the kernels of GPUs.

Each row of a grid (eight elements of two bits, or four of three bits in nibbles) is a little-endian number of 16 bits.
"""

from __future__ import annotations

from pathlib import Path

from gguf import quants

ROOT = Path(__file__).resolve().parents[1]
BINARY, HEADER = ROOT / "crates/kernels/src/quant/grids.bin", ROOT / "src/device/kernels/grids.h"

# In the order in which quant/grids.rs reads them.
GRIDS = {
    "IQ2_XXS": quants.IQ2_XXS,
    "IQ2_XS": quants.IQ2_XS,
    "IQ2_S": quants.IQ2_S,
    "IQ3_XXS": quants.IQ3_XXS,
    "IQ3_S": quants.IQ3_S,
    "IQ1": quants.IQ1_S,
}


def rows(name: str) -> bytes:
    """Return the rows of a grid."""
    cls = GRIDS[name]
    assert cls.grid_hex is not None
    grid = bytes.fromhex(cls.grid_hex.decode())
    assert len(grid) == 2 * cls.grid_shape[0], f"{name}: {len(grid)} bytes"
    return grid


def packed() -> bytes:
    """Return the concatenated grids."""
    return b"".join(map(rows, GRIDS))


def header() -> str:
    """Return the grids as arrays of C++."""
    text = "// The rows of the grids of the IQ formats, written by tools/make_quant_grids.py.\n#pragma once\n"
    for name in GRIDS:
        grid = rows(name)
        numbers = [f"0x{grid[at + 1]:02x}{grid[at]:02x}" for at in range(0, len(grid), 2)]
        lines = [", ".join(numbers[at : at + 16]) for at in range(0, len(numbers), 16)]
        text += f"\nstatic __device__ const u16 GRID_{name}[] = {{\n    " + ",\n    ".join(lines) + ",\n};\n"
    return text


if __name__ == "__main__":
    BINARY.write_bytes(packed())
    HEADER.write_text(header())
