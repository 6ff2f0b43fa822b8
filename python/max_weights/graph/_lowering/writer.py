"""`Writer`: ONNX nodes in order, converted to the dtypes that there are kernels for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from max_weights._buffer import Buffer
from max_weights.dtype import DType
from max_weights.errors import UnsupportedError
from max_weights.graph._lowering.dtypes import ONNX_TYPES, computed_as

if TYPE_CHECKING:
    import onnx

    from max_weights.graph._graph import Graph
    from max_weights.graph.value import Node

__all__ = ["CONTRIB", "Function", "Parameter", "Shared", "Writer", "onnx_type"]

CONTRIB = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


Parameter: TypeAlias = tuple[int, tuple[str, str] | None]
"""A parameter of a function: a value of the call, or what replaces its packed blocks (encoding, part)."""


@dataclass(frozen=True)
class Function:
    """A subgraph as an ONNX function."""

    proto: onnx.FunctionProto
    """The function."""
    parameters: list[Parameter]
    """What it takes, in order."""


class Shared:
    """What all scopes of one model share: its functions, numbers for names, and the operations of its nodes.

    Args:
        weights: The names of the weights.
    """

    def __init__(self, weights: Iterable[str]) -> None:
        self.prefix = "%"
        """The prefix of the names of results, which no weight's name has."""
        while any(name.startswith(self.prefix) for name in weights):
            self.prefix += "%"
        self.operations: dict[str, Node] = {}
        """The recorded operations by the names of their ONNX nodes."""
        self.prints: list[tuple[str, str | None]] = []
        """Labels to print after a run, with the tensors to print."""
        self.functions: dict[Graph, Function] = {}
        """The functions of subgraphs; one comes after those that it calls."""
        self._numbers = count()

    def next_number(self) -> int:
        """Return a number that no name has yet."""
        return next(self._numbers)


def onnx_type(dtype: DType, where: str) -> int:
    """Return the number of a dtype in ONNX.

    Raises:
        UnsupportedError: ONNX Runtime does not support it; the message says `where` it is.
    """
    number = ONNX_TYPES.get(dtype)
    if number is None:
        raise UnsupportedError(f"{where} is of {dtype!r}, which ONNX Runtime does not support; convert it first")
    return number


class Writer:
    """ONNX nodes in order, with names for their results.

    Args:
        shared: What the scopes of one model share.
    """

    def __init__(self, shared: Shared) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.shared = shared
        self.node: Node | None = None
        """The recorded operation that nodes are written for."""
        self._constants: dict[tuple[Any, ...], str] = {}

    def add(self, operator: str, inputs: Iterable[str], *, domain: str = "", **attributes: object) -> str:
        """Write a node with one result, and return its name."""
        return self.add_several(operator, inputs, 1, domain=domain, **attributes)[0]

    def add_several(
        self, operator: str, inputs: Iterable[str], outputs: int, *, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Write a node, and return the names of its results."""
        from onnx import helper

        number = self.shared.next_number()
        stem = f"{self.shared.prefix}{number}"
        names = [stem] if outputs == 1 else [f"{stem}.{index}" for index in range(outputs)]
        node = helper.make_node(operator, list(inputs), names, domain=domain, **attributes)
        if self.node is not None:
            node.name = f"{self.node.op}#{number}"
            self.shared.operations[node.name] = self.node
        self.nodes.append(node)
        return names

    def compute(
        self,
        operator: str,
        inputs: Iterable[str],
        dtype: DType,
        *,
        extra_inputs: Iterable[str] = (),
        result_dtype: DType | None = None,
        **attributes: Any,
    ) -> str:
        """Write a node whose operands are all of one dtype, converted if there is no kernel for that.

        Args:
            operator: The ONNX operator.
            inputs: The operands.
            dtype: Their dtype.
            extra_inputs: Further operands, of dtypes of their own.
            result_dtype: The dtype of the result; default: that of the operands.
            **attributes: The attributes of the node.
        """
        wide = computed_as(operator, dtype)
        result = self.add(operator, [*(self.cast(name, dtype, wide) for name in inputs), *extra_inputs], **attributes)
        return self.cast(result, wide, dtype) if result_dtype is None else result

    def cast(self, name: str, dtype: DType, to: DType) -> str:
        """Write a conversion, if there is something to convert. Floats that are too large become infinite."""
        if dtype is to:
            return name
        attributes: dict[str, Any] = {"to": onnx_type(to, "a tensor")}
        if to.is_float() and to.size_in_bits == 8:
            attributes["saturate"] = 0
        return self.add("Cast", [name], **attributes)

    def constant(self, value: object, dtype: DType = DType.int64) -> str:
        """Write a constant: a number, a sequence of numbers, or an array. Small ones are written once."""
        import numpy as np
        from onnx import helper

        number = onnx_type(dtype, "a constant")
        if (dtype is DType.bfloat16 or dtype.is_float8()) and not isinstance(value, np.ndarray):
            bits = Buffer.from_numpy(np.asarray(value, np.float32)).astype(dtype)  # NumPy needs no dtype for it
            array = bits.view(DType.uint16 if dtype is DType.bfloat16 else DType.uint8).to_numpy()
        else:
            array = np.asarray(value, dtype=dtype.to_numpy())
        key = (dtype, array.shape, array.tobytes()) if array.size <= 64 else None
        known = self._constants.get(key) if key else None
        if known is None:
            tensor = helper.make_tensor("", number, array.shape, np.ascontiguousarray(array).tobytes(), raw=True)
            known = self.add("Constant", [], value=tensor)
            if key:
                self._constants[key] = known
        return known
