"""Count the instructions per element of conversions on ARM, under qemu: `python benches/arm/instructions.py`.

An emulator cannot measure time. It can count the instructions of vector and scalar code, which replace timings where no
ARM machine is available. A program converts the same elements twice, then four times, and each instruction is logged.
The difference divided by the additional elements excludes startup and exit.

The scalar code is counted twice: without vectorization, element by element, and with the compiler's auto-vectorization.
Needs qemu-user-static and Rust's aarch64-unknown-linux-musl.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGET = "aarch64-unknown-linux-musl"
ELEMENTS = 4096
# : The most frequent conversions.
CASES = [
    ("float16", "float32"),
    ("bfloat16", "float32"),
    ("float32", "float16"),
    ("float32", "bfloat16"),
    ("float16", "bfloat16"),
    ("bfloat16", "float16"),
    ("float8_e4m3fn", "float32"),
    ("float8_e4m3fn", "bfloat16"),
    ("float8_e5m2", "float32"),
    ("float8_e5m2", "float16"),
    ("float32", "float8_e4m3fn"),
    ("bfloat16", "float8_e4m3fn"),
    ("float4_e2m1fn", "bfloat16"),
    *((encoding, to) for encoding in ("Q4_0", "Q8_0", "Q4_K", "Q6_K") for to in ("float32", "bfloat16")),
    *((encoding, "float32") for encoding in ("Q2_K", "Q3_K", "Q5_K", "IQ4_XS", "IQ2_XXS", "TQ1_0", "MXFP4", "NVFP4")),
]


def build(folder: str, *flags: str) -> Path:
    """Return the program that does one conversion, statically linked for ARM."""
    subprocess.run(["rustup", "--quiet", "target", "add", TARGET], check=True)
    environment = {
        **os.environ,
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER": "rust-lld",
        "RUSTFLAGS": " ".join(["-C linker-flavor=ld.lld", *flags]),
        "CARGO_TARGET_DIR": str(ROOT / "target" / folder),
    }
    command = ["cargo", "build", "--quiet", "--release", "--package", "max-weights-kernels", "--example", "work"]
    subprocess.run([*command, "--target", TARGET], cwd=ROOT, env=environment, check=True)
    return ROOT / "target" / folder / TARGET / "release" / "examples" / "work"


def instructions(program: Path, *arguments: str) -> int:
    """Return how many instructions a run of the program takes."""
    command = [
        "qemu-aarch64-static",
        "-singlestep",
        "-d",
        "exec,nochain",
        "-D",
        "/dev/stdout",
        str(program),
        *arguments,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        if process.stdout is None:
            sys.exit("qemu has no output")
        count = sum(line.startswith(b"Trace ") for line in process.stdout)
    if process.returncode:
        sys.exit(f"{program} {' '.join(arguments)}: status {process.returncode}")
    return count


def per_element(program: Path, level: str, source: str, target: str) -> float:
    """Return the instructions per additional element."""
    few, many = (instructions(program, level, source, target, str(ELEMENTS), str(times)) for times in (2, 4))
    return (many - few) / (2 * ELEMENTS)


def main() -> None:
    """Print a table of all cases."""
    program = build("arm")
    one_by_one = build("arm-one-by-one", "-C no-vectorize-loops", "-C no-vectorize-slp")
    columns = ["from", "to", "scalar", "by the compiler", "NEON", "÷ scalar", "÷ by the compiler"]
    print(f"| {' | '.join(columns)} |\n|---|---|{'---:|' * (len(columns) - 2)}")
    for source, target in CASES:
        scalar = per_element(one_by_one, "scalar", source, target)
        compiled, neon = (per_element(program, level, source, target) for level in ("scalar", "neon"))
        numbers = [scalar, compiled, neon, neon / scalar, neon / compiled]
        print(f"| {source} | {target} | {' | '.join(f'{number:.2f}' for number in numbers)} |", flush=True)


if __name__ == "__main__":
    main()
