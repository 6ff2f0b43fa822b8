"""The scanners that validation is compared with, each installed on demand in a separate environment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import harness

# The newest releases at the time of measurement.
VERSIONS = {
    "picklescan": "picklescan[7z]==1.0.5",
    "modelscan": "modelscan==0.8.8",
    "fickling": "fickling==0.1.12 typing_extensions",  # a dependency that it does not declare
    "pickleguard": "pickleguard==1.0.1",
    "modelaudit": "modelaudit==0.2.54",
}
INSTALL_SECONDS = 900
POLL_SECONDS = 0.0002


@dataclass(frozen=True)
class Scanner:
    """A rival: its command for a path, and the meaning of its exit status."""

    name: str
    command: Callable[[str, Path], list[str]]
    found: frozenset[int]
    failed: frozenset[int]
    folders: bool = True


def _program(name: str, *words: str) -> Callable[[str, Path], list[str]]:
    return lambda folder, path: [f"{folder}/bin/{name}", *words, str(path)]


SCANNERS = (
    Scanner("picklescan", _program("picklescan", "--path"), frozenset({1}), frozenset({2})),
    Scanner("picklescan --strict", _program("picklescan", "--strict", "--path"), frozenset({1}), frozenset({2})),
    Scanner("modelscan", _program("modelscan", "-p"), frozenset({1}), frozenset({2, 3, 4})),
    Scanner("fickling", _program("fickling", "--check-safety"), frozenset({1}), frozenset({2}), folders=False),
    Scanner("pickleguard", _program("pickleguard", "scan"), frozenset({1, 2}), frozenset({3})),
    Scanner("modelaudit", _program("modelaudit", "scan"), frozenset({1}), frozenset({2})),
)


def install(name: str) -> str:
    """Return the folder of an environment with a scanner; it is created if missing."""
    package = name.split()[0]
    requested = VERSIONS[package].split()
    folder = Path(sys.prefix) / "rivals" / requested[0].replace("[", "-").replace("]", "")
    if not (folder / "bin" / package).exists():
        commands = [
            [sys.executable, "-m", "venv", str(folder)],
            [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", *requested],
        ]
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
            if done.returncode != 0:
                raise harness.Unavailable(f"{VERSIONS[package]} cannot be installed: {done.stderr[-200:]}")
    return str(folder)


@dataclass(frozen=True)
class Run:
    """One process: its exit status, its seconds, and its peak memory in bytes."""

    status: int
    seconds: float
    memory: int


def run(command: Sequence[str], timeout: float = 600.0) -> Run:
    """Run a command to its end. Memory is polled while it runs: the system's figure for an ended process includes the
    process that started it.
    """
    environment = os.environ | {"PROMPTFOO_DISABLE_TELEMETRY": "1", "NO_ANALYTICS": "1", "CI": "1"}
    start, peak = time.perf_counter(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            try:
                lines = status.read_text(encoding="utf-8").splitlines()
            except OSError:
                lines = []
            peak = max([peak, *(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))])
            if time.perf_counter() - start > timeout:
                process.kill()
            time.sleep(POLL_SECONDS)
        seconds = time.perf_counter() - start
    return Run(process.returncode, seconds, peak)


def timed(command: Sequence[str]) -> float:
    """Return the seconds of a command, without polling its memory."""
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start
