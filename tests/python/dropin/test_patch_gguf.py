"""`patch()` and GGUF: decoding, names of tensors, metadata, and models of transformers."""

import gc
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import gguf.tensor_mapping
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Value

import gguf_models
import max_weights
from max_weights._dropin import Calls
from max_weights._dropin.calls import Counter
from max_weights._dropin.gguf_functions import dequantize
from test_patch import outcome

# Held where no sweep finds them: outside module attributes.
ORIGINAL = {"dequantize": gguf.dequantize, "map": gguf.get_tensor_name_map, "reader": gguf.GGUFReader}
VALUES = "transformers.integrations.ggml._gguf_parse_value"


@pytest.fixture(autouse=True)
def unpatched_again() -> Iterator[None]:
    assert not max_weights.patched()
    yield
    max_weights.unpatch()
    assert gguf.dequantize is gguf.quants.dequantize is ORIGINAL["dequantize"]
    assert gguf.get_tensor_name_map is gguf.tensor_mapping.get_tensor_name_map is ORIGINAL["map"]
    assert gguf.GGUFReader is ORIGINAL["reader"]


@pytest.fixture
def patched() -> None:
    max_weights.patch()
    assert gguf.dequantize is gguf.quants.dequantize is not ORIGINAL["dequantize"]


def since(name: str, before: Mapping[str, Calls]) -> Calls:
    now, then = max_weights.patched()[name], before[name]
    return Calls(now.fast - then.fast, now.fallback - then.fallback)


def decoded(data: Any, qtype: Any) -> tuple[str, Any]:
    """The result of `gguf.dequantize`: its properties and its bits; or the error."""
    kind, value = outcome(gguf.dequantize, data, qtype)
    if kind != "value":
        return kind, value
    about = (type(value), value.dtype, value.shape, value.flags.writeable, value.flags.c_contiguous)
    return kind, (about, value.tobytes())


def test_tensors_are_decoded_as_without_bit_for_bit(models: Path) -> None:
    for file in ("derived/minilm-ffn-allquants.gguf", "smollm2-135m.Q4_1.gguf"):
        tensors = gguf.GGUFReader(models / file).tensors[-24:]
        expected = [decoded(tensor.data, tensor.tensor_type) for tensor in tensors]
        max_weights.patch()
        before = max_weights.patched()
        for tensor, values in zip(tensors, expected, strict=True):
            assert decoded(tensor.data, tensor.tensor_type) == values, tensor.name
        plain = sum(tensor.tensor_type == Type.F32 for tensor in tensors)
        unknown = sum(kind != "value" for kind, _ in expected)
        assert since("gguf.dequantize", before) == Calls(len(tensors) - plain - unknown, plain + unknown)
        max_weights.unpatch()
    assert unknown == 0


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("qtype", Type)
def test_any_bytes_are_decoded_as_without(qtype: Type) -> None:
    size = gguf.GGML_QUANT_SIZES[qtype][1]
    # Of a hundred blocks, some have scales that are infinite or NaN.
    blocks = np.random.default_rng(0).integers(0, 256, (5, 2, 10 * size), np.uint8)
    for data in (blocks, blocks[1], blocks[1, 1], blocks[0, 0, :size]):
        found = decoded(data, qtype)
        max_weights.unpatch()
        assert found == decoded(data, qtype)
        max_weights.patch()


@pytest.mark.usefixtures("patched")
def test_floats_of_16_bits_are_decoded_as_without(tmp_path: Path) -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).reshape(31, -1)  # all finite, nonnegative ones
    (tmp_path / "halves").write_bytes(halves.tobytes())
    mapped: Any = np.memmap(tmp_path / "halves", np.uint8, "r").reshape(31, -1)
    cases: list[tuple[Any, Type]] = [
        (halves.view(np.float16), Type.F16),
        (mapped.view(np.float16), Type.F16),
        (halves.view(np.uint8), Type.BF16),
        (mapped, Type.BF16),
    ]
    before = max_weights.patched()
    found = [decoded(*case) for case in cases]
    assert since("gguf.dequantize", before) == Calls(len(cases), 0)
    max_weights.unpatch()
    assert found == [decoded(*case) for case in cases]


BLOCKS = np.arange(4 * 2 * 34, dtype=np.uint8).reshape(4, -1)
CALLS: dict[str, tuple[Any, Any]] = {
    "float32": (np.ones((2, 3), np.float32), Type.F32),
    "bytes of float32": (BLOCKS[:, :8], Type.F32),
    "bytes of float16": (np.ascontiguousarray(BLOCKS[:, :8]), Type.F16),
    "swapped float16": (np.ones((2, 4), ">f2"), Type.F16),
    "16-bit words": (BLOCKS.view(np.uint16), Type.Q8_0),
    "signed bytes": (BLOCKS.view(np.int8), Type.Q8_0),
    "columns": (BLOCKS[:, :34], Type.Q8_0),
    "turned": (BLOCKS.T, Type.Q8_0),
    "no whole block": (np.ascontiguousarray(BLOCKS[:, :33]), Type.Q8_0),
    "no rows": (BLOCKS[:0], Type.Q8_0),
    "nothing": (np.zeros(0, np.uint8), Type.Q8_0),
    "a scalar": (np.uint8(1), Type.Q8_0),
    "no axis": (np.array(1, np.uint8), Type.Q8_0),
    "a list": ([0] * 34, Type.Q8_0),
    "bytes": (bytes(34), Type.Q8_0),
    "None": (None, Type.Q8_0),
    "a number for the type": (BLOCKS, 8),
    "an integer type": (BLOCKS, Type.I8),
    "a type that gguf does not decode": (np.zeros((2, 292), np.uint8), Type.Q8_K),
    "an unknown type": (BLOCKS, 99),
    "no type": (BLOCKS, "Q8_0"),
    "a type that has no hash": (BLOCKS, []),
    "a masked array": (np.ma.masked_array(BLOCKS), Type.Q8_0),
}


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("name", CALLS)
def test_every_call_of_dequantize_has_the_outcome_that_it_has_without(name: str) -> None:
    found = decoded(*CALLS[name])
    max_weights.unpatch()
    assert found == decoded(*CALLS[name])


@pytest.mark.usefixtures("patched")
def test_lazy_tensors_stay_lazy() -> None:
    lazy = gguf.LazyNumpyTensor.from_eager(BLOCKS)
    found: Any = gguf.dequantize(lazy, Type.Q8_0)  # type: ignore[arg-type]
    assert isinstance(found, gguf.LazyNumpyTensor)
    np.testing.assert_array_equal(gguf.LazyNumpyTensor.to_eager(found), ORIGINAL["dequantize"](BLOCKS, Type.Q8_0))


@pytest.mark.usefixtures("patched")
def test_what_is_decoded_is_memory_of_its_own() -> None:
    data = BLOCKS.copy()
    first, second = gguf.dequantize(data, Type.Q8_0), gguf.dequantize(data, Type.Q8_0)
    first[:] = 7
    np.testing.assert_array_equal(second, ORIGINAL["dequantize"](BLOCKS, Type.Q8_0))
    np.testing.assert_array_equal(data, BLOCKS)


def test_types_that_a_version_of_gguf_decodes_to_other_values_are_its_own() -> None:
    def later(data: Any, qtype: Any) -> Any:
        return ORIGINAL["dequantize"](data, qtype) * (2 if qtype == Type.Q8_0 else 1)

    counter = Counter("later")
    ours = dequantize(later, counter)
    np.testing.assert_array_equal(ours(BLOCKS, Type.Q8_0), later(BLOCKS, Type.Q8_0))
    assert counter.calls == Calls(fast=0, fallback=1)
    blocks = np.arange(36, dtype=np.uint8)
    np.testing.assert_array_equal(ours(blocks, Type.Q4_0), later(blocks, Type.Q4_0))
    assert counter.calls == Calls(fast=1, fallback=1)


LLAMA, DEEPSEEK = gguf.MODEL_ARCH.LLAMA, gguf.MODEL_ARCH.DEEPSEEK2


@pytest.mark.usefixtures("patched")
def test_a_map_of_names_is_built_once_while_it_is_in_use() -> None:
    expected = ORIGINAL["map"](LLAMA, 3).mapping
    before = max_weights.patched()
    maps = [gguf.get_tensor_name_map(LLAMA, 3) for _ in range(5)]
    assert since("gguf.get_tensor_name_map", before) == Calls(fast=4, fallback=1)
    assert all(type(one) is gguf.TensorNameMap and one.mapping == expected for one in maps)
    assert gguf.get_tensor_name_map(LLAMA, 4).mapping == ORIGINAL["map"](LLAMA, 4).mapping
    assert gguf.get_tensor_name_map(arch=DEEPSEEK, n_blocks=3).mapping == ORIGINAL["map"](DEEPSEEK, 3).mapping
    before = max_weights.patched()
    del maps
    gc.collect()
    gguf.get_tensor_name_map(LLAMA, 3)
    assert since("gguf.get_tensor_name_map", before) == Calls(fast=0, fallback=1)


@pytest.mark.usefixtures("patched")
def test_maps_of_names_share_nothing() -> None:
    first, second = gguf.get_tensor_name_map(LLAMA, 2), gguf.get_tensor_name_map(LLAMA, 2)
    first.mapping.clear()
    second.mapping["mine"] = first.mapping.get("mine")  # type: ignore[assignment]
    assert gguf.get_tensor_name_map(LLAMA, 2).mapping == ORIGINAL["map"](LLAMA, 2).mapping


@pytest.mark.usefixtures("patched")
def test_maps_are_built_anew_where_that_of_another_architecture_changed_their_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = dict(gguf.TensorNameMap.block_mappings_cfg)
    monkeypatch.setattr(gguf.TensorNameMap, "block_mappings_cfg", table)
    # For the architectures of this table, with a tensor that both have.
    other = {gguf.MODEL_ARCH.GPT2: {gguf.MODEL_TENSOR.ATTN_Q: ("elsewhere.{bid}.query",)}}
    monkeypatch.setattr(gguf.TensorNameMap, "arch_block_mappings_cfg", other)
    first = gguf.get_tensor_name_map(LLAMA, 2)
    gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, 2)
    again = gguf.get_tensor_name_map(LLAMA, 2)
    assert again.mapping == ORIGINAL["map"](LLAMA, 2).mapping
    assert again.mapping != first.mapping


@pytest.mark.usefixtures("patched")
def test_maps_that_cannot_be_built_have_the_error_that_they_have_without() -> None:
    arguments: list[tuple[Any, ...]] = [(LLAMA, "two"), ("llama", 2), ([], 2), (LLAMA, None), (LLAMA,)]
    for given in arguments:
        assert outcome(gguf.get_tensor_name_map, *given) == outcome(ORIGINAL["map"], *given)
        assert outcome(gguf.get_tensor_name_map, *given)[0] != "value"


TEXT = np.frombuffer("naïve".encode(), np.uint8)
METADATA: dict[str, tuple[Any, Any, bool]] = {
    "text": (TEXT, [Value.STRING], True),
    "text of an array": (TEXT, [Value.ARRAY, Value.STRING], True),
    "no text": (TEXT[:0], [Value.STRING], True),
    "bytes that are no text": (TEXT[3:], [Value.STRING], True),
    "a type alone": (TEXT, Value.STRING, True),
    "numbers for types": (TEXT, [9, 8], True),
    "text apart": (np.repeat(TEXT, 2)[::2], [Value.STRING], True),
    "an integer": (np.array([3], np.int32), [Value.INT32], True),
    "an integer of an array": (np.array([2**63], np.uint64), [Value.ARRAY, Value.UINT64], True),
    "a float": (np.array([0.1], np.float32), [Value.FLOAT32], True),
    "a double": (np.array([0.1]), [Value.ARRAY, Value.FLOAT64], True),
    "a bool": (np.array([True]), [Value.BOOL], True),
    "no number": (np.array([np.nan], np.float32), [Value.INT32], True),
    "nothing": (np.zeros(0, np.int32), [Value.INT32], True),
    "text in a list": ([104, 105], [Value.STRING], False),
    "text of words": (TEXT.astype(np.uint16), [Value.STRING], False),
    "text of signed bytes": (TEXT.view(np.int8), [Value.STRING], False),
    "text in rows": (TEXT.reshape(2, -1), [Value.STRING], False),
    "an array of arrays": (TEXT, [Value.ARRAY, Value.ARRAY], False),
    "two types": (TEXT, [Value.STRING, Value.STRING], False),
    "three types": (TEXT, [Value.ARRAY, Value.ARRAY, Value.STRING], False),
    "no types": (TEXT, [], False),
    "an unknown type": (TEXT, [77], False),
    "a list as type": (TEXT, [[8]], False),
    "None as type": (TEXT, None, False),
}


@pytest.mark.parametrize("name", METADATA)
def test_values_of_metadata_are_those_that_they_are_without(name: str) -> None:
    from transformers.integrations import ggml

    value, types, served = METADATA[name]
    expected = outcome(ggml._gguf_parse_value, value, types)
    max_weights.patch()
    before = max_weights.patched()
    found = outcome(ggml._gguf_parse_value, value, types)
    assert (found, type(found[1])) == (expected, type(expected[1]))
    assert bool(since(VALUES, before).fallback) == (not served)


def loaded(folder: Path, file: str, **options: Any) -> dict[str, Any]:
    """A model, its config and its tokenizer: parameters and buffers by their digests."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, **options)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    tensors = {
        name: (
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy()).hexdigest(),
        )
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    return {
        "tensors": tensors,
        "tied": model.get_input_embeddings().weight is model.get_output_embeddings().weight,
        "training": model.training,
        "config": model.config.to_dict(),
        "generation": model.generation_config.to_dict(),
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "special": tokenizer.special_tokens_map,
        "template": tokenizer.chat_template,
    }


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TQDM_DISABLE", "1")


@pytest.mark.nightly  # 20 s for each of the two; a small one is read in every dtype
@pytest.mark.usefixtures("offline")
def test_a_real_model_of_transformers_is_the_same(models: Path) -> None:
    file = "smollm2-135m.Q4_1.gguf"
    expected = loaded(models, file)  # by far the longest of these tests: 20 s
    max_weights.patch()
    before = max_weights.patched()
    assert loaded(models, file) == expected
    assert since("gguf.dequantize", before) == Calls(fast=211, fallback=61)  # 61 are of float32
    assert since("gguf.get_tensor_name_map", before).fallback == 1
    assert since(VALUES, before).fallback == 0


@pytest.mark.usefixtures("offline")
def test_small_models_are_the_same_in_every_dtype(tmp_path: Path) -> None:
    import torch

    gguf_models.write(tmp_path / "model.gguf")
    for dtype in (None, "auto", torch.float16, torch.bfloat16):
        expected = loaded(tmp_path, "model.gguf", dtype=dtype)
        max_weights.patch()
        assert loaded(tmp_path, "model.gguf", dtype=dtype) == expected
        max_weights.unpatch()


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    "damage", ["empty", "cut in the metadata", "cut in the tensors", "no GGUF", "no text", "no type", "absent"]
)
def test_damaged_files_have_the_outcome_that_they_have_without(tmp_path: Path, damage: str) -> None:
    path = gguf_models.write(tmp_path / "model.gguf")
    content = bytearray(path.read_bytes())
    if damage == "empty":
        content.clear()
    elif damage == "cut in the metadata":
        del content[1000:]
    elif damage == "cut in the tensors":
        del content[-1000:]
    elif damage == "no GGUF":
        content[:4] = b"ABCD"
    elif damage == "no text":  # in a token
        content[content.index(b"<|end|>")] = 0xFF
    elif damage == "no type":
        at = content.index(b"blk.0.attn_q.weight") + len("blk.0.attn_q.weight") + 4 + 2 * 8
        content[at : at + 4] = (250).to_bytes(4, "little")
    path.write_bytes(content)
    if damage == "absent":
        path.unlink()
    expected = outcome(loaded, tmp_path, "model.gguf")
    assert expected[0] != "value"
    max_weights.patch()
    found = outcome(loaded, tmp_path, "model.gguf")
    # Files that we refuse as damaged have our error message.
    assert found == expected or (found[0] == "FormatError" and "model.gguf" in found[1])
