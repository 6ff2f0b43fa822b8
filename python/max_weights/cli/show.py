"""`max-weights show`: one weight, with where it lies, what its values are like, and a histogram of them."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from math import prod
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.text import Text

from max_weights._core import PytorchWeights, printable, tree
from max_weights.cli.chunks import chunks_of, decoded
from max_weights.cli.statistics import Statistics, statistics
from max_weights.cli.terminal import CHECKPOINT, console, errors_in_one_line, plain, plural, size, warn
from max_weights.dtype import DType
from max_weights.weights import load_weights

if TYPE_CHECKING:
    from max_weights._core import WeightInfo, WeightsNode

BAR = 40
"""Columns of the longest bar."""
OBJECTS_SHOWN = 100
"""Values of a PyTorch file that are shown at most, and characters of each."""
OBJECT_WIDTH = 200
WIDEST_COLUMN = 100
"""A name or key that is longer sticks out of its own line, and pads no other."""
BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    dict: ("{", "}"),
    OrderedDict: ("OrderedDict({", "})"),
    Counter: ("Counter({", "})"),
    defaultdict: ("defaultdict(None, {", "})"),
}
"""What stands around the parts of a container in its representation."""
COMPLETIONS = 500
"""Names offered to a shell at most."""


def complete_name(context: typer.Context, incomplete: str) -> list[str]:
    """What a shell offers for NAME: the next component of the names that begin so. A broken file offers nothing."""
    try:
        with load_weights(context.params["path"], strict=False) as weights:
            parent = incomplete.rpartition(".")[0]
            node = weights[parent] if parent else weights
            names = [f"{parent}.{child}" if parent else child for child in node._ipython_key_completions_()]
            names = [name for name in names if name.startswith(incomplete) and printable(name) == name][:COMPLETIONS]
            # A branch is offered with its dot, so that the next press of the key goes on below it.
            return [name if weights[name].exists() else name + "." for name in names]
    except Exception:
        return []


def show(
    path: Annotated[str, typer.Argument(metavar="PATH", help=CHECKPOINT)],
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]", help="A weight, or a prefix of several; none: the metadata.", autocompletion=complete_name
        ),
    ] = "",
    values: Annotated[bool, typer.Option("--values/--no-values", help="Read the values for the statistics.")] = True,
    bins: Annotated[int, typer.Option(min=0, max=200, help="Bins of the histogram; 0 for none.")] = 12,
    strict: Annotated[bool, typer.Option("--strict/--no-strict", help="Refuse what other readers let pass.")] = True,
) -> None:
    """Show one weight: dtype, shape, place in the file, statistics and a histogram.

    A prefix shows its subtree; without a name, the metadata of the files is shown.
    """
    with errors_in_one_line(), load_weights(path, strict=strict) as weights:
        if not name:
            write_metadata(weights)
            write_objects(weights)
            return
        node = weights[name]
        below = len(node)
        if node.exists():
            info = next(info for info in node.infos() if info.name == name)
            write_weight(node, info, bins if values else None)
            below -= 1
        elif not below and isinstance(node, PytorchWeights) and len(node.objects()):
            write_objects(node)
        elif not below:
            node.data()  # raises the error that names the nearest weights
        if below:
            sys.stdout.write(tree(node) + "\n")
        sys.stdout.flush()
        for message in weights.warnings:
            warn(message)


def write_metadata(weights: WeightsNode) -> None:
    """Write the key-value pairs, one a line."""
    metadata = weights.metadata
    width = min(max((len(printable(key)) for key in metadata), default=0), WIDEST_COLUMN)
    screen = console()
    for key in metadata:
        screen.print(Text(f"{printable(key):{width}}  ", "dim").append(printable(str(plain(metadata[key]))), "default"))
    if not len(metadata):
        screen.print("no metadata")


def write_objects(node: WeightsNode) -> None:
    """Write the values of a PyTorch file that are no weights, one a line."""
    if not isinstance(node, PytorchWeights):
        return
    found = node.objects()
    names = list(found)[:OBJECTS_SHOWN]
    width = max((len(printable(name)) for name in names), default=0)
    screen = console()
    for name in names:
        text = brief(found[name])
        screen.print(Text(f"{printable(name):{min(width, WIDEST_COLUMN)}}  ", "dim").append(printable(text), "default"))
    if len(found) > len(names):
        screen.print(f"… {plural(len(found) - len(names), 'more value')}")


def brief(value: object) -> str:
    """What `repr` begins with, cut: values that hold each other many times over have one without end."""
    text = ""
    for piece in pieces(value, set()):
        text += piece
        if len(text) > OBJECT_WIDTH:
            return text[:OBJECT_WIDTH] + "…"
    return text


def pieces(value: object, within: set[int]) -> Iterator[str]:
    """The representation of a value, piece by piece; `within` are the containers that it stands in."""
    kind = type(value)
    if kind not in BRACKETS:
        # A text is cut before its representation is made, which can be ten times as long.
        yield repr(value[: OBJECT_WIDTH + 1] if isinstance(value, str | bytes | bytearray) else value)
        return
    if not value:
        yield repr(value)
        return
    before, after = BRACKETS[kind]
    if id(value) in within:
        yield f"{before}...{after}"
        return
    yield before
    items = value.items() if isinstance(value, dict) else ((item,) for item in cast("Iterable[object]", value))
    for number, item in enumerate(items):
        if number:
            yield ", "
        yield from pieces(item[0], within | {id(value)})
        if len(item) > 1:
            yield ": "
            yield from pieces(item[1], within | {id(value)})
    yield "," + after if kind is tuple and len(cast("tuple[object, ...]", value)) == 1 else after


def write_weight(node: WeightsNode, info: WeightInfo, bins: int | None) -> None:
    """Write what the header says of a weight, and of its values unless `bins` is None."""
    elements = prod(info.logical_shape)
    rows = {
        "dtype": element_type(info),
        "shape": f"{list(info.logical_shape)}, {plural(elements, 'element')}",
        "size": f"{size(info.bytes)} ({plural(info.bytes, 'byte')})" if info.bytes >= 1000 else size(info.bytes),
        "file": info.file,
        "offset": f"{info.offset:,}",
        "alignment": alignment(info),
    }
    found = None
    if bins is not None:
        found, more = values_of(node, info, bins)
        rows |= more
    screen = console()
    screen.print(Text(printable(info.name), "bold"))
    width = max(map(len, rows))
    for label, text in rows.items():
        screen.print(Text(f"  {label:{width}}  ", "dim").append(printable(text), "default"))
    if found is not None and found.bins:
        write_histogram(found)


def element_type(info: WeightInfo) -> str:
    """The dtype, or the encoding of packed blocks with what it costs."""
    if info.encoding is not None:
        elements, block = info.encoding.elements_per_block, info.encoding.block_size
        return f"{info.encoding.value}, {elements} elements in {block} bytes, {block * 8 / elements:.2f} bits each"
    return info.dtype if isinstance(info.dtype, str) else info.dtype.name


def alignment(info: WeightInfo) -> str:
    """How well the first byte is placed, and what that means."""
    placed = min(info.offset & -info.offset or 4096, 4096)
    if isinstance(info.dtype, str):
        return str(placed)
    wanted = f"{placed}; {info.dtype.name} wants {info.dtype.align}"
    return f"{wanted}: used without a copy" if info.aligned else f"{wanted}: copied when it is used"


def values_of(node: WeightsNode, info: WeightInfo, bins: int) -> tuple[Statistics | None, dict[str, str]]:
    """The statistics, and their rows; or none, and a row that says why."""
    dtype = info.dtype
    if isinstance(dtype, str):
        return None, {"values": "not read: this version does not know the type"}
    if dtype.size_in_bits % 8:
        return None, {"values": f"not read: elements of {dtype.size_in_bits} bits are packed"}
    if not info.bytes:
        return None, {"values": "none: the tensor is empty"}
    more = {}
    if info.encoding is None:
        chunks, repeats, taken = chunks_of(node, info, dtype)
        if taken < prod(info.shape):
            more["values"] = f"{taken:,} of them: the tensor lies over the same elements of the file again and again"
    else:
        chunks, repeats = decoded(node, info.encoding), 1
    found = statistics(chunks, bins)
    found.repeat(repeats)
    return found, more | value_rows(found, dtype if info.encoding is None else DType.float32)


def value_rows(found: Statistics, dtype: DType) -> dict[str, str]:
    """The statistics by label."""

    def share(count: int) -> str:
        return f"{count:,} ({count / found.count:.2%})" if count else "0"

    exact = not dtype.is_float() and dtype is not DType.complex64
    rows = {
        "min": number(found.minimum, exact),
        "max": number(found.maximum, exact),
        "mean": number(found.mean),
        "std": number(found.deviation),
        "zeros": share(found.zeros),
    }
    if not exact:
        rows["NaN"], rows["Inf"] = share(found.nans), share(found.infinities)
    if dtype is DType.complex64:
        return {"values": "magnitudes of complex numbers", **rows}
    if dtype is DType.bool and found.maximum is not None and found.maximum > 1:
        rows["values"] = "there are bytes other than 0 and 1, which readers take differently"
    return rows


def number(value: float | int | None, exact: bool = False) -> str:
    """A number in the digits that matter; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:,}" if exact else f"{value + 0.0:.6g}"  # -0 is 0


def write_histogram(found: Statistics) -> None:
    """Write one bar a bin."""
    most = max(count for _, _, count in found.bins)
    screen = console()
    labels = [
        number(low, isinstance(low, int)) if low == high else f"{low:.3g} … {high:.3g}" for low, high, _ in found.bins
    ]
    wide = max(map(len, labels))
    eighths = screen.encoding.startswith("utf")
    screen.print()
    for label, (_, _, count) in zip(labels, found.bins, strict=True):
        shown = bar(count / most, eighths) if most else ""
        screen.print(Text(f"  {label:>{wide}}  ").append(f"{shown} " if shown else "", "cyan").append(f"{count:,}"))


def bar(share: float, eighths: bool) -> str:
    """A bar for a share of the longest one; what is there at all is seen."""
    if not eighths:
        return "#" * max(round(BAR * share), 1 if share else 0)
    parts = max(round(BAR * 8 * share), 1 if share else 0)
    return "█" * (parts // 8) + " ▏▎▍▌▋▊▉"[parts % 8].strip()
