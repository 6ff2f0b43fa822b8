"""Run the safetensors package's own Python tests over `max_weights.safetensors`, and list which pass.

The tests come from its source distribution, which is downloaded unless given. They run in a temporary folder, first
over the installed package, then with ours in its place in `sys.modules`. Tests that pass there have to pass here.

    python tools/safetensors_tests.py [--sdist safetensors-0.8.0.tar.gz] [--version 0.8.0] [--fetch FOLDER]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from get_models import FetchError, python_with_pip

PLACED = """
import importlib
import sys

for name in ("safetensors", "safetensors.numpy", "safetensors.torch"):
    sys.modules[name] = importlib.import_module(f"max_weights.{name}")
try:
    sys.modules["safetensors.flax"] = importlib.import_module("max_weights.safetensors.flax")
except ImportError:
    pass  # jax is not installed
"""


class SdistError(Exception):
    """No tests were found."""


def fetched(version: str, folder: Path) -> Path:
    """The source distribution of a version, downloaded by pip."""
    flags = ["--disable-pip-version-check", "--no-deps", "--no-binary", "safetensors", "--dest", str(folder)]
    with python_with_pip() as python:
        command = [python, "-m", "pip", "download", *flags, f"safetensors=={version}"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    found = sorted(folder.glob("*.tar.gz"))
    if run.returncode or not found:
        raise SdistError(f"pip cannot download safetensors {version}: {run.stderr.strip()[-300:]}")
    return found[0]


def unpacked(sdist: Path, folder: Path) -> Path:
    """The folder of the Python tests in a source distribution."""
    with tarfile.open(sdist) as archive:
        members = [member for member in archive.getmembers() if "/bindings/python/tests/" in member.name]
        archive.extractall(folder, members, filter="data")
    tests = sorted(folder.glob("*/bindings/python/tests"))
    if not tests:
        raise SdistError(f"{sdist} has no bindings/python/tests")
    return tests[0]


def outcomes(tests: Path) -> dict[str, str]:
    """{test: passed, failed, skipped or error}, as reported by pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--continue-on-collection-errors", "-p", "no:cacheprovider"]
    run = subprocess.run([*command, tests.name], cwd=tests.parent, capture_output=True, text=True, check=False)
    found = re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    if not found:
        raise SdistError(f"pytest ran nothing: {(run.stdout + run.stderr)[-500:]}")
    return {test: outcome.lower() for outcome, test in found}


def compared(sdist: Path, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The outcomes over the installed package, and over ours in its place."""
    tests = unpacked(sdist, folder)
    theirs = outcomes(tests)
    (tests.parent / "conftest.py").write_text(PLACED)
    return theirs, outcomes(tests)


def main() -> int:
    """Prints what passes; 1 if a test passes over the package alone."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sdist", type=Path, help="the source distribution; default: download it")
    parser.add_argument("--version", default="0.8.0", help="the version to download")
    parser.add_argument("--fetch", type=Path, metavar="FOLDER", help="only download it, to this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            if arguments.fetch is not None:
                fetched(arguments.version, arguments.fetch)
                return 0
            theirs, ours = compared(arguments.sdist or fetched(arguments.version, folder), folder)
        except (SdistError, FetchError) as error:
            print(error, file=sys.stderr)
            return 2
    passed = [test for test, outcome in theirs.items() if outcome == "passed"]
    lost = [test for test in passed if ours.get(test) != "passed"]
    for test in sorted({*theirs, *ours}):
        print(f"{ours.get(test, 'not run'):8} (there {theirs.get(test, 'not run')}) {test}")
    print(f"{len(passed) - len(lost)} of the {len(passed)} tests that pass over safetensors pass over max_weights")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
