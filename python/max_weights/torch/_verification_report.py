"""The report of `verify_loaded`, of one process or of several ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from max_weights._core import escape
from max_weights._html import count
from max_weights._result import Finding, Result
from max_weights._selection import fits, not_found
from max_weights._typing import known
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from max_weights._ranks.failure import Failure
    from max_weights._selection import Pattern

__all__ = ["Outcome", "VerificationReport", "of_all_ranks"]


@dataclass(frozen=True, repr=False)
class VerificationReport(Result):
    """The result of a verification; ok if the module matches the checkpoint exactly.

    Kinds of findings: "differs", "not compared" (the message says why), "unfilled" and "unused". An "unfilled"
    parameter or saved buffer is filled by no weight. An "unused" weight, named by its renamed name, is held by no
    parameter or buffer, with `group` on no rank. The name of the weight that a parameter should be is `other`. With
    `group` the findings are those of all ranks.
    """

    _KINDS = ("differs", "not compared", "unfilled", "unused")

    findings: tuple[Finding, ...]
    verified: tuple[str, ...]
    """The names of all parameters and buffers that were compared, on this rank."""
    bytes: int
    """Bytes of these."""
    seconds: float
    compared: int = 0
    """How many parameters and buffers were compared, with `group` by all ranks together."""

    @property
    def ok(self) -> bool:
        """Whether the module matches the checkpoint exactly, except for what `ignore` excuses."""
        return not self.findings and self.compared > 0

    @property
    def unused(self) -> tuple[str, ...]:
        """The names of the findings of this kind."""
        return tuple(known(finding.name) for finding in self.by_kind("unused"))

    @property
    def unfilled(self) -> tuple[str, ...]:
        """The names of the findings of this kind."""
        return tuple(dict.fromkeys(known(finding.name) for finding in self.by_kind("unfilled")))

    def _summary(self) -> str:
        kinds = Counter(finding.kind for finding in self.findings)
        summary = f"{self.compared} parameters and buffers were compared, {count(len(self.findings), 'finding')}"
        return summary + (f" ({', '.join(f'{number:,} {kind}' for kind, number in kinds.items())})" if kinds else "")


@dataclass
class Outcome:
    """The findings of one process or of several, before anything is excused."""

    differences: list[Finding] = field(default_factory=list)
    gaps: list[tuple[Finding, tuple[str, ...]]] = field(default_factory=list)
    """The tensors that were not compared, with all of their names in the module."""
    weights: list[str] = field(default_factory=list)
    """The renamed names of all weights of the checkpoint."""
    held: set[str] = field(default_factory=set)
    """The renamed names of weights that a parameter or buffer of the module holds."""
    verified: list[str] = field(default_factory=list)

    def leave_out(self, name: str, weight: str | None, why: str, names: Iterable[str], *, unfilled: bool) -> None:
        """Record a tensor that was not compared, and why."""
        finding = Finding(name, why, kind="unfilled" if unfilled else "not compared", other=weight)
        self.gaps.append((finding, tuple(names)))

    def reported(
        self, ignore: Collection[Pattern] | None, verified: tuple[str, ...], size: int, seconds: float
    ) -> VerificationReport:
        """Return the report, without the findings that the patterns of `ignore` excuse.

        Raises:
            ArgumentError: `ignore` is empty, or names only compared tensors (a ValueError).
            WeightNotFoundError: a pattern matches no name.
        """
        unused = [name for name in self.weights if name not in self.held]
        gaps = self.gaps
        if ignore is not None:
            excuses = self._excuses(ignore, unused)
            unused = [name for name in unused if name not in excuses]
            gaps = [(gap, names) for gap, names in gaps if excuses.isdisjoint(names)]
        findings = sorted((*self.differences, *(gap for gap, _ in gaps)), key=lambda found: found.rank or 0)
        findings += [Finding(name, "no parameter or buffer holds this weight", kind="unused") for name in unused]
        return VerificationReport(tuple(findings), verified, size, seconds, len(self.verified))

    def _excuses(self, ignore: Collection[Pattern], unused: list[str]) -> set[str]:
        """Return the names that the patterns excuse: each has to excuse one, and none excuses a difference."""
        if not ignore:
            raise ArgumentError("ignore is empty, so that it changes nothing: leave it out", rule="argument.no-effect")
        among = [*unused, *(name for _, names in self.gaps for name in names)]
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
                    f"ignore names '{escape(text)}', which changes nothing: '{escape(compared)}' was compared, and "
                    "ignore excuses only weights that nothing holds and parameters that nothing fills; leave it out",
                    rule="argument.no-effect",
                )
            excused.update(fitting)
        return excused


def of_all_ranks(outcome: Outcome | None, error: Exception | None, group: ProcessGroup) -> Outcome:
    """Return the findings of all ranks of a group, or raise the error of one of them.

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
        place = f"rank {rank}"
        together.differences += [replace(found, rank=rank, place=place) for found in of_rank.differences]
        together.gaps += [(replace(gap, rank=rank, place=place), names) for gap, names in of_rank.gaps]
        together.held |= of_rank.held
        together.verified += of_rank.verified
    together.weights = list(dict.fromkeys(name for of_rank, _ in gathered for name in of_rank.weights))
    return together
