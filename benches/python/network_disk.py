"""A sharded checkpoint into a model of transformers, from a disk that delays each read by a millisecond.

The disk is a folder that FUSE mounts (`benches/network_disk`, in Rust). It answers 64 requests at a time, each of up to
128 KiB, the kernel's default for an unknown file system.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import files
import harness
import load_into
from report import Column, Report, Target

TITLE = "A sharded checkpoint into a model, from a network disk"
CRATE = Path(__file__).resolve().parents[1] / "network_disk"
DELAY = 1.0  # milliseconds
SECONDS_TO_MOUNT = 20.0
CASES: harness.Cases = {
    load_into.CASE: {
        name: load_into.CASES[load_into.CASE][name] for name in (harness.OURS, load_into.PATCHED, load_into.STOCK)
    }
}


@contextlib.contextmanager
def mounted(folder: Path, mount_point: Path) -> Iterator[None]:
    """Mount a folder as a simulated network disk.

    Raises:
        Unavailable: FUSE or cargo is missing, or may not be used.
    """
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or shutil.which("cargo") is None:
        raise harness.Unavailable("mounting by FUSE needs /dev/fuse, the right to use it, and cargo")
    build = ["cargo", "build", "--quiet", "--release", "--manifest-path", str(CRATE / "Cargo.toml")]
    subprocess.run(build, check=True, env=os.environ | {"CARGO_TARGET_DIR": str(CRATE / "target")})
    mount_point.mkdir()
    disk = subprocess.Popen([CRATE / "target/release/network-disk", folder, mount_point, str(DELAY)])
    try:
        until = time.monotonic() + SECONDS_TO_MOUNT
        while not os.path.ismount(mount_point):
            if disk.poll() is not None or time.monotonic() > until:
                raise harness.Unavailable("FUSE did not mount: it needs root, or the program fusermount3")
            time.sleep(0.02)
        yield
    finally:
        if os.path.ismount(mount_point):
            subprocess.run(["umount", mount_point], check=True)
        disk.kill()
        disk.wait()


def measure(folder: Path, small: bool) -> Report:
    """Time b into a model, cold, from the slow disk."""
    effort = harness.QUICK if small else harness.Effort(least=3, most=5, seconds=60.0)
    b = files.make(folder, "b", small=small)
    load_into.write_config(b)
    with mounted(b, folder / "network-disk"):
        timings = harness.alternate(
            Path(load_into.__file__),
            load_into.CASE,
            CASES[load_into.CASE],
            folder / "network-disk",
            effort=effort,
            cold=True,
        )
    column = Column("cold", "ms", {loader: timing.median for loader, timing in timings.items()})
    part = column.values[load_into.PATCHED] / column.values[load_into.STOCK]
    return Report(
        "network_disk",
        [column],
        targets=(Target(f"{load_into.PATCHED} ÷ {load_into.STOCK}", part, 0.25, "at most"),),
        notes=(
            f"Each read of at most 128 KiB is delayed by {DELAY:g} ms; the data is in the page cache of the other "
            "side. Each run ends when one byte of every page of the parameters has been read.",
        ),
        samples={"cold": {loader: timing.seconds for loader, timing in timings.items()}},
    )
