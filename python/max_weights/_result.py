"""The result of a verb: `Result`, written as text, as JSON and in notebooks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, ClassVar

from max_weights._core import escape
from max_weights._finding import Finding
from max_weights._html import bad, count, table, view
from max_weights.errors import ArgumentError, VerificationError

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Finding", "Result", "error_lines"]

_LISTED = 100
"""How many findings the text of a result lists."""
_QUOTED = 20
"""How many findings the message of an error quotes."""
_SUMMARIZED = 3
"""How many findings the representation quotes: a failing `assert` shows the beginning of it."""


class Result:
    """The result of a verb; true if it is `ok`, so that `assert` fails otherwise.

    `str(result)` is a summary and a line for each finding; a notebook shows a table.
    """

    __slots__ = ()
    _KINDS: ClassVar[tuple[str, ...]] = ()
    """The kinds of findings."""

    if TYPE_CHECKING:

        @property
        def findings(self) -> tuple[Finding, ...]:
            """The problems; the worst or the first comes first."""

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok

    def by_kind(self, *kinds: str) -> tuple[Finding, ...]:
        """Select findings.

        Args:
            kinds: Values of `Finding.kind`.

        Returns:
            The findings of these kinds, in their order.

        Raises:
            ArgumentError: The result has no findings of such a kind (a ValueError).

        Example:
            >>> max_weights.diff("model.safetensors", "new.safetensors").by_kind("added", "removed")
            ()
        """
        if odd := [kind for kind in kinds if kind not in self._KINDS]:
            raise ArgumentError(
                f"a {type(self).__name__} has findings of the kinds {', '.join(self._KINDS)}, not {odd[0]!r}",
                rule="argument.choice",
            )
        return tuple(finding for finding in self.findings if finding.kind in kinds)

    def raise_if_not_ok(self) -> Self:
        """Raise an error that lists the findings, unless the result is `ok`.

        Returns:
            The result itself.

        Raises:
            VerificationError: It is not ok; the error has the `findings`. `validate` raises InvalidCheckpointError.

        Example:
            >>> max_weights.diff("model.safetensors", "model.safetensors").raise_if_not_ok().ok
            True
        """
        __tracebackhide__ = True
        if not self.ok:
            error = VerificationError(error_lines(self._summary(), self.findings))
            error.findings = self.findings
            error.tensor = next((finding.name for finding in self.findings), None)
            raise error
        return self

    def to_json(self) -> str:
        """Write everything as JSON.

        Returns:
            An object with `ok`, `summary`, `findings` (each with its known fields), and further fields of the result.

        Example:
            >>> max_weights.diff("model.safetensors", "model.safetensors").to_json()
            '{"schema": "max-weights.result/1", "result": "Difference", "ok": true, ...
        """
        head = {"schema": "max-weights.result/1", "result": type(self).__name__, "ok": self.ok}
        body = {"summary": self._summary(), "findings": self.findings, **self._facts()}
        return json.dumps(head | body, default=_plain)

    def __str__(self) -> str:
        more = len(self.findings) - _LISTED
        lines = [self._summary(), *self._details()]
        for finding in self.findings[:_LISTED]:
            lines += [str(finding), *([f"  help: {finding.help}"] if finding.help else [])]
        return "\n".join([*lines, *([f"and {more:,} more"] if more > 0 else [])])

    def __repr__(self) -> str:
        what = "; ".join((self._summary(), *map(str, self.findings[:_SUMMARIZED])))
        return f"<{type(self).__name__}: {'ok' if self.ok else 'not ok'}, {what}>"

    def _repr_html_(self) -> str:
        name = type(self).__name__
        columns: dict[str, list[object]] = {
            "what": [bad(one.kind) if one.severity == "error" else one.kind for one in self.findings],
            "name": [one.name for one in self.findings],
            "where": [one.place for one in self.findings],
            "finding": [one.message for one in self.findings],
            "rule": [" ".join(filter(None, (one.code, one.rule))) for one in self.findings],
            "evidence": [one.evidence and escape(one.evidence) for one in self.findings],
        }
        columns = {head: cells for head, cells in columns.items() if any(cells)}
        rows = zip(*columns.values(), strict=True)
        code, long = ("name", "rule", "evidence"), ("where", "finding", "evidence")
        findings = table(list(columns), rows, total=len(self.findings), code=code, long=long) if columns else ""
        return view(f"{name}: ok" if self.ok else bad(f"{name}: not ok"), self._summary(), findings, *self._parts())

    def _summary(self) -> str:
        """The first line, without the class."""
        return count(len(self.findings), "finding")

    def _details(self) -> Iterable[str]:
        """Lines of the text between the summary and the findings."""
        return ()

    def _facts(self) -> Mapping[str, object]:
        """Further fields of the JSON."""
        if not is_dataclass(self):
            return {}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "findings"}

    def _parts(self) -> Iterator[str]:
        """Further content in a notebook."""
        yield from ()


def error_lines(summary: str, findings: Iterable[Finding]) -> str:
    """Return the message of an error: a summary, and the first findings."""
    texts = [str(finding) for finding in findings]
    more = len(texts) - _QUOTED
    return "\n".join([f"{summary}:", *texts[:_QUOTED], *([f"and {more:,} more"] if more > 0 else [])])


def _plain(value: object) -> object:
    """Convert a value that JSON has no type for."""
    if isinstance(value, Finding):
        known = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: part for name, part in known if part is not None and part != ()}
    if isinstance(value, range):
        return [value.start, value.stop]
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return str(getattr(value, "name", value))
