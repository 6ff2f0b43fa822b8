"""The rows of the tables, and processes that run them: a fresh one for each row and round."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from max_weights._benching.worker import LoaderFailed, Worker

OURS: Final = "max_weights"
LOAD_FILE: Final = "max_weights.torch.load_file"
STREAM: Final = "max_weights, stream"
SAFETENSORS: Final = "safetensors 0.8.0"
LINK, LINK_BY_TORCH = "pinned copies", "pinned copies by torch"


@dataclass
class Row:
    """A loader of `max_weights._benching.on_device`, its files, and its measurements.

    Attributes:
        label: Its name in the tables.
        loader: Its name there.
        package: The folder of `--rivals` that its process looks into first.
        files: What it loads.
        seconds: Of each round, by what was timed.
        host: Bytes that the host had less at the peak, pinned or not.
        device: Bytes that the device had less.
        failed: Why it was not measured, or "".
    """

    label: str
    loader: str
    package: str
    files: list[str]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    host: int = 0
    device: int = 0
    failed: str = ""

    def median(self, what: str) -> float | None:
        """Median seconds; None where it was not measured."""
        found = self.seconds.get(what)
        return median(found) if found else None


@dataclass(frozen=True)
class Limits:
    """The limits of a run: rounds, the deadline for starting a round, seconds per request, and the rivals' folder."""

    rounds: int
    until: float
    patience: float
    rivals: Path
    device: int


def loads(path: Path, torch_path: Path | None) -> list[Row]:
    """The rows of a load of a safetensors file, ours and the rivals'."""
    named = [
        (OURS, OURS, ""),
        (LOAD_FILE, LOAD_FILE, ""),
        (STREAM, STREAM, ""),
        (SAFETENSORS, "safetensors.torch", "safetensors-0.8.0"),
        ("safetensors 0.9.0rc1", "safetensors.torch", "safetensors-0.9.0rc1"),
        ("safetensors 0.9.0rc1, prefetch", "safetensors, prefetch", "safetensors-0.9.0rc1"),
        *((name, name, "site") for name in ("instanttensor", "fastsafetensors", "runai streamer")),
        (LINK, LINK, ""),
        (LINK_BY_TORCH, LINK_BY_TORCH, ""),
    ]
    rows = [Row(label, loader, package, [str(path)]) for label, loader, package in named]
    if torch_path is not None:
        rows.insert(-2, Row("torch.load, .cuda()", "torch.load, .cuda()", "", [str(torch_path)]))
    return rows


def in_turns(rows: Sequence[Row], limits: Limits, turn: Callable[[Row, Callable[[str], dict[str, Any]]], None]) -> None:
    """Rounds, in each of which every row has a fresh process that is made ready before the first one runs.

    `turn` is called with a row and what has its process answer a request; rows that fail are left out from then on.
    """
    for number in range(limits.rounds):
        if number and time.monotonic() > limits.until:
            return
        left = [row for row in rows if not row.failed]
        with contextlib.ExitStack() as stack:
            workers = {row.label: _worker(row, limits) for row in left}
            for worker in workers.values():
                stack.callback(worker.close)

            def ask(row: Row, request: str, workers: dict[str, Worker] = workers) -> dict[str, Any]:
                return dict(workers[row.label].ask(request, time.monotonic() + limits.patience))

            with ThreadPoolExecutor(len(left) or 1) as pool:
                list(pool.map(lambda row: _noting_failures(row, lambda: ask(row, "ready")), left))
            for row in left if number % 2 == 0 else reversed(left):
                if not row.failed:
                    _noting_failures(row, functools.partial(turn, row, functools.partial(ask, row)))
                workers[row.label].close()  # with the memory that it caches


def _worker(row: Row, limits: Limits) -> Worker:
    folder = limits.rivals / row.package
    return Worker(row.loader, row.files, limits.device, str(folder) if row.package and folder.is_dir() else "")


def _noting_failures(row: Row, call: Callable[[], object]) -> None:
    try:
        call()
    except LoaderFailed as error:
        row.failed = str(error)


def timed(row: Row, what: str, answer: dict[str, Any]) -> None:
    """Note what a run took; one whose tensors are not those of the file has failed."""
    if wrong := answer.get("wrong"):
        raise LoaderFailed(wrong)
    row.seconds.setdefault(what, []).append(answer["seconds"])


def weigh(rows: Sequence[Row], limits: Limits) -> None:
    """Note the memory of each row, each in a fresh process."""

    def turn(row: Row, ask: Callable[[str], dict[str, Any]]) -> None:
        answer = ask("memory")
        row.host, row.device = answer["host_peak"], answer["device_peak"]

    in_turns(rows, Limits(1, limits.until, limits.patience, limits.rivals, limits.device), turn)


def not_measured(rows: Sequence[Row]) -> list[str]:
    """A sentence for each row that failed."""
    return [f"Not measured: {row.label}: {row.failed}." for row in rows if row.failed]
