"""The record of a failure that ranks send to each other, and the error that all of them raise for it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from max_weights._core import escape, printable
from max_weights.errors import RankError

__all__ = ["Failure"]

_MAX = 16_384


@dataclass(frozen=True)
class Failure:
    """Why one of several ranks cannot continue."""

    rank: int
    host: str
    text: str
    kind: str = ""
    """The class of the rank's error; empty if it raised none, and other ranks report it."""
    rule: str | None = None
    path: str | None = None
    tensor: str | None = None
    offset: int | None = None
    help: str | None = None
    after: int = -1
    """The number of steps that all ranks had completed."""

    @classmethod
    def of(cls, error: BaseException, rank: int, host: str) -> Self:
        """Describe an error of this process."""
        if isinstance(error, KeyboardInterrupt):
            return cls(rank, host, "it was interrupted (Ctrl-C)", "KeyboardInterrupt")
        kind = type(error).__name__
        text = str(error)[:_MAX] or kind
        facts = {name: getattr(error, name, None) for name in ("rule", "path", "tensor", "offset", "help")}
        known: dict[str, Any] = {name: value for name, value in facts.items() if isinstance(value, str | int)}
        return cls(rank, host, text, kind, **known)

    def encoded(self) -> bytes:
        """Return it as bytes for other ranks."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, data: bytes) -> Self:
        """Return the failure that another rank has encoded."""
        return cls(**json.loads(data))

    def error(self, note: str = "") -> RankError:
        """Return the error that every rank raises."""
        text = "\n".join(map(printable, self.text.split("\n")))
        where = f"rank {self.rank} (host {escape(self.host)})"
        error = RankError(f"{where}: {text}" + (f"; {note}" if note else ""))
        error.rank, error.host = self.rank, self.host
        error.rule = self.rule or error.rule
        error.path, error.tensor = self.path, self.tensor
        error.offset, error.help = self.offset, self.help
        error._failure = self
        return error
