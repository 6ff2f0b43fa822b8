"""`Shape`: the dimensions of a tensor, as a list whose elements are always `Dim`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, SupportsIndex, TypeAlias, overload

from max_weights._dim import Dim, DimLike, StaticDim, SymbolicDim, to_dim

__all__ = ["Shape", "ShapeLike", "matches"]

ShapeLike: TypeAlias = Iterable[DimLike]
"""A value that can be converted to a shape: its dimensions, slowest first."""


class _IsStatic:
    """Whether every dimension is static; also a function of a shape, as in MAX: `Shape.is_static(shape)`."""

    @overload
    def __get__(self, shape: None, owner: type) -> Callable[[ShapeLike], bool]: ...
    @overload
    def __get__(self, shape: Shape, owner: type) -> bool: ...
    def __get__(self, shape: Shape | None, owner: type) -> bool | Callable[[ShapeLike], bool]:
        return _all_static if shape is None else _all_static(shape)


class Shape(list[Dim]):
    """The dimensions of a tensor, outermost first; empty for a scalar.

    Whatever is added to the list becomes a `Dim`. It equals a list or tuple of the same ints and names: `Shape([2,
    "n"]) == (2, "n")`.

    Args:
        dims: Ints (NumPy's too), names of symbolic dimensions, or `Dim`.
    """

    def __init__(self, dims: ShapeLike = ()) -> None:
        super().__init__(_to_dims(dims))

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self)

    @property
    def static_dims(self) -> list[int]:
        """The sizes of the static dimensions, in order; the others are left out."""
        return [dim.dim for dim in self if isinstance(dim, StaticDim)]

    is_static = _IsStatic()

    @property
    def parameters(self) -> list[SymbolicDim]:
        """The symbols that the dimensions are computed from: those of the first dimension, of the second, and so on."""
        return [symbol for dim in self for symbol in dim.parameters]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, tuple):
            other = list(other)
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        if isinstance(other, tuple):
            other = list(other)
        return super().__ne__(other)

    __hash__ = None

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Dim: ...
    @overload
    def __getitem__(self, index: slice, /) -> Shape: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> Dim | Shape:
        if isinstance(index, slice):
            return shape_of(super().__getitem__(index))
        return super().__getitem__(index)

    # More general than list's own: an assigned or added value need not be a Dim yet.
    def __setitem__(self, index: SupportsIndex | slice, value: Any, /) -> None:
        if isinstance(index, slice):
            super().__setitem__(index, _to_dims(value))
        else:
            super().__setitem__(index, to_dim(value))

    def append(self, dim: DimLike, /) -> None:
        """Add a dimension at the end.

        Args:
            dim: A size, a name or a `Dim`.

        Raises:
            ValueError: A negative size, or a name that is no identifier.
            TypeError: It is no dimension.

        Example:
            >>> shape = max_weights.graph.Shape([2])
            >>> shape.append(3)
        """
        super().append(to_dim(dim))

    def insert(self, index: SupportsIndex, dim: DimLike, /) -> None:
        """Add a dimension before the one at `index`.

        Args:
            index: Where.
            dim: A size, a name or a `Dim`.

        Raises:
            ValueError: A negative size, or a name that is no identifier.
            TypeError: It is no dimension.

        Example:
            >>> shape = max_weights.graph.Shape([2])
            >>> shape.insert(0, "n")
        """
        super().insert(index, to_dim(dim))

    def extend(self, dims: ShapeLike, /) -> None:
        """Add dimensions at the end.

        Args:
            dims: Sizes, names or `Dim`.

        Raises:
            ValueError: A negative size, or a name that is no identifier.
            TypeError: It is no dimension.

        Example:
            >>> shape = max_weights.graph.Shape([2])
            >>> shape.extend([3, "n"])
        """
        super().extend(_to_dims(dims))

    def copy(self) -> Shape:
        """Copy the shape.

        Returns:
            Another Shape of the same dimensions.

        Example:
            >>> max_weights.graph.Shape([2]).copy()
            [Dim(2)]
        """
        return shape_of(self)

    def __add__(self, other: ShapeLike, /) -> Shape:  # type: ignore[override]
        if not isinstance(other, (list, tuple)):
            return NotImplemented
        return Shape([*self, *other])

    def __radd__(self, other: ShapeLike, /) -> Shape:
        if not isinstance(other, (list, tuple)):
            return NotImplemented
        return Shape([*other, *self])

    def __iadd__(self, other: ShapeLike, /) -> Shape:  # type: ignore[override]
        self.extend(other)
        return self

    def __mul__(self, times: SupportsIndex, /) -> Shape:
        return Shape(super().__mul__(times))

    def __rmul__(self, times: SupportsIndex, /) -> Shape:
        return Shape(super().__rmul__(times))


class FixedShape(Shape):
    """A shape that something relies on, so that changing it is refused; `copy()` returns one that can be changed.

    Args:
        dims: The dimensions.
        reason: The text of the ValueError.
    """

    def __init__(self, dims: ShapeLike, reason: str) -> None:
        super().__init__(dims)
        self._reason = reason

    def __reduce__(self) -> tuple[type[Shape], tuple[list[Dim]]]:
        return Shape, (list(self),)

    def _refuse(self, *_arguments: object, **_options: object) -> NoReturn:
        raise ValueError(self._reason)


_CHANGES = (
    *("__setitem__", "__delitem__", "__iadd__", "__imul__", "append", "clear", "extend", "insert", "pop"),
    *("remove", "reverse", "sort"),
)
for _change in _CHANGES:
    setattr(FixedShape, _change, FixedShape._refuse)


def shape_of(dims: Iterable[Dim]) -> Shape:
    """Return a Shape of dimensions that are `Dim` already, and are not checked again."""
    shape = Shape.__new__(Shape)
    list.__init__(shape, dims)
    return shape


def matches(declared: Sequence[object], actual: Sequence[object]) -> bool:
    """Whether a shape is the declared one; symbolic dimensions match anything."""
    return len(declared) == len(actual) and all(
        not isinstance(want, StaticDim) or want == have for want, have in zip(declared, actual, strict=True)
    )


def _all_static(shape: ShapeLike) -> bool:
    return all(isinstance(to_dim(dim), StaticDim) for dim in shape)


def _to_dims(dims: ShapeLike) -> list[Dim]:
    if isinstance(dims, Shape):
        return dims
    if isinstance(dims, (str, bytes)):
        raise TypeError(f"a shape must be a list of dimensions; for one dimension named {dims!r} write [{dims!r}]")
    return list(map(to_dim, dims))


def listed(dims: Iterable[object]) -> str:
    """Return a shape as people write it: `[n, 5]`."""
    return f"[{', '.join(map(str, dims))}]"
