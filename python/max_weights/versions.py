"""`show_versions`: what a bug report needs to say about the machine and the packages, without importing them."""

from __future__ import annotations

__all__ = ["show_versions", "versions"]

PACKAGES = ("numpy", "ml-dtypes", "torch", "jax", "jaxlib", "safetensors", "typer", "rich")


def versions() -> dict[str, str]:
    """The package's version, the interpreter's, the platform, the processor, and the packages it may meet, by name."""
    import os
    import platform
    import sys
    from importlib import metadata

    from max_weights._core import __version__

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {
        "max_weights": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})",
        "platform": platform.platform(),
        "cpu": f"{platform.machine()}, {cpus} usable",
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def show_versions() -> None:
    """Print `versions()`, to be pasted into a bug report."""
    found = versions()
    width = max(map(len, found))
    for name, version in found.items():
        print(f"{name:{width}}  {version}")
