"""The charts of the benchmarks, drawn from the tables of the pages in docs/benchmarks/.

One chart has lazy loads, and loads that touch every page; the other has the decoding rates of packed blocks.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from report import MarkerError, number

LIMIT: Final = "limit: "
LAZY: Final = "Lazy: until the call returns"
TOUCHED: Final = "Touched: until every page has been read"
# The two kinds of times never share a panel. A group is its label, the table, and the table's column.
PANELS: Final = {
    LAZY: (
        ("open and list 291 tensors", "open_list", "a, ms"),
        ("open and list 50,000 tensors", "open_list", "c, ms"),
        ("291 tensors to torch", "to_torch", "a lazy, ms"),
        ("50,000 tensors to torch", "to_torch", "c lazy, ms"),
        ("a PyTorch file of 291 tensors to torch", "torch_files", "lazy, ms"),
    ),
    TOUCHED: (
        ("291 tensors to torch", "to_torch", "a touched, ms"),
        ("50,000 tensors to torch", "to_torch", "c touched, ms"),
        ("load 291 tensors, warm", "loading", "a, ms"),
        ("load 50,000 tensors, warm", "loading", "c, ms"),
        ("load 291 tensors from the disk", "loading_cold", "a, ms"),
        ("a PyTorch file of 291 tensors to torch", "torch_files", "touched, ms"),
    ),
}
COLOURS: Final = {LAZY: "#3b6ea8", TOUCHED: "#2e8b6f"}
# The decoders of the other chart, and their upper bound.
DECODERS: Final = {"max_weights": "#2e8b6f", "ggml's C": "#3b6ea8", "gguf-py": "#a8763b"}
MEMSET: Final = "memset"
FLOAT32: Final = " → float32"


def _table(page: str, table: str) -> list[list[str]]:
    """Return the cells of a table, its heads first; none where the page has no such table."""
    found = re.search(rf"<!-- table: {re.escape(table)} -->\n((?:\|.*\n)+)", page)
    if not found:
        return []
    heads, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[1].splitlines()]
    return [heads, *rows]


def multiples(page: str, table: str, head: str) -> list[tuple[str, float]]:
    """Return the ratios in this column, the fastest loader first; empty where the page has no such column."""
    heads, *rows = _table(page, table) or [[]]
    if head not in heads:
        return []
    place = heads.index(head)
    # A row marked as untouched is in a table of touched loads for comparison only.
    bars = [
        (row[0].strip("*"), float(found[1].replace(",", "")))
        for row in rows
        if not row[0].endswith(", not touched") and (found := re.search(r"\(([\d.,]+)x\)", row[place]))
    ]
    return sorted(bars, key=lambda bar: bar[1])


def rates(page: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return GB/s of float32 by the number of threads, the type of the blocks, and the decoder."""
    heads, *rows = _table(page, "gguf_blocks") or [[]]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for label, *cells in rows:
        if parts := re.fullmatch(r"(\w+), (\d+ threads?)", label):
            values = {
                head.removesuffix(FLOAT32).strip("*"): float(cell)
                for head, cell in zip(heads[1:], cells, strict=True)
                if cell and head.endswith(FLOAT32)
            }
            found.setdefault(parts[2], {})[parts[1]] = values
    return found


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    # Text stays text and ids are stable, so the file is small and its diffs show the changed figures only.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "max_weights", "font.size": 8})
    return plt


def draw_blocks(page: str, target: Path) -> None:
    """Draw the rates at which blocks are decoded: a panel for each number of threads, a bar for each decoder."""
    plt = _pyplot()
    panels = rates(page)
    if not panels:
        raise MarkerError("the page has no decoders to draw")
    most = max(len(types) for types in panels.values())
    figure, every_axes = plt.subplots(
        1, len(panels), figsize=(8.0, 0.34 * most + 1.0), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for axes, (threads, types) in zip(every_axes[0], panels.items(), strict=True):
        axes.set_title(threads, loc="left", weight="bold", fontsize=10)
        for place, values in enumerate(types.values()):
            bars = [(decoder, colour) for decoder, colour in DECODERS.items() if decoder in values]
            height = 0.8 / len(bars)
            for row, (decoder, colour) in enumerate(bars):
                at = place - 0.4 + (row + 0.5) * height
                name = decoder if decoder not in axes.get_legend_handles_labels()[1] else None
                axes.barh(at, values[decoder], height=height, color=colour, label=name)
                if decoder == "max_weights":
                    axes.text(
                        values[decoder] - 0.3,
                        at,
                        number(values[decoder]),
                        va="center",
                        ha="right",
                        color="white",
                        size=6,
                    )
            axes.plot([values[MEMSET]] * 2, [place - 0.4, place + 0.4], color="black", label=None if place else MEMSET)
        axes.set_yticks(range(len(types)), list(types))
        axes.set_ylim(most - 0.4, -0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("GB/s of float32")
    figure.legend(*every_axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(target, format="svg", metadata={"Date": None})
    plt.close(figure)


def draw(page: str, target: Path) -> None:
    """Draw the two panels as one SVG: a bar for each loader, a group for each thing that was measured."""
    plt = _pyplot()
    panels = {
        panel: [(title, bars) for title, table, head in groups if (bars := multiples(page, table, head))]
        for panel, groups in PANELS.items()
    }
    panels = {panel: groups for panel, groups in panels.items() if groups}
    if not panels:
        raise MarkerError("the page has no results to draw")
    heights = [sum(len(bars) + 1.6 for _, bars in groups) + 1 for groups in panels.values()]
    figure, every_axes = plt.subplots(
        len(panels),
        figsize=(8.0, 0.17 * sum(heights) + 0.6 * len(panels)),
        height_ratios=heights,
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, (panel, groups) in zip(every_axes[:, 0], panels.items(), strict=True):
        axes.set_title(panel, loc="left", weight="bold", fontsize=10)
        position, ticks, labels = 0.0, [], []
        for title, bars in groups:
            axes.text(
                0.01,
                position,
                title,
                transform=axes.get_yaxis_transform(),
                va="center",
                weight="bold",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )
            for row, multiple in bars:
                position += 1.0
                colour = "#b8b8b8" if row.startswith(LIMIT) else COLOURS[panel]
                axes.barh(position, multiple - 1.0, left=1.0, height=0.8, color=colour)
                axes.text(max(multiple, 1.0) * 1.04, position, f"{number(multiple)}x", va="center")
                ticks.append(position)
                labels.append(row)
            position += 1.6
        axes.set_xscale("log")
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set_yticks(ticks, labels)
        axes.set_ylim(position, -1.0)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.spines[["top", "right"]].set_visible(False)
    left, right = every_axes[0, 0].get_xlim()
    every_axes[0, 0].set_xlim(left, right * 1.5)
    every_axes[-1, 0].set_xlabel("time as a multiple of max_weights' (log scale; grey: limits)")
    figure.savefig(target, format="svg", metadata={"Date": None})
    plt.close(figure)
