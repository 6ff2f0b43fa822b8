"""The command line: wall time of fresh processes, to the last byte that they write."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import files
import harness
from report import Column, Report, Target

TITLE = "Command line"
ROOT = Path(__file__).resolve().parents[2]
NATIVE, WHEEL = f"{harness.OURS}, native", f"{harness.OURS}, from the wheel"
BARE, NOTHING = "bare Python", "a program that does nothing"
RUNS = 20
CASES: harness.Cases = {}
LISTED = """
import sys
from safetensors import safe_open
with safe_open(sys.argv[1], "np") as file:
    for name in file.keys():
        tensor = file.get_slice(name)
        print(name, tensor.get_dtype(), tensor.get_shape())
"""
# The completion request of a shell for `max-weights show FILE model.layers.` and a Tab.
COMPLETE = {"COMPLETE": "bash", "_CLAP_COMPLETE_INDEX": "3", "_CLAP_COMPLETE_COMP_TYPE": "9", "_CLAP_IFS": "\n"}

Command = tuple[list[str], dict[str, str]]


def native() -> str:
    """Build the program, and return its path."""
    build = ["cargo", "build", "--quiet", "--release", "--package", "max-weights-cli"]
    if subprocess.run(build, cwd=ROOT, check=False).returncode != 0:
        raise harness.BenchError("command_line: cargo cannot build max-weights-cli")
    return str(Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "max-weights")


def _run(command: Command) -> float:
    arguments, variables = command
    start = time.perf_counter()
    done = subprocess.run(arguments, capture_output=True, env=os.environ | variables, check=False)
    seconds = time.perf_counter() - start
    if done.returncode not in (0, 1) or not (done.stdout or arguments[0].endswith(("true", "python"))):
        raise harness.BenchError(f"command_line: {arguments[:4]}: {done.stderr.decode()[-300:]}")
    return seconds


def _commands(program: str, a: Path, c: Path, models: Path) -> dict[str, dict[str, Command]]:
    script = shutil.which("max-weights", path=str(Path(sys.executable).parent)) or "max-weights"
    gguf, pickle = models / "smollm2-135m.Q4_1.gguf", models / "crepe-tiny.pth"

    def of(*arguments: object, **variables: str) -> dict[str, Command]:
        words = [str(argument) for argument in arguments]
        return {NATIVE: ([program, *words], variables), WHEEL: ([script, *words], variables)}

    def rival(name: str, *arguments: object) -> Command:
        found = shutil.which(name, path=str(Path(sys.executable).parent))
        if found is None:
            raise harness.BenchError(f"command_line: {name} is not installed; `make bench` installs it")
        return [found, *map(str, arguments)], {}

    listing: dict[str, Command] = {"safetensors, in Python": ([sys.executable, "-c", LISTED], {})}
    true = shutil.which("true") or "/bin/true"
    return {
        "--version": {
            **of("--version"),
            "hf --help": rival("hf", "--help"),
            BARE: ([sys.executable, "-c", "pass"], {}),
            NOTHING: ([true], {}),
        },
        "ls a": {**of("ls", a), **{name: ([*words, str(a)], {}) for name, (words, _) in listing.items()}},
        "ls c": of("ls", c),
        "ls --flat c": {
            **of("ls", c, "--flat"),
            **{name: ([*words, str(c)], {}) for name, (words, _) in listing.items()},
        },
        "completion in c": of("--", "max-weights", "show", c, "model.layers.", **COMPLETE),
        "ls GGUF": {**of("ls", gguf), "gguf-dump": rival("gguf-dump", gguf)},
        "globals": {**of("globals", pickle), "picklescan": rival("picklescan", "--path", pickle)},
    }


def measure(folder: Path, small: bool) -> Report:
    """Time the commands in turns."""
    models = Path(os.environ.get("MAX_WEIGHTS_MODELS", ROOT / ".models"))
    program = native()
    a, c = files.make(folder, "a", small=small), files.make(folder, "c", small=small)
    columns, samples, medians = [], {}, {}
    for label, commands in _commands(program, a, c, models).items():
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(2 if small else RUNS + 1):
            for name, command in commands.items():
                seconds = _run(command)
                if number:  # the first run of each finds files and programs
                    taken[name].append(seconds)
        samples[label] = taken
        medians[label] = {name: statistics.median(values) for name, values in taken.items()}
        columns.append(Column(label, "ms", medians[label], charted=False))
    bare = medians["--version"][BARE]
    ours = {label: values[NATIVE] * 1e3 for label, values in medians.items()}
    over = {label: (medians[label][WHEEL] - bare) * 1e3 for label in ("--version", "ls a")}
    return Report(
        "command_line",
        columns,
        targets=(
            Target("native: --version", ours["--version"], 5.0, "at most", "ms"),
            Target("native: ls of 291 tensors", ours["ls a"], 10.0, "at most", "ms"),
            Target("native: ls of 50,000 tensors", ours["ls c"], 60.0, "at most", "ms"),
            Target("native: ls --flat of 50,000 tensors, a line each", ours["ls --flat c"], 60.0, "at most", "ms"),
            Target("native: a completion among 50,000 names", ours["completion in c"], 20.0, "at most", "ms"),
            Target("native: size of the program", Path(program).stat().st_size / 1e6, 8.0, "at most", "MB"),
            Target("from the wheel: --version over bare Python", over["--version"], 15.0, "at most", "ms"),
            Target("from the wheel: ls of 291 tensors over bare Python", over["ls a"], 15.0, "at most", "ms"),
        ),
        limits=frozenset({BARE, NOTHING}),
        notes=(
            f"Standard output goes to a pipe that is read to its end; medians of {RUNS} runs. The GGUF file is "
            "SmolLM2 (272 tensors), the PyTorch file is crepe-tiny. gguf-dump also prints the metadata; picklescan "
            "inspects the globals of a file, as `globals` does.",
        ),
        samples=samples,
    )
