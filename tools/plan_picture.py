"""Draw `docs/plan.svg`, the plan of a load of a real file."""

from __future__ import annotations

import argparse
import os
from html import escape
from pathlib import Path

import max_weights
from max_weights._planning import LoadPlan, PlannedRange

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "plan.svg"
MODEL = "smollm2-135m.Q4_1.gguf"
SELECT = ["blk.0.attn*", "blk.0.ffn_norm*", "blk.0.ffn_down*"]
DTYPES = {"*attn*": "bfloat16", "*ffn_down*": "float32"}
CALL = f"load({SELECT}, dtype={DTYPES})"

WIDTH, MARGIN = 940, 24
BAR, ROW = 34, 20
FILE_AT, MEMORY_AT, MEMORY_STEP = 64, 168, 74
MIN = 3.0  # minimum width of a range
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .small { font-size: 11px } .code { font-family: ui-monospace, monospace; font-size: 12px }
  .title { font-weight: 600 } .number { font-size: 11px; text-anchor: middle }
  .end { text-anchor: end }
  .empty { fill: none; stroke: #8c959f }
  .a, .b, .c, .d { stroke: #ffffff }
  .a { fill: #54aeff } .b { fill: #ffb77c } .c { fill: #6fdd8b } .d { fill: #d8b9ff }
  .flow { opacity: .25; stroke: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .number { fill: #0d1117 } .empty { stroke: #6e7681 }
    .a, .b, .c, .d { stroke: #0d1117 } .flow { opacity: .35 }
  }
"""


def plan_of(models: Path) -> LoadPlan:
    """The plan that the picture shows."""
    return max_weights.plan(max_weights.load_weights(models / MODEL), SELECT, dtype=DTYPES, backend="mmap", threads=1)


def picture(plan: LoadPlan) -> str:
    """The plan of one file as SVG: the ranges read, their order, and their destinations."""
    kinds = {action: "abcd"[number % 4] for number, action in enumerate(sorted({part.action for part in plan.ranges}))}
    first = min(part.offset for part in plan.ranges)
    last = max(part.offset + part.bytes for part in plan.ranges)
    places = sorted({part.to for part in plan.ranges})
    shapes: list[tuple[float, str]] = []
    flows = []
    for number, part in enumerate(plan.ranges, 1):
        left, width = _reach(part.offset - first, part.bytes, last - first)
        top = MEMORY_AT + MEMORY_STEP * places.index(part.to)
        to, to_width = _place(plan, part, first, last)
        flows.append(
            f'<path class="flow {kinds[part.action]}" d="M{left:.1f} {FILE_AT + BAR}h{width:.1f}'
            f'L{to + to_width:.1f} {top}h{-to_width:.1f}z"/>'
        )
        shapes.append((width, _box(kinds[part.action], left, FILE_AT, width, number)))
        shapes.append((to_width, _box(kinds[part.action], to, top, to_width, number)))
    table = MEMORY_AT + MEMORY_STEP * len(places) + 12
    height = table + ROW * (len(plan.ranges) + 1) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>What {escape(CALL, quote=False)} of {MODEL} does</title>",
        f"<style>{STYLE}</style>",
        _text(MARGIN, 24, f"{CALL} of {MODEL}", "title"),
        _text(
            MARGIN,
            FILE_AT - 10,
            f"the file from byte {first:,} to {last:,}, read once from left to right, without what lies between",
            "small",
        ),
        *flows,
    ]
    for number, place in enumerate(places):
        top = MEMORY_AT + MEMORY_STEP * number
        lines.append(f'<rect class="empty" x="{MARGIN}" y="{top}" width="{WIDTH - 2 * MARGIN}" height="{BAR}"/>')
        lines.append(_text(MARGIN, top + BAR + 15, _title(plan, place), "small"))
    lines.append(f'<rect class="empty" x="{MARGIN}" y="{FILE_AT}" width="{WIDTH - 2 * MARGIN}" height="{BAR}"/>')
    lines += [shape for _, shape in sorted(shapes, key=lambda shape: -shape[0])]  # narrow ones on top
    for number, part in enumerate(plan.ranges, 1):
        top = table + ROW * number
        lines.append(_text(MARGIN + 14, top, str(number), "code end"))
        lines.append(f'<rect class="{kinds[part.action]}" x="{MARGIN + 22}" y="{top - 10}" width="10" height="10"/>')
        for column, text, anchor in (
            (130, f"{part.offset:,}", " end"),
            (205, f"{part.bytes:,}", " end"),
            (225, part.action, ""),
            (470, f"{part.to} at {part.at:,}" if part.memory else part.to, ""),
            (700, ", ".join(part.names), ""),
        ):
            lines.append(_text(MARGIN + column, top, text, f"code{anchor}"))
    for column, text, anchor in (
        (130, "offset", " end"),
        (205, "bytes", " end"),
        (225, "what is done", ""),
        (470, "where to", ""),
        (700, "weights", ""),
    ):
        lines.append(_text(MARGIN + column, table, text, f"small{anchor}"))
    return "\n".join([*lines, "</svg>", ""])


def _reach(start: int, size: int, whole: int) -> tuple[float, float]:
    """The start and the width of a range's bar."""
    scale = (WIDTH - 2 * MARGIN) / whole
    return MARGIN + start * scale, max(size * scale, MIN)


def _place(plan: LoadPlan, part: PlannedRange, first: int, last: int) -> tuple[float, float]:
    for dtype, size in plan.arenas.items():
        if part.to == f"arena of {dtype.name}":
            return _reach(part.at, part.memory, size)
    return _reach(part.offset - first, part.bytes, last - first)


def _title(plan: LoadPlan, place: str) -> str:
    for dtype, size in plan.arenas.items():
        if place == f"arena of {dtype.name}":
            return f"{place}: {size:,} bytes, allocated"
    return f"{place}: pages of the file in the page cache; nothing is allocated"


def _box(kind: str, left: float, top: int, width: float, number: int) -> str:
    box = f'<rect class="{kind}" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR}"/>'
    if width < 14:
        return box
    return box + _text(left + width / 2, top + BAR / 2 + 4, str(number), "number")


def _text(left: float, top: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{left:.1f}" y="{top:.1f}">{escape(text)}</text>'


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    models = Path(os.environ.get("MAX_WEIGHTS_MODELS", ROOT / ".models"))
    parser.add_argument("--models", type=Path, default=models, help="the folder of the real model files")
    PICTURE.write_text(picture(plan_of(parser.parse_args().models)))


if __name__ == "__main__":
    main()
