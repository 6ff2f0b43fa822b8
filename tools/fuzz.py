"""Build fuzz targets and run them: `python tools/fuzz.py --seconds 60 pickle torch_zip`. `make fuzz` calls it.

Each run stores libFuzzer's figures under `fuzz/target/runs`, by commit. At the end, or with `--table` alone, the sums
of all runs of the commit are printed as a table. A run continues from the previous one, whose findings are kept in
`fuzz/target/corpus`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
RUNS = FUZZ / "target" / "runs"
MAX = 4096
"""Maximum size of an input: short inputs reach all rules, and long ones cost time."""
SANITIZERS = {
    # The custom mutators know the formats, so tracing comparisons, which halves the speed, does not pay.
    "none": ["--sanitizer", "none", "--no-trace-compares"],
    # With traced comparisons, so that the two kinds of runs explore different inputs.
    "address": ["--sanitizer", "address"],
}
DICTIONARIES = {"gguf": "gguf", "torch": "torch", "pickle": "torch"}
"""By the prefix of a target's name; the others use that of safetensors."""
SECONDS_FOR_ONE = {"none": 1, "address": 5}
"""Seconds after which an input counts as hanging: the sanitizer makes everything a few times slower."""
INTERRUPTED = 72
"""libFuzzer's exit status after Ctrl-C; its figures are good."""


@dataclass
class Run:
    """The result of one run of a target."""

    target: str
    sanitizer: str
    commit: str
    seconds: float
    executions: int
    slowest: int
    """Seconds of the slowest input, rounded down."""
    found: bool


def targets() -> list[str]:
    """The names of all targets."""
    return sorted(path.stem for path in (FUZZ / "fuzz_targets").glob("*.rs"))


def commit() -> str:
    """The current commit, with a plus sign if the sources have changed since."""
    git = ["git", "-C", str(FUZZ)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    sources = ["--", "../src", "../Cargo.toml", "src", "fuzz_targets"]
    changed = subprocess.run([*git, "status", "--short", *sources], capture_output=True, text=True, check=True)
    return name.stdout.strip() + ("+" if changed.stdout else "")


def build(sanitizer: str, names: list[str]) -> Path:
    """Build targets with cargo-fuzz; return their folder."""
    folder = FUZZ / "target" / sanitizer
    environment = os.environ | {"RUSTC_BOOTSTRAP": "1"}  # sanitizers are there on stable Rust, but not stable
    command = ["cargo", "fuzz", "build", *SANITIZERS[sanitizer], "--target-dir", str(folder)]
    one: list[str]
    for one in [[]] if names == targets() else [[name] for name in names]:
        subprocess.run([*command, *one], cwd=FUZZ.parent, env=environment, check=True)
    triple = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    host = next(line.removeprefix("host: ") for line in triple.splitlines() if line.startswith("host: "))
    return folder / host / "release"


def figures(output: str) -> dict[str, int]:
    """The figures that libFuzzer prints at its end."""
    lines = (line.removeprefix("stat::").split(":") for line in output.splitlines() if line.startswith("stat::"))
    return {name: int(value) for name, value in lines}


def run(binary: Path, sanitizer: str, commit: str, seconds: int) -> Run:
    """Run one target, and store the result."""
    target = binary.name
    own, committed, artifacts = (FUZZ / part / target for part in ("target/corpus", "corpus", "artifacts"))
    own.mkdir(parents=True, exist_ok=True)
    artifacts.mkdir(parents=True, exist_ok=True)
    family = target.split("_")[0]
    options = {
        "dict": FUZZ / f"{DICTIONARIES.get(family, 'safetensors')}.dict",
        "artifact_prefix": f"{artifacts}/",
        "max_len": MAX,
        "timeout": SECONDS_FOR_ONE[sanitizer],
        "rss_limit_mb": 2048,
        "max_total_time": seconds,
        "print_final_stats": 1,
        "verbosity": 0,
    }
    flags = [f"-{name}={value}" for name, value in options.items()]
    environment = os.environ | {"ASAN_OPTIONS": "detect_odr_violation=0"}
    began = time.monotonic()
    # New inputs go to the first folder.
    done = subprocess.run([binary, own, committed, *flags], capture_output=True, env=environment)
    output = done.stderr.decode(errors="replace")
    stats = figures(output)
    came_to = Run(
        target=target,
        sanitizer=sanitizer,
        commit=commit,
        seconds=round(time.monotonic() - began, 1),
        executions=stats.get("number_of_executed_units", 0),
        slowest=stats.get("slowest_unit_time_sec", 0),
        found=done.returncode not in (0, INTERRUPTED),
    )
    folder = RUNS / commit
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "runs.jsonl").open("a") as file:
        file.write(json.dumps(asdict(came_to)) + "\n")
    print(f"{target}: {came_to.executions:,} executions in {came_to.seconds:.0f} s", flush=True)
    if came_to.found:
        print(f"{target} FOUND SOMETHING (exit status {done.returncode}):\n{output[-6000:]}", flush=True)
    return came_to


def recorded(commit: str) -> list[Run]:
    """All runs of a commit."""
    path = RUNS / commit / "runs.jsonl"
    return [Run(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def table(runs: Iterable[Run]) -> str:
    """The sums by target and sanitizer, as Markdown."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for one in runs:
        groups.setdefault((one.target, one.sanitizer), []).append(one)
    lines = ["| target | sanitizer | seconds | executions | a second | found |", "|---|---|---|---|---|---|"]
    rows = [(f"`{target}`", sanitizer, members) for (target, sanitizer), members in sorted(groups.items())]
    rows.append(("together", "", [one for members in groups.values() for one in members]))
    for name, sanitizer, members in rows:
        seconds, executions = sum(one.seconds for one in members), sum(one.executions for one in members)
        found = sum(one.found for one in members)
        rate = executions / seconds if seconds else 0
        lines.append(f"| {name} | {sanitizer} | {seconds:,.0f} | {executions:,} | {rate:,.0f} | {found} |")
    return "\n".join(lines)


def main() -> int:
    """Run the requested targets; the exit status is 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="target", help=f"one of {', '.join(targets())} (all)")
    parser.add_argument("--seconds", type=int, default=60, help="how long each target runs")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--sanitizer", choices=SANITIZERS, default="none")
    parser.add_argument("--table", action="store_true", help="only print the sums of the runs of this commit")
    arguments = parser.parse_args()
    now = commit()
    names = arguments.targets or targets()
    if unknown := set(names) - set(targets()):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    found = False
    if not arguments.table:
        folder = build(arguments.sanitizer, names)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            runs = [pool.submit(run, folder / name, arguments.sanitizer, now, arguments.seconds) for name in names]
        found = any(one.result().found for one in runs)
    print(f"\nall runs of {now}\n\n{table(recorded(now))}")
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
