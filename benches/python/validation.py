"""Validation, scanners, SHA-256 and a plain read: wall time of fresh processes, and their memory."""

from __future__ import annotations

import pickle
import shutil
import statistics
import struct
import sys
from pathlib import Path

import command_line
import files
import harness
import scanners
from report import Column, Report, Target

sys.path.insert(0, str(command_line.ROOT / "tools"))
from corpora import assembler, formats

TITLE = "Validation"
NATIVE = f"{harness.OURS}, native"
LISTING, SHA256, READ = f"{harness.OURS}, ls --format json", "sha256sum", "dd, a sequential read"
CASES: harness.Cases = {}
RUNS = 7
SLOW_SECONDS = 10.0
RIVALS = ("picklescan", "modelscan", "fickling", "pickleguard", "modelaudit")
PICKLES, TORCH, LONG, SMALL = "200 pickles", "500 MB torch zip", "4 million instructions", "a file of 20 KB"
HEADER, STRUCTURE, CONTENT = "header of 250,000 tensors", "structure of 2 GB", "content of 2 GB bf16"


def _pickles(folder: Path, small: bool) -> Path:
    target = folder / "pickles"
    target.mkdir(exist_ok=True)
    for number in range(5 if small else 200):
        words = {f"word {number} {each}": each * 7919 for each in range(3250)}
        (target / f"vocabulary-{number}.pkl").write_bytes(pickle.dumps(words, 4))
    return target


def _torch(folder: Path, small: bool) -> Path:
    path = folder / "torch.pt"
    count = 25_000 if small else 1_250_000
    names = [f"layers.{number}.weight" for number in range(100)]
    code = {name: formats.tensor(str(key), (count,), (1,), count) for key, name in enumerate(names)}
    block = struct.pack("<I", 0x3C23D70A) * count
    path.write_bytes(
        formats.torch_zip(assembler.pickled(assembler.value(code)), {str(key): block for key in range(100)})
    )
    return path


def _instructions(folder: Path, small: bool) -> Path:
    path = folder / "instructions.pkl"
    count = 20_000 if small else 1_333_333
    path.write_bytes(assembler.pickled(b"](", b"K\x01K\x020" * count, b"e"))
    return path


def measure(folder: Path, small: bool) -> Report:
    """Time validation and its rivals sequentially."""
    program = command_line.native()
    rivals: dict[str, tuple[scanners.Scanner, str]] = {}
    notes = []
    for scanner in scanners.SCANNERS:
        if scanner.name in RIVALS and not (small and scanner.name == "modelaudit"):
            try:
                rivals[scanner.name] = (scanner, scanners.install(scanner.name))
            except harness.Unavailable as reason:
                notes.append(f"Without {scanner.name}: {reason}.")
    big, wide = files.make(folder, "a", small=small), files.make(folder, "d", small=small)
    few = folder / "few.pt"
    few.write_bytes(formats.torch_zip(assembler.pickled(formats.state_dict())))
    cases: dict[str, tuple[Path, list[str]]] = {
        SMALL: (few, []),
        PICKLES: (_pickles(folder, small), []),
        TORCH: (_torch(folder, small), []),
        LONG: (_instructions(folder, small), []),
        HEADER: (wide, ["--level", "header"]),
        STRUCTURE: (big, []),
        CONTENT: (big, ["--level", "content"]),
    }
    times, memory, samples = [], [], {}
    medians: dict[str, dict[str, float]] = {}
    peaks: dict[str, dict[str, float]] = {}
    for label, (path, words) in cases.items():
        commands = {NATIVE: [program, "validate", "--fail-on", "never", *words, str(path)]}
        if label in (SMALL, PICKLES, TORCH, LONG):
            for name, (scanner, place) in rivals.items():
                if scanner.folders or path.is_file():
                    commands[name] = scanner.command(place, path)
        if label == HEADER:
            commands[LISTING] = [program, "ls", "--format", "json", str(path)]
        if label in (TORCH, CONTENT):
            commands[SHA256] = [shutil.which("sha256sum") or "sha256sum", str(path)]
            commands[READ] = ["dd", f"if={path}", "of=/dev/null", "bs=4M"]
        # One run each brings program and file into memory. Slow rivals run only once: their third digit does not
        # matter, and between their turns the page cache would evict the files of the others.
        taken = {name: [scanners.timed(command)] for name, command in commands.items()}
        for name in [name for name in commands if taken[name][0] < SLOW_SECONDS or name == NATIVE]:
            taken[name] = [scanners.timed(commands[name]) for _ in range(1 if small else RUNS)]
        samples[label] = taken
        medians[label] = {name: statistics.median(seconds) for name, seconds in taken.items()}
        peaks[label] = {name: float(scanners.run(command).memory) for name, command in commands.items()}
        times.append(Column(label, "ms", medians[label], charted=False))
        if len(commands) > len((NATIVE, SHA256, READ)):
            memory.append(Column(f"{label}: memory", "MB", peaks[label], charted=False))
    ours = {label: values[NATIVE] for label, values in medians.items()}
    most = max(peaks[label][NATIVE] for label in (SMALL, PICKLES, TORCH, LONG)) / 1e6
    return Report(
        "validation",
        [*times, *memory],
        targets=(
            Target("native: start, with a small file", ours[SMALL] * 1e3, 10.0, "at most", "ms"),
            Target("200 pickles", ours[PICKLES] * 1e3, 300.0, "at most", "ms"),
            Target("500 MB torch zip", ours[TORCH] * 1e3, 150.0, "at most", "ms"),
            Target("4 million instructions", ours[LONG] * 1e3, 1000.0, "at most", "ms"),
            Target("memory of these four", most, 50.0, "at most", "MB"),
            Target("header of 250,000 tensors ÷ listing them", ours[HEADER] / medians[HEADER][LISTING], 1.5, "at most"),
            Target("structure of 2 GB", ours[STRUCTURE] * 1e3, 20.0, "at most", "ms"),
            Target(
                "content of 2 GB: sha256sum on two cores ÷ ours",
                medians[CONTENT][SHA256] / 2 / ours[CONTENT],
                0.6,
                "at least",
            ),
        ),
        limits=frozenset({SHA256, READ}),
        notes=(
            "The files are in the page cache. fickling reads one pickle in a run. `hf cache verify` needs the "
            "network, so it is not among the rivals.",
            *notes,
        ),
        samples=samples,
    )
