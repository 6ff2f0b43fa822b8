"""How long each file of tests takes: what spreads the files over workers and over machines.

`pytest --record-durations`, with all tests of the files that it is given, writes durations.json.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
RECORDED = TESTS / "durations.json"


class Durations:
    """Seconds of each file; an unmeasured file counts as the median."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        self._median = statistics.median(self._seconds.values() or [1])

    def of(self, path: Path) -> float:
        """The seconds of one file."""
        return self._seconds.get(path.relative_to(TESTS).as_posix(), self._median) if path.is_relative_to(TESTS) else 0

    def longest_first(self, paths: Iterable[Path]) -> list[Path]:
        """The files by their seconds, and by their names where these are equal."""
        return sorted(paths, key=lambda path: (-self.of(path), path.name))

    def shard(self, paths: Iterable[Path], number: int, shards: int) -> set[Path]:
        """The files of one shard, counted from 1: each file goes to the shard that has the least to do so far."""
        loads = [0.0] * shards
        chosen = set()
        for path in self.longest_first(paths):
            least = loads.index(min(loads))
            loads[least] += self.of(path)
            if least == number - 1:
                chosen.add(path)
        return chosen


class Recorder:
    """Adds up what the tests of a run took, also those that ran in other workers, and writes it at the end."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One step of one test: its set-up, the call, its tear-down."""
        path = (TESTS.parents[1] / report.nodeid.partition("::")[0]).resolve()
        if path.is_relative_to(TESTS):
            self._seconds[path.relative_to(TESTS).as_posix()] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Merge the files of this run into the record; removed files are dropped."""
        known = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        known |= {name: round(seconds, 1) for name, seconds in self._seconds.items()}
        present = {name: known[name] for name in sorted(known) if (TESTS / name).exists()}
        RECORDED.write_text(json.dumps(present, indent=1) + "\n")
