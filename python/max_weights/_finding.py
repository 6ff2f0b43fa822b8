"""The one record for problems of all kinds: with a tensor, a parameter or a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

from max_weights._core import escape, printable

__all__ = ["ComparedValues", "Finding", "Severity"]

Severity = Literal["note", "warning", "error"]


class ComparedValues(TypedDict):
    """How the values of two tensors differ."""

    elements: int
    differing: int
    nan: int
    largest: float | None
    relative: float | None
    cosine: float | None
    index: list[int] | None
    at: list[float | None] | None
    rounded: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. `str(finding)` is a line: place, name and message."""

    name: str | None
    """The tensor, parameter or buffer; `None` if it is about something else."""
    message: str
    """The problem, in words."""
    place: str | None = None
    """The file or URL, or the rank."""
    kind: str = "differs"
    """The kind, in a word; each result lists its kinds."""
    severity: Severity = "error"
    """How bad it is; a result with nothing but notes is ok."""
    other: str | None = None
    """The other name: the weight that a parameter should be, the equal tensor of the other side, the new name."""
    rows: tuple[range, ...] = ()
    """The rows that differ, counted over all dimensions but the last; empty where the whole tensor does."""
    rank: int | None = None
    """The rank that found it, if several did."""
    dtypes: tuple[str, ...] = ()
    """The dtype of the only side that has the weight, or those of both sides if they differ."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """The shapes in elements, of one side or both."""
    values: ComparedValues | None = None
    """How the values differ, if `diff` compared them: a dict of `elements`, `differing` (how many), `nan` (NaN on one
    side only), `largest` (difference; `None` if infinite), `relative` (to the second value, where that is not 0),
    `cosine` (similarity of the finite values), `index` of the largest difference, the two values `at` it, and `rounded`
    (whether one side is the other one, rounded to its dtype)."""
    code: str | None = None
    """The code of the broken rule, such as `MW-ST-014`; `max-weights explain CODE` says more about it."""
    rule: str | None = None
    """The name of that rule, such as `safetensors.overlap`."""
    path: str | None = None
    """The file."""
    member: str | None = None
    """The member of an archive; members of archives within it follow after `!/`."""
    offset: int | None = None
    """The position in bytes in the file, or in the member if there is one."""
    help: str | None = None
    """What to do about it."""
    evidence: str | None = None
    """What the file contains there, such as the call as Python would write it."""

    def __str__(self) -> str:
        name = None if self.name is None else f"'{escape(self.name)}'"
        text = ": ".join(filter(None, (self.place and printable(self.place), name, self.message)))
        return text if self.code is None else f"{text} [{self.code} {self.rule}]"
