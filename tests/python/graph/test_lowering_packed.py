"""Packed blocks in graphs: elements equal those of `dequantize` bit for bit, products those of NumPy in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import save_file

from graphs import CPU, Array, close, recorded, run
from max_weights import dequantize, load_weights
from max_weights._quantization import QuantizationEncoding
from max_weights.engine import InferenceSession
from max_weights.errors import UnsupportedError
from max_weights.graph import Graph, TensorType, TensorValue, Weight, onnx, ops
from refusals import refuses

ENCODINGS = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
# The order of summation differs from NumPy's; nothing is rounded to less than float32.
TOLERANCE = 2e-6


def blocks_of(encoding: str, rows: int, columns: int, seed: int = 0) -> Array:
    """Random blocks: all bit patterns except scales that are not finite or would overflow in a sum."""
    kind = QuantizationEncoding(encoding)
    random = np.random.default_rng(seed)
    made = random.integers(0, 256, (rows, columns // kind.elements_per_block, kind.block_size), dtype=np.uint8)
    scales = {"Q4_0": (1,), "Q4_1": (1, 3), "Q8_0": (1,), "Q4_K": (1, 3), "Q5_K": (1, 3), "Q6_K": (209,)}[encoding]
    for place in scales:
        made[..., place] &= 0b10111011  # an exponent that is small
    return made.reshape(rows, -1)


def product(x: Array, blocks: Array, encoding: str) -> Array:
    requested = x.astype(np.float64) @ dequantize(blocks, encoding).to_numpy().astype(np.float64).T
    return requested.astype(np.float32)


def near(found: Array, requested: Array) -> None:
    """Within a tolerance relative to the largest element."""
    assert found.shape == requested.shape
    assert found.dtype == requested.dtype
    np.testing.assert_allclose(found, requested, rtol=0, atol=TOLERANCE * max(np.abs(requested).max(initial=0), 1e-30))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_elements_are_those_of_dequantize(encoding: str) -> None:
    blocks = blocks_of(encoding, 7, 768)
    requested = dequantize(blocks, encoding).to_numpy()
    found, rows = run(
        lambda b: (ops.dequantize(encoding, b), ops.dequantize(encoding, ops.gather(b, np.array([[3, 0]]), 0))), blocks
    )
    close(found, requested)
    close(rows, requested[[[3, 0]]])
    close(run(lambda b: ops.dequantize(encoding, b), blocks, shapes=[("n", blocks.shape[1])]), requested)


@pytest.mark.parametrize("encoding", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_of_gguf(encoding: str) -> None:
    matrix = np.random.default_rng(0).standard_normal((24, 128), np.float32)
    blocks = gguf.quants.quantize(matrix, gguf.GGMLQuantizationType[encoding])
    close(
        run(lambda b: ops.dequantize(encoding, b), blocks),
        gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[encoding]),
    )
    x = np.random.default_rng(1).standard_normal((3, 128), np.float32)
    near(_multiplied(encoding, x, blocks), product(x, blocks, encoding))


def _multiplied(encoding: str, x: Array, blocks: Array, **options: Any) -> Array:
    """The product with a weight; both modes agree."""
    graph = Graph(
        "g",
        lambda x: ops.qmatmul(encoding, None, x, Weight("w", "uint8", blocks.shape, CPU, encoding)),
        [TensorType("float32", [*[f"d{axis}" for axis in range(x.ndim - 1)], x.shape[-1]], CPU)],
    )
    shared, fast = (
        InferenceSession()
        .load(graph, weights_registry={"w": blocks}, memory=memory, **options)
        .execute(x)[0]
        .to_numpy()
        for memory in ("shared", "fast")
    )
    near(shared, fast)
    return shared


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_products(encoding: str) -> None:
    """With a weight, whose blocks are replaced when it is loaded, and with an input."""
    blocks = blocks_of(encoding, 40, 512)
    for shape in ((3, 512), (512,), (2, 3, 512), (1, 512), (0, 512)):
        x = np.random.default_rng(1).standard_normal(shape, np.float32)
        requested = product(x, blocks, encoding)
        near(_multiplied(encoding, x, blocks), requested)
        near(run(lambda x, b: ops.qmatmul(encoding, None, x, b), x, blocks), requested)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_floats_are_multiplied_as_float32(dtype: str) -> None:
    blocks, x = blocks_of("Q4_0", 4, 64), np.random.default_rng(1).standard_normal((3, 64)).astype(dtype)
    found = run(lambda x, b: ops.qmatmul("Q4_0", None, x, b), x, blocks)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, product(x.astype(np.float32), blocks, "Q4_0"), rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize("encoding", ["Q4_1", "Q8_0", "Q6_K"])
def test_blocks_in_subgraphs(encoding: str) -> None:
    """Each call has the blocks of its layer."""
    matrices = {f"layers.{i}.w": blocks_of(encoding, 256, 256, seed=i) for i in range(3)}

    def layer(x: TensorValue, name: str) -> TensorValue:
        weight = Weight(name, "uint8", next(iter(matrices.values())).shape, CPU, encoding)
        return ops.qmatmul(encoding, None, x, weight) / 100 + ops.dequantize(encoding, weight)[0]

    with Graph("g", input_types=[TensorType("float32", ["n", 256], CPU)]) as graph:
        (x,) = graph.inputs
        outer = graph.add_subgraph("outer", lambda x: layer(x, "layers.0.w"), [x.type], weight_prefix="layers.0.")
        for number in range(3):
            (x,) = ops.call(outer, x, prefix=f"layers.{number}.")
        graph.output(x)
    given = np.random.default_rng(1).standard_normal((2, 256), np.float32)
    requested = given
    for blocks in matrices.values():
        requested = product(requested, blocks, encoding) / np.float32(100) + dequantize(blocks, encoding).to_numpy()[0]
    for memory in ("shared", "fast"):
        model = InferenceSession().load(graph, weights_registry=matrices, memory=memory)
        found = model.execute(given)[0].to_numpy()
        np.testing.assert_allclose(found, requested, rtol=0, atol=1e-5 * np.abs(requested).max())


def test_a_matrix_with_any_number_of_rows() -> None:
    blocks = np.random.default_rng(5).integers(0, 2**14, (3, 17), np.uint16).view(np.uint8)
    weight, x = Weight("w", "uint8", ("rows", 34), CPU), np.ones((2, 32), np.float32)
    requested = x @ dequantize(blocks, "Q8_0").to_numpy().T
    close(run(lambda x: ops.qmatmul("Q8_0", None, x, weight), x, weights={"w": blocks}), requested, 2e-6)


@pytest.mark.parametrize("encoding", ["Q4_0", "Q6_K"])
def test_rows_of_a_weight_are_rows_of_its_elements(encoding: str) -> None:
    blocks, rows = blocks_of(encoding, 12, 512).reshape(3, 4, -1), np.array([[2, 0, -1]])
    weight, requested = Weight("w", "uint8", blocks.shape, CPU, encoding), dequantize(blocks, encoding).to_numpy()

    def parts(i: TensorValue) -> tuple[TensorValue, ...]:
        taken = [ops.gather(weight, i, 1), weight[1:, ::-1], weight[2, None], ops.gather(weight[:2], i, 0)]
        return tuple(ops.dequantize(encoding, part) for part in taken)

    found = run(parts, rows % 2, weights={"w": blocks})
    for made, part in zip(
        found, (requested[:, rows % 2], requested[1:, ::-1], requested[2, None], requested[:2][rows % 2]), strict=True
    ):
        close(made, part)
    x = np.random.default_rng(1).standard_normal((3, 512), np.float32)
    expert = run(lambda x, i: ops.qmatmul(encoding, None, x, ops.gather(weight, i, 0)), x, 1, weights={"w": blocks})
    near(expert, product(x, blocks[1], encoding))


def test_blocks_that_an_operation_computes_are_refused() -> None:
    for compute in (
        lambda b: ops.dequantize("Q8_0", ops.concat([b, b])),
        lambda b: ops.dequantize("Q8_0", b[:, :34]),
        lambda b: ops.dequantize("Q8_0", ops.gather(b, np.arange(34), 1)),
    ):
        graph = Graph("g", compute, [TensorType("uint8", [4, 68], CPU)])
        with refuses(UnsupportedError, "unsupported.operation"):
            InferenceSession().load(graph)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_saved_models_compute_what_sessions_do(encoding: str, tmp_path: Path) -> None:
    blocks = {name: blocks_of(encoding, 32, 256, seed) for seed, name in enumerate(("w", "w.Q4_K.elements"))}
    path = tmp_path / "blocks.safetensors"
    save_file(blocks, path)
    first, second = (Weight(name, "uint8", value.shape, CPU, encoding) for name, value in blocks.items())

    def function(x: TensorValue, i: TensorValue) -> TensorValue:
        rows = ops.dequantize(encoding, ops.gather(second, i, 0))
        return ops.qmatmul(encoding, None, x, first) + rows[:, :32] + rows @ ops.dequantize(encoding, first).T

    graph = Graph("g", function, [TensorType("float32", [2, 256], CPU), TensorType("int64", [2], CPU)])
    given = {"input0": np.ones((2, 256), np.float32), "input1": np.array([7, 3])}
    weights = load_weights(path)
    requested = InferenceSession().load(graph, weights_registry=weights).execute(*given.values())[0].to_numpy()
    onnx.save(graph, tmp_path / "model.onnx", weights)
    path.unlink()  # nothing refers to the blocks
    model = onnx.to_model(graph, weights).SerializeToString()
    for source in (tmp_path / "model.onnx", model):
        close(onnxruntime.InferenceSession(source).run(None, given)[0], requested, 1e-5)


def test_a_model_whose_input_is_blocks_is_not_saved(tmp_path: Path) -> None:
    graph = recorded(lambda b: ops.dequantize("Q8_0", b), blocks_of("Q8_0", 2, 64))
    with refuses(UnsupportedError, "unsupported.operation"):
        onnx.save(graph, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
    assert InferenceSession().load(graph).cost_notes == ["input0 of Q8_0 is decoded to float32 in each run"]


def test_a_real_model(models: Path) -> None:
    """Matrices of SmolLM2, packed as in the file."""
    weights = {name: weight.data() for name, weight in load_weights([models / "smollm2-135m.Q4_1.gguf"]).items()}
    tried = set()
    for name, data in weights.items():
        encoding = data.quantization_encoding
        if encoding is None or encoding.value in tried or encoding.value not in ENCODINGS or "token" in name:
            continue
        tried.add(encoding.value)
        blocks = data.data.to_numpy()
        columns = blocks.shape[1] // encoding.block_size * encoding.elements_per_block
        x = np.random.default_rng(0).standard_normal((3, columns), np.float32)
        near(_multiplied(encoding.value, x, blocks), product(x, blocks, encoding.value))
        close(run(lambda b, e=encoding: ops.dequantize(e, b), blocks[:9]), dequantize(blocks[:9], encoding).to_numpy())
    assert "Q4_1" in tried
