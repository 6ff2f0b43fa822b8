"""Starts processes over gloo, and reads their results."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import warm

RANKS = 4
Found = dict[str, list[dict[str, Any]]]


def run(
    folder: Path,
    rendezvous: str,
    *cases: str,
    ranks: Iterable[int] = range(RANKS),
    program: str = "ranks",
    world: int = RANKS,
    **environment: str,
) -> Found:
    """The results of these ranks of `world`, by case."""
    command = [
        sys.executable,
        str(Path(__file__).with_name(f"{program}_program.py")),
        str(folder),
        str(world),
        rendezvous,
        *cases,
    ]
    with warm.turn():
        ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=150)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: Found = {}
    for rank in ranks:
        for line in map(json.loads, (folder / f"found{rank}").read_text().splitlines()):
            assert "error" not in line, line["error"]
            found.setdefault(line["case"], []).append(line)
    assert sorted(found) == sorted(cases), ended.stderr[-2000:]
    return found


def same_on_all(errors: list[dict[str, Any]]) -> dict[str, Any]:
    """The one error that all ranks have."""
    assert len({error["text"] for error in errors}) == 1, errors
    assert {error["kind"] for error in errors} == {"RankError"}, errors
    return errors[0]


def refused_on_all(ranks: list[dict[str, Any]], case: str, why: str) -> None:
    """Check that each rank had the same error for its arguments, and waited for no other."""
    for rank in ranks:
        assert rank[case]["kind"] == "ArgumentError"
        assert why in rank[case]["text"]
