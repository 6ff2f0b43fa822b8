"""GGUF files: stored blocks and decoded values equal gguf-py's, metadata stays lazy, split sets open as one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import max_weights
from max_weights import DType, FormatError, UnsupportedError
from max_weights.graph import Shape
from max_weights.graph.quantization import QuantizationEncoding
from max_weights.graph.weights import GGUFWeights, Weights, load_weights
from refusals import refuses

FILES = ["smollm2-135m.Q4_1.gguf", "derived/minilm-ffn-allquants.gguf"]
PLAIN = {"F32": DType.float32, "F16": DType.float16, "BF16": DType.bfloat16, "F64": DType.float64}
# Encodings that gguf-py cannot decode; libgguf is the reference for the Rust tests' vectors.
NOT_IN_GGUF_PY = {"Q1_0", "Q2_0", "Q8_1", "Q8_K"}


@pytest.fixture(scope="module", params=FILES)
def pair(request: pytest.FixtureRequest, models: Path) -> tuple[Any, gguf.GGUFReader]:
    return load_weights(models / request.param), gguf.GGUFReader(models / request.param)


def test_names_shapes_and_stored_blocks_equal_gguf_pys(pair: tuple[Any, gguf.GGUFReader]) -> None:
    weights, reader = pair
    assert isinstance(weights, GGUFWeights)
    assert isinstance(weights, Weights)
    assert [info.name for info in max_weights.infos(weights)] == [
        tensor.name for tensor in sorted(reader.tensors, key=lambda tensor: tensor.data_offset)
    ]
    for tensor in reader.tensors:
        value = weights[tensor.name].data()
        kind = gguf.GGMLQuantizationType(tensor.tensor_type).name
        assert value.data.is_mapped
        assert bytes(value.data.view(DType.uint8, (value.data.nbytes,))) == tensor.data.tobytes(), tensor.name
        assert value.logical_shape == [int(dim) for dim in reversed(tensor.shape)]
        if kind in PLAIN:
            assert (value.dtype, value.quantization_encoding) == (PLAIN[kind], None)
        else:
            assert (value.dtype, value.shape) == (DType.uint8, list(tensor.data.shape))
            assert value.quantization_encoding is not None
            assert value.quantization_encoding.value == kind


@pytest.mark.parametrize("target", ["float32", "float16", "bfloat16", "float64", "int8"])
def test_decoded_values_equal_gguf_pys(pair: tuple[Any, gguf.GGUFReader], target: str) -> None:
    weights, reader = pair
    dtype = DType(target)
    # A few tensors of a model suffice; the first is a third of its size.
    few = "ffn" not in reader.tensors[0].name and target != "float32"
    for tensor in reader.tensors[1::20] if few else reader.tensors:
        kind = gguf.GGMLQuantizationType(tensor.tensor_type)
        if kind.name in NOT_IN_GGUF_PY:
            continue
        found = weights[tensor.name].data().astype(dtype)
        expected = gguf.quants.dequantize(tensor.data, kind).reshape(found.shape.static_dims)
        with np.errstate(all="ignore"):
            expected = expected.astype(dtype.to_numpy())
        assert (found.dtype, found.quantization_encoding) == (dtype, None)
        assert np.asarray(found).tobytes() == expected.tobytes(), (tensor.name, kind.name)


def test_metadata_equals_gguf_pys(pair: tuple[Any, gguf.GGUFReader]) -> None:
    weights, reader = pair
    metadata = weights.metadata
    expected = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert list(metadata) == list(expected)
    assert len(metadata) == len(expected)
    for key, value in expected.items():
        assert key in metadata
        found = metadata[key]
        assert np.array_equal(found, value) if isinstance(found, np.ndarray) else found == value, key
    assert metadata.get("nothing") is None
    assert metadata.get("nothing", 3) == 3
    with refuses(KeyError):
        metadata["nothing"]
    assert dict(metadata.items()).keys() == expected.keys()


def test_metadata_of_the_real_model(models: Path) -> None:
    metadata = load_weights(models / "smollm2-135m.Q4_1.gguf").metadata
    assert metadata["general.architecture"] == "llama"
    tokens = metadata["tokenizer.ggml.tokens"]
    assert (len(tokens), tokens[:3]) == (49152, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    types = metadata["tokenizer.ggml.token_type"]
    assert isinstance(types, np.ndarray)
    assert (types.dtype, types.shape) == (np.int32, (49152,))
    assert "architecture" in repr(metadata)


def test_allocate_compares_the_logical_shape_and_the_encoding(models: Path) -> None:
    weights = load_weights(models / "smollm2-135m.Q4_1.gguf")
    node = weights.blk[0].ffn_down.weight
    weight = node.allocate(shape=(576, 1536), quantization_encoding=QuantizationEncoding.Q4_1)
    assert (weight.dtype, weight.quantization_encoding) == (DType.uint8, QuantizationEncoding.Q4_1)
    assert weight.shape == Shape([576, 1536 // 32 * 20])
    assert weight.align is not None
    assert weight.align >= 32
    with refuses(ValueError):
        node.allocate(shape=(1536, 576))
    with refuses(ValueError):
        node.allocate(quantization_encoding=QuantizationEncoding.GPTQ)
    decoded = node.allocate(dtype=DType.bfloat16)
    assert (decoded.dtype, decoded.shape, decoded.quantization_encoding) == (DType.bfloat16, [576, 1536], None)
    assert weights.allocated_weights[node.name].to_buffer().shape == (576, 1536)


def test_a_listing_shows_bytes_and_elements(models: Path) -> None:
    info = next(info for info in max_weights.infos(load_weights(models / "smollm2-135m.Q4_1.gguf")) if info.encoding)
    assert info.dtype == DType.uint8
    assert info.encoding in (QuantizationEncoding.Q4_1, QuantizationEncoding.Q8_0)
    assert np.prod(info.shape) == info.bytes
    assert info.shape[-1] != info.logical_shape[-1]
    assert "Q4_1" in repr(load_weights(models / "smollm2-135m.Q4_1.gguf"))


def test_out_and_a_wrong_out(models: Path) -> None:
    value = load_weights(models / "smollm2-135m.Q4_1.gguf").blk[0].ffn_down.weight.data()
    out = np.zeros((576, 1536), np.float32)
    value.astype("float32", out=out)
    assert np.array_equal(out, np.asarray(value.astype("float32")))
    with refuses(ValueError):
        value.astype("float32", out=np.zeros((1536, 576), np.float32))


def write(
    path: Path, tensors: dict[str, np.ndarray], split: tuple[int, int, int] | None = None, **options: Any
) -> Path:
    writer = gguf.GGUFWriter(path, "test", **options)
    if split is not None:
        writer.add_uint16("split.no", split[0])
        writer.add_uint16("split.count", split[1])
        writer.add_int32("split.tensors.count", split[2])
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def split_set(tmp_path: Path) -> list[Path]:
    paths = []
    for number in range(3):
        tensors = {f"t{number}.{i}": np.full((2, 8), number * 10 + i, np.float32) for i in range(2)} if number else {}
        paths.append(write(tmp_path / f"m-0000{number + 1}-of-00003.gguf", tensors, (number, 3, 4)))
    return paths


def test_any_file_the_folder_or_the_list_opens_a_split_set(split_set: list[Path]) -> None:
    for source in (*split_set, split_set[0].parent, split_set):
        weights = load_weights(source)
        assert {name: float(np.asarray(weight.data())[0, 0]) for name, weight in weights.items()} == {
            "t1.0": 10,
            "t1.1": 11,
            "t2.0": 20,
            "t2.1": 21,
        }
        assert weights.metadata["general.architecture"] == "test"


def test_an_incomplete_or_mixed_split_set_is_refused(split_set: list[Path]) -> None:
    with pytest.raises(FormatError):
        load_weights(split_set[:2])
    split_set[1].unlink()
    with refuses(FileNotFoundError, "file.missing"):
        load_weights(split_set[0])
    with refuses(FormatError, "directory.missing-shards"):
        load_weights(split_set[0].parent)
    write(split_set[1], {"t1.0": np.zeros(8, np.float32)}, (2, 3, 4))
    with refuses(FormatError, "gguf.split-no"):
        load_weights(split_set[0])


def test_big_endian_files_are_swapped(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 12)
    path = write(tmp_path / "big.gguf", {"w": array, "h": array.astype(np.float16)}, endianess=gguf.GGUFEndian.BIG)
    weights = load_weights(path)
    assert np.array_equal(np.asarray(weights.w.data()), array)
    assert np.array_equal(np.asarray(weights.h.data()), array.astype(np.float16))
    assert weights.metadata["general.architecture"] == "test"


def test_a_file_of_another_suffix_and_both_classes(models: Path, make_file: Callable[..., Path]) -> None:
    assert isinstance(
        max_weights.load_weights(make_file({"a": np.zeros(1, np.float32)})), max_weights.graph.weights.SafetensorWeights
    )
    opened = GGUFWeights(models / "derived/minilm-ffn-allquants.gguf")
    assert len(opened) == 24
    opened.close()


def test_a_type_of_a_fork_spoils_its_tensor_only(tmp_path: Path) -> None:
    path = write(tmp_path / "fork.gguf", {"a": np.zeros((4, 8), np.float32), "b": np.ones((4, 8), np.float32)})
    content = bytearray(path.read_bytes())
    at = content.index(b"a", content.index(b"general.architecture") + 40)
    kind = at + 1 + 4 + 2 * 8
    assert content[kind : kind + 4] == b"\0\0\0\0"
    content[kind : kind + 4] = (142).to_bytes(4, "little")
    path.write_bytes(bytes(content))
    weights = load_weights(path)
    assert any("fork" in warning for warning in max_weights.infos(weights).warnings)
    assert np.asarray(weights.b.data())[0, 0] == 1
    assert weights.a.data().dtype == DType.uint8
    assert "142" in str(weights)


def test_a_header_that_declares_2_to_the_60_elements_answers_at_once(tmp_path: Path) -> None:
    path = tmp_path / "huge.gguf"
    header = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    header += (1).to_bytes(8, "little") + b"k" + (9).to_bytes(4, "little") + (8).to_bytes(4, "little")
    path.write_bytes(header + (1 << 60).to_bytes(8, "little") + bytes(16))
    with refuses((FormatError, UnsupportedError), "gguf.array-length"):
        load_weights(path)
