"""The methods and operators of `TensorValue`, bound to the class here, above the operations that they record.

If the other side of an operator is not a tensor, the result is NotImplemented, so that Python tries that object, and
otherwise raises the error.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, TypeAlias

from max_weights.graph._stack import current_or_none
from max_weights.graph._value import BufferValue, TensorValue, TensorValueLike
from max_weights.graph.ops import _effects as effects
from max_weights.graph.ops import _elementwise as elementwise
from max_weights.graph.ops import _linear as linear
from max_weights.graph.ops import _reduction as reduction
from max_weights.graph.ops import _shaping as shaping
from max_weights.graph.ops._indexing import slice_tensor
from max_weights.graph.ops._operands import is_operand, operand
from max_weights.graph.ops._shaping import concat

if TYPE_CHECKING:
    from typing import Self

    from max_weights._dim import Dim
    from max_weights._shape import Shape, ShapeLike
    from max_weights.sharding._pieces import Pieces

_Operation: TypeAlias = Callable[[TensorValueLike, TensorValueLike], TensorValue]
_Operator: TypeAlias = Callable[[TensorValue, TensorValueLike], TensorValue]

_OPERATORS: dict[str, _Operation] = {
    "add": elementwise.add,
    "sub": elementwise.sub,
    "mul": elementwise.mul,
    "truediv": elementwise.div,
    "floordiv": elementwise.floordiv,
    "mod": elementwise.mod,
    "pow": elementwise.pow,
    "matmul": linear.matmul,
    "and": elementwise.logical_and,
    "or": elementwise.logical_or,
    "xor": elementwise.logical_xor,
}
_ALONE = {"neg": elementwise.neg, "abs": elementwise.abs, "round": elementwise.round, "invert": elementwise.logical_not}
_COMPARISONS: dict[str, _Operation] = {
    "lt": elementwise.less,
    "le": elementwise.less_equal,
    "gt": elementwise.greater,
    "ge": elementwise.greater_equal,
    "eq": elementwise.equal,
    "ne": elementwise.not_equal,
}


class _Methods(TensorValue):
    """The methods that `TensorValue` declares; a type checker compares them with the declarations."""

    __slots__ = ()

    reshape = shaping.reshape
    flatten = shaping.flatten
    rebind = shaping.rebind
    permute = shaping.permute
    cast = elementwise.cast
    max = reduction.max
    min = reduction.min
    argmax = reduction.argmax
    mean = reduction.mean
    to = effects.transfer_to
    print = effects.print

    @classmethod
    def _operand(cls, op: str, value: TensorValue | Dim | Shape) -> Self:
        tensor = operand(op, value)
        if not isinstance(tensor, cls):
            raise TypeError(f"{op} needs a {cls.__name__}, not a {type(tensor).__name__}")
        return tensor

    def broadcast_to(self, shape: ShapeLike) -> TensorValue:
        """Return the tensor repeated to a shape; see `ops.broadcast_to`.

        Args:
            shape: The sizes.

        Raises:
            GraphError: the tensor cannot be repeated to it (a ValueError).

        Example:
            >>> x.broadcast_to([4, 2, 3]).shape
            [Dim(4), Dim(2), Dim(3)]
        """
        return shaping.broadcast_to(self, shape)

    def transpose(self, dim_1: int, dim_2: int) -> TensorValue:
        """Return the tensor with two axes swapped.

        Args:
            dim_1: The first axis.
            dim_2: The second axis.

        Raises:
            GraphIndexError: there is no such axis (an IndexError and a ValueError).

        Example:
            >>> x.transpose(0, 1).shape
            [Dim(3), Dim(2)]
        """
        return shaping.transpose(self, dim_1, dim_2)

    def var(self, axis: int = -1) -> TensorValue:
        """Return the mean square distance from the mean along an axis, which stays with size 1.

        Args:
            axis: The axis.

        Raises:
            GraphError: there is no such axis, or the elements are no numbers (a ValueError).

        Example:
            >>> x.var().shape
            [Dim(2), Dim(1)]
        """
        centered = self - self.mean(axis)
        return (centered * centered).mean(axis)

    def stdev(self, axis: int = -1) -> TensorValue:
        """Return the square root of `var`, for floats.

        Args:
            axis: The axis.

        Raises:
            GraphError: there is no such axis, or the elements are no floats (a ValueError).

        Example:
            >>> x.stdev(axis=0).shape
            [Dim(1), Dim(3)]
        """
        return elementwise.sqrt(self.var(axis))

    def _part(self, pieces: Pieces) -> TensorValue | Pieces:
        if current_or_none() is None:
            return pieces
        value = self._value()
        if pieces.is_complete:
            return value
        parts = [value[index] for index in pieces.slices]
        return parts[0] if pieces.axis is None else concat(parts, pieces.axis)

    def __getitem__(self, index: object) -> TensorValue:
        if isinstance(index, list):
            raise TypeError(
                f"slice_tensor: the list {index!r} could mean one element, as in MAX, or several rows, as in NumPy; "
                "write a tuple, `x[0, 1]`, or an array, `x[np.array([0, 1])]`"
            )
        return slice_tensor(self, index)

    def __divmod__(self, other: TensorValueLike) -> tuple[TensorValue, TensorValue]:
        return (self // other, self % other) if is_operand(other) else NotImplemented

    def __rdivmod__(self, other: TensorValueLike) -> tuple[TensorValue, TensorValue]:
        return (other // self, other % self) if is_operand(other) else NotImplemented


def _operator(operation: _Operation, name: str, *, swapped: bool = False) -> _Operator:
    """Return an operator as a method of its left operand, or, swapped, of its right one."""

    def method(self: TensorValue, other: TensorValueLike) -> TensorValue:
        operands = (other, self) if swapped else (self, other)
        result: TensorValue = operation(*operands) if is_operand(other) else NotImplemented
        return result

    method.__name__ = name
    method.__qualname__ = f"TensorValue.{name}"
    return method


class _BufferMethods(BufferValue):
    __slots__ = ()

    def __getitem__(self, index: object) -> TensorValue:
        contents = effects.buffer_load(self)
        return contents if index is ... else slice_tensor(contents, index)

    def __setitem__(self, index: object, value: TensorValueLike) -> None:
        effects.buffer_store_slice(self, value, index)

    def print(self, label: str = "debug_buffer") -> None:
        """Print the elements when the graph is run.

        Args:
            label: The text in front.

        Raises:
            GraphError: there is no graph (a ValueError).

        Example:
            >>> memory = BufferType(DType.float32, [2], CPU)
            >>> printing = Graph("g", lambda buffer: buffer.print("memory"), [memory])
        """
        effects.print(effects.buffer_load(self), label)


def bind_methods() -> None:
    """Give `TensorValue` and `BufferValue` their methods and operators."""
    methods: dict[str, object] = {
        name: member for name, member in vars(_Methods).items() if isinstance(member, FunctionType | classmethod)
    }
    methods |= {f"__{name}__": operation for name, operation in _ALONE.items()}
    for name, operation in (_OPERATORS | _COMPARISONS).items():
        methods[f"__{name}__"] = _operator(operation, f"__{name}__")
    for name, operation in _OPERATORS.items():
        methods[f"__r{name}__"] = _operator(operation, f"__r{name}__", swapped=True)
    for name, member in methods.items():
        setattr(TensorValue, name, member)
    for name in ("__getitem__", "__setitem__", "print"):
        setattr(BufferValue, name, vars(_BufferMethods)[name])
