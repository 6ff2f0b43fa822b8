"""What a verification found: the report of `verify_loaded`, of one process or of several ranks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from max_weights._core import shown
from max_weights._html import count
from max_weights._selection import fits, not_found
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from max_weights._ranks.failure import Failure
    from max_weights._selection import Pattern

__all__ = ["Outcome", "ParameterFinding", "VerificationReport", "of_all_ranks"]

_LISTED = 20
"""How many unused weights the text of a report lists."""
_SUMMARIZED = 3
"""How many findings the representation quotes: a failing `assert` shows the beginning of it."""


@dataclass(frozen=True)
class ParameterFinding:
    """A parameter or buffer that is not what the checkpoint holds."""

    name: str
    """Its name in the module."""
    weight: str | None
    """The name of the weight that it should be."""
    message: str
    """What it is instead, in words."""
    rows: tuple[range, ...] = ()
    """Its rows that differ, counted over all dimensions but the last."""
    rank: int | None = None
    """The rank that found it, with `group`."""
    compared: bool = True
    """False for what could not be compared: the message says why."""

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"rank {self.rank}: "
        return f"{rank}'{shown(self.name)}': {self.message}"


@dataclass(frozen=True, repr=False)
class VerificationReport:
    """What a verification found; true if it is `ok`."""

    findings: tuple[ParameterFinding, ...]
    """What differs, and what could not be compared, with `group` of all ranks."""
    verified: tuple[str, ...]
    """The names of all parameters and buffers that were compared, on this rank."""
    bytes: int
    """Bytes of these."""
    seconds: float
    unused: tuple[str, ...] = ()
    """Weights, by their renamed names, that no parameter or buffer of the module holds, with `group` of no rank."""
    unfilled: tuple[str, ...] = ()
    """Parameters and saved buffers that no weight of the checkpoint fills; each is a finding as well."""
    compared: int = 0
    """How many parameters and buffers were compared, with `group` by all ranks together."""

    @property
    def ok(self) -> bool:
        """Whether the module holds the checkpoint, all of it and nothing else, but for what `ignore` excuses."""
        return not (self.findings or self.unused or self.unfilled) and self.compared > 0

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        details = [*map(str, self.findings[:_SUMMARIZED])]
        details += [f"'{shown(name)}' is in no parameter or buffer" for name in self.unused[:_SUMMARIZED]]
        what = "; ".join((self._summary(), *details[:_SUMMARIZED]))
        return f"<VerificationReport: {'ok' if self.ok else 'not ok'}, {what}>"

    def __str__(self) -> str:
        lines = [self._summary(), *map(str, self.findings)]
        lines += [f"weight '{shown(name)}': no parameter or buffer holds it" for name in self.unused[:_LISTED]]
        if len(self.unused) > _LISTED:
            lines.append(f"and {len(self.unused) - _LISTED:,} more weights that nothing holds")
        return "\n".join(lines)

    def _summary(self) -> str:
        summary = f"{self.compared} parameters and buffers were compared, {count(len(self.findings), 'finding')}"
        return summary + (f", {count(len(self.unused), 'unused weight')}" if self.unused else "")


@dataclass(frozen=True)
class _Gap:
    """A parameter or buffer that was not compared."""

    finding: ParameterFinding
    names: tuple[str, ...]
    """All of its names in the module."""
    is_unfilled: bool


@dataclass
class Outcome:
    """What one process or several found, before anything is excused."""

    differences: list[ParameterFinding] = field(default_factory=list)
    gaps: list[_Gap] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    """The renamed names of all weights of the checkpoint."""
    held: set[str] = field(default_factory=set)
    """Those of weights that a parameter or buffer of the module stands for."""
    verified: list[str] = field(default_factory=list)

    def leave_out(self, name: str, weight: str | None, why: str, names: Iterable[str], *, unfilled: bool) -> None:
        """Note what was not compared, and why."""
        finding = ParameterFinding(name, weight, why, compared=False)
        self.gaps.append(_Gap(finding, tuple(names), unfilled))

    def reported(
        self, ignore: Collection[Pattern] | None, verified: tuple[str, ...], size: int, seconds: float
    ) -> VerificationReport:
        """Return the report, without what the patterns of `ignore` excuse.

        Raises:
            ArgumentError: `ignore` is empty, or names only what was compared (a ValueError).
            WeightNotFoundError: a pattern fits no name.
        """
        unused = [name for name in self.weights if name not in self.held]
        gaps = self.gaps
        if ignore is not None:
            excuses = self._excuses(ignore, unused)
            unused = [name for name in unused if name not in excuses]
            gaps = [gap for gap in gaps if excuses.isdisjoint(gap.names)]
        findings = sorted((*self.differences, *(gap.finding for gap in gaps)), key=lambda found: found.rank or 0)
        unfilled = dict.fromkeys(gap.finding.name for gap in gaps if gap.is_unfilled)
        return VerificationReport(
            tuple(findings), verified, size, seconds, tuple(unused), tuple(unfilled), len(self.verified)
        )

    def _excuses(self, ignore: Collection[Pattern], unused: list[str]) -> set[str]:
        """Return the names that the patterns excuse: each has to excuse one, and none excuses a difference."""
        if not ignore:
            raise ArgumentError("ignore is empty, so that it changes nothing: leave it out")
        among = [*unused, *(name for gap in self.gaps for name in gap.names)]
        excused: set[str] = set()
        for pattern in ignore:
            fit = fits(pattern)
            fitting = [name for name in among if fit(name)]
            if not fitting:
                text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
                compared = next((name for name in (*self.verified, *sorted(self.held)) if fit(name)), None)
                if compared is None:
                    raise not_found(text, [*among, *self.verified], "ignore names")
                raise ArgumentError(
                    f"ignore names '{shown(text)}', which changes nothing: '{shown(compared)}' was compared, and "
                    "ignore excuses only weights that nothing holds and parameters that nothing fills; leave it out"
                )
            excused.update(fitting)
        return excused


def of_all_ranks(outcome: Outcome | None, error: Exception | None, group: Any) -> Outcome:
    """Return what all ranks of a group found, or raise the error that one of them had.

    Raises:
        RankError: another rank could not verify its module.
    """
    import torch.distributed as dist

    from max_weights._ranks.failure import Failure
    from max_weights._ranks.topology import host_name

    failure = None if error is None else Failure.of(error, dist.get_rank(group), host_name()).encoded()
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, (outcome, failure), group=group)
    failures: list[Failure] = [Failure.decoded(one) for _, one in gathered if one is not None]
    if failures:
        if error is not None and len(failures) == len(gathered) and len({one.text for one in failures}) == 1:
            raise error
        raise failures[0].error() from error
    together = Outcome()
    for rank, (of_rank, _) in enumerate(gathered):
        together.differences += [replace(found, rank=rank) for found in of_rank.differences]
        together.gaps += [replace(gap, finding=replace(gap.finding, rank=rank)) for gap in of_rank.gaps]
        together.held |= of_rank.held
        together.verified += of_rank.verified
    together.weights = list(dict.fromkeys(name for of_rank, _ in gathered for name in of_rank.weights))
    return together
