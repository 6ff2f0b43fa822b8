"""`TensorType`: what is known about a value before it is computed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar

from max_weights._devices import Device, DeviceRef
from max_weights._dim import SymbolicDim
from max_weights._dtype import DType, DTypeLike
from max_weights._shape import Shape, ShapeLike, listed, shape_of

if TYPE_CHECKING:
    from typing import Self

__all__ = ["BufferType", "ConvInputLayout", "FilterLayout", "TensorType", "Type"]


class Type:
    """The type of a value of a graph."""

    __slots__ = ()
    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)  # annotations say Type[Any]


class _OwnShape:
    """A field whose value is copied at each access, because a type never changes."""

    def __get__(self, instance: Any, owner: object) -> Shape:
        if instance is None:
            raise AttributeError("shape")  # the field has no default
        return shape_of(instance._dims)

    def __set__(self, instance: Any, shape: ShapeLike) -> None:
        instance.__dict__["_dims"] = tuple(Shape(shape))


@dataclass(frozen=True, init=False)
class _TypeOfElements(Type):
    dtype: DType
    """The type of the elements."""
    shape: Shape = _OwnShape()  # type: ignore[assignment]
    """The shape; a new list at each access."""
    device: DeviceRef  # type: ignore[misc]
    """The device of the elements."""

    def __init__(self, dtype: DTypeLike, shape: ShapeLike, device: DeviceRef | Device | str) -> None:
        object.__setattr__(self, "dtype", dtype if isinstance(dtype, DType) else DType(dtype))
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "device", DeviceRef.from_device(device))

    def __hash__(self) -> int:
        return hash((self.dtype, tuple(self.shape), self.device))

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def parameters(self) -> list[SymbolicDim]:
        """The symbols that the dimensions are computed from; see `Shape.parameters`."""
        return self.shape.parameters

    def num_elements(self) -> int:
        """Return the number of elements.

        Raises:
            ValueError: a dimension is symbolic.

        Example:
            >>> x.type.num_elements()
            6
        """
        if not self.shape.is_static:
            raise ValueError(f"the shape {listed(self.shape)} is symbolic, so the number of elements is unknown")
        return math.prod(self.shape.static_dims)

    def cast(self, dtype: DTypeLike) -> Self:
        """Return the same type with another dtype.

        Args:
            dtype: The other dtype, or its name.

        Raises:
            ValueError: there is no such dtype.

        Example:
            >>> x.type.cast(DType.int8).dtype
            int8
        """
        return replace(self, dtype=DType(dtype))


class TensorType(_TypeOfElements):
    """The dtype, shape and device of a tensor; immutable, equal and hashed by all three.

    Args:
        dtype: The type of the elements, or its name.
        shape: Ints, names of symbolic dimensions, or `Dim`.
        device: The device of the tensor, or its name such as `gpu:1`.
    """

    def as_buffer(self) -> BufferType:
        """Return the type of a buffer that holds such a tensor.

        Example:
            >>> x.type.as_buffer()
            BufferType(dtype=float32, shape=[Dim(2), Dim(3)], device=cpu:0)
        """
        return BufferType(self.dtype, self.shape, self.device)


class BufferType(_TypeOfElements):
    """The dtype, shape and device of memory that a graph may change. The arguments are those of `TensorType`.

    An input of this type is a `BufferValue`.
    """

    def as_tensor(self) -> TensorType:
        """Return the type of the tensor that such a buffer holds.

        Example:
            >>> BufferType(DType.float32, [2], CPU).as_tensor()
            TensorType(dtype=float32, shape=[Dim(2)], device=cpu:0)
        """
        return TensorType(self.dtype, self.shape, self.device)


def input_type_error(accepted: str, argument: object) -> TypeError:
    """Return the error for an object that is not the type of an input."""
    return TypeError(f"an input type must be {accepted}, not {argument!r}")


class FilterLayout(Enum):
    """The order of axes of the filter of a convolution.

    The letters are its sizes (Q, R, S), the channels of the input (C), and those of the output (F). FCRS is torch's.
    """

    RSCF = "RSCF"
    QRSCF = "QRSCF"
    FCRS = "FCRS"
    FCQRS = "FCQRS"
    CFRS = "CFRS"


class ConvInputLayout(Enum):
    """The order of axes of the input of a convolution: batch (N), height, width, channels. NCHW is torch's."""

    NHWC = "NHWC"
    NCHW = "NCHW"
