"""Recall and false alarms of validation and other scanners on the corpora."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import command_line
import harness
import scanners
from report import Column, Report, Target

sys.path.insert(0, str(command_line.ROOT / "tools"))
from corpora import attacks
from corpora.item import CLEAN, Item, write

TITLE = "Recall and false alarms of validation"
NATIVE = f"{harness.OURS}, native"
CASES: harness.Cases = {}
# Columns of the table: subjects of the classes of attacks.md, by class number.
KINDS = {
    "direct": range(1, 2),
    "one global": range(2, 8),
    "pickle machine": range(8, 21),
    "containers": range(21, 28),
    "other formats": range(28, 34),
    "repositories": range(34, 37),
}
STATES = ("torch-modules", "torch-optimizers", "torch-schedulers", "torch-training", "torch-tensors")
# Slow scanners (nearly a second per file, or more) get every nth file only.
STEP = {"modelaudit": 24, "modelscan": 6, "fickling": 6}
GOOD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from corpora import good
from corpora.item import write
write(good.items(), Path(sys.argv[2]))
"""


def _bad(status: int, scanner: scanners.Scanner | None) -> bool:
    if scanner is None:
        return status in (3, 4, 5)
    return status in scanner.found or status in scanner.failed


def _answers(paths: Sequence[Path], program: str, scanner: scanners.Scanner | None) -> dict[Path, bool]:
    """Return, for each path the scanner gets, whether it reports the file as bad or fails to read it."""
    paths = paths[:: STEP.get(scanner.name, 1)] if scanner else paths

    def bad(path: Path) -> bool:
        command = [program, "scan", str(path)] if scanner is None else scanner.command(program, path)
        return _bad(scanners.run(command, timeout=120).status, scanner)

    with ThreadPoolExecutor(2) as workers:
        return dict(zip(paths, workers.map(bad, paths), strict=True))


def measure(folder: Path, small: bool) -> Report:
    """Run every scanner on every file, each in a separate process."""
    attack_files, good_files = folder / "attacks", folder / "good"
    items: list[Item] = list(attacks.items())
    if small:
        items = items[::40]
    attack_files.mkdir(exist_ok=True)
    write(items, attack_files)
    good_files.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GOOD, str(command_line.ROOT / "tools"), str(good_files)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise harness.BenchError(f"validation_recall: {done.stderr[-300:]}")
    rows = json.loads((good_files / "manifest.json").read_text(encoding="utf-8"))
    clean = [row for row in rows if row["answers"] == [CLEAN]]
    clean = clean[::40] if small else clean
    sets = {
        label: [attack_files / item.path for item in items if int(item.group[:2]) in classes]
        for label, classes in KINDS.items()
    }
    sets["all attacks"] = [attack_files / item.path for item in items]
    sets["false alarms: plain states"] = [good_files / row["path"] for row in clean if row["group"] in STATES]
    sets["false alarms: all good files"] = [good_files / row["path"] for row in clean]
    programs: dict[str, tuple[str, scanners.Scanner | None]] = {NATIVE: (command_line.native(), None)}
    notes = []
    for scanner in scanners.SCANNERS:
        if not (small and scanner.name == "modelaudit"):
            try:
                programs[scanner.name] = (scanners.install(scanner.name), scanner)
            except harness.Unavailable as reason:
                notes.append(f"Without {scanner.name}: {reason}.")
    shares: dict[str, dict[str, float]] = {label: {} for label in sets}
    missed: list[str] = []
    every = [path for label in ("all attacks", "false alarms: all good files") for path in sets[label]]
    for name, (program, rival) in programs.items():
        bad = _answers(every, program, rival)
        for label, paths in sets.items():
            seen = [bad[path] for path in paths if path in bad]
            if seen:
                shares[label][name] = sum(seen) / len(seen)
        if name == NATIVE:
            missed = [str(path) for path in sets["all attacks"] if not bad[path]]
    ours = {label: values.get(NATIVE, 0.0) * 100 for label, values in shares.items()}
    return Report(
        "validation_recall",
        [Column(label, "%", values, charted=False) for label, values in shares.items()],
        targets=(
            Target("attacks that are not clean", ours["all attacks"], 100.0, "at least", "%"),
            Target("plain states that are not clean", ours["false alarms: plain states"], 0.0, "at most", "%"),
            Target("good files that are not clean", ours["false alarms: all good files"], 0.0, "at most", "%"),
        ),
        notes=(
            f"The share of {len(items)} attacks of 36 classes, and of {len(clean)} good files, whose exit status says "
            "that something is bad, needs trust, or could not be scanned. Each runs in a separate process. "
            + "; ".join(f"{name} sees one of {step}" for name, step in STEP.items())
            + ".",
            *([f"Missed: {', '.join(missed[:10])}."] if missed and not small else []),
            *notes,
        ),
    )
