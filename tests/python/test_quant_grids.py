"""The grids of the IQ encodings that the core holds are those of the `gguf` package."""

from __future__ import annotations

from pathlib import Path

import pytest

import make_quant_grids

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_grids_are_what_the_tool_writes(capsys: pytest.CaptureFixture[str]) -> None:
    make_quant_grids.main()
    assert capsys.readouterr().out == (ROOT / "src/quant/grids_data.rs").read_text()
