"""Products with packed matrices: shapes from the sizes of blocks, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from max_weights._quantization import QuantizationEncoding, quantize
from max_weights.dtype import DType
from max_weights.errors import UnsupportedError
from max_weights.graph import DeviceRef, Graph, GraphError, TensorType, TensorValue, Weight, ops

CPU = DeviceRef.CPU()
Q4_K = QuantizationEncoding.Q4_K


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_the_shape_follows_from_the_size_of_a_block(name: str) -> None:
    encoding = QuantizationEncoding(name)
    packed = quantize(np.zeros((3, 512), np.float32), encoding) if name in ("Q4_0", "Q8_0") else None
    width = 512 // encoding.elements_per_block * encoding.block_size
    assert packed is None or packed.num_elements == 3 * width
    with Graph("g", input_types=[TensorType("float32", ["b", "s", 512], CPU)]) as graph:
        weight = Weight("w", "uint8", [3, width], CPU, encoding)
        for given in (encoding, name.lower()):
            product = ops.qmatmul(given, None, graph.inputs[0], weight)
            assert product.type == TensorType("float32", ["b", "s", 3], CPU)
            assert (product.node.op, dict(product.node.attributes)) == ("qmatmul", {"encoding": name})
        floats = ops.dequantize(encoding, weight)
        assert floats.type == TensorType("float32", [3, 512], CPU)
        assert dict(floats.node.attributes) == {"encoding": name}


def test_other_floats_are_multiplied_as_float32() -> None:
    with Graph("g", input_types=[TensorType("bfloat16", [256], CPU), TensorType("uint8", ["n", 144], CPU)]) as graph:
        x, matrix = graph.inputs
        product = ops.qmatmul(Q4_K, None, x, matrix)
        assert product.type == TensorType("bfloat16", ["n"], CPU)
        (node,) = [node for node in graph.nodes if node.op == "qmatmul"]
        assert node.outputs[0].dtype is node.inputs[0].dtype is DType.float32


REFUSED: dict[str, tuple[Callable[[TensorValue, TensorValue], Any], type[Exception], str]] = {
    "short": (
        lambda x, m: ops.qmatmul(Q4_K, None, x[:, :128], m),
        GraphError,
        r"\[n, 128\] and \[8, 144\] do not multiply: a row of 144 bytes of Q4_K is 256 elements, and 128 is not 256",
    ),
    "blocks": (
        lambda _, m: ops.dequantize("Q6_K", m),
        GraphError,
        r"dequantize: a block of Q6_K has 210 bytes, and 144 in \[8, 144\] is not a multiple",
    ),
    "encoding": (
        lambda _, m: ops.dequantize("IQ4_XS", m),
        GraphError,
        "dequantize: blocks of IQ4_XS cannot be computed",
    ),
    "gptq": (lambda x, m: ops.qmatmul("GPTQ", None, x, m), UnsupportedError, "qmatmul: GPTQ has its scales"),
    "several": (
        lambda x, m: ops.qmatmul(Q4_K, None, x, m, m),
        GraphError,
        "a matrix of Q4_K must be one tensor, found 2",
    ),
    "floats": (lambda x, _: ops.qmatmul(Q4_K, None, x, x), TypeError, "qmatmul: packed blocks must be uint8 bytes"),
    "integers": (lambda _, m: ops.qmatmul(Q4_K, None, m, m), GraphError, "qmatmul: needs a float"),
    "vector": (lambda x, m: ops.qmatmul(Q4_K, None, x, m[0]), TypeError, r"qmatmul: the matrix must be \[n, bytes\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_says_why(case: str) -> None:
    compute, kind, message = REFUSED[case]
    types = [TensorType("float32", ["n", 256], CPU), TensorType("uint8", [8, 144], CPU)]
    with Graph("g", input_types=types) as graph, pytest.raises(kind, match=message):
        compute(*graph.inputs)


def test_a_row_of_unknown_size_is_a_type_error() -> None:
    message = r"dequantize: a row of packed blocks must have a known size, found \[8, bytes\]"
    with Graph("g", input_types=[TensorType("uint8", [8, "bytes"], CPU)]) as graph:
        with pytest.raises(TypeError, match=message):
            ops.dequantize(Q4_K, graph.inputs[0])
        assert ops.dequantize(Q4_K, graph.inputs[0].rebind([8, 144])).shape == [8, 256]
