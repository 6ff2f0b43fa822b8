"""The one walk over a tree of modules, on which names, state dicts, printing and everything else are based.

Nothing is registered: the walk reads the current attributes, lists, tuples and dicts. So no assignment, deletion or
mutation can leave a stale entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from max_weights.graph._weight import Weight
from max_weights.nn._base_layer import Layer

# The attribute of a module that records its shared weights: {attribute: weight}.
SHARED = "_shared_weights"


class ModuleNode(Layer):
    """The class that the walk takes for a module; `LayerV2` is its only subclass."""


class Walk:
    """The result of one walk: every module once, by its first path, breadth first.

    Args:
        root: The module to start at.
        deep: Visit the modules below it, too.
    """

    def __init__(self, root: ModuleNode, *, deep: bool = True) -> None:
        # Parallel lists instead of lists of pairs, whose many small objects would trigger the garbage collector
        # repeatedly.
        self.paths = [""]
        self.modules = [root]
        self.names: list[str] = []
        """The full names of `weights`."""
        self.weights: list[Weight] = []
        """The weights that modules own, in the order of the modules; a weight may come more than once."""
        visited = {id(root)}
        # The lists grow during the walk, which makes them the queue.
        for path, module in zip(self.paths, self.modules, strict=True):
            stem = f"{path}." if path else ""
            weights, modules = contents(module)
            self.names += [stem + weight.local_name for weight in weights]
            self.weights += weights
            if deep:
                for component, child in modules:
                    if id(child) not in visited:
                        visited.add(id(child))
                        self.paths.append(stem + component)
                        self.modules.append(child)


def contents(module: ModuleNode) -> tuple[list[Weight], list[tuple[str, ModuleNode]]]:
    """Return the weights that a module owns, and the modules directly below by their part of the path (`blocks.0`)."""
    weights: list[Weight] = []
    modules: list[tuple[str, ModuleNode]] = []
    attributes = vars(module)
    shared = attributes.get(SHARED)
    for attribute, value in attributes.items():
        if not isinstance(value, Weight):
            _add_modules(attribute, value, (), modules)
        # A shard is part of a weight that is listed itself.
        elif value.shard_idx is None and not (shared and shared.get(attribute) is value):
            weights.append(value)
    if isinstance(module, (list, tuple, dict)):
        _add_entries("", module, (id(module),), modules)
    return weights, modules


def modules_in(holder: object) -> list[tuple[str, ModuleNode]]:
    """Return the modules in a list, tuple or dict, at any depth, by their indices and keys."""
    modules: list[tuple[str, ModuleNode]] = []
    _add_entries("", holder, (), modules)
    return modules


def _add_modules(component: str, value: object, around: tuple[int, ...], modules: list[tuple[str, ModuleNode]]) -> None:
    if isinstance(value, ModuleNode):
        modules.append((component, value))
    elif isinstance(value, (list, tuple, dict)) and id(value) not in around:
        _add_entries(f"{component}.", value, (*around, id(value)), modules)


def _add_entries(stem: str, holder: object, around: tuple[int, ...], modules: list[tuple[str, ModuleNode]]) -> None:
    for key, value in _entries(holder):
        if isinstance(value, (ModuleNode, list, tuple, dict)):
            _add_modules(f"{stem}{key}", value, around, modules)


def _entries(holder: Any) -> Iterable[tuple[Any, object]]:
    return list(holder.items()) if isinstance(holder, dict) else enumerate(holder)


def replaced(holder: object, path: str, module: ModuleNode) -> object:
    """Return the replacement of `holder`, once the module of this path in it is another one.

    That is `holder` itself, changed, or another tuple. `None` if there is no module of this path.
    """
    if isinstance(holder, ModuleNode):
        for attribute, value in vars(holder).items():
            new = _replaced_below(attribute, value, path, module)
            if new is not None:
                setattr(holder, attribute, new)
                return holder
    if isinstance(holder, (list, tuple, dict)):
        for key, value in _entries(holder):
            new = _replaced_below(str(key), value, path, module)
            if new is None:
                continue
            if isinstance(holder, tuple):
                changed = [*holder[:key], new, *holder[key + 1 :]]
                # A named tuple has another constructor.
                return holder._make(changed) if hasattr(holder, "_make") else type(holder)(changed)
            holder[key] = new
            return holder
    return None


def _replaced_below(component: str, value: object, path: str, module: ModuleNode) -> object:
    if path == component:
        return module if isinstance(value, ModuleNode) else None
    if path.startswith(f"{component}."):
        return replaced(value, path[len(component) + 1 :], module)
    return None
