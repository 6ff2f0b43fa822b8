"""Paths of files that are saved: the format that a name implies, and the URLs of files in a store."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path, PosixPath, WindowsPath
from typing import Literal, TypeAlias

from max_weights._core import check_disjoint, check_safetensors_name, escape, place_file
from max_weights.errors import ArgumentError

__all__ = ["Form", "folder_path", "form_of", "paths_of", "place_text", "safetensors_path"]

Form: TypeAlias = Literal["file", "folder", "gguf"]
# The suffixes of single files.
_SUFFIXES = {"safetensors", "gguf", "pt", "pth", "bin", "ckpt"}


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


def form_of(path: str | os.PathLike[str], max_shard_size: object) -> Form:
    """Return the form that a path implies; an existing folder is a folder, whatever its name."""
    text = os.fsdecode(path)
    suffix = text.lower().rpartition(".")[2]
    if os.path.isdir(text) or suffix not in _SUFFIXES:
        return "folder"
    if suffix == "gguf":
        return "gguf"
    return "file" if max_shard_size is None else "folder"


def safetensors_path(path: str | os.PathLike[str]) -> str:
    """Return the path of a safetensors file; an error if its suffix belongs to another format."""
    text = os.fsdecode(path)
    check_safetensors_name(text)
    return text


def place_text(path: str | os.PathLike[str], text: str, read: Iterable[str | os.PathLike[str]] = ()) -> None:
    """Write a text atomically; an existing file is not replaced if it was read, or is not text.

    As with everything that is saved, a symbolic link is replaced. A pipe or a device is written to.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    if target.is_file():
        check_disjoint([target], [file for file in read if os.path.isfile(file)])
        with target.open("rb") as there:
            if b"\0" in there.read(4096):
                raise ArgumentError(
                    f"'{escape(os.fsdecode(path))}': the existing file is not text, and would be lost: write to "
                    "another path",
                    rule="argument.path",
                )
    place_file(target, text.encode(), sync=False)


def folder_path(path: str | os.PathLike[str], name: str) -> str:
    """Return the folder of several files that begin with a name; an error if either is the name of a single file."""
    text = os.fsdecode(path)
    for given, whose in ((text, "the folder of several files"), (name, "what the names of the files begin with")):
        suffix = given.lower().rpartition(".")[2] if "." in given else ""
        is_folder = given is text and (suffix == "gguf" or os.path.isdir(text))  # a model's folder may have such a name
        if suffix in _SUFFIXES and not is_folder:
            raise ArgumentError(f"'{escape(given)}': this is {whose}: give it without .{suffix}", rule="argument.path")
    return text
