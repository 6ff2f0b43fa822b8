"""The report of `load_into`, and its error for everything that does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from max_weights._core import near_names, shown
from max_weights.dtype import DType
from max_weights.errors import ArgumentError

__all__ = ["LoadReport", "misfit"]

_LISTED = 20
_NAMED = 5


@dataclass(frozen=True, repr=False)
class LoadReport:
    """What `load_into` did. Names are the module's; those of `unexpected` and `kept` are the file's, renamed."""

    loaded: tuple[str, ...]
    """Parameters and buffers that got their values from the file, in the order of the module."""
    missing: tuple[str, ...]
    """Parameters and buffers that the file does not have."""
    unexpected: tuple[str, ...]
    """Names in the file that the module does not have."""
    kept: tuple[str, ...]
    """Names in the file of buffers that the module does not save; they keep the values that the module gave them."""
    converted: Mapping[str, tuple[DType | str, DType | str]]
    """{name: (the dtype or packing in the file, the new dtype)} of tensors whose elements were converted."""
    tied: Mapping[str, str]
    """{name: the name under which the file has the values} of tensors that share memory with another."""
    bytes: int
    """The number of bytes of the module that were filled."""
    seconds: float
    """How long it took, including opening the file."""

    def __repr__(self) -> str:
        rate = f" ({self.bytes / self.seconds / 1e9:.2f} GB/s)" if self.seconds else ""
        lines = [f"LoadReport: {len(self.loaded):,} loaded, {self.bytes / 1e6:,.1f} MB in {self.seconds:.2f} s{rate}"]
        kinds: dict[str, list[str]] = {}
        for name, (old, new) in self.converted.items():
            kinds.setdefault(f"{_kind(old)} -> {_kind(new)}", []).append(name)
        lines += [f"  converted, {kind}: {_some(names)}" for kind, names in kinds.items()]
        if self.tied:
            lines.append(f"  tied: {_some([f'{name} = {other}' for name, other in self.tied.items()])}")
        for what in ("missing", "unexpected", "kept"):
            if names := getattr(self, what):
                lines.append(f"  {what}: {_some(names)}")
        return "\n".join(lines)


def _kind(dtype: DType | str) -> str:
    return shown(dtype) if isinstance(dtype, str) else repr(dtype)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(map(shown, names[:_NAMED])) + more


def misfit(module: str, missing: Sequence[str], unexpected: Sequence[str], problems: Sequence[str]) -> ArgumentError:
    """Return the error that lists everything that is missing, unexpected, or does not fit."""
    counts = [
        f"{len(names):,} {what}"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("that do not fit", problems))
        if names
    ]
    lines = [f"the file does not fit {shown(module)}: {', '.join(counts)}"]
    near = near_names(list(unexpected), list(missing[:_LISTED]))
    lines += _section("missing", (_with_near(*pair) for pair in zip(missing, near, strict=False)), len(missing))
    lines += _section("unexpected", (f"'{shown(name)}'" for name in unexpected[:_LISTED]), len(unexpected))
    lines += _section("does not fit", problems[:_LISTED], len(problems))
    if missing or unexpected:
        lines.append("(strict=False takes what fits, and reports the rest; rename= gives weights other names)")
    return ArgumentError("\n".join(lines))


def _with_near(name: str, near: Sequence[str]) -> str:
    meant = " or ".join(f"'{shown(one)}'" for one in near)
    return f"'{shown(name)}'" + (f" (did you mean {meant}?)" if meant else "")


def _section(title: str, lines: Iterable[str], total: int) -> list[str]:
    rest = [f"  and {total - _LISTED:,} more"] if total > _LISTED else []
    return [f"{title}:", *(f"  {line}" for line in lines), *rest] if total else []
