"""The results of a bench, written as JSON and as the tables of docs/benchmarks/, from which chart.py draws."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from harness import OURS

END: Final = "<!-- end -->"
PACKAGES: Final = ("max-weights", "safetensors", "runai-model-streamer", "fastsafetensors", "torch", "numpy")

# Units by name: how many of the unit one base unit (second, byte, or the figure itself) holds.
UNITS: Final = {"s": 1.0, "ms": 1e3, "µs": 1e6, "MB": 1e-6, "x": 1.0, "%": 100.0}


class MarkerError(ValueError):
    """A page's table markers do not pair up."""


@dataclass(frozen=True)
class Column:
    """One measured thing of a table: values by row in base units (seconds or bytes), shown in `unit`."""

    label: str
    unit: str
    values: Mapping[str, float]
    charted: bool = True  # has ratios after its figures; memory and the like have none
    moved: int = 0  # bytes read and written, for tables that show a throughput


@dataclass(frozen=True)
class Target:
    """A figure to reach: `value` must be at least or at most `bound`, both in `unit`."""

    label: str
    value: float
    bound: float
    sense: Literal["at least", "at most"]
    unit: str = "x"

    @property
    def met(self) -> bool:
        """Whether the figure is reached."""
        return self.value >= self.bound if self.sense == "at least" else self.value <= self.bound

    def write(self, value: float) -> str:
        """Write a value of this target with its unit."""
        return f"{number(value)}{'' if self.unit in ('', 'x') else ' '}{self.unit}"


@dataclass(frozen=True)
class Report:
    """The result of one bench: a table (loaders by columns), which rows are limits, and the targets."""

    name: str
    columns: Sequence[Column]
    targets: Sequence[Target] = ()
    limits: frozenset[str] = frozenset()
    notes: Sequence[str] = ()
    samples: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    throughput: str = ""  # the kind of a row, in a table of GB/s with a column for each loader
    across: tuple[str, ...] = ()  # parts of labels that become columns of such a table, not rows

    @property
    def rows(self) -> list[str]:
        """All loaders in the order of measurement, ours first and the limits last."""
        found = list(dict.fromkeys(row for column in self.columns for row in column.values))
        return sorted(found, key=lambda row: (row != OURS, row in self.limits))


def ratio(values: Mapping[str, float], rival: str) -> float:
    """Return the ratio of the rival's figure to ours."""
    return values[rival] / values[OURS]


def best(values: Mapping[str, float], rivals: Sequence[str]) -> str:
    """Return the rival with the smallest figure: a target against several is a target against the best."""
    return min(rivals, key=lambda rival: values[rival])


def number(value: float) -> str:
    """Write a figure with three significant digits and no exponent."""
    if value == 0:
        return "0"
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def markdown(report: Report, line: str) -> str:
    """Return the report in Markdown: its table, its targets, its notes, and `line` (the environment)."""
    table = _throughput(report) if report.throughput else _times(report)
    return "\n\n".join([table, *_targets(report, table), *report.notes, f"*{line}*"])


def _targets(report: Report, table: str) -> list[str]:
    """Return the number of met targets, a table of the missed ones, and the figures missing from `table`."""
    if not report.targets:
        return []
    missed = [target for target in report.targets if not target.met]
    sentence = f"Targets met: {len(report.targets) - len(missed)} of {len(report.targets)}."
    cells = {cell.partition("(")[0].strip() for cell in table.replace("\n", "|").split("|")}
    others = [
        f"{target.label}: {target.write(target.value)}"
        for target in report.targets
        if target.met and target.unit not in ("", "x") and number(target.value) not in cells
    ]
    if others:
        sentence += f" Also measured: {'; '.join(others)}."
    rows = [
        [target.label, f"{target.sense} {target.write(target.bound)}", target.write(target.value)] for target in missed
    ]
    return [markdown_table(["missed target", "target", "measured"], rows), sentence] if missed else [sentence]


def _throughput(report: Report) -> str:
    """Return a table of GB/s: a row for each measured thing, a column for each loader and each part of `across`."""
    parts = report.across or ("",)
    heads = [
        (loader, part)
        for part in parts
        for loader in report.rows
        if any(part in column.label and loader in column.values for column in report.columns)
    ]
    found: dict[str, dict[tuple[str, str], str]] = {}
    for column in report.columns:
        part = next(part for part in parts if part in column.label)
        row = found.setdefault(column.label.replace(part, "", 1), {})
        row |= {(loader, part): number(column.moved / value / 1e9) for loader, value in column.values.items()}
    return markdown_table(
        [report.throughput, *(f"{loader}{part}" for loader, part in heads)],
        [[label, *(row.get(head, "") for head in heads)] for label, row in found.items()],
    )


def _times(report: Report) -> str:
    """Return a table of times: a row for each loader."""
    rows = []
    for row in report.rows:
        label = f"**{row}**" if row == OURS else f"*limit: {row}*" if row in report.limits else row
        rows.append([label, *(_time(column, row) for column in report.columns)])
    return markdown_table(["loader", *(f"{column.label}, {column.unit}" for column in report.columns)], rows)


def _time(column: Column, row: str) -> str:
    """Return a figure, followed by its multiple of ours in a column that is charted: `3.92 (12.5x)`."""
    value, ours = column.values.get(row), column.values.get(OURS)
    if value is None:
        return ""
    figure = number(value * UNITS[column.unit])
    return f"{figure} ({number(value / ours)}x)" if column.charted and ours and row != OURS else figure


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown: names on the left, and figures on the right of their columns."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (heads, *rows)]
    return "\n".join([lines[0], "|---" + "|---:" * (len(heads) - 1) + "|", *lines[1:]])


def replace_table(page: str, name: str, body: str) -> str:
    """Return `page` with `body` between `<!-- table: name -->` and `<!-- end -->`, which it has."""
    begin = f"<!-- table: {name} -->"
    if page.count(begin) != 1:
        raise MarkerError(f"the page has {begin} {page.count(begin)} times; it stands there once")
    before, rest = page.split(begin)
    inside, found, after = rest.partition(END)
    if not found or "<!-- table:" in inside:
        raise MarkerError(f"the page has {begin} without {END} after it")
    return f"{before}{begin}\n{body}\n{END}{after}"


def all_tables(folder: Path) -> str:
    """Return the text of every page of a folder."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md")))


def publish(folder: Path, name: str, body: str) -> Path:
    """Write a table into the page of `folder` with its markers, or into a new page; return the page."""
    begin = f"<!-- table: {name} -->"
    pages = [path for path in sorted(folder.glob("*.md")) if begin in path.read_text(encoding="utf-8")]
    if len(pages) > 1:
        raise MarkerError(f"{begin} stands in {' and '.join(path.name for path in pages)}; one page may have it")
    page = pages[0] if pages else folder / f"{name}.md"
    if not pages:
        if page.exists():
            raise MarkerError(f"{page.name} has no {begin}")
        page.write_text(f"# {name}\n\n{begin}\n{END}\n", encoding="utf-8")
    page.write_text(replace_table(page.read_text(encoding="utf-8"), name, body), encoding="utf-8")
    return page


def environment() -> dict[str, Any]:
    """Return the environment: processor, cores, memory, kernel, Python, and the packages' versions."""
    processor = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    versions: dict[str, str] = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "packages": versions,
    }


def environment_line(found: Mapping[str, Any]) -> str:
    """Return the environment as one sentence to put below a table."""
    versions = ", ".join(f"{package} {version}" for package, version in found["packages"].items())
    return (
        f"{found['processor']}, {found['cores']} cores, {found['memory_gib']} GiB, {found['kernel']}, "
        f"Python {found['python']}; {versions}; medians of one run."
    )


def named_machine(line: str, page: Path) -> str:
    """Return a link to the list of machines on the overview `page` if it has this line, or else the line."""
    for name, text in re.findall(r"^- \*\*(Machine \w+)\*\*: (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        if text == line:
            return f"[{name}](../{page.name}#machines)"
    return line


def write_json(report: Report, folder: Path, found: Mapping[str, Any]) -> Path:
    """Write everything that was measured, single samples included, and return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.name}.json"
    content = {
        "bench": report.name,
        "environment": found,
        "columns": [asdict(column) for column in report.columns],
        "limits": sorted(report.limits),
        "targets": [{**asdict(target), "met": target.met} for target in report.targets],
        "samples_seconds": report.samples,
        "spread_seconds": {
            label: {loader: [min(seconds), max(seconds)] for loader, seconds in loaders.items() if seconds}
            for label, loaders in report.samples.items()
        },
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False, default=_plain) + "\n", encoding="utf-8")
    return path


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no place in a report")


def summary(report: Report) -> str:
    """Return the targets of a report as lines for the terminal."""
    return "\n".join(
        f"  {'met ' if target.met else 'MISS'} {target.label}: {target.write(target.value)} "
        f"({target.sense} {target.write(target.bound)})"
        for target in report.targets
    )
