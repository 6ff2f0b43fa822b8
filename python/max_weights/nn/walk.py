"""The one walk over a tree of modules, on which names, state dicts, printing and everything else stand.

Nothing is registered: the walk reads the attributes, lists, tuples and dicts as they are now. So no assignment,
deletion or mutation can leave a stale entry, whoever made it. Types are told apart once per walk, which keeps it
at about a microsecond per module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from max_weights.graph.weight import Weight
from max_weights.nn.hooks import Layer

if TYPE_CHECKING:
    from max_weights.nn.module import Module

# The attribute of a module in which its shared weights are noted: {attribute: weight}.
SHARED = "_shared_weights"

_PLAIN, _MODULE, _WEIGHT, _LIST, _DICT = range(5)


class ModuleNode(Layer):
    """What the walk takes for a module; `Module` is the one class of it."""


def walk(root: ModuleNode, prefix: str = "") -> list[tuple[str, Module]]:
    """Every module at and below `root` with its path, breadth first; each once, by its first path."""
    found = Walk(root, prefix)
    return list(zip(found.paths, found.modules, strict=True))


class Walk:
    """What one walk found.

    Args:
        root: The module to start at.
        prefix: Its own path.
        only: Look for its own weights alone.
    """

    __slots__ = ("_kinds", "_seen", "modules", "names", "paths", "weights")

    # Lists side by side, not lists of pairs: so many small objects would set off the garbage collector again and again.
    paths: list[str]
    """The paths of `modules`."""
    modules: list[Module]
    """The modules, breadth first."""
    names: list[str]
    """The full names of `weights`."""
    weights: list[Weight]
    """The weights that modules own, in the order of the modules; one may come more than once."""

    def __init__(self, root: ModuleNode, prefix: str = "", *, only: bool = False) -> None:
        kinds: dict[type, int] = {}
        seen = {id(root)}
        paths, modules = [prefix], [cast("Module", root)]
        names: list[str] = []
        weights: list[Weight] = []
        self._kinds, self._seen = kinds, seen
        self.paths, self.modules, self.names, self.weights = paths, modules, names, weights
        # The lists grow while they are walked, which makes them the queue.
        for path, module in zip(paths, modules, strict=True):
            stem = path + "." if path else ""
            attributes = vars(module)
            shared = attributes.get(SHARED)
            for attribute, value in attributes.items():
                try:
                    kind = kinds[type(value)]
                except KeyError:
                    kind = self._classify(value)
                if kind == _WEIGHT:
                    # A shard is a part of a weight that is listed by itself.
                    if value.shard_idx is None and not (shared and shared.get(attribute) is value):
                        names.append(stem + value.local_name)
                        weights.append(value)
                elif kind == _MODULE:
                    if id(value) not in seen:
                        seen.add(id(value))
                        paths.append(stem + attribute)
                        modules.append(value)
                elif kind != _PLAIN:
                    self._inside(f"{stem}{attribute}.", value, kind)
            if only:
                del paths[1:], modules[1:]
                return
            if isinstance(module, (list, tuple)):
                self._inside(stem, module, _LIST)
            elif isinstance(module, dict):
                self._inside(stem, module, _DICT)

    def _inside(self, stem: str, container: Any, kind: int) -> None:
        """The modules in a list, tuple or dict, and in those inside it."""
        kinds, seen = self._kinds, self._seen
        items: Any
        if kind == _DICT:
            items = list(container.items())
            types = set(map(type, container.values()))
        else:
            items = enumerate(container)
            types = set(map(type, container))
        # A list of many numbers is passed over without a look at each.
        if {kinds[one] if one in kinds else self._classify_type(one) for one in types} <= {_PLAIN, _WEIGHT}:
            return
        for key, value in items:
            kind = kinds[type(value)]
            if kind == _MODULE:
                if id(value) not in seen:
                    seen.add(id(value))
                    self.paths.append(f"{stem}{key}")
                    self.modules.append(value)
            elif kind in (_LIST, _DICT) and id(value) not in seen:
                seen.add(id(value))
                self._inside(f"{stem}{key}.", value, kind)

    def _classify(self, value: object) -> int:
        return self._classify_type(type(value))

    def _classify_type(self, cls: type) -> int:
        if issubclass(cls, ModuleNode):
            kind = _MODULE
        elif issubclass(cls, Weight):
            kind = _WEIGHT
        elif issubclass(cls, (list, tuple)):
            kind = _LIST
        elif issubclass(cls, dict):
            kind = _DICT
        else:
            kind = _PLAIN
        self._kinds[cls] = kind
        return kind
