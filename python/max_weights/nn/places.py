"""Where the modules directly below a module stand, and how to put others there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from max_weights._core import shown
from max_weights.nn.walk import ModuleNode, walk

if TYPE_CHECKING:
    from max_weights.nn.module import Module

_Setter = Callable[[Any], None]


def places(module: ModuleNode) -> Iterator[tuple[str, Module, _Setter]]:
    """For each module directly below: its component (`up`, `blocks.0`), itself, and what puts another one there."""
    for attribute, value in list(vars(module).items()):
        yield from _place(attribute, value, partial(setattr, module, attribute), ())
    if isinstance(module, (list, dict)):
        yield from _inside("", module, _cannot_set, (id(module),))


def _place(component: str, value: Any, setter: _Setter, outer: tuple[int, ...]) -> Iterator[tuple[str, Any, _Setter]]:
    if isinstance(value, ModuleNode):
        yield component, value, setter
    elif isinstance(value, (list, tuple, dict)) and id(value) not in outer:
        yield from _inside(component + ".", value, setter, (*outer, id(value)))


def _inside(stem: str, container: Any, setter: _Setter, outer: tuple[int, ...]) -> Iterator[tuple[str, Any, _Setter]]:
    pairs = list(container.items()) if isinstance(container, dict) else list(enumerate(container))
    for key, value in pairs:
        if isinstance(container, tuple):
            put = partial(_set_in_tuple, container, key, setter)
        else:
            put = partial(container.__setitem__, key)
        yield from _place(f"{stem}{key}", value, put, outer)


def _set_in_tuple(container: tuple[Any, ...], index: int, setter: _Setter, value: Any) -> None:
    changed = [*container[:index], value, *container[index + 1 :]]
    # A named tuple has a constructor of its own.
    setter(container._make(changed) if hasattr(container, "_make") else type(container)(changed))


def _cannot_set(_value: Any) -> None:
    raise TypeError("a module that is a list or a dict is changed in place")


def replace(root: ModuleNode, name: str, module: ModuleNode) -> None:
    """Put a module where the one of this path stands.

    Raises:
        TypeError: `module` is none.
        KeyError: there is no module of this path.
    """
    if not isinstance(module, ModuleNode):
        raise TypeError(f"'{shown(name)}' is replaced by a Module, not by a {type(module).__name__}")
    setter = _find(root, name) if isinstance(name, str) and name else None
    if setter is None:
        from max_weights.errors import WeightNotFoundError
        from max_weights.nn.near_names import suggestions

        [near] = suggestions((path for path, _ in walk(root) if path), [str(name)])
        raise WeightNotFoundError(f"{type(root).__name__} has no module '{shown(name)}' to replace{near}")
    setter(module)


def _find(root: ModuleNode, name: str, outer: tuple[int, ...] = ()) -> _Setter | None:
    for component, child, setter in places(root):
        if component == name:
            return setter
        if name.startswith(component + ".") and id(child) not in outer:
            found = _find(child, name[len(component) + 1 :], (*outer, id(child)))
            if found is not None:
                return found
    return None
