"""The contents of a model: `model.summary()` as a table, and `print(model)` as a tree that shows equal layers once.

Both are based on the counts in this module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from max_weights._core import escape
from max_weights._html import details, pre, view
from max_weights._html import table as html_table
from max_weights._shape import Shape, listed
from max_weights.graph._weight import Weight
from max_weights.nn._walk import SHARED, ModuleNode, Walk, contents

if TYPE_CHECKING:
    from typing import TextIO


@dataclass
class Count:
    """Sums over weights."""

    parameters: int = 0
    """The number of elements of the weights whose shapes are static."""
    symbolic: int = 0
    """The number of weights with other shapes."""
    bytes: int = 0
    weights: int = 0
    loaded: int = 0
    """The number of weights that have values."""
    dtypes: set[str] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)

    def add(self, weight: Weight) -> None:
        """Count a weight."""
        shape = elements_shape(weight)
        self.weights += 1
        self.loaded += weight.value is not None
        encoding = weight.quantization_encoding
        self.dtypes.add(weight.dtype.name if encoding is None else encoding.value)
        self.devices.add(str(weight.device))
        if shape.is_static:
            self.parameters += math.prod(shape.static_dims)
        else:
            self.symbolic += 1
        if weight.shape.is_static:
            self.bytes += -(-weight.dtype.size_in_bits * math.prod(weight.shape.static_dims) // 8)

    @property
    def text(self) -> str:
        """The number of parameters in a readable form."""
        unknown = f" + {self.symbolic} of symbolic shape" if self.symbolic else ""
        return f"{self.parameters:,}{unknown}"


class Census:
    """The modules and weights of a model; each weight counts at its first place.

    Two weights with the same name are no error here, so that an incomplete model can be printed.
    """

    def __init__(self, root: ModuleNode) -> None:
        walk = Walk(root)
        self.modules = list(zip(walk.paths, walk.modules, strict=True))
        self.paths = {id(module): path for path, module in self.modules}
        self.own: dict[str, dict[str, Weight]] = {}
        counted: set[int] = set()
        for full_name, weight in zip(walk.names, walk.weights, strict=True):
            if id(weight) not in counted:
                counted.add(id(weight))
                name = weight.local_name
                weights = self.own.setdefault(full_name[: -len(name)].removesuffix("."), {})
                while name in weights:
                    name += "'"
                weights[name] = weight

    def below(self, depth: int | None = None) -> dict[str, Count]:
        """Return counts by paths of at most `depth` components, each including those below."""
        counts = {path: Count() for path, _ in self.modules if depth is None or _depth(path) <= depth}
        parents = self._parents()
        for path, weights in self.own.items():
            at: str | None = path
            while at is not None:
                if at in counts:
                    for weight in weights.values():
                        counts[at].add(weight)
                at = parents[at]
        return counts

    def _parents(self) -> dict[str, str | None]:
        """Return the path of the module around each module; indices and keys of plain containers are no modules."""
        paths = {path for path, _ in self.modules}
        parents: dict[str, str | None] = {}
        for path in paths:
            up, parent = path, None
            while up:
                up = up.rpartition(".")[0]
                if up in paths:
                    parent = up
                    break
            parents[path] = parent
        return parents


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0


def elements_shape(weight: Weight) -> Shape:
    """Return the shape in elements: the declared one of a packed weight."""
    return weight.shape if weight.quantization_encoding is None else weight.original_dtype_and_shape[1]


COLUMNS = ("module", "type", "parameters", "MB", "dtype", "device", "loaded")
NUMBERS = frozenset({"parameters", "MB", "loaded"})


def table(root: ModuleNode, depth: int | None = None) -> list[tuple[str, ...]]:
    """Return a row for each module, breadth first, below the header; the first one is the sum."""
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or depth < 0):
        raise ValueError(f"depth must be a number of components, 0 or more, not {depth!r}")
    census = Census(root)
    counts = census.below(depth)
    rows: list[tuple[str, ...]] = [COLUMNS]
    for path, module in census.modules:
        count = counts.get(path)
        if count is not None:
            row = (
                escape(path) or "(all)",
                type(module).__name__,
                count.text,
                f"{count.bytes / 1e6:,.1f}",
                ", ".join(sorted(count.dtypes)),
                ", ".join(sorted(count.devices)),
                f"{count.loaded:,}/{count.weights:,}" if count.weights else "",
            )
            rows.append(row)
    return rows


def print_summary(root: ModuleNode, depth: int | None, file: TextIO | None) -> None:
    """Print the table."""
    rows = table(root, depth)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            f"{cell:>{width}}" if head in NUMBERS else f"{cell:{width}}"
            for head, cell, width in zip(COLUMNS, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip(), file=file)


def html(root: ModuleNode) -> str:
    """Return what a notebook shows: the tree and the table."""
    (_, _, parameters, *_), *_ = rows = table(root)[1:]
    parts = (
        html_table(COLUMNS, rows, numbers=NUMBERS, code=("module", "type")),
        details("tree", "", pre(tree(root)), is_open=False),
    )
    return view(type(root).__name__, f"{_modules(len(rows))}, {parameters} parameters", *parts)


@dataclass
class _SummaryLine:
    """One line and the lines below it."""

    name: str
    text: str
    below: list[_SummaryLine] = field(default_factory=list)
    times: int = 1
    last: str = ""


def line(module: ModuleNode) -> str:
    """Return a module in one line."""
    census = Census(module)
    return f"{type(module).__name__}({_modules(len(census.modules))}, {census.below(0)[''].text} parameters)"


def tree(root: ModuleNode) -> str:
    """Return a module and everything below it, with a line for each."""
    census = Census(root)
    drawing = _Drawing(census)
    lines = [f"{type(root).__name__}  {census.below(0)[''].text} parameters"]
    _write(drawing.entries(root, ""), "", lines)
    return "\n".join(lines)


class _Drawing:
    def __init__(self, census: Census) -> None:
        self._census = census
        self._counts: dict[str, Count] = census.below()

    def entries(self, module: Any, path: str) -> list[_SummaryLine]:
        lines = [_weight(name, weight) for name, weight in self._census.own.get(path, {}).items()]
        shared = vars(module).get(SHARED, {})
        lines += [
            _SummaryLine(name, f"{weight.name}  shared")
            for name, weight in shared.items()
            if vars(module).get(name) is weight
        ]
        modules: list[_SummaryLine] = []
        for component, child in contents(module)[1]:
            child_path = f"{path}.{component}" if path else component
            first = self._census.paths[id(child)]
            if first != child_path:
                entry = _SummaryLine(component, f"{type(child).__name__}  the same as {first or 'the root'}")
            else:
                text = f"{type(child).__name__}  {self._counts[child_path].text}"
                entry = _SummaryLine(component, text, self.entries(child, child_path))
            before = modules[-1] if modules else None
            if before is not None and _alike(before, entry):
                before.times, before.last = before.times + 1, component
            else:
                modules.append(entry)
        return lines + modules


def _alike(one: _SummaryLine, other: _SummaryLine) -> bool:
    """Whether two neighbours in a list differ only in their index."""
    stem, _, index = one.name.rpartition(".")
    other_stem, _, other_index = other.name.rpartition(".")
    return (
        index.isdigit()
        and other_index.isdigit()
        and (stem, one.text, one.below) == (other_stem, other.text, other.below)
    )


def _weight(name: str, weight: Weight) -> _SummaryLine:
    encoding = weight.quantization_encoding
    return _SummaryLine(
        name, f"{weight.dtype.name if encoding is None else encoding.value} {listed(elements_shape(weight))}"
    )


def _write(entries: list[_SummaryLine], indent: str, lines: list[str]) -> None:
    for place, entry in enumerate(entries, 1):
        last = place == len(entries)
        name, times = entry.name, ""
        if entry.times > 1:
            name, times = f"{entry.name} to {entry.last.rpartition('.')[2]}", f"{entry.times} x "
        lines.append(f"{indent}{'└─ ' if last else '├─ '}{escape(name)}: {times}{escape(entry.text)}")
        _write(entry.below, indent + ("   " if last else "│  "), lines)


def _modules(number: int) -> str:
    return "1 module" if number == 1 else f"{number:,} modules"
