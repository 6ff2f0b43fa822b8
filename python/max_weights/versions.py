"""`show_versions`: what a bug report needs to say about the machine and the packages, without importing them."""

from __future__ import annotations

__all__ = ["show_versions", "versions"]

PACKAGES = ("numpy", "ml-dtypes", "torch", "jax", "jaxlib", "safetensors", "typer", "rich")
CPU_FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_bf16",
    "avx512_fp16",
    "avx512vbmi",
    "amx_bf16",
)
"""What the kernels of casts and quantisation may choose by, as Linux spells it."""


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
        "cpu": f"{cpu_model() or platform.machine()}, {cpus} usable",
        "cpu features": ", ".join(cpu_features()) or "unknown",
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


def cpu_features(cpuinfo: str = "/proc/cpuinfo") -> list[str]:
    """Those of `CPU_FEATURES` that the processor has; none where the system has no such file."""
    flags = set(field(cpuinfo, "flags").split())
    return [feature for feature in CPU_FEATURES if feature in flags]


def cpu_model(cpuinfo: str = "/proc/cpuinfo") -> str:
    """The processor's name for people; empty where the system has no such file."""
    return field(cpuinfo, "model name")


def field(cpuinfo: str, key: str) -> str:
    """The first value of a key in a file of `key : value` lines; empty if there is no such file or key."""
    try:
        with open(cpuinfo, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == key:
                    return value.strip()
    except OSError:
        pass
    return ""
