"""`Writer`: ONNX nodes in order, converted to dtypes that have kernels."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from max_weights._dtype import DType
from max_weights._typing import known
from max_weights.errors import UnsupportedError
from max_weights.graph._lowering.dtypes import ONNX_TYPES, computed_as

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights.graph._graph import Graph
    from max_weights.graph._value import Node

    Attribute: TypeAlias = int | float | str | Sequence[int] | ir.Attr

__all__ = ["CONTRIB", "Function", "Parameter", "Shared", "Writer", "name_of", "onnx_type"]

CONTRIB = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

Parameter: TypeAlias = tuple[int, tuple[str, str] | None]
"""A parameter of a function: a value of the call, or what replaces its packed blocks (encoding, part)."""


@dataclass(frozen=True)
class Function:
    """A subgraph as an ONNX function."""

    function: ir.Function
    """The function."""
    parameters: list[Parameter]
    """What it takes, in order."""


class Shared:
    """What all scopes of one model share: its functions, the names of its weights, and the operations of its nodes.

    Args:
        weights: The names of the weights.
    """

    def __init__(self, weights: Container[str]) -> None:
        self.operations: dict[str, Node] = {}
        """The recorded operations by the names of their ONNX nodes."""
        self.prints: list[tuple[str, ir.Value | None]] = []
        """Labels to print after a run, with the tensors to print."""
        self.functions: dict[Graph, Function] = {}
        """The functions of subgraphs; one comes after those that it calls."""
        self._weights = weights

    def free_name(self, name: str) -> str:
        """Return a name that no weight has."""
        while name in self._weights:
            name += "_"
        return name


def name_of(value: ir.Value) -> str:
    """Return the name of an input, an output or a weight."""
    return known(value.name)


def onnx_type(dtype: DType, where: str) -> ir.DataType:
    """Return a dtype of ONNX."""
    import onnx_ir as ir

    number = ONNX_TYPES.get(dtype)
    if number is None:
        raise UnsupportedError(
            f"{where} is of {dtype!r}, which ONNX Runtime does not support; convert it first", rule="unsupported.dtype"
        )
    return ir.DataType(number)


class Writer:
    """ONNX nodes in order.

    Args:
        shared: What the scopes of one model share.
    """

    def __init__(self, shared: Shared) -> None:
        self.nodes: list[ir.Node] = []
        self.shared = shared
        self.node: Node | None = None
        """The recorded operation that nodes are written for."""
        self._constants: dict[tuple[DType, tuple[int, ...], bytes], ir.Value] = {}

    def add(
        self, operator: str, inputs: Sequence[ir.Value | None], *, domain: str = "", **attributes: Attribute
    ) -> ir.Value:
        """Write a node with one result, and return that."""
        return self.add_several(operator, inputs, 1, domain=domain, **attributes)[0]

    def add_several(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        outputs: int,
        *,
        domain: str = "",
        **attributes: Attribute,
    ) -> Sequence[ir.Value]:
        """Write a node, and return its results."""
        import onnx_ir as ir

        name = None
        if self.node is not None:
            name = f"{self.node.op}#{len(self.shared.operations)}"
            self.shared.operations[name] = self.node
        # Lists are given their type, which takes long to infer.
        typed = {key: ir.AttrInt64s(key, x) if isinstance(x, tuple | list) else x for key, x in attributes.items()}
        node = ir.node(operator, inputs, typed, domain=domain, num_outputs=outputs, name=name)
        self.nodes.append(node)
        return node.outputs

    def compute(
        self,
        operator: str,
        inputs: Iterable[ir.Value],
        dtype: DType,
        *,
        extra_inputs: Iterable[ir.Value] = (),
        result_dtype: DType | None = None,
        **attributes: Attribute,
    ) -> ir.Value:
        """Write a node whose `inputs` are of one dtype, converted if there is no kernel for it."""
        wide = computed_as(operator, dtype)
        operands = [*(self.cast(x, dtype, wide) for x in inputs), *extra_inputs]
        result = self.add(operator, operands, domain="", **attributes)
        return self.cast(result, wide, dtype) if result_dtype is None else result

    def cast(self, x: ir.Value, dtype: DType, to: DType) -> ir.Value:
        """Write a conversion, if there is something to convert. Floats that are too large become infinite."""
        if dtype is to:
            return x
        number = int(onnx_type(to, "a tensor"))
        if to.is_float8():
            return self.add("Cast", [x], to=number, saturate=0)
        return self.add("Cast", [x], to=number)

    def constant(self, value: object, dtype: DType = DType.int64) -> ir.Value:
        """Write a constant: a number, a sequence of numbers, or an array. Small ones are written once."""
        import numpy as np
        import onnx_ir as ir

        kind = onnx_type(dtype, "a constant")
        array = np.asarray(value, dtype.to_numpy())
        if array.size > 64:
            return self.add("Constant", [], value=ir.AttrTensor("value", ir.Tensor(array, kind)))
        key = dtype, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = self.add("Constant", [], value=ir.AttrTensor("value", ir.Tensor(array, kind)))
        return self._constants[key]
