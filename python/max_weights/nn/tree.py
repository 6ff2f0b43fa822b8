"""`print(model)`: the modules and weights as a tree, with parameter counts; layers that are alike are shown once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from max_weights._core import shown
from max_weights.graph.weight import Weight
from max_weights.nn.census import Census, Count, elements_shape
from max_weights.nn.places import places
from max_weights.nn.walk import SHARED, ModuleNode


@dataclass
class _Entry:
    """One line and those below it."""

    name: str
    text: str
    below: list[_Entry] = field(default_factory=list)
    times: int = 1
    last: str = ""


def line(module: ModuleNode) -> str:
    """A module in one line."""
    census = Census(module)
    return f"{type(module).__name__}({_modules(len(census.modules))}, {census.below(0)[''].text} parameters)"


def tree(root: ModuleNode) -> str:
    """A module and all below it, a line for each."""
    census = Census(root)
    drawing = _Drawing(census)
    lines = [f"{type(root).__name__}  {census.below(0)[''].text} parameters"]
    _write(drawing.entries(root, ""), "", lines)
    return "\n".join(lines)


class _Drawing:
    def __init__(self, census: Census) -> None:
        self._census = census
        self._counts: dict[str, Count] = census.below()

    def entries(self, module: Any, path: str) -> list[_Entry]:
        found = [_weight(name, weight) for name, weight in self._census.own.get(path, {}).items()]
        shared = vars(module).get(SHARED, {})
        found += [
            _Entry(name, f"{weight.name}  shared")
            for name, weight in shared.items()
            if vars(module).get(name) is weight
        ]
        modules: list[_Entry] = []
        for component, child, _ in places(module):
            child_path = f"{path}.{component}" if path else component
            first = self._census.paths[id(child)]
            if first != child_path:
                entry = _Entry(component, f"{type(child).__name__}  the same as {first or 'the root'}")
            else:
                text = f"{type(child).__name__}  {self._counts[child_path].text}"
                entry = _Entry(component, text, self.entries(child, child_path))
            before = modules[-1] if modules else None
            if before is not None and _alike(before, entry):
                before.times, before.last = before.times + 1, component
            else:
                modules.append(entry)
        return found + modules


def _alike(one: _Entry, other: _Entry) -> bool:
    """Whether two neighbours in a list differ in nothing but the index."""
    stem, _, index = one.name.rpartition(".")
    other_stem, _, other_index = other.name.rpartition(".")
    return (
        index.isdigit()
        and other_index.isdigit()
        and (stem, one.text, one.below) == (other_stem, other.text, other.below)
    )


def _weight(name: str, weight: Weight) -> _Entry:
    shape = ", ".join(map(str, elements_shape(weight)))
    encoding = weight.quantization_encoding
    return _Entry(name, f"{weight.dtype.name if encoding is None else encoding.value} [{shape}]")


def _write(entries: list[_Entry], indent: str, lines: list[str]) -> None:
    for place, entry in enumerate(entries, 1):
        last = place == len(entries)
        name, times = entry.name, ""
        if entry.times > 1:
            name, times = f"{entry.name} to {entry.last.rpartition('.')[2]}", f"{entry.times} x "
        lines.append(f"{indent}{'└─ ' if last else '├─ '}{shown(name)}: {times}{shown(entry.text)}")
        _write(entry.below, indent + ("   " if last else "│  "), lines)


def _modules(number: int) -> str:
    return "1 module" if number == 1 else f"{number:,} modules"
