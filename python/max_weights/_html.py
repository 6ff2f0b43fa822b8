"""The views that notebooks show of objects: foldable, in the colours of the page, without scripts or network access.

A view is one block, `<div class="max-weights">`, with its style. All text is escaped here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape
from itertools import islice

from max_weights._core import printable

__all__ = ["Html", "bad", "count", "details", "frame", "paragraph", "pre", "properties", "sparkline", "table", "view"]

ROWS = 100
"""The most rows of a table that are shown."""
_CHARACTERS = 400
"""The most characters of a cell that are shown."""
_LINES = 40
"""The most lines of a longer text that are shown."""
_WIDTH, _HEIGHT = 120, 22
"""The size of a sparkline, in pixels."""

# Colours are those of the page, and mixtures of them, so that they fit light and dark pages and the themes of
# JupyterLab and VS Code, whose colours are used if they are defined.
STYLE = """
.max-weights{color:var(--jp-content-font-color1,var(--vscode-foreground,inherit));
font:13px/1.45 var(--jp-content-font-family,var(--vscode-font-family,system-ui,sans-serif));
--mw-line:color-mix(in srgb,currentColor 18%,transparent);--mw-soft:color-mix(in srgb,currentColor 68%,transparent);
--mw-accent:color-mix(in srgb,var(--jp-brand-color1,var(--vscode-textLink-foreground,#3b82d0)) 85%,currentColor);
--mw-bad:color-mix(in srgb,#e5484d 80%,currentColor);--mw-mono:ui-monospace,Menlo,Consolas,monospace;
container-type:inline-size;max-width:100%}
.max-weights details{margin:0}
.max-weights summary{cursor:pointer;padding:2px 0;list-style-position:inside}
.max-weights :is(.mw-in,.mw-tree details>:not(summary)){margin-left:1.2em}
.max-weights p{margin:.3em 0;max-width:75em;overflow-wrap:anywhere}
.max-weights small{color:var(--mw-soft);font-size:1em}
.max-weights .mw-box{overflow:auto;max-height:32em;margin:.2em 0 .5em;scrollbar-width:thin;
scrollbar-color:var(--mw-line) transparent}
.max-weights table{border-collapse:collapse;border:0;margin:0;table-layout:auto;width:auto;font-size:inherit}
.max-weights :is(th,td){text-align:left;vertical-align:top;padding:3px 1.1em 3px 0;border:0;max-width:48em;
overflow-wrap:break-word;white-space:normal;background:none;color:inherit}
.max-weights tr{border:0;border-top:1px solid var(--mw-line);background:none!important}
.max-weights :is(thead tr,tbody:first-child tr:first-child){border-top:0}
.max-weights th{color:var(--mw-soft);font-weight:500;white-space:nowrap}
.max-weights .mw-n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.max-weights td.mw-m{white-space:nowrap}
.max-weights td.mw-l{min-width:14em;overflow-wrap:anywhere}
.max-weights td.mw-m,.max-weights pre{font-family:var(--mw-mono);font-size:12px}
.max-weights pre{margin:.2em 0;overflow-x:auto;color:inherit;background:none}
.max-weights svg{display:block;fill:var(--mw-accent)}
.max-weights .mw-bad{color:var(--mw-bad)}
.max-weights progress{width:min(20em,60%);accent-color:var(--mw-accent);vertical-align:middle;margin-right:.8em}
.mw-tree{font-family:var(--mw-mono);font-size:12px;max-width:62em}
.max-weights .mw-row{display:grid;grid-template-columns:minmax(8em,1fr) 17ch 20ch 10ch;column-gap:1ch;padding:1px 0}
.mw-row>span{overflow-wrap:anywhere}
.mw-row>span:nth-child(n+2){color:var(--mw-soft)}
.mw-row>span:nth-child(4){text-align:right;font-variant-numeric:tabular-nums}
.mw-row>span:first-child::before{content:"";display:inline-block;width:1.4em}
summary.mw-row::-webkit-details-marker{display:none}
summary.mw-row>span:first-child::before{content:"▸"}
details[open]>summary.mw-row>span:first-child::before{content:"▾"}
.mw-row:hover{background:color-mix(in srgb,currentColor 7%,transparent)}
@container (max-width:44em){.max-weights td.mw-m:first-child{white-space:normal;overflow-wrap:anywhere;min-width:11em}
.max-weights .mw-row{grid-template-columns:1fr auto auto}
.mw-row>span:first-child{grid-column:1/-1}.mw-row>span:nth-child(2){padding-left:1.4em}}
"""


class Html(str):
    """Markup that was created here, and is not escaped again."""

    __slots__ = ()


def frame(*parts: str) -> str:
    """Return the block that a notebook shows: these parts, with their style."""
    return f'<div class="max-weights"><style>{STYLE}</style>{"".join(parts)}</div>'


def view(title: object, about: object, *parts: str) -> str:
    """Return a block of one part that folds."""
    return frame(details(title, about, *parts))


def details(title: object, about: object, *parts: str, is_open: bool = True) -> Html:
    """Return a section that folds: a title, a few words after it, and the content below."""
    summary = f"<summary><b>{_text(title)}</b> <small>{_text(about)}</small></summary>"
    return Html(f"<details{' open' if is_open else ''}>{summary}<div class='mw-in'>{''.join(parts)}</div></details>")


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    total: int | None = None,
    numbers: Collection[str] = (),
    code: Collection[str] = (),
    long: Collection[str] = (),
) -> Html:
    """Return a table of the first of `total` rows; those that are not shown are not taken.

    Columns of `code`, such as names, are not broken; those of `long` text may be, anywhere.
    """
    if total is None:
        rows = list(rows)
        total = len(rows)
    names = {"mw-n": numbers, "mw-m": code, "mw-l": long}
    kinds = [next((f' class="{name}"' for name, heads in names.items() if head in heads), "") for head in columns]
    head = "".join(f"<th{kind}>{_text(column)}</th>" for column, kind in zip(columns, kinds, strict=True))
    body = []
    for row in islice(rows, ROWS):
        cells = (f"<td{kind}>{_text(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        body.append(f"<tr>{''.join(cells)}</tr>")
    if not body:
        return Html("")
    more = paragraph(f"… and {total - ROWS:,} more") if total > ROWS else ""
    box = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return Html(f"<div class='mw-box'>{box}</div>{more}")


def properties(pairs: Iterable[tuple[str, object]]) -> Html:
    """Return a table of the properties of one object: names and values; those that are `None` are left out."""
    rows = (f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in pairs if value is not None)
    return Html(f"<div class='mw-box'><table><tbody>{''.join(rows)}</tbody></table></div>")


def paragraph(text: object) -> Html:
    """Return a line of text."""
    return Html(f"<p>{_text(text, 4 * _CHARACTERS)}</p>")


def pre(text: str) -> Html:
    """Return lines verbatim; only the first if there are many."""
    lines = text.splitlines()
    cut = [*lines[:_LINES], "…"] if len(lines) > _LINES else lines
    return Html(f"<pre>{'<br>'.join(_text(line) for line in cut)}</pre>")


def bad(text: object) -> Html:
    """Return text that says that something is wrong."""
    return Html(f"<span class='mw-bad'>{_text(text)}</span>")


def sparkline(counts: Sequence[int]) -> Html:
    """Return a histogram as small as a word: bars whose heights are counts."""
    if not counts:
        return Html("")
    most = max(*counts, 1)
    step = _WIDTH / len(counts)
    bars = "".join(
        # A count that is not 0 is always visible.
        f"M{number * step:.4g} {_HEIGHT}h{step * 0.85:.3g}v-{max(1.0, _HEIGHT * count / most):.3g}H{number * step:.4g}z"
        for number, count in enumerate(counts)
        if count
    )
    label = f"histogram of {sum(counts):,} values in {len(counts)} bins"
    return Html(
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
        f'<path d="{bars}"/></svg>'
    )


def count(number: int, noun: str) -> str:
    """Return a count with its noun: `1 weight`, `1,234 weights`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _text(value: object, most: int = _CHARACTERS) -> str:
    """Return a value as the text of an element."""
    if isinstance(value, Html):
        return value
    if value is None:
        text = ""
    elif isinstance(value, bool) or not isinstance(value, int | float | tuple):
        text = str(value)
    elif isinstance(value, tuple):
        text = str(list(value))
    else:
        text = f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    text = printable(text[: most + 1])
    return escape(text if len(text) <= most else text[:most] + "…")
