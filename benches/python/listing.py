"""Ways to open a safetensors file and list its tensors, shared by several benches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

READ = "max_weights, fields copied into tuples"
LIMIT = "read + json.loads of the header"


def ours_read(path: Path) -> Callable[[], object]:
    """List with max_weights, every field of every record read and kept."""
    import max_weights

    return lambda: [(info.name, info.dtype, info.shape) for info in max_weights.infos(max_weights.load_weights(path))]


def safetensors(path: Path, framework: str) -> Callable[[], object]:
    """List with the safetensors package."""
    from safetensors import safe_open

    def run() -> object:
        with safe_open(path, framework) as file:
            listing = []
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                part = file.get_slice(name)
                listing.append((name, part.get_dtype(), part.get_shape()))
            return listing

    return run


def header_only(path: Path) -> Callable[[], object]:
    """Read and parse the header only."""
    import json

    def run() -> object:
        with path.open("rb") as file:
            return json.loads(file.read(int.from_bytes(file.read(8), "little")))

    return run
