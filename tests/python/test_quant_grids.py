"""The grids of the IQ encodings that the core holds are those of the `gguf` package."""

from __future__ import annotations

from pathlib import Path

import make_quant_grids

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_grids_are_what_the_tool_writes() -> None:
    assert make_quant_grids.packed() == (ROOT / "src/quant/grids.bin").read_bytes()
