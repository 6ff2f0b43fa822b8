"""Lowering of packed blocks: operators decode their bytes, in the order and precision of gguf-py.

So the elements are those of `max_weights.dequantize`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from max_weights._dim import StaticDim
from max_weights.dtype import DType
from max_weights.graph._lowering.layouts import BLOCK, ELEMENTS, parts_of
from max_weights.graph._lowering.table import register_lowering
from max_weights.graph._lowering.writer import CONTRIB
from max_weights.quantization import QuantizationEncoding

if TYPE_CHECKING:
    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph.value import Node, TensorValue


@register_lowering("dequantize")
def dequantize(scope: Scope, node: Node) -> str:
    """Lower decoding to float32 elements."""
    encoding, (blocks,) = node.attributes["encoding"], node.inputs
    parts = scope.parts(blocks, encoding, ELEMENTS)
    return parts["elements"] if parts else scope.reshape(_elements(scope, blocks, encoding), node.outputs[0].shape)


@register_lowering("qmatmul")
def qmatmul(scope: Scope, node: Node) -> str:
    """Lower the product with the elements."""
    left, right = node.inputs
    (made,) = node.outputs
    inner = left.shape[-1]
    assert isinstance(inner, StaticDim)
    encoding = node.attributes["encoding"]
    rows_known = isinstance(right.shape[0], StaticDim)  # an attribute of the operator for blocks
    parts = scope.parts(right, encoding, parts_of(encoding) if rows_known else ELEMENTS)
    rows = scope.rows(scope[left], int(inner))
    if parts is None:
        matrix = scope.add("Reshape", [_elements(scope, right, encoding), scope.constant([-1, int(inner)])])
        product = scope.add("Gemm", [rows, matrix], transB=1)
    elif "elements" in parts:
        product = scope.add("Gemm", [rows, parts["elements"]], transB=1)
    else:
        product = _product(scope, rows, parts, int(inner), int(right.shape[0]))
    return scope.reshape(product, made.shape)


def _product(scope: Scope, rows: str, parts: Mapping[str, str], inner: int, outer: int) -> str:
    """Write the product with ONNX Runtime's operator for blocks; `layouts` says why it is several."""

    def times(numbers: str, *more: str) -> str:
        return scope.add(
            "MatMulNBits",
            [rows, parts[numbers], parts["scales"], *more],
            domain=CONTRIB,
            K=inner,
            N=outer,
            bits=4,
            block_size=BLOCK,
            accuracy_level=1,  # in float32
        )

    if "upper" in parts:
        upper = scope.add("Mul", [times("upper"), scope.constant(16, DType.float32)])
        return scope.add("Add", [upper, times("lower", parts["zeros"])])
    if "offsets" not in parts:
        return times("numbers")
    sums = scope.add("Reshape", [rows, scope.constant([-1, inner // BLOCK, BLOCK])])
    sums = scope.add("ReduceSum", [sums, scope.constant([2])], keepdims=0)
    return scope.add("Gemm", [sums, parts["offsets"], times("numbers")], transB=1)


def _elements(scope: Scope, blocks: TensorValue, encoding: str) -> str:
    """Write the elements in any shape."""
    size = QuantizationEncoding(encoding).block_size
    parts = _Blocks(scope, scope.add("Reshape", [scope[blocks], scope.constant([-1, size])]))
    return _DECODERS[encoding](parts)


class _Blocks:
    """Bytes `[blocks, bytes of a block]`, and the operations on them."""

    def __init__(self, scope: Scope, name: str) -> None:
        self.scope, self._name = scope, name

    def bytes(self, start: int, stop: int, *shape: int) -> str:
        """Return some bytes of each block, as `[blocks, shape...]`."""
        scope = self.scope
        bounds = [scope.constant([number]) for number in (start, stop, 1)]
        taken = scope.add("Slice", [self._name, *bounds])
        return scope.add("Reshape", [taken, scope.constant([-1, *shape])]) if shape else taken

    def half(self, start: int, axes: int = 1) -> str:
        """Return a float16, `(mantissa + 1024) * 2**exponent`, by tables for its upper byte; NaN becomes infinite."""
        import numpy as np

        scope, high = self.scope, np.arange(256)
        exponent = high >> 2 & 31
        whole = np.where(exponent > 0, 1024, 0) + (high & 3) * 256
        with np.errstate(over="ignore"):
            scale = np.where(high < 128, 1.0, -1.0) * np.exp2(np.maximum(exponent, 1) - 25.0)
        scale = np.where(exponent == 31, np.copysign(np.inf, scale), scale)
        last = self.bytes(start + 1, start + 2, *[1] * axes)
        index = scope.cast(last, DType.uint8, DType.int32)
        first, second = (
            scope.add("Gather", [scope.constant(table, DType.float32), index], axis=0) for table in (whole, scale)
        )
        low = self.floats(self.bytes(start, start + 1, *[1] * axes))
        return self.times(scope.add("Add", [first, low]), second)

    def floats(self, name: str, dtype: DType = DType.uint8) -> str:
        """Return integers as float32."""
        return self.scope.cast(self.scope.cast(name, DType.uint8, dtype), dtype, DType.float32)

    def times(self, left: str, right: str) -> str:
        return self.scope.add("Mul", [left, right])

    def less(self, left: str, right: str | int) -> str:
        """Return a difference of floats."""
        other = right if isinstance(right, str) else self.scope.constant(right, DType.float32)
        return self.scope.add("Sub", [left, other])

    def shifted(self, name: str, count: int | Sequence[int], shape: Sequence[int] = ()) -> str:
        """Return bytes without their lowest bits."""
        import numpy as np

        counts = self.scope.constant(np.reshape(count, shape), DType.uint8)
        return self.scope.add("BitShift", [name, counts], direction="RIGHT")

    def raised(self, name: str, count: int) -> str:
        """Return bytes times a power of 2."""
        return self.scope.add("BitShift", [name, self.scope.constant(count, DType.uint8)], direction="LEFT")

    def masked(self, name: str, mask: int) -> str:
        """Return some bits of bytes."""
        return self.scope.add("BitwiseAnd", [name, self.scope.constant(mask, DType.uint8)])

    def either(self, left: str, right: str) -> str:
        return self.scope.add("BitwiseOr", [left, right])

    def joined(self, names: Sequence[str], axis: int) -> str:
        return self.scope.add("Concat", names, axis=axis)

    def nibbles(self, name: str, axis: int) -> str:
        """Return the lower halves of bytes, followed by the upper ones."""
        return self.joined([self.masked(name, 15), self.shifted(name, 4)], axis)


def _q4_0(blocks: _Blocks) -> str:
    numbers = blocks.less(blocks.floats(blocks.nibbles(blocks.bytes(2, 18), 1)), 8)
    return blocks.times(blocks.half(0), numbers)


def _q4_1(blocks: _Blocks) -> str:
    numbers = blocks.floats(blocks.nibbles(blocks.bytes(4, 20), 1))
    return blocks.scope.add("Add", [blocks.times(blocks.half(0), numbers), blocks.half(2)])


def _q8_0(blocks: _Blocks) -> str:
    return blocks.times(blocks.half(0), blocks.floats(blocks.bytes(2, 34), DType.int8))


def _scales(blocks: _Blocks) -> tuple[str, str]:
    """Return the scales and minima of the eight parts of a block of Q4_K and Q5_K, `[blocks, 8, 1]`."""
    first, second, third = (blocks.bytes(start, start + 4, 4, 1) for start in (4, 8, 12))
    pairs = (
        (first, blocks.masked(third, 15)),
        (second, blocks.shifted(third, 4)),
    )
    scale, minimum = (
        blocks.floats(
            blocks.joined([blocks.masked(low, 63), blocks.either(rest, blocks.raised(blocks.shifted(low, 6), 4))], 1)
        )
        for low, rest in pairs
    )
    return blocks.times(blocks.half(0, 2), scale), blocks.times(blocks.half(2, 2), minimum)


def _q4_k(blocks: _Blocks) -> str:
    return _with_scales(blocks, _eight_parts(blocks, 16))


def _q5_k(blocks: _Blocks) -> str:
    highest = blocks.shifted(blocks.bytes(16, 48, 1, 32), range(8), (1, 8, 1))
    highest = blocks.raised(blocks.masked(highest, 1), 4)
    return _with_scales(blocks, blocks.either(_eight_parts(blocks, 48), highest))


def _eight_parts(blocks: _Blocks, start: int) -> str:
    parts = blocks.nibbles(blocks.bytes(start, start + 128, 4, 1, 32), 2)
    return blocks.scope.add("Reshape", [parts, blocks.scope.constant([-1, 8, 32])])


def _with_scales(blocks: _Blocks, numbers: str) -> str:
    scale, minimum = _scales(blocks)
    return blocks.less(blocks.times(scale, blocks.floats(numbers)), minimum)


def _q6_k(blocks: _Blocks) -> str:
    low = blocks.nibbles(blocks.bytes(0, 128, 2, 1, 2, 32), 2)
    high = blocks.shifted(blocks.bytes(128, 192, 2, 1, 32), (0, 2, 4, 6), (1, 1, 4, 1))
    shape = blocks.scope.constant([-1, 16, 16])
    low, high = (blocks.scope.add("Reshape", [name, shape]) for name in (low, blocks.raised(blocks.masked(high, 3), 4)))
    numbers = blocks.less(blocks.floats(blocks.either(low, high)), 32)
    scale = blocks.times(blocks.half(208, 2), blocks.floats(blocks.bytes(192, 208, 16, 1), DType.int8))
    return blocks.times(scale, numbers)


_DECODERS: dict[str, Callable[[_Blocks], str]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
