"""Measure loads to this machine's GPU, and those of the installed rivals.

    python benches/gpu [warm] [cold] [conversions] [kernels] [--gb 8] [--dir DIR] [--results bench-results]

It needs Python, NumPy, the wheel (installed, or on PYTHONPATH), and torch for most of the rivals; nothing is built or
fetched. The files take twice as many gigabytes as `--gb`, in a temporary folder of `--dir`; for `cold` it has to be on
a disk. Each part writes a JSON file, and its table to `gpu.md` in the same folder.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PARTS = ("warm", "cold", "conversions", "kernels")


def missing() -> str:
    """Return why the benches cannot run, or ""."""
    try:
        import numpy  # noqa: F401

        import max_weights
        from max_weights.driver import Accelerator

        Accelerator(0)
    except ImportError as error:
        return f"{error.name} cannot be imported ({error}): install NumPy and the wheel of dist/"
    except max_weights.DeviceError as error:
        return str(error)
    return ""


def run(options: argparse.Namespace) -> None:
    """Measure the requested parts, and publish each one when it ends."""
    import kernels
    import loads
    import report
    from harness import BenchError
    from rows import Limits

    found = report.environment() | {"device": kernels.name_of(options.device)}
    found["packages"] = {name: version for name, version in found["packages"].items() if version != "not installed"}
    brought = [str(folder) for folder in options.rivals.glob("*") if folder.name != "wheel"]
    for one in distributions(path=brought):
        found["packages"][one.name if one.name != "safetensors" else f"safetensors-{one.version}"] = one.version
    line = f"{found['device']}; {report.environment_line(found)}"
    page: list[str] = []
    folder_of = tempfile.TemporaryDirectory(prefix="max-weights-gpu-", dir=options.dir)
    with folder_of if options.keep is None else contextlib.nullcontext(options.keep) as folder:
        free = shutil.disk_usage(folder).free
        if options.keep is None and free < 2.6e9 * options.gb:
            raise BenchError(
                f"{folder} has {free / 1e9:.1f} GB free, and {2.6 * options.gb:.1f} are needed: --dir, --gb"
            )
        for part in options.parts or PARTS:
            until = time.monotonic() + options.seconds
            bounds = Limits(options.rounds, until, max(60.0, options.seconds), options.rivals, options.device)
            try:
                if part == "kernels":
                    result, title = kernels.measure(options.device, options.gb < 0.5), kernels.TITLE
                else:
                    measure: Any = getattr(loads, part)
                    result, title = measure(Path(folder), options.gb, bounds), loads.TITLES[part]
            except BenchError as error:  # a RAM disk has no cold file
                print(f"{part}: not measured: {error}", flush=True)
                continue
            report.write_json(result, options.results, found)
            body = report.markdown(result, line)
            page.append(f"## {title}\n\n{body}\n")
            print(f"{page[-1]}", flush=True)
            (options.results / "gpu.md").write_text("\n".join(page), encoding="utf-8")


def main() -> int:
    """Run the command line; 2 where there is no GPU or no package."""
    parser = argparse.ArgumentParser(
        prog="benches/gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="of " + ", ".join(PARTS))
    parser.add_argument("--gb", type=float, default=8.0, help="size of the file, in 10⁹ bytes (8)")
    parser.add_argument("--dir", type=Path, help="where the temporary folder is made (the system's); /dev/shm is RAM")
    parser.add_argument("--keep", type=Path, help="a folder for the files, which stay there")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each row (5)")
    parser.add_argument("--seconds", type=float, default=240.0, help="begin no round of a part after this time (240)")
    parser.add_argument("--device", type=int, default=0, help="the number of the GPU (0)")
    parser.add_argument("--results", type=Path, default=Path("bench-results"), help="where JSON and table go")
    parser.add_argument(
        "--rivals",
        type=Path,
        default=HERE.parents[1] / "dist" / "gpu",
        help="a folder with packages in site/, safetensors-0.8.0/ and safetensors-0.9.0rc1/ (dist/gpu); without one of "
        "these, the packages that are installed",
    )
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if reason := missing():
        print(f"benches/gpu: {reason}", file=sys.stderr)
        return 2
    from harness import BenchError

    try:
        run(options)
    except BenchError as error:
        print(f"benches/gpu: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent / "python")]
    sys.exit(main())
