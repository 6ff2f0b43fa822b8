"""Paths of files that are saved: what a name promises, and those of a store as URLs."""

from __future__ import annotations

import os
import sys
from pathlib import Path, PosixPath, WindowsPath

from max_weights._core import shown
from max_weights.errors import ArgumentError

__all__ = ["paths_of", "safetensors_path"]


class _URLPath(WindowsPath if sys.platform == "win32" else PosixPath):  # type: ignore[misc]
    """The URL of a file, as a path: it is printed and opened with both slashes behind its scheme."""

    __slots__ = ()

    def __str__(self) -> str:
        scheme, rest = super().__str__().replace(os.sep, "/").split(":/", 1)
        return f"{scheme}://{rest.lstrip('/')}"

    def __fspath__(self) -> str:
        return str(self)


def paths_of(files: list[Path]) -> list[Path]:
    """Return the files that were written; those of a store are printed as URLs."""
    return [_URLPath(file) if file.parts and file.parts[0] in {"s3:", "gs:", "az:"} else file for file in files]


def safetensors_path(path: str | os.PathLike[str]) -> str:
    """Return the path of a safetensors file; an error if its suffix belongs to another format."""
    text = os.fsdecode(path)
    if text.lower().endswith(".gguf"):
        raise ArgumentError(
            f"'{shown(text)}': a file with this name is a GGUF file, but this writes safetensors; call save_gguf, or "
            "name the file .safetensors"
        )
    return text
