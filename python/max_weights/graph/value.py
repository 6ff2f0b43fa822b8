"""`TensorValue`: a tensor that a graph will compute, of which only the type is known.

Each method records an operation in the current graph and returns its result. The operations themselves are in `ops`,
which this module imports only when one is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from max_weights.devices import DeviceRef
from max_weights.dim import Dim, DimLike
from max_weights.dtype import DType, DTypeLike
from max_weights.graph.operators import Operators
from max_weights.graph.stack import current_or_none
from max_weights.graph.type import TensorType
from max_weights.shape import Shape, ShapeLike

if TYPE_CHECKING:
    from typing import Self

    import numpy as np

    from max_weights.graph.graph import Graph
    from max_weights.sharding.pieces import Pieces

__all__ = ["Node", "TensorValue", "TensorValueLike", "Value"]

TensorValueLike: TypeAlias = "TensorValue | Dim | Shape | bool | int | float | np.ndarray[Any, Any] | np.generic"
"""What operations accept as a tensor: a value or a `Weight`, a `Dim`, a `Shape`, a number, a NumPy array."""


class Node:
    """One recorded operation.

    Values compare by `==` as tensors, element by element, so nodes and values are told apart by identity.
    """

    __slots__ = ("attributes", "graph", "inputs", "op", "outputs", "place")

    graph: Graph
    """The graph that it belongs to."""
    op: str
    """The name of the operation, as in `ops`; `input` and `weight` for inputs and weights of the graph."""
    inputs: tuple[TensorValue, ...]
    """The operands, of the same graph."""
    attributes: Mapping[str, Any]
    """Everything else that decides the result: axes counted from the front, dtypes, dimensions, constants."""
    outputs: tuple[TensorValue, ...]
    """The results."""
    place: str
    """The line of the user's code that created it, as `file:line`."""

    def __init__(
        self,
        graph: Graph,
        op: str,
        inputs: tuple[TensorValue, ...],
        attributes: Mapping[str, Any],
        types: Iterable[TensorType],
        place: str,
    ) -> None:
        self.graph = graph
        self.op = op
        self.inputs = inputs
        self.attributes = attributes
        self.place = place
        self.outputs = tuple(TensorValue._result(self, kind) for kind in types)

    def __repr__(self) -> str:
        return f"Node({self.op}, {[output.type for output in self.outputs]}, at {self.place})"


class Value:
    """Anything that flows through a graph; at present, always a `TensorValue`."""

    __slots__ = ("__weakref__",)


class TensorValue(Value, Operators):
    """A tensor that a graph will compute.

    Arithmetic, comparison and indexing follow NumPy's rules for shapes; `==` and `!=` also compare element by element.
    A value is hashed by identity, and has no truth value and no length.

    Args:
        value: Another value, returned as it is (a `Weight` joins the current graph); a `Dim`, which becomes an int64
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
        from max_weights.graph.ops.operands import operand

        made = operand("TensorValue", value)
        assert isinstance(made, cls)
        return made

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
        """The value itself; a value of a graph is always a tensor."""
        return self

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self._type.dtype

    @property
    def shape(self) -> Shape:
        """The shape; a new list at each access."""
        return self._type.shape

    @property
    def device(self) -> DeviceRef:
        """The device on which the tensor will be computed."""
        return self._type.device

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def T(self) -> TensorValue:
        """The tensor with the last two axes swapped: `[..., a, b]` becomes `[..., b, a]`."""
        return self.transpose(-1, -2)

    def reshape(self, shape: Iterable[DimLike]) -> TensorValue:
        """Return the same elements in another shape; see `ops.reshape`."""
        from max_weights.graph.ops.shaping import reshape

        return reshape(self, shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> TensorValue:
        """Merge the axes from `start_dim` to `end_dim`, both included, into one."""
        from max_weights.graph.ops.shaping import flatten

        return flatten(self, start_dim, end_dim)

    def broadcast_to(self, shape: ShapeLike) -> TensorValue:
        """Repeat the tensor to a shape; see `ops.broadcast_to`."""
        from max_weights.graph.ops.shaping import broadcast_to

        return broadcast_to(self, shape)

    def rebind(self, shape: ShapeLike, message: str = "") -> TensorValue:
        """Return the same tensor with other names for its dimensions; see `ops.rebind`."""
        from max_weights.graph.ops.shaping import rebind

        return rebind(self, shape, message)

    def transpose(self, dim_1: int, dim_2: int) -> TensorValue:
        """Swap two axes."""
        from max_weights.graph.ops.shaping import transpose

        return transpose(self, dim_1, dim_2)

    def permute(self, dims: Iterable[int]) -> TensorValue:
        """Reorder the axes."""
        from max_weights.graph.ops.shaping import permute

        return permute(self, dims)

    def cast(self, dtype: DTypeLike) -> TensorValue:
        """Convert each element to another dtype."""
        from max_weights.graph.ops.elementwise import cast

        return cast(self, dtype)

    def max(self, axis: int = -1) -> TensorValue:
        """Return the largest element along an axis, which stays with size 1."""
        from max_weights.graph.ops.reduction import max as max_op

        return max_op(self, axis)

    def min(self, axis: int = -1) -> TensorValue:
        """Return the smallest element along an axis, which stays with size 1."""
        from max_weights.graph.ops.reduction import min as min_op

        return min_op(self, axis)

    def argmax(self, axis: int = -1) -> TensorValue:
        """Return the position of the largest element along an axis, as int64; the axis stays with size 1."""
        from max_weights.graph.ops.reduction import argmax

        return argmax(self, axis)

    def mean(self, axis: int = -1) -> TensorValue:
        """Return the mean along an axis, which stays with size 1."""
        from max_weights.graph.ops.reduction import mean

        return mean(self, axis)

    def var(self, axis: int = -1) -> TensorValue:
        """Return the mean square distance from the mean along an axis, which stays with size 1."""
        apart = self - self.mean(axis)
        return (apart * apart).mean(axis)

    def stdev(self, axis: int = -1) -> TensorValue:
        """Return the square root of `var`, for floats."""
        from max_weights.graph.ops.elementwise import sqrt

        return sqrt(self.var(axis))

    def to(self, device: DeviceRef | str) -> TensorValue:
        """Return the same tensor on another device; see `ops.transfer_to`."""
        from max_weights.graph.ops.effects import transfer_to

        return transfer_to(self, device)

    def print(self, label: str = "debug_tensor") -> None:
        """Print the elements when the graph is run."""
        from max_weights.graph.ops.effects import print as print_op

        print_op(self, label)

    def _part(self, pieces: Pieces) -> TensorValue | Pieces:
        """Return what a sharding strategy gives for this value; only the pieces if no graph is recording."""
        if current_or_none() is None:
            return pieces
        from max_weights.graph.ops.joining import concat

        value = self._value()
        if pieces.is_everything:
            return value
        parts = [value[index] for index in pieces.slices]
        return parts[0] if pieces.axis is None else concat(parts, pieces.axis)

    def __getitem__(self, index: Any) -> TensorValue:
        from max_weights.graph.ops.indexing import slice_tensor

        if isinstance(index, list):
            raise TypeError(
                f"slice_tensor: the list {index!r} could mean one element, as in MAX, or several rows, as in NumPy; "
                "write a tuple, `x[0, 1]`, or an array, `x[np.array([0, 1])]`"
            )
        return slice_tensor(self, index)

    def __repr__(self) -> str:
        return f"TensorValue(dtype={self.dtype!r}, shape={self.shape}, device={self.device})"

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
