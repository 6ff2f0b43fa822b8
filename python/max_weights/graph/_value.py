"""`TensorValue`: a tensor that a graph will compute, with a known type; `BufferValue`: one in memory.

Its methods and operators record operations in the current graph and return their results. The operations are functions
of values and so belong above this file, in `ops`; `ops._methods` binds them to the class. Their signatures are here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

from max_weights._devices import DeviceRef
from max_weights._dim import Dim, DimLike
from max_weights._dtype import DType, DTypeLike
from max_weights._shape import Shape, ShapeLike
from max_weights.graph._type import BufferType, TensorType

if TYPE_CHECKING:
    from typing import Self

    import numpy as np

    from max_weights._buffer import Array
    from max_weights.sharding._pieces import Pieces

__all__ = ["BufferValue", "Node", "TensorValue", "TensorValueLike", "Value"]

TensorValueLike: TypeAlias = "TensorValue | Dim | Shape | bool | int | float | Array | np.generic"
"""What operations accept as a tensor: a value or a `Weight`, a `Dim`, a `Shape`, a number, a NumPy array."""


class Node:
    """One recorded operation.

    Values compare by `==` as tensors, element by element, so nodes and values are told apart by identity.
    """

    __slots__ = ("attributes", "graph", "inputs", "location", "op", "outputs")

    graph: Recorder
    """The graph that it belongs to."""
    op: str
    """The name of the operation, as in `ops`; `input` and `weight` for inputs and weights of the graph."""
    inputs: tuple[TensorValue, ...]
    """The operands, of the same graph."""
    attributes: Mapping[str, Any]
    """Everything else that decides the result: axes counted from the front, dtypes, dimensions, constants."""
    outputs: tuple[TensorValue, ...]
    """The results."""
    location: str
    """The line of the user's code that created it, as `file:line`."""

    def __init__(
        self,
        graph: Recorder,
        op: str,
        inputs: tuple[TensorValue, ...],
        attributes: Mapping[str, object],
        types: Iterable[TensorType],
        location: str,
    ) -> None:
        self.graph = graph
        self.op = op
        self.inputs = inputs
        self.attributes = attributes
        self.location = location
        self.outputs = tuple(TensorValue._result(self, kind) for kind in types)

    def __repr__(self) -> str:
        return f"Node({self.op}, {[output.type for output in self.outputs]}, at {self.location})"


class Recorder(Protocol):
    """The members of `Graph` that values and operations use."""

    name: str
    """The name."""

    def _own(self, op: str, value: TensorValue) -> TensorValue:
        """Return a value as one of this graph, or refuse it."""
        ...

    def record(
        self, op: str, inputs: Iterable[TensorValue], types: Iterable[TensorType], attributes: Mapping[str, object]
    ) -> Node:
        """Add an operation."""
        ...


class Operator(Protocol):
    """An operator of two operands; `self` is the left or the right one."""

    def __call__(self, other: TensorValueLike, /) -> TensorValue:
        """Record the operation; NotImplemented if the other operand does not stand for a tensor."""
        ...


class Value:
    """Anything that flows through a graph: a `TensorValue`, or a `BufferValue`."""

    __slots__ = ("__weakref__",)

    if TYPE_CHECKING:

        @property
        def type(self) -> TensorType | BufferType:
            """Dtype, shape and device together."""

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """The shape; a new list at each access."""
        return self.type.shape

    @property
    def device(self) -> DeviceRef:
        """The device on which the tensor will be computed, or of the memory."""
        return self.type.device

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dtype={self.dtype!r}, shape={self.shape}, device={self.device})"


class TensorValue(Value):
    """A tensor that a graph will compute.

    Arithmetic, comparison and indexing follow NumPy's rules for shapes; `==` and `!=` also compare element by element.
    A value is hashed by identity, and has no truth value and no length.

    Args:
        value: Another value, returned unchanged (a `Weight` joins the current graph); a `Dim`, which becomes an int64
            scalar; or a `Shape`, which becomes an int64 vector. For numbers and arrays, use `ops.constant`.
    """

    __slots__ = ("_node", "_type")

    _node: Node
    _type: TensorType

    def __new__(cls, value: TensorValue | Dim | Shape) -> Self:
        """Return the value itself, or the one that stands for the dimension or shape."""
        if not isinstance(value, TensorValue | Dim | Shape):
            raise TypeError(
                f"a TensorValue must be made from a value, a Dim or a Shape, not {type(value).__name__}; use "
                "ops.constant for numbers and arrays"
            )
        return cls._operand("TensorValue", value)

    @classmethod
    def _result(cls, node: Node, kind: TensorType) -> TensorValue:
        value = object.__new__(TensorValue)
        value._node, value._type = node, kind
        return value

    def _value(self) -> TensorValue:
        """The value in the graph; a `Weight` joins the current one."""
        return self

    @property
    def node(self) -> Node:
        """The operation that this is a result of."""
        return self._value()._node

    @property
    def type(self) -> TensorType:
        """Dtype, shape and device together."""
        return self._type

    @property
    def tensor(self) -> Self:
        """The value itself."""
        return self

    @property
    def buffer(self) -> BufferValue:
        """TypeError: a tensor is no memory that a graph changes."""
        raise TypeError("a TensorValue is not a buffer: give the input a BufferType")

    @property
    def T(self) -> TensorValue:
        """The tensor with the last two axes swapped: `[..., a, b]` becomes `[..., b, a]`."""
        return self.transpose(-1, -2)

    if TYPE_CHECKING:

        def reshape(self, shape: Iterable[DimLike]) -> TensorValue:
            """Return the same elements in another shape; see `ops.reshape`."""

        def flatten(self, start_dim: int = 0, end_dim: int = -1) -> TensorValue:
            """Merge the axes from `start_dim` to `end_dim`, both included, into one."""

        def broadcast_to(self, shape: ShapeLike) -> TensorValue:
            """Repeat the tensor to a shape; see `ops.broadcast_to`."""

        def rebind(self, shape: ShapeLike, message: str = "") -> TensorValue:
            """Return the same tensor with other names for its dimensions; see `ops.rebind`."""

        def transpose(self, dim_1: int, dim_2: int) -> TensorValue:
            """Swap two axes."""

        def permute(self, dims: Iterable[int]) -> TensorValue:
            """Reorder the axes."""

        def cast(self, dtype: DTypeLike) -> TensorValue:
            """Convert each element to another dtype."""

        def max(self, axis: int = -1) -> TensorValue:
            """Return the largest element along an axis, which stays with size 1."""

        def min(self, axis: int = -1) -> TensorValue:
            """Return the smallest element along an axis, which stays with size 1."""

        def argmax(self, axis: int = -1) -> TensorValue:
            """Return the position of the largest element along an axis, as int64; the axis stays with size 1."""

        def mean(self, axis: int = -1) -> TensorValue:
            """Return the mean along an axis, which stays with size 1."""

        def var(self, axis: int = -1) -> TensorValue:
            """Return the mean square distance from the mean along an axis, which stays with size 1."""

        def stdev(self, axis: int = -1) -> TensorValue:
            """Return the square root of `var`, for floats."""

        def to(self, device: DeviceRef | str) -> TensorValue:
            """Return the same tensor on another device; see `ops.transfer_to`."""

        def print(self, label: str = "debug_tensor") -> None:
            """Print the elements when the graph is run."""

        def _part(self, pieces: Pieces) -> TensorValue | Pieces:
            """Return what a sharding strategy gives for this value; only the pieces if no graph is recording."""

        def __getitem__(self, index: Any) -> TensorValue: ...

        @classmethod
        def _operand(cls, op: str, value: TensorValue | Dim | Shape) -> Self:
            """Return the value in the current graph."""

        def __eq__(self, other: object) -> Any: ...

        def __ne__(self, other: object) -> Any: ...

        def __divmod__(self, other: TensorValueLike) -> tuple[TensorValue, TensorValue]: ...

        def __rdivmod__(self, other: TensorValueLike) -> tuple[TensorValue, TensorValue]: ...

        def __neg__(self) -> TensorValue: ...

        def __abs__(self) -> TensorValue: ...

        def __round__(self) -> TensorValue: ...

        def __invert__(self) -> TensorValue: ...

    __hash__ = object.__hash__
    __array_ufunc__ = None  # so that NumPy leaves `array @ value` to __rmatmul__

    __add__: Operator
    __radd__: Operator
    __sub__: Operator
    __rsub__: Operator
    __mul__: Operator
    __rmul__: Operator
    __truediv__: Operator
    __rtruediv__: Operator
    __floordiv__: Operator
    __rfloordiv__: Operator
    __mod__: Operator
    __rmod__: Operator
    __pow__: Operator
    __rpow__: Operator
    __matmul__: Operator
    __rmatmul__: Operator
    __and__: Operator
    __rand__: Operator
    __or__: Operator
    __ror__: Operator
    __xor__: Operator
    __rxor__: Operator
    __lt__: Operator
    __le__: Operator
    __gt__: Operator
    __ge__: Operator

    def __iter__(self) -> NoReturn:
        self._value()
        raise TypeError(
            "a TensorValue cannot be iterated: its elements are not known while the graph is built; "
            "index it (`x[0]`), or use ops.split"
        )

    def __len__(self) -> NoReturn:
        self._value()
        raise TypeError("a TensorValue has no length while the graph is built; see its `shape`")

    def __bool__(self) -> NoReturn:
        self._value()
        raise TypeError(
            "a TensorValue is neither true nor false while the graph is built: its elements are not known yet; "
            "choose between tensors with ops.where, and compare objects with `is`"
        )

    def __contains__(self, _element: object) -> NoReturn:
        self.__iter__()


class BufferValue(Value):
    """An input whose type is a `BufferType`: memory of the caller's that the graph may change.

    `buffer[...]` is the tensor that it holds at this point of the graph, and `buffer[...] = value` stores another:
    what is loaded later has the new elements, what was loaded before keeps the old ones. Both take NumPy's basic
    indices. The memory itself is written when the graph has run, or, for a subgraph, after its call.

    Operations take tensors: `buffer[...] + 1`, not `buffer + 1`.
    """

    __slots__ = ("_contents",)

    _contents: TensorValue
    """The tensor that it holds after everything that was recorded so far."""

    def __init__(self, contents: TensorValue) -> None:
        self._contents = contents

    @property
    def type(self) -> BufferType:
        """Dtype, shape and device together."""
        return self._contents.type.as_buffer()

    @property
    def buffer(self) -> BufferValue:
        """The value itself."""
        return self

    @property
    def tensor(self) -> NoReturn:
        """TypeError: load the tensor that it holds, `buffer[...]`."""
        raise TypeError("a BufferValue is not a tensor: `buffer[...]` loads the one that it holds")

    if TYPE_CHECKING:

        def __getitem__(self, index: object) -> TensorValue:
            """Load the elements at an index; see `ops.buffer_load`."""

        def __setitem__(self, index: object, value: TensorValueLike) -> None:
            """Store elements at an index; see `ops.buffer_store` and `ops.buffer_store_slice`."""

        def print(self, label: str = "debug_buffer") -> None:
            """Print the elements when the graph is run."""

    def __iter__(self) -> NoReturn:
        raise TypeError("a BufferValue cannot be iterated: load it first, `buffer[...]`")
