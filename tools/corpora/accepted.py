"""Which libraries accept a file: each one runs in a separate process, because bad files can crash it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

SUFFIXES = {
    "safetensors": (".safetensors",),
    "gguf": (".gguf",),
    "torch": (".pt", ".pth", ".bin"),
    "picklescan": (".pt", ".pth", ".bin"),
}
SECONDS, MEMORY = 20, 16 << 30


def _safetensors() -> Callable[[str], None]:
    import safetensors

    def load(path: str) -> None:
        with safetensors.safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118 -- it is no dict
                file.get_slice(name).get_shape()

    return load


def _gguf() -> Callable[[str], None]:
    import gguf

    def load(path: str) -> None:
        gguf.GGUFReader(path)

    return load


def _torch() -> Callable[[str], None]:
    import torch

    def load(path: str) -> None:
        torch.load(path, weights_only=True)

    return load


def _picklescan() -> Callable[[str], None]:
    from picklescan.scanner import scan_file_path  # type: ignore[import-untyped]

    def load(path: str) -> None:
        result = scan_file_path(path)
        if result.scan_err or result.issues_count:
            raise ValueError(path)

    return load


LIBRARIES = {"safetensors": _safetensors, "gguf": _gguf, "torch": _torch, "picklescan": _picklescan}


def _accepts(load: Callable[[str], None], path: str) -> bool:
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            signal.alarm(SECONDS)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            load(path)
            status = 0
        os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def accepted(library: str, paths: Iterable[Path]) -> dict[str, bool]:
    """Return whether a library accepts each of these files, by path; files of other formats are skipped."""
    names = [str(path) for path in paths if path.suffix in SUFFIXES[library]]
    command = [sys.executable, "-W", "ignore", "-m", "corpora.accepted", library]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(command, input=json.dumps(names), capture_output=True, text=True, env=environment, check=True)
    found: dict[str, bool] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Try the named library on the files of a list."""
    load = LIBRARIES[sys.argv[1]]()
    names = json.load(sys.stdin)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        output = os.dup(1)
        os.dup2(nowhere.fileno(), 1)
        found = {name: _accepts(load, name) for name in names}
        os.dup2(output, 1)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
