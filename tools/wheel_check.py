#!/usr/bin/env python3
"""Test a wheel as a new user: in a fresh environment, with NumPy and nothing else, every warning an error.

    wheel_check.py dist/max_weights-*.whl                      every Python from 3.11 on that is found on this machine
    wheel_check.py dist/max_weights-*.whl --python python3.13  this one; several may be named

For each interpreter, a fresh environment gets the wheel and its dependencies from the index. It runs `wheel_smoke.py`,
and the snippets of the README that only need NumPy (others are marked: `<!-- needs torch -->`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX = 9_500_000
"""Maximum bytes of a wheel."""
VERSIONS = ("3.11", "3.12", "3.13", "3.13t", "3.14", "3.14t")
_SNIPPET = re.compile(r"^(?:<!-- needs ([\w ]+) -->\n)?```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def snippets(page: str) -> list[tuple[str, str]]:
    """Return the Python snippets of a page, each with its requirements in addition to NumPy: "" or the names in its
    mark.
    """
    return [(match[1] or "", match[2]) for match in _SNIPPET.finditer(page)]


def interpreters() -> list[str]:
    """Return the interpreters of this machine, one of each version: those on the path, and pyenv's."""
    found = []
    for version in VERSIONS:
        pyenv = sorted(Path.home().glob(f".pyenv/versions/{version.rstrip('t')}.*/bin/python{version}"))
        path = shutil.which(f"python{version}")
        candidates = [*([path] if path else []), *map(str, pyenv)]
        found += [next(filter(runs, candidates))] if any(map(runs, candidates)) else []
    return found


def runs(python: str) -> bool:
    """Whether this is an interpreter, and no pyenv shim of a disabled one."""
    return subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0


def packages(python: Path) -> set[str]:
    """Return the names of the installed packages of an interpreter."""
    command: list[str | Path] = [python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {str(package["name"]).replace("_", "-").lower() for package in json.loads(listed)}


def run(command: list[str | Path], folder: Path) -> None:
    """Run a command without the variables that make Python find other packages; show its output if it fails."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MAX_WEIGHTS"))}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        sys.exit(
            f"wheel_check: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}\nexit status {done.returncode}"
        )


def check(wheel: Path, python: str, folder: Path) -> str:
    """Test the wheel with one interpreter, in `folder`; return a line of the result."""
    run([python, "-m", "venv", folder / "venv"], folder)
    scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    inside = scripts / ("python.exe" if os.name == "nt" else "python")
    before = packages(inside)
    run([inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel], folder)
    brought = packages(inside) - before
    if brought != {"max-weights", "numpy"}:
        sys.exit(f"wheel_check: installing {wheel.name} with {python} brought {sorted(brought)}; NumPy alone is wanted")
    strict: list[str | Path] = [inside, "-I", "-W", "error"]
    requested = [text for needs, text in snippets((ROOT / "README.md").read_text(encoding="utf-8")) if not needs]
    for text in requested:
        run([*strict, "-c", text], folder)
    run([*strict, ROOT / "tools" / "wheel_smoke.py", scripts / "max-weights"], folder)
    reported = subprocess.run(
        [inside, "-c", "import sys, numpy; print(sys.version.split()[0], 'NumPy', numpy.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    count = len(requested)
    return f"{wheel.name}: Python {reported}: {count} snippets of the README and the smoke test pass, without a warning"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", nargs="+", help="interpreters; those of this machine without it")
    parser.add_argument(
        "--largest", type=int, default=MAX, metavar="BYTES", help="what the wheel may have (%(default)s)"
    )
    options = parser.parse_args(arguments)
    wheel: Path = options.wheel.resolve()
    size = wheel.stat().st_size
    if size > options.largest:
        sys.exit(f"wheel_check: {wheel.name} has {size:,} bytes; at most {options.largest:,} are wanted")
    print(f"{wheel.name}: {size:,} bytes")
    for python in options.python or interpreters() or [sys.executable]:
        with tempfile.TemporaryDirectory(prefix="wheel_check_") as folder:
            print(check(wheel, python, Path(folder)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
