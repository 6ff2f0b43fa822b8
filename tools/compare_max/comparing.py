"""The differences between the facts of two packages, and which of them are deliberate."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from differences import DIFFERENCES

PROGRAMS = Path(__file__).parent / "programs"
MARK = re.compile(r"# differs: ([\w-]+)")
SHOWN = 200


@dataclass
class Fact:
    """A fact that differs."""

    program: str
    line: int
    item: str
    source: str
    mark: str | None
    theirs: Any
    ours: Any

    def __str__(self) -> str:
        mark = f"  ({self.mark})" if self.mark else ""
        item = f"  # {self.item}" if self.item else ""
        texts = map(text, (self.theirs, self.ours))
        theirs, ours = (value if len(value) < SHOWN else value[:SHOWN] + " …" for value in texts)
        return f"{self.program}.py:{self.line}: {self.source}{item}{mark}\n    MAX   {theirs}\n    here  {ours}"


@dataclass
class Result:
    """The comparison of one program."""

    program: str
    count: int = 0
    alike: int = 0
    deliberate: list[Fact] = field(default_factory=list)
    unexplained: list[Fact] = field(default_factory=list)
    gone: list[Fact] = field(default_factory=list)
    """Marked as different, but equal."""

    def lists(self) -> tuple[list[Fact], list[Fact], list[Fact]]:
        """The lists, in the order of the table."""
        return self.deliberate, self.unexplained, self.gone

    @property
    def wrong(self) -> bool:
        """Whether there is anything to fix."""
        return bool(self.unexplained or self.gone)

    def complaints(self, everything: bool) -> Iterator[str]:
        """Return the report's lines."""
        for fact in self.deliberate if everything else ():
            yield f"deliberate: {fact}"
        for kind, facts in (("unexplained", self.unexplained), ("no longer", self.gone)):
            for _, group in groupby(facts, key=lambda fact: fact.line):
                first, *others = group
                yield f"{kind}: {first}" + (f"\n    … and {len(others)} more of this line" if others else "")


def text(value: Any) -> str:
    """Return a readable text of a value."""
    if value is ABSENT:
        return "(not reached)"
    if isinstance(value, dict) and "raises" in value:
        return "raises " + " · ".join(value["raises"])
    return json.dumps(value, ensure_ascii=False)


ABSENT = object()


def same(theirs: Any, ours: Any) -> bool:
    """Whether two facts are equal. Exceptions are if a program that catches MAX's built-in class catches ours."""
    if isinstance(theirs, dict) and isinstance(ours, dict) and "raises" in theirs and "raises" in ours:
        return theirs["raises"][0] in (*ours["raises"], "Exception")
    return bool(theirs == ours)


def compare(program: str, theirs: dict[str, Any], ours: dict[str, Any]) -> Result:
    """Compare the facts of one program."""
    path = PROGRAMS / f"{program}.py"
    lines = path.read_text(encoding="utf-8")
    statements = {node.lineno: node for node in ast.walk(ast.parse(lines)) if isinstance(node, ast.stmt)}
    result = Result(program)
    for key in sorted({**theirs, **ours}, key=lambda key: int(key.split()[0])):
        number, _, item = key.partition(" ")
        node = statements[int(number)]
        last = node.lineno if isinstance(node, ast.For | ast.With) else node.end_lineno
        found = MARK.search("\n".join(lines.splitlines()[node.lineno - 1 : last]))
        mark = found.group(1) if found else None
        if mark is not None and mark not in DIFFERENCES:
            raise ValueError(f"{path}:{number}: no difference is called {mark}")
        values = theirs.get(key, ABSENT), ours.get(key, ABSENT)
        fact = Fact(program, node.lineno, item, ast.unparse(node).partition("\n")[0], mark, *values)
        result.count += 1
        if same(*values):
            result.alike += 1
            result.gone += [fact] if mark else []
        elif mark:
            result.deliberate.append(fact)
        else:
            result.unexplained.append(fact)
    return result
