#!/usr/bin/env python3
"""Write src/quant/grids.bin: the grids of the IQ encodings, from the tables that the `gguf` package carries.

    make_quant_grids.py > src/quant/grids.bin

Each row of a grid (eight elements of two bits, or four of three bits in nibbles) is a little-endian number of 16 bits.
"""

from __future__ import annotations

import sys

from gguf import quants

# In the order in which src/quant/grids.rs reads them.
GRIDS = (quants.IQ2_XXS, quants.IQ2_XS, quants.IQ2_S, quants.IQ3_XXS, quants.IQ3_S, quants.IQ1_S)


def packed() -> bytes:
    """Return the grids, one after the other."""
    grids = b""
    for cls in GRIDS:
        assert cls.grid_hex is not None
        grid = bytes.fromhex(cls.grid_hex.decode())
        assert len(grid) == 2 * cls.grid_shape[0], f"{cls.__name__}: {len(grid)} bytes"
        grids += grid
    return grids


if __name__ == "__main__":
    sys.stdout.buffer.write(packed())
