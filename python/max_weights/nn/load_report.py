"""What did not match in a state dict: as data, and as the sentence of an error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from max_weights._core import shown
from max_weights.errors import ArgumentError
from max_weights.nn.near_names import suggestions

__all__ = ["LoadReport"]

_LISTED = 20


class LoadReport(NamedTuple):
    """What `load_state_dict(strict=False)` let pass, as full names."""

    missing: tuple[str, ...]
    """Weights of the model that the state dict does not have, in the order of the model."""
    unexpected: tuple[str, ...]
    """Names in the state dict that the model does not have, in the order of the state dict."""


def misfit(model: str, report: LoadReport, problems: Sequence[str]) -> ArgumentError:
    """The error that lists everything at once: what is missing, unexpected, or does not fit."""
    counts = [
        f"{len(names)} {what}"
        for names, what in ((report.missing, "missing"), (report.unexpected, "unexpected"))
        if names
    ]
    if problems:
        counts.append(f"{len(problems)} of a kind that does not fit")
    lines = [f"the state dict does not fit {model}, of which nothing was changed: {', '.join(counts)}"]
    if report.missing:
        missing = report.missing[:_LISTED]
        near = suggestions(report.unexpected, missing)
        listed = (f"'{shown(name)}'{suggestion}" for name, suggestion in zip(missing, near, strict=True))
        lines += _listed("missing", listed, len(report.missing))
    if report.unexpected:
        lines += _listed(
            "unexpected", (f"'{shown(name)}'" for name in report.unexpected[:_LISTED]), len(report.unexpected)
        )
    if problems:
        lines += _listed("does not fit", problems[:_LISTED], len(problems))
    if report.missing or report.unexpected:
        lines.append("(strict=False takes what there is, and reports the rest)")
    return ArgumentError("\n".join(lines))


def _listed(what: str, lines: Iterable[str], total: int) -> list[str]:
    rest = [f"  and {total - _LISTED:,} more"] if total > _LISTED else []
    return [f"{what}:", *(f"  {line}" for line in lines), *rest]
