#!/usr/bin/env python3
"""The program of `make demo`: a real checkpoint's tree, its tensors in NumPy and torch, and times of the rivals.

    demo.py .models/minilm.safetensors [--runs 9]

Every tensor is compared with the safetensors package, bit for bit, before anything is timed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from rich.console import Console
from rich.table import Table

import max_weights
import max_weights.numpy
import max_weights.torch

# A pipe has no width, and the default of 80 columns would wrap the table.
console = Console(width=None if sys.stdout.isatty() else 112)
RIVALS = ("safetensors.torch", "safetensors.numpy", "torch.load mmap")


def show(path: Path) -> None:
    """Open the file, print its tree, and reach one tensor by its hierarchical name."""
    console.rule("open and look")
    with max_weights.load_weights(path) as weights:
        print(repr(weights))
        query = weights.encoder.layer[0].attention.self.query.weight
        print(f"\nweights.encoder.layer[0].attention.self.query.weight.data()\n  -> {query.data()!r}")


def equal_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bits (so that NaN equals NaN, and -0 differs from 0)."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    return torch.equal(ours.reshape(-1).view(torch.uint8), theirs.reshape(-1).view(torch.uint8))


def compare(path: Path) -> bool:
    """Load everything into torch and NumPy, and return whether it equals the result of the safetensors package."""
    console.rule("load and compare with the safetensors package")
    reference = safetensors.torch.load_file(path)
    in_torch = max_weights.torch.load_file(path)
    in_numpy = max_weights.numpy.load_file(path)
    complete = in_torch.keys() == in_numpy.keys() == reference.keys()
    torch_equal = sum(equal_bits(in_torch[name], theirs) for name, theirs in reference.items() if name in in_torch)
    numpy_equal = sum(
        equal_bits(torch.from_numpy(in_numpy[name]), theirs) for name, theirs in reference.items() if name in in_numpy
    )
    print(f"torch: {torch_equal} of {len(reference)} tensors equal, bit for bit")
    print(f"NumPy: {numpy_equal} of {len(reference)} tensors equal, bit for bit")
    return complete and torch_equal == numpy_equal == len(reference)


def touch(tensors: Mapping[str, Any]) -> int:
    """Read one byte of every 4 KiB page of every tensor, as the first use of the weights would."""
    total = 0
    for tensor in tensors.values():
        array = tensor if isinstance(tensor, np.ndarray) else tensor.numpy()
        total += int(array.reshape(-1).view(np.uint8)[::4096].sum())
    return total


def list_ours(path: Path) -> list[tuple[str, object, tuple[int, ...]]]:
    """Open and list: name, dtype and shape of every tensor."""
    with max_weights.load_weights(path) as weights:
        return [(info.name, info.dtype, info.shape) for info in max_weights.infos(weights)]


def list_safetensors(path: Path, framework: str) -> list[tuple[str, object, list[int]]]:
    """Open and list through the safetensors package."""
    with safetensors.safe_open(path, framework) as file:
        slices = [(name, file.get_slice(name)) for name in file.keys()]  # noqa: SIM118 (not a mapping)
        return [(name, part.get_dtype(), part.get_shape()) for name, part in slices]


def load_pickled(path: Path) -> dict[str, torch.Tensor]:
    """Load a torch zip by memory map."""
    loaded: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    return loaded


def list_pickled(path: Path) -> list[tuple[str, torch.dtype, torch.Size]]:
    """Open and list through torch."""
    return [(name, tensor.dtype, tensor.shape) for name, tensor in load_pickled(path).items()]


Step = Callable[[], object]


def steps(path: Path, pickled: Path) -> dict[str, tuple[Step, dict[str, Step]]]:
    """Return our function and the rivals' functions by name, for each row of the table."""
    in_torch, in_numpy, mapped = RIVALS
    return {
        "open, list name / dtype / shape": (
            lambda: list_ours(path),
            {
                in_torch: lambda: list_safetensors(path, "pt"),
                in_numpy: lambda: list_safetensors(path, "np"),
                mapped: lambda: list_pickled(pickled),
            },
        ),
        "all tensors to NumPy (we give views)": (
            lambda: max_weights.numpy.load_file(path),
            {in_numpy: lambda: safetensors.numpy.load_file(path)},
        ),
        "all tensors to torch": (
            lambda: max_weights.torch.load_file(path),
            {in_torch: lambda: safetensors.torch.load_file(path), mapped: lambda: load_pickled(pickled)},
        ),
        "all tensors to torch, pages touched": (
            lambda: touch(max_weights.torch.load_file(path)),
            {
                in_torch: lambda: touch(safetensors.torch.load_file(path)),
                mapped: lambda: touch(load_pickled(pickled)),
            },
        ),
    }


def medians(runs: int, candidates: dict[str, Step]) -> dict[str, float]:
    """Return the median seconds of each candidate; they take turns, after one run each that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(runs + 1):
        for name, step in candidates.items():
            start = time.perf_counter()
            result = step()
            spent = time.perf_counter() - start
            del result
            if turn > 0:
                seconds[name].append(spent)
    return {name: statistics.median(values) for name, values in seconds.items()}


def times(path: Path, runs: int) -> None:
    """Print the table of times."""
    console.rule(f"medians of {runs} runs, file in the page cache")
    table = Table("milliseconds (times ours)", "max_weights", *RIVALS)
    for column in table.columns[1:]:
        column.justify = "right"
    with tempfile.TemporaryDirectory() as folder:
        pickled = Path(folder) / "same-tensors.pt"
        torch.save(safetensors.torch.load_file(path), pickled)
        for label, (ours, rivals) in steps(path, pickled).items():
            median = medians(runs, {"max_weights": ours, **rivals})
            reference = median["max_weights"]
            cells = [
                f"{median[name] * 1e3:.2f} ({median[name] / reference:.1f}x)" if name in median else ""
                for name in RIVALS
            ]
            table.add_row(label, f"[bold]{reference * 1e3:.2f}[/bold]", *cells)
    console.print(table)
    print("`make bench` times larger files, cold caches and memory: docs/benchmarks.md")


def main() -> int:
    """Run the demo; return 1 when a tensor differs from the safetensors package's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a safetensors file with the names of a BERT, such as MiniLM's")
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    if not options.path.is_file():
        print(
            f"demo: there is no {options.path}: tools/get_models.py {options.path.parent} --only minilm",
            file=sys.stderr,
        )
        return 1
    show(options.path)
    if not compare(options.path):
        print("demo: tensors differ from the safetensors package's", file=sys.stderr)
        return 1
    times(options.path, options.runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
