"""`max-weights ls`: what is in a checkpoint, as a tree, a table or JSON.

Quarter of a million weights are ordinary here: records are made one at a time and written as they come.
"""

from __future__ import annotations

import fnmatch
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from json import dumps
from math import prod
from typing import TYPE_CHECKING, Annotated

import typer
from rich.highlighter import RegexHighlighter
from rich.text import Text
from rich.theme import Theme

from max_weights._core import files, printable, tree
from max_weights.cli.terminal import CHECKPOINT, console, errors_in_one_line, plain, plural, size, warn
from max_weights.quantization import QuantizationEncoding
from max_weights.weights import load_weights

if TYPE_CHECKING:
    from max_weights._core import WeightInfo, WeightInfos, WeightsNode

COLOURED_LINES = 5_000
"""More lines than this are printed without colour: rich takes longer for them than the file takes to open."""
WIDEST_COLUMN = 100
"""A hostile name of a megabyte must not widen a quarter of a million rows; it sticks out of its own."""


def ls(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help=CHECKPOINT)],
    flat: Annotated[bool, typer.Option("--flat", help="A table, one weight a line, in file order.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object, one weight a line.")] = False,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="GLOB", help="Only names that match (*, ?, [ab]), as a table; repeatable."),
    ] = None,
    lines: Annotated[int | None, typer.Option(min=1, help="Print at most this many lines of the listing.")] = None,
    fold: Annotated[bool, typer.Option("--fold/--no-fold", help="Fold layers that are alike into one.")] = True,
    strict: Annotated[bool, typer.Option("--strict/--no-strict", help="Refuse what other readers let pass.")] = True,
) -> None:
    """List the weights of a checkpoint: a tree of names with dtypes, shapes and sizes."""
    if json and (flat or lines is not None):
        raise typer.BadParameter("--json is complete: it goes with neither --flat nor --lines")
    with errors_in_one_line(), load_weights(paths, strict=strict) as weights:
        infos: Sequence[WeightInfo] | WeightInfos = weights.infos()
        if filters:
            matches = re.compile("|".join(map(fnmatch.translate, filters))).match
            infos = [info for info in infos if matches(info.name)]
        totals = totals_by_dtype(infos)
        if json:
            write_json(weights, infos, totals)
            return
        if flat or filters:
            write_table(infos, lines, several_files=len(files(weights)) > 1)
        else:
            write_tree(weights, lines, fold)
        write_summary(weights, totals, filtered=bool(filters))


ENCODINGS = frozenset(encoding.value for encoding in QuantizationEncoding)


def element_name(info: WeightInfo) -> str:
    """The name of the dtype, or of the encoding of packed blocks; for a type that is not known, the file's own name."""
    if info.encoding is not None:
        return info.encoding.value
    return info.dtype if isinstance(info.dtype, str) else info.dtype._name_


def totals_by_dtype(infos: Iterable[WeightInfo]) -> dict[str, tuple[int, int, int]]:
    """Weights, bytes and elements of each dtype; most bytes first."""
    totals: dict[str, tuple[int, int, int]] = {}
    for info in infos:
        name = element_name(info)
        weights, total, elements = totals.get(name, (0, 0, 0))
        totals[name] = weights + 1, total + info.bytes, elements + prod(info.logical_shape)
    return dict(sorted(totals.items(), key=lambda item: (-item[1][1], item[0])))


class Highlighter(RegexHighlighter):
    """Colours for dtypes and sizes, and dim lines for the branches."""

    base_style = "ls."
    highlights = (
        r"(?P<branch>^[│├└─ ]+)",
        r"  (?P<dtype>(?:bool|u?int|b?float|complex)\w*)(?=  )",
        r"(?P<size>[\d.]+ [kMGT]?B)$",
    )
    styles = Theme({"ls.branch": "dim", "ls.dtype": "cyan", "ls.size": "green"})


def write_tree(weights: WeightsNode, lines: int | None, fold: bool) -> None:
    """Write the tree of all weights."""
    rows = tree(weights, lines=lines, fold=fold).split("\n")
    screen = console()
    if screen.is_terminal and len(rows) <= COLOURED_LINES:
        colour = Highlighter()
        with screen.use_theme(Highlighter.styles):
            for row in rows:
                screen.print(colour(Text(row)))
    else:
        sys.stdout.writelines(row + "\n" for row in rows)


def write_table(infos: Sequence[WeightInfo] | WeightInfos, lines: int | None, *, several_files: bool) -> None:
    """Write one line a weight: name, dtype, shape, bytes, offset, aligned, and the file where there are several."""
    shown = infos if lines is None else infos[:lines]
    heads = ["name", "dtype", "shape", "bytes", "offset", "aligned", *(["file"] if several_files else [])]
    widths = [len(head) for head in heads[:-1]]
    for row in rows(shown, several_files):
        widths = [max(width, len(cell)) for width, cell in zip(widths, row, strict=False)]
    numbers = ("bytes", "offset")
    columns = [
        f"{{:{'>' if head in numbers else '<'}{min(width, WIDEST_COLUMN)}}}"
        for head, width in zip(heads, widths, strict=False)
    ]
    line = "  ".join([*columns, "{}\n"]).format  # the last column ends the line and needs no padding
    write = sys.stdout.write
    write(line(*heads))
    for row in rows(shown, several_files):
        write(line(*row))
    if len(shown) < len(infos):
        write(f"… {plural(len(infos) - len(shown), 'more weight')}\n")


def rows(infos: Iterable[WeightInfo], several_files: bool) -> Iterator[list[str]]:
    """The cells of each line of the table."""
    for info in infos:
        shape = "[" + ",".join(map(str, info.logical_shape)) + "]"
        aligned = "yes" if info.aligned else "no"
        cells = [printable(info.name), printable(element_name(info)), shape, str(info.bytes), str(info.offset), aligned]
        if several_files:
            cells.append(printable(info.file))
        yield cells


def write_summary(weights: WeightsNode, totals: dict[str, tuple[int, int, int]], *, filtered: bool) -> None:
    """Write the totals of what was listed, and the warnings on standard error."""
    count = sum(weights for weights, _, _ in totals.values())
    total = sum(total for _, total, _ in totals.values())
    listed = f"{count:,} of {plural(len(weights), 'weight')}" if filtered else plural(count, "weight")
    screen = console()
    screen.print()
    screen.print(Text(f"{listed}, {size(total)}, in {plural(len(files(weights)), 'file')}", "bold"))
    width = min(max((len(printable(name)) for name in totals), default=0), WIDEST_COLUMN)
    for name, (number, part, elements) in totals.items():
        line = Text("  ").append(f"{printable(name):{width}}", "cyan").append(f"  {size(part):>9}")
        line.append(f"  {plural(number, 'weight')}")
        if elements and name in ENCODINGS:
            line.append(f", {part * 8 / elements:.2f} bits per weight", "dim")
        screen.print(line)
    sys.stdout.flush()
    for message in weights.warnings:
        warn(message)


def write_json(
    weights: WeightsNode, infos: Sequence[WeightInfo] | WeightInfos, totals: dict[str, tuple[int, int, int]]
) -> None:
    """Write one object: files, metadata, warnings, totals, dtypes, and the weights in file order, one a line."""
    by_dtype = {name: {"weights": number, "bytes": part} for name, (number, part, _) in totals.items()}
    head = {
        "files": [os.fspath(path) for path in files(weights)],
        "metadata": {key: plain(value, None) for key, value in weights.metadata.items()},
        "warnings": weights.warnings,
        "totals": {"weights": len(infos), "bytes": sum(part for _, part, _ in totals.values())},
        "dtypes": by_dtype,
    }
    write = sys.stdout.write
    write("{\n" + "".join(f"{dumps(key)}: {dumps(value)},\n" for key, value in head.items()))
    write('"weights": [')
    between = "\n"
    for info in infos:
        record = {
            "name": info.name,
            "dtype": element_name(info),
            "shape": info.logical_shape,
            "bytes": info.bytes,
            "file": info.file,
            "offset": info.offset,
            "aligned": info.aligned,
        }
        write(between + dumps(record))
        between = ",\n"
    write("\n]\n}\n")
