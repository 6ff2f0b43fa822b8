#!/usr/bin/env python3
"""Write src/quant/grids_data.rs: the grids of the IQ encodings, from the tables that the `gguf` package carries.

    make_quant_grids.py > src/quant/grids_data.rs

Each row of a grid (eight elements of two bits, or four of three bits in nibbles) becomes one 16-bit number.
"""

from __future__ import annotations

import textwrap

from gguf import quants

GRIDS = {
    "IQ2_XXS": quants.IQ2_XXS,
    "IQ2_XS": quants.IQ2_XS,
    "IQ2_S": quants.IQ2_S,
    "IQ3_XXS": quants.IQ3_XXS,
    "IQ3_S": quants.IQ3_S,
    "IQ1": quants.IQ1_S,
}

HEAD = """\
//! The grids of the IQ encodings, packed. Written by tools/make_quant_grids.py; do not edit.
//!
//! A row is a number: eight elements of two bits (IQ1, IQ2) or four of four bits (IQ3), the first in the lowest bits.
//! Each element is an index into the levels of its grid, which `grids` holds.
"""


def table(name: str, packed: bytes, rows: int) -> str:
    """Return the Rust source of one packed grid of `rows` rows of two bytes."""
    assert len(packed) == 2 * rows, f"{name}: {len(packed)} bytes for {rows} rows"
    numbers = [int.from_bytes(packed[i : i + 2], "little") for i in range(0, len(packed), 2)]
    lines = textwrap.fill(", ".join(f"0x{number:04x}" for number in numbers) + ",", 112)
    body = textwrap.indent(lines, "    ")
    return f"\n#[rustfmt::skip]\npub(super) const {name}: [u16; {rows}] = [\n{body}\n];\n"


def main() -> None:
    """Print the module."""
    print(HEAD, end="")
    for name, cls in GRIDS.items():
        assert cls.grid_hex is not None
        print(table(name, bytes.fromhex(cls.grid_hex.decode()), cls.grid_shape[0]), end="")


if __name__ == "__main__":
    main()
