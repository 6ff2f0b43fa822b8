"""Written GGUF files: byte for byte those of gguf-py, which reads them back."""

from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch
from gguf.quants import quantize

from max_weights import DType, WeightData, load_weights, save_gguf
from max_weights.errors import ArgumentError, UnsupportedError

RANDOM = np.random.default_rng(20)
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "größe 重み",
    "llama.block_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.add_bos_token": True,
    "u8": np.uint8(200),
    "i8": np.int8(-3),
    "u16": np.uint16(60_000),
    "i16": np.int16(-30_000),
    "i32": -7,
    "u64": 1 << 40,
    "i64": -(1 << 40),
    "f64": np.float64(0.1),
    "tokenizer.ggml.tokens": ["<s>", "", "é", "重"],
    "tokenizer.ggml.scores": [0.5, -1.0],
    "tokenizer.ggml.token_type": np.arange(4, dtype=np.int32),
    "flags": [True, False],
    "negative": [1, -1],
}


def tensors() -> dict[str, np.ndarray[Any, Any]]:
    floats = RANDOM.standard_normal((6, 64)).astype(np.float32)
    return {
        "token_embd.weight": floats,
        "half": floats.astype(np.float16),
        "brain": floats.astype(ml_dtypes.bfloat16),
        "double": floats.astype(np.float64),
        "i8": np.arange(-8, 8, dtype=np.int8).reshape(2, 2, 4),
        "i16": np.arange(3, dtype=np.int16),
        "i32": np.arange(1, dtype=np.int32),
        "i64": np.arange(5, dtype=np.int64).reshape(5, 1, 1, 1),
    }


def written_by_gguf_py(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> bytes:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.name", METADATA["general.name"])
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -3)
    writer.add_uint16("u16", 60_000)
    writer.add_int16("i16", -30_000)
    writer.add_int32("i32", -7)
    writer.add_uint64("u64", 1 << 40)
    writer.add_int64("i64", -(1 << 40))
    writer.add_float64("f64", 0.1)
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.scores"):
        writer.add_array(key, METADATA[key])
    writer.add_array("tokenizer.ggml.token_type", [0, 1, 2, 3])
    writer.add_array("flags", [True, False])
    writer.add_array("negative", [1, -1])
    for name, array in arrays.items():
        if array.dtype == ml_dtypes.bfloat16:
            writer.add_tensor(name, array.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def test_the_bytes_are_those_that_gguf_py_writes(tmp_path: Path) -> None:
    arrays = tensors()
    path = tmp_path / "ours.gguf"
    assert save_gguf(arrays, path, METADATA) == [path]
    assert path.read_bytes() == written_by_gguf_py(tmp_path / "theirs.gguf", arrays)


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_blocks_are_those_of_gguf_py_wherever_they_come_from(tmp_path: Path, name: str) -> None:
    kind = gguf.GGMLQuantizationType[name.upper()]
    floats = RANDOM.standard_normal((6, 64)).astype(np.float32)
    blocks = quantize(floats, kind)
    packed = load_weights(packed_file(tmp_path / "source.gguf", blocks, kind))
    given = {
        "token_embd.weight": floats,
        "half.weight": torch.from_numpy(floats).half(),
        "output_norm.weight": floats,
        "odd.weight": np.ones((2, 30), np.float32),
        "packed": packed.packed.data(),
        "again": torch.from_numpy(floats.T.copy()).T,
    }
    path = tmp_path / "model.gguf"
    save_gguf({key: value for key, value in given.items() if key != "again"}, path, quantize=name)
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for key in ("token_embd.weight", "packed"):
        assert found[key].tensor_type == kind
        assert np.array_equal(found[key].data, blocks)
    half = quantize(floats.astype(np.float16).astype(np.float32), kind)
    assert np.array_equal(found["half.weight"].data, half)
    assert found["output_norm.weight"].tensor_type == gguf.GGMLQuantizationType.F32
    assert found["odd.weight"].tensor_type == gguf.GGMLQuantizationType.F16
    save_gguf(given, path, quantize={"token_*": name, "again": name})
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert np.array_equal(found["token_embd.weight"].data, blocks)
    assert found["half.weight"].tensor_type == gguf.GGMLQuantizationType.F16
    assert np.array_equal(found["again"].data, blocks)


def packed_file(path: Path, blocks: np.ndarray[Any, Any], kind: gguf.GGMLQuantizationType) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("packed", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_set_is_read_by_everybody_and_what_an_older_one_left_is_gone(tmp_path: Path) -> None:
    arrays = {f"blk.{i}.weight": np.full((4, 64), i, np.float32) for i in range(7)}
    save_gguf(arrays, tmp_path / "model.gguf", METADATA, max_shard_size="1KB")
    files = save_gguf(arrays, tmp_path / "model.gguf", METADATA, max_shard_size="3KiB")
    assert [file.name for file in files] == [f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert sorted(tmp_path.iterdir()) == files
    seen = {}
    for number, file in enumerate(files):
        reader = gguf.GGUFReader(file)
        of_split = {key: reader.fields[f"split.{key}"].contents() for key in ("no", "count", "tensors.count")}
        assert of_split == {"no": number, "count": 3, "tensors.count": 7}
        assert ("general.name" in reader.fields) == (number == 0)
        seen.update({tensor.name: tensor.data for tensor in reader.tensors})
    assert seen.keys() == arrays.keys()
    weights = load_weights(files[0])
    assert all(np.array_equal(weights[name].numpy(), array) for name, array in arrays.items())
    whole = save_gguf(weights, tmp_path / "whole.gguf")[0]
    save_gguf(arrays, tmp_path / "plain.gguf", METADATA)
    assert whole.read_bytes() == (tmp_path / "plain.gguf").read_bytes()


def test_a_real_file_is_written_again_as_it_was(tmp_path: Path, models: Path) -> None:
    source = models / "smollm2-135m.Q4_1.gguf"
    copy = tmp_path / source.name
    save_gguf(load_weights(source), copy)
    ours, theirs = gguf.GGUFReader(copy), gguf.GGUFReader(source)
    assert list(ours.fields) == list(theirs.fields)
    assert all(ours.fields[key].contents() == field.contents() for key, field in theirs.fields.items())
    assert [tensor.name for tensor in ours.tensors] == [tensor.name for tensor in theirs.tensors]
    for mine, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert mine.tensor_type == other.tensor_type
        assert np.array_equal(mine.data, other.data)
    save_gguf(load_weights(copy), copy, {"general.name": "again"}, quantize="q8_0")  # over itself
    found = gguf.GGUFReader(copy)
    assert found.fields["general.file_type"].contents() == 7
    assert found.fields["general.name"].contents() == "again"
    kinds = {tensor.tensor_type.name for tensor in found.tensors}
    assert kinds == {"F32", "Q8_0"}
    first = next(tensor for tensor in found.tensors if tensor.name == "blk.0.attn_q.weight")
    decoded = gguf.quants.dequantize(*next((t.data, t.tensor_type) for t in theirs.tensors if t.name == first.name))
    assert np.array_equal(first.data, quantize(decoded, gguf.GGMLQuantizationType.Q8_0))


def test_a_module_of_torch_is_written_by_its_names(tmp_path: Path) -> None:
    module = torch.nn.Linear(64, 8)
    save_gguf(module, tmp_path / "module.gguf")
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "module.gguf").tensors}
    assert np.array_equal(found["weight"], module.weight.detach().numpy())


@pytest.mark.parametrize(
    ("given", "metadata", "options", "said"),
    [
        ({"x" * 64: np.ones(1, np.float32)}, {}, {}, "its name has 64 bytes, but ggml has room for 63"),
        ({"": np.ones(1, np.float32)}, {}, {}, "tensor '': a name must not be empty or contain NUL"),
        ({"a\0b": np.ones(1, np.float32)}, {}, {}, "a name must not be empty or contain NUL"),
        ({"rows": np.ones((34, 32), np.uint8)}, {}, {"quantize": {"rows": "q8_0"}}, "rows of 32 bytes are not whole"),
        ({"deep": np.ones((1, 1, 1, 1, 2), np.float32)}, {}, {}, "tensor 'deep': it has 5 dimensions"),
        ({"bytes": np.ones(3, np.uint8)}, {}, {}, "tensor 'bytes': a GGUF file cannot hold uint8"),
        ({"short": np.ones((2, 30), np.float32)}, {}, {"quantize": {"short": "q8_0"}}, "tensor 'short'"),
        ({}, {"none": None}, {}, "metadata 'none'"),
        ({}, {"mixed": ["a", 1]}, {}, "metadata 'mixed'"),
        ({}, {"general.alignment": 12}, {}, "general.alignment"),
        ({}, {}, {"quantize": "q9_9"}, "'q9_9' is not a quantization encoding"),
        ({"a": np.ones(1, np.float32)}, {}, {"max_shard_size": 0}, "max_shard_size=0"),
    ],
)
def test_what_a_file_cannot_have_is_refused_by_name_and_nothing_is_written(
    tmp_path: Path, given: Any, metadata: Any, options: Any, message: str
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="(?s)" + message.replace("(", r"\(").replace(".", r"\.")):
        save_gguf(given, path, metadata, **options)
    assert [file.name for file in tmp_path.iterdir()] == ["model.gguf"]
    assert path.read_bytes() == b"old"


def test_an_encoding_that_is_only_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="Q4_K"):
        save_gguf({"a.weight": np.ones((2, 256), np.float32)}, tmp_path / "a.gguf", quantize="q4_k")
    assert not list(tmp_path.iterdir())


def test_weight_data_that_are_plain_are_tensors_like_others(tmp_path: Path) -> None:
    data = WeightData.from_numpy(np.ones((2, 3), np.float32), "x")
    save_gguf({"x": data}, tmp_path / "x.gguf")
    assert load_weights(tmp_path / "x.gguf").x.data().dtype == DType.float32


def test_a_path_of_safetensors_is_no_place_for_gguf(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"model.safetensors': a file with this name is .* call save_file"):
        save_gguf({"a": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
