"""`load_state_dict` of packed weights: blocks of GGUF and GPTQ, their encodings and shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from max_weights import WeightData, load_weights
from max_weights.driver import virtual_devices
from max_weights.dtype import DType
from max_weights.graph import Graph
from max_weights.graph.quantization import QuantizationEncoding
from max_weights.nn import LoadReport
from module_trees import Holder, state, weight
from refusals import refuses

Q4_0 = QuantizationEncoding.Q4_0
Q8_0 = QuantizationEncoding.Q8_0
GPTQ = QuantizationEncoding.GPTQ
Q4_K, Q6_K = QuantizationEncoding.Q4_K, QuantizationEncoding.Q6_K


def array(shape: Any = (2,), dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


def packed(shape: Any, encoding: QuantizationEncoding | None, **options: Any) -> WeightData:
    return WeightData(np.zeros(shape, np.uint8), "w", DType.uint8, shape, encoding, **options)


@pytest.mark.parametrize(
    "declared", [("float32", [4, 64]), ("uint8", [4, 64]), ("uint8", [4, 36]), ("float32", ["n", 64])]
)
def test_packed_weights_take_the_shape_in_bytes_and_keep_the_declaration(declared: Any) -> None:
    model = Holder(w=weight("w", declared[1], declared[0], quantization_encoding=Q4_0))
    original = model.w.original_dtype_and_shape
    for _ in range(2):
        value = packed((4, 36), Q4_0)
        model.load_state_dict({"w": value})
        assert (model.w.dtype, model.w.shape) == (DType.uint8, [4, 36])
        assert model.w.original_dtype_and_shape == original
        assert model.state_dict()["w"] is value.data


def test_packed_bytes_of_an_array_say_not_how_they_are_packed() -> None:
    model = Holder(w=weight("w", [4, 64], quantization_encoding=Q4_0))
    model.load_state_dict({"w": np.zeros((4, 36), np.uint8)})
    assert (model.w.dtype, model.w.shape) == (DType.uint8, [4, 36])
    for bad in (np.zeros((4, 35), np.uint8), np.zeros((5, 36), np.uint8), array((4, 64))):
        with refuses(ValueError, "argument.mismatch"):
            model.load_state_dict({"w": bad})


def int32_data(encoding: QuantizationEncoding | None = None) -> WeightData:
    array = np.arange(32, dtype=np.int32).reshape(8, 4)
    return WeightData(array, "w", DType.int32, (8, 4), encoding)


@pytest.mark.parametrize("encoding", [None, GPTQ])
@pytest.mark.parametrize("override", [False, True])
@pytest.mark.parametrize("declared", [("uint8", (1, 1)), ("uint8", (8, 16)), ("int32", (8, 4))])
def test_gptq_takes_the_bytes_as_uint8_and_keeps_the_original(encoding: Any, override: bool, declared: Any) -> None:
    model = Holder(w=weight("w", declared[1], declared[0], quantization_encoding=GPTQ))
    for _ in range(2):
        data = int32_data(encoding)
        model.load_state_dict({"w": data}, override_quantization_encoding=override)
        assert (model.w.dtype, model.w.shape, model.w.quantization_encoding) == (DType.uint8, [8, 16], GPTQ)
        assert model.w.original_dtype_and_shape == (DType.int32, [8, 4])
        value = model.state_dict()["w"]
        assert np.array_equal(np.asarray(value), np.asarray(data).view(np.uint8))
        assert np.shares_memory(np.asarray(value), np.asarray(data))


def test_gptq_of_other_dtypes_and_ranks() -> None:
    for array, shape in (
        (np.ones((8, 4), np.float16), [8, 8]),
        (np.ones((8, 4), np.uint8), [8, 4]),
        (np.ones(4, np.int32), [16]),
        (np.ones((), np.int32), [4]),
    ):
        model = Holder(w=weight("w", (1, 1), "uint8", quantization_encoding=GPTQ))
        model.load_state_dict({"w": WeightData.from_numpy(array, "w")})
        assert model.w.shape == shape
        assert model.w.original_dtype_and_shape == (DType.from_numpy(array.dtype), list(array.shape))


def test_gptq_into_an_int32_weight_without_an_encoding_needs_override() -> None:
    model = Holder(w=weight("w", (8, 4), "int32"))
    model.load_state_dict({"w": int32_data(GPTQ)})  # it is what was declared, encoding or not
    assert (model.w.dtype, model.w.shape, model.w.quantization_encoding) == (DType.int32, [8, 4], None)
    model.load_state_dict({"w": int32_data(GPTQ)}, override_quantization_encoding=True)
    assert (model.w.dtype, model.w.shape, model.w.quantization_encoding) == (DType.uint8, [8, 16], GPTQ)
    assert model.w.original_dtype_and_shape == (DType.int32, [8, 4])


def test_gptq_that_does_not_fit_is_refused() -> None:
    model = Holder(w=weight("w", (8, 5), "int32", quantization_encoding=GPTQ))
    before = state(model)
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict({"w": int32_data()})
    crooked = WeightData.from_numpy(np.ones((8, 10), np.int32)[:, ::2], "w")
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict({"w": crooked})
    assert state(model) == before


def test_gptq_from_a_file_is_a_view_of_the_mapping(make_file: Callable[..., Path]) -> None:
    path = make_file({"w": np.arange(32, dtype=np.int32).reshape(8, 4)})
    model = Holder(w=weight("w", (1, 1), "uint8", quantization_encoding=GPTQ))
    model.load(path)
    assert model.state_dict()["w"].is_mapped
    assert model.w.original_dtype_and_shape == (DType.int32, [8, 4])


def test_bytes_without_an_encoding_are_taken_by_a_quantized_weight() -> None:
    for dtype, shape in (("float32", (2, 256)), ("uint8", (2, 144)), ("uint8", (1, 1))):
        for value in (packed((2, 144), None), np.zeros((2, 144), np.uint8)):
            model = Holder(w=weight("w", shape, dtype, quantization_encoding=Q4_K))
            model.load_state_dict({"w": value})
            assert (model.w.dtype, model.w.shape, model.w.quantization_encoding) == (DType.uint8, [2, 144], Q4_K)
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict({"w": packed((2, 77), None)})


@pytest.mark.parametrize(
    "declared", [("float32", (2, 256)), ("uint8", (2, 144)), ("uint8", (1, 1)), ("uint8", (2, 256))]
)
def test_mixed_encodings_are_taken_with_override(declared: Any) -> None:
    """Every Q4_K_M file mixes Q4_K and Q6_K."""
    model = Holder(w=weight("w", declared[1], declared[0], quantization_encoding=Q4_K))
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict({"w": packed((2, 210), Q6_K)})
    model.load_state_dict({"w": packed((2, 210), Q6_K)}, override_quantization_encoding=True)
    assert (model.w.dtype, model.w.shape, model.w.quantization_encoding) == (DType.uint8, [2, 210], Q6_K)


def test_load_takes_a_file_of_mixed_encodings_with_override(models: Path) -> None:
    path = models / "smollm2-135m.Q4_1.gguf"
    encoding = load_weights(path).token_embd.weight.data().quantization_encoding
    assert encoding not in (None, Q4_K)
    model = Holder(token_embd=Holder(w=weight("weight", (1, 1), "uint8", quantization_encoding=Q4_K)))
    with refuses(ValueError, "argument.mismatch"):
        model.load(path, strict=False)
    model.load(path, strict=False, override_quantization_encoding=True)
    assert model.token_embd.w.quantization_encoding is encoding
    plain = Holder(token_embd=Holder(w=weight("weight", (49152, 576))))
    with refuses(ValueError, "argument.mismatch"):
        plain.load(path, strict=False)
    plain.load(path, "float32", strict=False)


def test_shapes_in_bytes_are_adopted() -> None:
    model = Holder(w=weight("w", (1, 1), "uint8", quantization_encoding=Q4_K))
    for rows in (2, 5):
        model.load_state_dict({"w": packed((rows, 144), Q4_K)})
        assert model.w.shape == [rows, 144]


def test_bytes_with_an_encoding_are_taken_by_a_weight_that_was_declared_as_these_bytes() -> None:
    model = Holder(w=weight("w", (2, 210), "uint8"))
    model.load_state_dict({"w": packed((2, 210), Q6_K)})
    assert model.w.quantization_encoding is None
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict({"w": packed((3, 210), Q6_K)})


def test_original_dtype_and_shape_can_be_set() -> None:
    one = weight("w", (1, 1), "uint8", quantization_encoding=GPTQ)
    one.original_dtype_and_shape = "int32", (8, 4)
    assert one.original_dtype_and_shape == (DType.int32, [8, 4])


def test_weights_that_a_graph_has_are_loaded_as_the_graph_has_them() -> None:
    model = Holder(a=weight("a"), q=weight("q", [4, 64], quantization_encoding=Q4_0))
    with Graph("g") as graph:
        graph.add_weight(model.q)
        graph.add_weight(model.a)
    before = state(model)
    with refuses(ValueError):
        model.load_state_dict({"a": array(), "q": packed((4, 36), Q4_0)})
    assert state(model) == before
    report = model.load_state_dict({"a": array()}, strict=False)
    assert report == LoadReport(("q",), (), loaded=report.loaded)
    assert [found.name for found in graph.parameters.values()] == ["q", "a"]


def test_packed_weights_of_another_size_are_refused() -> None:
    model = Holder(w=weight("w", [4, 64], quantization_encoding=Q4_0))
    before = state(model)
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict({"w": packed((4, 54), Q4_0)})
    assert state(model) == before


def test_a_differing_encoding_needs_override() -> None:
    for requested, found in ((Q4_0, Q8_0), (None, Q8_0)):
        model = Holder(w=weight("w", [4, 64], quantization_encoding=requested))
        given = {"w": packed((4, 68), found)}
        with refuses(ValueError, "argument.mismatch"):
            model.load_state_dict(given)
        model.load_state_dict(given, override_quantization_encoding=True)
        assert (model.w.quantization_encoding, model.w.shape, model.w.dtype) == (Q8_0, [4, 68], DType.uint8)
        assert model.w.original_dtype_and_shape == (DType.float32, [4, 64])
        model.load_state_dict(given)
    plain = {"w": WeightData.from_numpy(array((4, 64)), "w")}
    with refuses(ValueError, "argument.mismatch"):
        model.load_state_dict(plain)
    model.load_state_dict(plain, override_quantization_encoding=True)
    assert (model.w.quantization_encoding, model.w.shape, model.w.dtype) == (None, [4, 64], DType.float32)


def test_gguf_weights_load_packed(models: Path) -> None:
    weights = load_weights(models / "smollm2-135m.Q4_1.gguf")
    down = weights.blk[0].ffn_down.weight.data()
    model = Holder(
        ffn_down=Holder(weight=weight("weight", down.logical_shape, quantization_encoding=QuantizationEncoding.Q4_1))
    )
    report = model.load_state_dict(weights.blk[0], strict=False)
    assert report is not None
    assert report.missing == ()
    assert model.ffn_down.weight.shape == down.shape
    assert model.ffn_down.weight.original_dtype_and_shape[1] == down.logical_shape
    decoded = Holder(ffn_down=Holder(weight=weight("weight", down.logical_shape)))
    decoded.load(models / "smollm2-135m.Q4_1.gguf", "float32", {"blk.0.": ""}, strict=False)
    assert np.array_equal(
        np.asarray(decoded.state_dict()["ffn_down.weight"]), np.asarray(down.astype("float32").to_buffer())
    )


def test_gguf_models_load_decoded_inside_virtual_devices(models: Path) -> None:
    path = models / "smollm2-135m.Q4_1.gguf"
    down = load_weights(path).blk[0].ffn_down.weight.data()
    shape = down.logical_shape
    with virtual_devices():
        for dtype in ("float32", "bfloat16"):
            made = down.astype(dtype)
            assert (made.dtype, made.shape, made.quantization_encoding) == (DType(dtype), shape, None)
            model = Holder(ffn_down=Holder(weight=weight("weight", shape, dtype)))
            assert model.load(path, dtype, {"blk.0.": ""}, strict=False).missing == ()
            assert (model.ffn_down.weight.dtype, model.ffn_down.weight.shape) == (DType(dtype), shape)
        packed = Holder(ffn_down=Holder(weight=weight("weight", shape, quantization_encoding="q4_1")))
        packed.load(path, None, {"blk.0.": ""}, strict=False)
        assert packed.ffn_down.weight.shape == down.shape
