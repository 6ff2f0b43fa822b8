"""The table of the bad files: the rules that each breaks, and which libraries accept it.

    PYTHONPATH=tools:python python -m corpora.golden tests/data/validation/bad_files.txt

rewrites it: review it before it is committed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from corpora import bad
from corpora.accepted import LIBRARIES, accepted
from corpora.item import Item, write

HEADER = "# path | accepted by | rules"
Table = dict[str, tuple[str, str]]


def validated(paths: Iterable[Path], *options: str) -> dict[str, Any]:
    """The report of `max-weights validate` about these paths."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "report.json"
        words = [sys.executable, "-m", "max_weights", "validate", *options, "--output", f"json={output}"]
        done = subprocess.run([*words, *map(str, paths)], capture_output=True, text=True, check=False)
        if not output.exists():
            raise RuntimeError(f"max-weights validate: {done.returncode}: {done.stderr[-500:]}")
        report: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return report


def about(item: Item, folder: Path, findings: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The findings about an item of a corpus in this folder."""
    base = str(folder / item.path)
    return [finding for finding in findings if finding["path"] == base or finding["path"].startswith(f"{base}/")]


def rules(items: list[Item], folder: Path) -> dict[str, list[str]]:
    """The rules that each item breaks, by its path: all files in one run, each folder in a run."""
    found: dict[str, list[str]] = {}
    for group in sorted({item.group for item in items}):
        options = ["--level", "content"] if group == "values" else []
        members = [item for item in items if item.group == group]
        singles = [item for item in members if not item.is_folder]
        for together in [singles, *([item] for item in members if item.is_folder)]:
            if together:
                report = validated([folder / item.path for item in together], *options)
                for item in together:
                    declared = about(item, folder, report["findings"])
                    found[item.path] = sorted({finding["rule"] for finding in declared})
    return found


def acceptance(items: list[Item], folder: Path) -> dict[str, str]:
    """The libraries that accept every file of an item that is of their formats, by the item's path."""
    of: dict[str, list[str]] = {item.path: [] for item in items}
    files = {
        item.path: [folder / item.path / name if name else folder / item.path for name in item.files] for item in items
    }
    for library in LIBRARIES:
        answers = accepted(library, [path for paths in files.values() for path in paths])
        for path, paths in files.items():
            mine = [answers[str(each)] for each in paths if str(each) in answers]
            if mine and all(mine):
                of[path].append(library)
    return {path: " ".join(libraries) or "-" for path, libraries in of.items()}


def read(path: Path) -> Table:
    """The committed table."""
    rows = [line.split(" | ") for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {row[0]: (row[1], row[2]) for row in rows}


def main() -> None:
    """Write the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        items = write(bad.items(), folder)
        broken, accepting = rules(items, folder), acceptance(items, folder)
    lines = [f"{item.path} | {accepting[item.path]} | {' '.join(broken[item.path]) or '-'}" for item in items]
    Path(sys.argv[1]).write_text("\n".join([HEADER, *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
