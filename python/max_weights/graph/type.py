"""`TensorType`: what is known of a value before it is computed."""

from __future__ import annotations

from types import GenericAlias
from typing import Any, ClassVar, NoReturn

from max_weights.devices import DeviceRef
from max_weights.dim import Dim
from max_weights.dtype import DType
from max_weights.shape import Shape, ShapeLike

__all__ = ["TensorType", "Type"]


class Type:
    """The type of a value of a graph."""

    __slots__ = ()
    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)  # annotations say Type[Any]


class TensorType(Type):
    """The dtype, shape and device of a tensor; immutable, equal and hashed by all three.

    Args:
        dtype: The type of the elements, or its name.
        shape: Ints, names of symbolic dimensions, or `Dim`.
        device: Where the tensor lives, or its name such as `gpu:1`.
    """

    __slots__ = ("_dims", "device", "dtype")
    __match_args__ = ("dtype", "shape", "device")

    dtype: DType
    """The type of the elements."""
    device: DeviceRef
    """Where the tensor lives."""
    _dims: tuple[Dim, ...]

    def __init__(self, dtype: DType | str, shape: ShapeLike, device: DeviceRef | str) -> None:
        object.__setattr__(self, "dtype", DType(dtype))
        object.__setattr__(self, "_dims", tuple(Shape(shape)))
        object.__setattr__(self, "device", DeviceRef.from_device(device))

    @property
    def shape(self) -> Shape:
        """The shape; a list of its own at each call."""
        return Shape(self._dims)

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self._dims)

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if isinstance(other, TensorType) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"TensorType({self.dtype!s}, {list(self._dims)}, {self.device})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a TensorType is immutable; make another one instead of setting {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a TensorType is immutable; {name!r} cannot be deleted")

    def __reduce__(self) -> tuple[type[TensorType], tuple[DType, tuple[Dim, ...], DeviceRef]]:
        return TensorType, self._values()

    def _values(self) -> tuple[DType, tuple[Dim, ...], DeviceRef]:
        return self.dtype, self._dims, self.device
