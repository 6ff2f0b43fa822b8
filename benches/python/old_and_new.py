"""Compare two builds of this package in one run: `python benches/python/old_and_new.py OLD NEW [NAME...]`.

OLD and NEW are folders that hold a built `max_weights` package, such as `python/` of two checkouts. Each bench runs
without the rivals: two processes, one per build, run our loaders in turns. The ratio of the new build's time to the old
build's is printed, and loaders that one build lacks are named.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import harness
from harness import OURS, BenchError, Effort, Memory, Timing, Unavailable, Worker

HERE = Path(__file__).resolve().parent
EFFORT = Effort(least=5, most=9, seconds=3.0)


@contextlib.contextmanager
def _build(folder: Path) -> Iterator[None]:
    """Make child processes import the package of this folder."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


class Comparison:
    """Replaces the harness's measurements."""

    def __init__(self, old: Path, new: Path) -> None:
        self.builds = {"old": old, "new": new}
        self.ratios: list[tuple[float, str]] = []

    def alternate(
        self,
        bench: Path,
        case: str,
        loaders: Iterable[str],
        target: Path,
        *,
        effort: Effort,
        cold: bool = False,
        companions: Sequence[Path] = (),
    ) -> dict[str, Timing]:
        """Time our loaders with both builds; the rivals get placeholder times."""
        timings = {loader: Timing(loader, [1.0], [0]) for loader in loaders}
        size = sum(file.stat().st_size for file in (target.iterdir() if target.is_dir() else [target]))
        for loader in timings:
            if not loader.startswith(OURS):
                continue
            row = f"{bench.stem}: {case}: {loader}{', cold' if cold else ''}"
            seconds: dict[str, list[float]] = {"old": [], "new": []}
            with contextlib.ExitStack() as stack:
                try:
                    workers = {}
                    for name, folder in self.builds.items():
                        with _build(folder):
                            workers[name] = stack.enter_context(Worker(bench, case, loader, target))
                    first = max(worker.time(2)[0][-1] for worker in workers.values())
                    burst = 1 if cold else max(1, min(200, int(0.05 / max(first, 1e-9))))
                    rounds = max(effort.least, min(EFFORT.most, int(EFFORT.seconds / max(2 * first * burst, 1e-9))))
                    for turn in range(rounds):
                        for name in ("old", "new") if turn % 2 == 0 else ("new", "old"):
                            if cold:
                                for file in (target, *companions):
                                    harness.evict(file)
                                harness.touch_memory(3 * size // 2)
                            seconds[name] += workers[name].time(burst)[0]
                except BenchError as error:
                    print(f"   not both: {row}: {error}", flush=True)
                    continue
            old, new = Timing("old", seconds["old"]).median, Timing("new", seconds["new"]).median
            # Memory placement differs between processes, so the best times are compared, too.
            best = min(seconds["new"]) / min(seconds["old"])
            self.ratios.append((new / old, row))
            print(f"{new / old:6.2f} (best {best:.2f}) {old * 1e3:10.3f} -> {new * 1e3:10.3f} ms  {row}", flush=True)
            timings[loader] = Timing(loader, seconds["new"], [0])
        return timings

    def first_calls(
        self, bench: Path, case: str, loaders: Iterable[str], target: Path, *, rounds: int
    ) -> dict[str, Timing]:
        """Return placeholder times."""
        del bench, case, target, rounds
        return {loader: Timing(loader, [1.0], [0]) for loader in loaders}

    def peak_memory(
        self, bench: Path, case: str, loaders: Iterable[str], target: Path, *, runs: int = 3
    ) -> dict[str, Memory]:
        """Return placeholder figures."""
        del bench, case, target, runs
        return {loader: Memory(loader, 1, 1, 1) for loader in loaders}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--keep", type=Path, help="a folder for the files, which stay there")
    options = parser.parse_args()
    comparison = Comparison(options.old.resolve(), options.new.resolve())
    for name in ("alternate", "first_calls", "peak_memory"):
        setattr(harness, name, getattr(comparison, name))
    made = tempfile.TemporaryDirectory(prefix="max-weights-bench-")
    with made if options.keep is None else contextlib.nullcontext(options.keep) as folder:
        for name in options.names:
            try:
                harness.load_module(HERE / f"{name}.py").measure(Path(folder), small=False)
            except Unavailable as reason:
                print(f"{name}: not measured on this machine: {reason}", flush=True)
            except (ArithmeticError, BenchError, LookupError) as error:  # a table of placeholder figures
                print(f"   {name} ended early: {error!r}", flush=True)
    slower = sorted((ratio, row) for ratio, row in comparison.ratios if ratio > 1.05)
    print(f"{len(comparison.ratios)} rows, {len(slower)} slower than 1.05")
    for ratio, row in reversed(slower):
        print(f"{ratio:6.2f} {row}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
