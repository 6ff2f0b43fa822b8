"""`Scope`: the ONNX nodes of a graph, or of a function, while it is lowered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from max_weights.buffer import Buffer
from max_weights.dim import Dim, StaticDim, SymbolicDim, terms_of
from max_weights.dtype import DType
from max_weights.errors import UnsupportedError
from max_weights.graph.lowering.division import quotient
from max_weights.graph.lowering.dtypes import ONNX_TYPES, computed_as
from max_weights.graph.lowering.table import lowering_of
from max_weights.graph.value import Node, TensorValue

if TYPE_CHECKING:
    import onnx

    from max_weights.graph.graph import Graph
    from max_weights.graph.lowering.subgraphs import Functions

__all__ = ["CONTRIB", "Scope", "onnx_type"]

CONTRIB = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


def onnx_type(dtype: DType, where: str) -> int:
    """Return the number of a dtype in ONNX.

    Raises:
        UnsupportedError: ONNX Runtime does not support it; the message says `where` it is.
    """
    number = ONNX_TYPES.get(dtype)
    if number is None:
        raise UnsupportedError(f"{where} is of {dtype!r}, which ONNX Runtime does not support; convert it first")
    return number


class Scope:
    """The ONNX nodes of one graph in order, and the names of its values.

    Args:
        functions: The functions of the model, which subgraphs become.
        weights: The names of the values that are weights.
    """

    def __init__(self, functions: Functions, weights: Mapping[TensorValue, str]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.functions = functions
        self.laid_out: dict[tuple[str, str, tuple[str, ...]], dict[str, str]] = {}
        """The new layouts of weights: by the weight, its encoding and the parts, their names."""
        self._weights = weights
        self._names: dict[TensorValue, str] = {}
        # Where a symbol can be read: a tensor and one of its axes.
        self._symbols: dict[str, tuple[str, int]] = {}
        self._dims: dict[Dim, str] = {}
        self._shapes: dict[tuple[Dim, ...], str] = {}
        self._rows: dict[tuple[str, int], str] = {}
        self._uses: Counter[TensorValue] = Counter()
        self._constants: dict[tuple[Any, ...], str] = {}
        self._node: Node | None = None

    def lower(self, graph: Graph) -> None:
        """Write all operations of a graph, whose inputs and weights already have names.

        Raises:
            UnsupportedError: an operation for which ONNX has no equivalent.
        """
        self._uses = Counter(value for node in graph.nodes for value in node.inputs)
        self._uses.update(graph.outputs)
        for node in graph.nodes:
            if node.op in ("input", "weight"):
                continue
            self._node = node
            lowering = lowering_of(node.op)
            if lowering is None:
                raise UnsupportedError(f"{node.op} cannot be run: ONNX has no equivalent (at {node.place})")
            made = lowering(self, node)
            for value, name in zip(node.outputs, [made] if isinstance(made, str) else made, strict=True):
                self.bind(value, name)
        self._node = None

    def bind(self, value: TensorValue, name: str) -> None:
        """Set the name of a value."""
        self._names[value] = name
        for axis, dim in enumerate(value.type.shape):
            if type(dim) is SymbolicDim and dim.name not in self._symbols:
                self._symbols[dim.name] = name, axis

    def results(self, graph: Graph, names: list[str]) -> list[str]:
        """Give the outputs of a graph names of their own."""
        from onnx import helper

        for value, name in zip(graph.outputs, names, strict=True):
            self.nodes.append(helper.make_node("Identity", [self._names[value]], [name]))
        return names

    def needed(self, results: Iterable[str]) -> list[onnx.NodeProto]:
        """Return the nodes that these results need; for example, not a transpose that went into a product."""
        needed, kept = set(results), []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.output):
                needed.update(node.input)
                kept.append(node)
        return kept[::-1]

    def __getitem__(self, value: TensorValue) -> str:
        """Return the name of a value."""
        return self._names[value]

    def is_used_once(self, value: TensorValue) -> bool:
        """Whether only one operation needs a value."""
        return self._uses[value] == 1

    def inputs(self, node: Node) -> list[str]:
        """Return the names of an operation's operands."""
        return [self._names[value] for value in node.inputs]

    def add(self, operator: str, inputs: Iterable[str], *, domain: str = "", **attributes: Any) -> str:
        """Write a node with one result, and return its name."""
        return self.add_several(operator, inputs, 1, domain=domain, **attributes)[0]

    def add_several(
        self, operator: str, inputs: Iterable[str], outputs: int, *, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Write a node, and return the names of its results."""
        from onnx import helper

        number = self.functions.next_number()
        stem = f"{self.functions.prefix}{number}"
        names = [stem] if outputs == 1 else [f"{stem}.{index}" for index in range(outputs)]
        made = helper.make_node(operator, list(inputs), names, domain=domain, **attributes)
        if self._node is not None:
            made.name = f"{self._node.op}#{number}"
            self.functions.places[made.name] = self._node
        self.nodes.append(made)
        return names

    def compute(
        self,
        operator: str,
        inputs: Iterable[str],
        dtype: DType,
        *,
        beside: Iterable[str] = (),
        made: DType | None = None,
        **attributes: Any,
    ) -> str:
        """Write a node whose operands are all of one dtype, converted if there is no kernel for that.

        Args:
            operator: The ONNX operator.
            inputs: The operands.
            dtype: Their dtype.
            beside: Further operands, of dtypes of their own.
            made: The dtype of the result, if it does not follow from that of the operands; by default it is theirs.
            **attributes: The attributes of the node.
        """
        wide = computed_as(operator, dtype)
        result = self.add(operator, [*(self.cast(name, dtype, wide) for name in inputs), *beside], **attributes)
        return self.cast(result, wide, dtype) if made is None else result

    def cast(self, name: str, dtype: DType, to: DType) -> str:
        """Write a conversion, if there is something to convert. Floats that are too large become infinite."""
        if dtype is to:
            return name
        attributes: dict[str, Any] = {"to": onnx_type(to, "a tensor")}
        if to.is_float() and to.size_in_bits == 8:
            attributes["saturate"] = 0
        return self.add("Cast", [name], **attributes)

    def constant(self, value: Any, dtype: DType = DType.int64) -> str:
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

    def dim(self, dim: Dim) -> str:
        """Write the size of a dimension, as int64 `[1]`."""
        known = self._dims.get(dim)
        if known is None:
            known = self._dims[dim] = self._dim(dim)
        return known

    def _dim(self, dim: Dim) -> str:
        if isinstance(dim, StaticDim):
            return self.constant([int(dim)])
        if isinstance(dim, SymbolicDim):
            if dim.name not in self._symbols:
                place = self._node.place if self._node else ""
                raise UnsupportedError(
                    f"the size of {dim} is unknown: no earlier tensor has it as a dimension (at {place})"
                )
            name, axis = self._symbols[dim.name]
            return self.add("Shape", [name], start=axis, end=axis + 1)
        total = None
        for product, coefficient in terms_of(dim).items():
            term = None if product and coefficient == 1 else self.constant([coefficient])
            for atom in product:
                factor = self.dim(atom) if isinstance(atom, Dim) else self._quotient(*atom)
                term = factor if term is None else self.add("Mul", [term, factor])
            assert term is not None
            total = term if total is None else self.add("Add", [total, term])
        return self.constant([0]) if total is None else total

    def _quotient(self, left: Dim, right: Dim) -> str:
        """Write a floor division; a plain one if both sides are certain to be positive."""
        above, below, safe = self.dim(left), self.dim(right), isinstance(right, StaticDim)
        if safe and all(coefficient > 0 for coefficient in terms_of(left).values()):
            return self.add("Div", [above, below])
        return quotient(self, above, below, DType.int64, safe=safe)

    def dims(self, dims: Sequence[Dim]) -> str:
        """Write several dimensions, as int64 `[n]`."""
        if all(isinstance(dim, StaticDim) for dim in dims):
            return self.constant([int(dim) for dim in dims])
        key = tuple(dims)
        if key not in self._shapes:
            self._shapes[key] = self.add("Concat", [self.dim(dim) for dim in dims], axis=0)
        return self._shapes[key]

    def parts(self, value: TensorValue, encoding: str, parts: tuple[str, ...]) -> Mapping[str, str] | None:
        """Return the names of the tensors that replace a weight in packed blocks when the model is loaded.

        The result is empty if weights are not laid out anew, or the value is not a weight.
        """
        weight = self._weights.get(value)
        if weight is None or not self.functions.lays_out:
            return None
        names = {part: f"{weight}.{encoding}.{part}" for part in parts}
        return self.laid_out.setdefault((weight, encoding, parts), names)

    def stated(self, name: str, value: TensorValue) -> str:
        """Write a result with a shape that the user states; it fails if that is wrong, where sizes are known before."""
        known = all(symbol.name in self._symbols for dim in value.shape for symbol in dim.parameters)
        return self.add("Reshape", [name, self.dims(value.shape)], allowzero=1) if known else name

    def rows(self, name: str, size: int) -> str:
        """Write a tensor as a matrix, with rows of this size, which is not 0."""
        if (name, size) not in self._rows:
            self._rows[name, size] = self.add("Reshape", [name, self.constant([-1, size])])
        return self._rows[name, size]

    def reshape(self, name: str, dims: Sequence[Dim], before: Sequence[Dim] = ()) -> str:
        """Write a reshape to these dimensions; `before` are those of the operand, if they are known."""
        unknown = [axis for axis, dim in enumerate(dims) if not isinstance(dim, StaticDim)]
        # Beside a 0, -1 could be anything.
        empty = any(isinstance(dim, StaticDim) and int(dim) == 0 for dim in dims)
        stay = all(axis < len(before) and before[axis] == dims[axis] for axis in unknown)
        if empty or (len(unknown) != 1 and not stay):
            return self.add("Reshape", [name, self.dims(dims)], allowzero=int(empty or len(unknown) > 1))
        stands_for = -1 if len(unknown) == 1 else 0  # 0 is the size of the operand
        sizes = [int(dim) if isinstance(dim, StaticDim) else stands_for for dim in dims]
        return self.add("Reshape", [name, self.constant(sizes)])
