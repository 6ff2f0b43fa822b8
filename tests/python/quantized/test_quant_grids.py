"""The grids of the IQ encodings in the core and its kernels are those of the `gguf` package."""

from __future__ import annotations

import make_quant_grids


def test_the_committed_grids_are_what_the_tool_writes() -> None:
    assert make_quant_grids.packed() == make_quant_grids.BINARY.read_bytes()
    assert make_quant_grids.header() == make_quant_grids.HEADER.read_text()
