"""The report of what was loaded into a module, of torch or of this package; and the error for what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from max_weights._core import escape, near_names
from max_weights._dtype import DType
from max_weights._html import count, details, table
from max_weights._result import Finding, Result
from max_weights.errors import ArgumentError

__all__ = ["LoadReport", "mismatch_error", "suggestions"]

_LISTED = 20
_NAMED = 5


@dataclass(frozen=True, repr=False)
class LoadReport(Result):
    """The names that were loaded into a module; ok if no weight is missing and nothing is unexpected.

    Names are the module's, and of `unexpected` and `non_persistent` the file's, renamed. Kinds of findings: "missing",
    "unexpected".
    """

    _KINDS = ("missing", "unexpected")

    missing: tuple[str, ...]
    """Weights of the module that the file or state dict does not have, in the order of the module."""
    unexpected: tuple[str, ...]
    """Names in the file or state dict that the module does not have, in its order."""
    loaded: tuple[str, ...] = ()
    """Weights that got their values, in the order of the module."""
    non_persistent: tuple[str, ...] = ()
    """Names in the file of buffers that the module does not save, and whose values it keeps."""
    converted: Mapping[str, tuple[DType | str, DType | str]] = field(default_factory=dict)
    """{name: (the dtype or packing in the file, the new dtype)} of tensors whose elements were converted."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """{name: the name under which the file has the values} of tensors that share memory with another."""
    bytes: int = 0
    """The number of bytes of the module that were filled; 0 if that was not counted."""
    seconds: float = 0.0
    """How long it took, including opening the file; 0 if that was not measured."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The missing names, then the unexpected ones."""
        missing = [Finding(name, "there is no value for it", kind="missing") for name in self.missing]
        return (
            *missing,
            *(Finding(name, "the module has no such weight", kind="unexpected") for name in self.unexpected),
        )

    def _summary(self) -> str:
        done = f"{len(self.loaded):,} loaded"
        if self.seconds:
            done += f", {self.bytes / 1e6:,.1f} MB in {self.seconds:.2f} s ({self.bytes / self.seconds / 1e9:.2f} GB/s)"
        counts = ("missing", self.missing), ("unexpected", self.unexpected)
        return done + "".join(f", {len(names):,} {what}" for what, names in counts if names)

    def _details(self) -> list[str]:
        kinds: dict[str, list[str]] = {}
        for name, (old, new) in self.converted.items():
            kinds.setdefault(f"{_kind(old)} -> {_kind(new)}", []).append(name)
        lines = [f"converted, {kind}: {_some(names)}" for kind, names in kinds.items()]
        if self.tied:
            lines.append(f"tied: {_some([f'{name} = {other}' for name, other in self.tied.items()])}")
        return lines + ([f"non_persistent: {_some(self.non_persistent)}"] if self.non_persistent else [])

    def _parts(self) -> Iterator[str]:
        for kind, names in ("loaded", self.loaded), ("non_persistent", self.non_persistent):
            if names:
                yield details(kind, count(len(names), "name"), table(("name",), zip(names), code=("name",)))


def _kind(dtype: DType | str) -> str:
    return escape(dtype) if isinstance(dtype, str) else repr(dtype)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(map(escape, names[:_NAMED])) + more


def mismatch_error(
    what: str, missing: Sequence[str], unexpected: Sequence[str], problems: Sequence[str], remedy: str
) -> ArgumentError:
    """Return the error that lists everything that is missing, unexpected, or does not fit.

    The first line begins with `what` ("the file does not fit Model"), and ends with `remedy` if names differ.
    """
    kinds = ("missing", missing), ("unexpected", unexpected), ("that do not fit", problems)
    lines = [f"{what}: {', '.join(f'{len(names):,} {kind}' for kind, names in kinds if names)}"]
    near = suggestions(unexpected, missing[:_LISTED])
    named = [f"'{escape(name)}'{suggestion}" for name, suggestion in zip(missing, near, strict=False)]
    lines += _section("missing", named, len(missing))
    lines += _section("unexpected", [f"'{escape(name)}'" for name in unexpected[:_LISTED]], len(unexpected))
    lines += _section("does not fit", problems[:_LISTED], len(problems))
    if missing or unexpected:
        lines.append(f"({remedy})")
    return ArgumentError("\n".join(lines), rule="argument.mismatch")


def suggestions(names: Iterable[str], absent: Sequence[str]) -> list[str]:
    """Return, for each unknown name, the similar ones of `names` as the end of a sentence; or nothing."""
    texts = []
    for near in near_names(list(names), list(absent)):
        quoted = [f"'{escape(name)}'" for name in near]
        listed_names = " or ".join(filter(None, [", ".join(quoted[:-1]), *quoted[-1:]]))
        texts.append(f" (did you mean {listed_names}?)" if near else "")
    return texts


def _section(title: str, lines: Sequence[str], total: int) -> list[str]:
    rest = [f"  and {total - _LISTED:,} more"] if total > _LISTED else []
    return [f"{title}:", *(f"  {line}" for line in lines), *rest] if total else []
