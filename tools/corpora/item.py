"""One item of a corpus: a file, or a folder of files, and the accepted verdicts of validation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

MALICIOUS, NEEDS_TRUST, BROKEN, CLEAN = "malicious", "needs-trust", "broken", "clean"
# Never clean.
CAUGHT = frozenset({MALICIOUS, NEEDS_TRUST, BROKEN})
# Files that run code are reported as such.
CODE = frozenset({MALICIOUS, NEEDS_TRUST})
HARM = frozenset({MALICIOUS})
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Item:
    """A file or a folder of a corpus."""

    name: str
    """Unique in its group; for a file, with its suffix."""
    files: Mapping[str, bytes]
    """A single file has the path "", files of a folder their relative paths."""
    group: str
    """Its group: a class of attacks by number, or a kind of good files."""
    answers: frozenset[str]
    """The accepted verdicts."""
    best: str = ""
    """The most specific verdict, if several are accepted."""
    named: tuple[str, ...] = ()
    """Words that a finding has to contain, such as the dotted name of the called function."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Symbolic links of a folder, by their paths."""
    hardlinks: Mapping[str, str] = field(default_factory=dict)
    """Hard links of a folder to others of its files, by their paths."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return "" not in self.files

    @property
    def path(self) -> str:
        """Its path below the folder of the corpus."""
        return f"{self.group}/{self.name}"

    def write(self, folder: Path) -> Path:
        """Write it below the folder of the corpus, and return where."""
        path = folder / self.path
        if not self.is_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.files[""])
            return path
        for name, data in self.files.items():
            member = path / name
            member.parent.mkdir(parents=True, exist_ok=True)
            member.write_bytes(data)
        for name, target in self.links.items():
            link = path / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(target)
        for name, target in self.hardlinks.items():
            (path / name).unlink(missing_ok=True)
            (path / name).hardlink_to(path / target)
        return path


def one(group: str, name: str, data: bytes, answers: frozenset[str], best: str = "", named: Iterable[str] = ()) -> Item:
    """Make an item of one file."""
    return Item(name, {"": data}, group, answers, best, tuple(named))


def write(items: Iterable[Item], folder: Path) -> list[Item]:
    """Write a corpus, and a list of what is in it."""
    written = list(items)
    paths = [item.path for item in written]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        raise ValueError(f"two items of one name: {', '.join(twice)}")
    for item in written:
        item.write(folder)
    rows = [
        {
            "path": item.path,
            "group": item.group,
            "answers": sorted(item.answers),
            "best": item.best,
            "named": list(item.named),
        }
        for item in written
    ]
    (folder / MANIFEST).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return written
