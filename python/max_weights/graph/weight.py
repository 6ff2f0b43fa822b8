"""`Weight`: a named value that a graph will load later."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NoReturn

from max_weights.dtype import DType
from max_weights.graph.device import DeviceRef
from max_weights.graph.dim import DimLike
from max_weights.graph.quantization import QuantizationEncoding
from max_weights.graph.shape import Shape

__all__ = ["Weight"]


class Weight:
    """A value of a graph that can be loaded at a later time, described by everything but its data.

    Equal only to itself. Everything that computes with it (arithmetic, comparison by order, indexing, `@`, `.T`) needs
    a graph around it, and raises ValueError without one.

    Args:
        name: The name, without those of the modules around it.
        dtype: The type of the elements.
        shape: Ints and names of symbolic dimensions.
        device: Where the value is wanted.
        quantization_encoding: How the elements are packed; none for a weight that is not quantized.
        align: Bytes that the data must be aligned to; by default what the dtype asks for.
        sharding_strategy: How the weight is split over devices.
    """

    __array_ufunc__ = None  # so that NumPy leaves `array @ weight` to __rmatmul__

    shard_idx: int | None
    """Which shard of a split weight this is; none for a whole weight."""
    sharding_strategy: Any
    """How the weight is split over devices; none if it is not."""

    def __init__(
        self,
        name: str,
        dtype: DType | str,
        shape: Iterable[DimLike],
        device: DeviceRef | str,
        quantization_encoding: QuantizationEncoding | str | None = None,
        align: int | None = None,
        sharding_strategy: Any = None,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.device = device
        self.quantization_encoding = quantization_encoding
        self.align = align
        self.sharding_strategy = sharding_strategy
        self.shard_idx = None
        self._original = self._dtype, self._shape.copy()

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a weight is a text, not {name!r}")
        self._name = name

    @property
    def dtype(self) -> DType:
        """The type of the elements; uint8 for packed ones."""
        return self._dtype

    @dtype.setter
    def dtype(self, dtype: DType | str) -> None:
        self._dtype = DType(dtype)

    @property
    def shape(self) -> Shape:
        """The shape; of bytes where the elements are packed."""
        return self._shape

    @shape.setter
    def shape(self, shape: Iterable[DimLike]) -> None:
        self._shape = Shape(shape)

    @property
    def device(self) -> DeviceRef:
        """Where the value is wanted."""
        return self._device

    @device.setter
    def device(self, device: DeviceRef | str) -> None:
        self._device = DeviceRef.from_device(device)

    @property
    def quantization_encoding(self) -> QuantizationEncoding | None:
        """How the elements are packed; none for a weight that is not quantized."""
        return self._quantization_encoding

    @quantization_encoding.setter
    def quantization_encoding(self, encoding: QuantizationEncoding | str | None) -> None:
        self._quantization_encoding = None if encoding is None else QuantizationEncoding(encoding)

    @property
    def align(self) -> int | None:
        """Bytes that the data must be aligned to, a power of two; none stands for what the dtype asks for."""
        return self._align

    @align.setter
    def align(self, align: int | None) -> None:
        if align is not None:
            align = operator.index(align)
            if align <= 0 or align & (align - 1):
                raise ValueError(f"the alignment of weight '{self._name}' is a power of two; found {align}")
        self._align = align

    @property
    def original_dtype_and_shape(self) -> tuple[DType, Shape]:
        """The dtype and shape that the weight was declared with; packed weights are loaded as bytes."""
        dtype, shape = self._original
        return dtype, shape.copy()

    # What a module gave the weight: a value (None for none yet), and with it the full name in place of the local one.
    _value: Any = None
    _local_name: str | None = None
    _full_name: str | None = None

    def __repr__(self) -> str:
        encoding = "" if self.quantization_encoding is None else f", {self.quantization_encoding}"
        return f"Weight({self.name}, {self.dtype!s}, {self.shape}, {self.device}{encoding})"

    @property
    def T(self) -> NoReturn:
        """The transpose, inside a graph."""
        self._needs_graph()

    def _needs_graph(self, *_operands: object) -> NoReturn:
        raise ValueError(
            f"there is no parent graph: weight '{self._name}' has no value to compute with here. Use it inside "
            "`with Graph(...)`, or load the data and compute with that"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _needs_graph
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _needs_graph
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _needs_graph
    __neg__ = __invert__ = __abs__ = __getitem__ = _needs_graph
    __lt__ = __le__ = __gt__ = __ge__ = _needs_graph
