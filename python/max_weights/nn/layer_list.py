"""`LayerList`: a list that is also a module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from max_weights.nn.hooks import Layer
from max_weights.nn.module import Module

if TYPE_CHECKING:
    from typing import Self

__all__ = ["LayerList"]


class LayerList(Module, list[Layer]):
    """Layers in a list, which is a Python list in every way; the index of a layer is its part of the path.

    Compares as a list does, by its layers. Slices and sums of it are `LayerList`s too.

    Args:
        layers: The layers. TypeError for anything else, here and wherever something enters the list.
    """

    __hash__ = Layer.__hash__  # type: ignore[assignment] # a module can be a key; lists of the same layers are equal, not the same

    def __init__(self, layers: Iterable[Layer] = ()) -> None:
        list.__init__(self, _layers(layers))

    def append(self, layer: Layer, /) -> None:
        """Add a layer at the end."""
        list.append(self, _layer(layer))

    def insert(self, i: SupportsIndex, layer: Layer, /) -> None:
        """Add a layer before the one at `i`."""
        list.insert(self, i, _layer(layer))

    def extend(self, layers: Iterable[Layer], /) -> None:
        """Add layers at the end; nothing, if one of them is none."""
        list.extend(self, _layers(layers))

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Any: ...
    @overload
    def __getitem__(self, index: slice, /) -> LayerList: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> Any:
        found: Any = list.__getitem__(self, index)
        return LayerList(found) if isinstance(index, slice) else found

    def __setitem__(self, index: SupportsIndex | slice, value: Any, /) -> None:
        if isinstance(index, slice):
            list.__setitem__(self, index, _layers(value))
        else:
            list.__setitem__(self, index, _layer(value))

    def copy(self) -> LayerList:
        """Another list of the same layers."""
        return LayerList(self)

    def __add__(self, other: Iterable[Layer], /) -> LayerList:  # type: ignore[override]
        return LayerList([*self, *other]) if isinstance(other, (list, tuple)) else NotImplemented

    def __radd__(self, other: Iterable[Layer], /) -> LayerList:
        return LayerList([*other, *self]) if isinstance(other, (list, tuple)) else NotImplemented

    def __iadd__(self, other: Iterable[Layer], /) -> Self:  # type: ignore[override]
        self.extend(other)
        return self

    def __mul__(self, times: SupportsIndex, /) -> LayerList:
        return LayerList(list.__mul__(self, times))

    __rmul__ = __mul__

    def __imul__(self, times: SupportsIndex, /) -> Self:
        # With `__mul__` of its own, Python would no longer come to the list's.
        list.__imul__(self, times)
        return self


def _layer(value: object) -> Layer:
    if not isinstance(value, Layer):
        raise TypeError(f"a LayerList holds layers, not {value!r}")
    return value


def _layers(values: Iterable[object]) -> list[Layer]:
    if isinstance(values, Layer) and not isinstance(values, list):
        raise TypeError(f"several layers are a list of them, not one {type(values).__name__}; append takes one")
    return [_layer(value) for value in values]
