"""The deliberate differences from MAX: what a mark `# differs: ID` in a program means, and why it is so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """One deliberate difference."""

    group: str
    """A key of `GROUPS`."""
    reason: str


GROUPS = {
    "better": "Where MAX gives a wrong value, loses data, never ends or fails",
    "more": "Where more is possible here",
    "documents": "Where the documents of the API say something else than MAX does",
    "kind": "Where both refuse, with another exception",
    "text": "What is printed",
    "later": "Not there yet",
}

DIFFERENCES: dict[str, Difference] = {}
