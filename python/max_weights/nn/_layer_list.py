"""`LayerList`, a list that is also a module; `Sequential`; and `MissingLayer`, which holds a place in a list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, overload

from max_weights.errors import ArgumentError
from max_weights.nn._base_layer import Layer
from max_weights.nn._module import Module

if TYPE_CHECKING:
    from typing import Self

__all__ = ["LayerList", "MissingLayer", "Sequential"]


class LayerList(Module, list[Layer]):
    """A list of layers that is also a module; the index of a layer is its part of the path.

    It behaves like a Python list in every way. It compares as a list does, by its layers, and slices and sums are
    `LayerList`s too. A call of it calls the layers in order, each with what the one before returned.

    Args:
        layers: The layers. TypeError for anything else, here and wherever something is added to the list.
    """

    __hash__ = Layer.__hash__  # type: ignore[assignment] # a module can be a key; lists of the same layers are equal, not the same

    def __init__(self, layers: Iterable[Layer] = ()) -> None:
        list.__init__(self, self._checked(layers))

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call the first layer with the arguments, and each further layer with the outputs of the one before.

        Raises:
            ValueError: the list is empty.
        """
        if not self:
            raise ArgumentError(f"a {type(self).__name__} without layers has nothing to call")
        first, *rest = self
        outputs = first(*args, **kwargs)
        for layer in rest:
            outputs = layer(outputs)
        return outputs

    def append(self, layer: Layer) -> None:
        list.append(self, self._checked_one(layer))

    def insert(self, i: SupportsIndex, layer: Layer) -> None:
        list.insert(self, i, self._checked_one(layer))

    def extend(self, layers: Iterable[Layer]) -> None:
        list.extend(self, self._checked(layers))

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Any: ...
    @overload
    def __getitem__(self, index: slice, /) -> LayerList: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> Any:
        item: Any = list.__getitem__(self, index)
        return LayerList(item) if isinstance(index, slice) else item

    def __setitem__(self, index: SupportsIndex | slice, value: Any, /) -> None:
        if isinstance(index, slice):
            list.__setitem__(self, index, self._checked(value))
        else:
            list.__setitem__(self, index, self._checked_one(value))

    def copy(self) -> LayerList:
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
        # With a `__mul__` here, Python would no longer reach that of the list.
        list.__imul__(self, times)
        return self

    def _checked_one(self, value: object) -> Layer:
        if not isinstance(value, Layer):
            raise TypeError(f"a LayerList holds layers, not {value!r}")
        self._pass_placement_on([value])
        return value

    def _checked(self, values: Iterable[object]) -> list[Layer]:
        if isinstance(values, Layer) and not isinstance(values, list):
            raise TypeError(f"several layers must be a list of them, not one {type(values).__name__}; append takes one")
        return [self._checked_one(value) for value in values]


class Sequential(LayerList):
    """A `LayerList` that also accepts its layers as separate arguments. The names below are `0.weight`, as in torch.

    Args:
        layers: The layers, as a list (by position or by name) or as separate arguments.
    """

    def __init__(self, *one_by_one: Layer | Iterable[Layer], layers: Iterable[Layer] = ()) -> None:
        sequence: Any = one_by_one
        if len(one_by_one) == 1 and isinstance(one_by_one[0], Iterable) and not isinstance(one_by_one[0], Sequential):
            sequence = one_by_one[0]
        super().__init__([*sequence, *layers])


class MissingLayer(Module):
    """Holds the place of a layer that another stage of a pipeline builds. It has no weights, and cannot be called.

    The layers around it thus keep their index, which is part of the names of their weights.

    Args:
        layer_id: The number of the layer in the model.
    """

    def __init__(self, layer_id: int) -> None:
        self.layer_id = layer_id

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Raise an error, because there is nothing to call.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            f"layer {self.layer_id} is not here: another stage of the pipeline has it; call only the layers of this "
            "stage"
        )
