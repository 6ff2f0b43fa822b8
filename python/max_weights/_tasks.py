"""Run a command of `max-weights` as tasks, on an existing cluster.

With `--task I/N`, each task of `validate`, `scan`, `manifest create` and `convert` computes its share alone. Array jobs
of Slurm and indexed jobs of Kubernetes do not need this module. It is for engines that are called from Python: Ray, and
any object with `map`, such as a client of Dask or an executor of `concurrent.futures`.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from max_weights._saved_paths import place_text
from max_weights.errors import ArgumentError, WeightsError

__all__ = ["TasksResult", "run_tasks"]

# The exit statuses of validations and scans, whatever they find; all other commands end with 0.
_FINDINGS = {0, 1, 3, 4, 5}
_CHECKS = ("validate", "scan")
_NAMED = {"validate", "scan", "manifest", "convert"}


class HasMap(Protocol):
    """Runs a function on several values: an executor, a pool, a client of Dask."""

    def map(self, function: Callable[[int], Any], numbers: Iterable[int], /) -> Any:
        """Run it; return the results, or futures of a client that has `gather`, in the order of the numbers."""


Engine: TypeAlias = HasMap | Literal["ray"]


@dataclass(frozen=True)
class TasksResult:
    """The combined result of all tasks; true if it is `ok`."""

    status: int
    """The exit status that a single run would have had."""
    report: dict[str, Any] | None
    """The report of a validation, or the manifest, as a single run would have written it; `None` for `convert`."""
    outputs: list[str]
    """The output of each task."""

    @property
    def ok(self) -> bool:
        """Whether a single run would have ended with status 0."""
        return self.status == 0

    def __bool__(self) -> bool:
        return self.ok


def _run(command: list[str], tasks: int, number: int) -> tuple[int, str, str]:
    """Run one task, on the machine of this worker."""
    one = [sys.executable, "-m", "max_weights", *command, "--task", f"{number}/{tasks}"]
    done = subprocess.run(one, capture_output=True, text=True, errors="replace", check=False)
    return done.returncode, done.stdout, done.stderr


def _on_ray(command: list[str], tasks: int) -> list[tuple[int, str, str]]:
    try:
        import ray
    except ModuleNotFoundError:
        raise ArgumentError(
            'engine "ray": ray is not installed here: pip install ray', rule="package.missing"
        ) from None
    if not ray.is_initialized():
        ray.init(address="auto")
    remote = ray.remote(_run).options(scheduling_strategy="SPREAD")
    done: list[tuple[int, str, str]] = ray.get(
        [remote.remote(command, tasks, number) for number in range(1, tasks + 1)]
    )
    return done


def run_tasks(engine: Engine, command: Sequence[str], tasks: int) -> TasksResult:
    """Run a command as tasks on an engine, and join their reports.

    Args:
        engine: Any object with `map`, whose workers have max_weights and see the same files; or "ray", for the cluster
            that this process is in.
        command: The arguments of `max-weights`: `validate`, `scan`, `manifest create` or `convert` with their
            arguments, without `--task` and `--output`.
        tasks: The number of tasks.

    Returns:
        The status and the report that a single run would have had.

    Raises:
        ArgumentError: a command that is not divided into tasks; no number of tasks (a ValueError).
        WeightsError: a task failed; its message is that of the task. Running the command again does not change finished
            work.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with ThreadPoolExecutor() as engine:
        ...     max_weights.tasks.run_tasks(engine, ["validate", "model.safetensors"], tasks=2).status
        0
    """
    words = [str(word) for word in command]
    name = words[0] if words else ""
    if name not in _NAMED or (name == "manifest" and words[1:2] != ["create"]):
        raise ArgumentError(
            "the command must be validate, scan, manifest create or convert, with its arguments", rule="argument.choice"
        )
    if tasks < 1:
        raise ArgumentError(f"tasks must be at least 1, not {tasks}", rule="argument.number")
    if name in _CHECKS and "--json" not in words:
        words.append("--json")
    numbers = list(range(1, tasks + 1))
    function = functools.partial(_run, words, tasks)
    if engine == "ray":
        results = _on_ray(words, tasks)
    elif isinstance(engine, str):
        raise ArgumentError(f'there is no engine {engine!r}: give "ray", or an object with map', rule="argument.choice")
    else:
        mapped = engine.map(function, numbers)
        gather = getattr(engine, "gather", None)
        results = list(mapped if gather is None else gather(list(mapped)))
    for number, (status, printed, declared) in zip(numbers, results, strict=True):
        is_report = name == "convert" or _is_report(printed)
        if status not in (_FINDINGS if name in _CHECKS else {0}) or not is_report:
            declared = (declared or printed).strip()[-2000:]
            raise WeightsError(f"task {number}/{tasks} ended with status {status}: {declared}", rule="task.failed")
    outputs = [printed for _, printed, _ in results]
    if name == "convert":
        return TasksResult(0, None, outputs)
    return _joined(outputs)


def _is_report(printed: str) -> bool:
    try:
        report = json.loads(printed)
    except ValueError:
        return False
    return isinstance(report, dict) and "task" in report


def _joined(outputs: list[str]) -> TasksResult:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.json") for number in range(len(outputs))]
        for file, output in zip(files, outputs, strict=True):
            file.write_text(output, encoding="utf-8")
        merge = [sys.executable, "-m", "max_weights", "report", "merge", *map(str, files)]
        done = subprocess.run(merge, capture_output=True, text=True, check=False)
    if done.returncode not in _FINDINGS:
        raise WeightsError(f"the reports cannot be joined: {done.stderr.strip()}", rule="task.failed")
    return TasksResult(done.returncode, json.loads(done.stdout), outputs)


def main(arguments: list[str]) -> int:
    """Run the program `python -m max_weights.tasks`."""
    parser = argparse.ArgumentParser("python -m max_weights.tasks", description="Run a command as tasks on a cluster.")
    parser.add_argument("--engine", choices=["ray"], default="ray", help="what runs them")
    parser.add_argument("--tasks", type=int, required=True, metavar="N", help="how many")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the joined report to this file")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="validate, scan, manifest create or convert, and the rest"
    )
    options = parser.parse_args(arguments)
    try:
        done = run_tasks(options.engine, options.command, options.tasks)
    except WeightsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    text = "".join(done.outputs) if done.report is None else json.dumps(done.report, indent=2) + "\n"
    if options.output is None:
        sys.stdout.write(text)
    else:
        place_text(options.output, text)
    return done.status
