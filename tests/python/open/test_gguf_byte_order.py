"""Big-endian GGUF files: packed blocks have this machine's byte order, whichever tool swapped the file."""

import argparse
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.scripts import gguf_convert_endian

from max_weights import load_weights

ALL = "derived/minilm-ffn-allquants.gguf"
HALF, TWO_HALVES = [("d", "u2")], [("d", "u2"), ("m", "u2")]
# ggml's block structures, field by field, as in its header.
BLOCKS: dict[str, list[tuple[Any, ...]]] = {
    "Q4_0": [*HALF, ("qs", "u1", 16)],
    "Q4_1": [*TWO_HALVES, ("qs", "u1", 16)],
    "Q5_0": [*HALF, ("qh", "u1", 4), ("qs", "u1", 16)],
    "Q5_1": [*TWO_HALVES, ("qh", "u1", 4), ("qs", "u1", 16)],
    "Q8_0": [*HALF, ("qs", "i1", 32)],
    "Q8_1": [*TWO_HALVES, ("qs", "i1", 32)],
    "Q2_K": [("scales", "u1", 16), ("qs", "u1", 64), *TWO_HALVES],
    "Q3_K": [("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), *HALF],
    "Q4_K": [*TWO_HALVES, ("scales", "u1", 12), ("qs", "u1", 128)],
    "Q5_K": [*TWO_HALVES, ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)],
    "Q6_K": [("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), *HALF],
    "Q8_K": [("d", "f4"), ("qs", "i1", 256), ("bsums", "i2", 16)],
    "IQ2_XXS": [*HALF, ("qs", "u2", 32)],
    "IQ2_XS": [*HALF, ("qs", "u2", 32), ("scales", "u1", 8)],
    "IQ2_S": [*HALF, ("qs", "u1", 64), ("qh", "u1", 8), ("scales", "u1", 8)],
    "IQ3_XXS": [*HALF, ("qs", "u1", 96)],
    "IQ3_S": [*HALF, ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)],
    "IQ1_S": [*HALF, ("qs", "u1", 32), ("qh", "u2", 8)],
    "IQ1_M": [("qs", "u1", 32), ("qh", "u1", 16), ("scales", "u1", 8)],
    "IQ4_NL": [*HALF, ("qs", "u1", 16)],
    "IQ4_XS": [*HALF, ("scales_h", "u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)],
    "TQ1_0": [("qs", "u1", 48), ("qh", "u1", 4), *HALF],
    "TQ2_0": [("qs", "u1", 64), *HALF],
    "MXFP4": [("e", "u1"), ("qs", "u1", 16)],
    "NVFP4": [("d", "u1", 4), ("qs", "u1", 32)],
    "Q1_0": [*HALF, ("qs", "u1", 16)],
    "Q2_0": [*HALF, ("qs", "u1", 16)],
}


def swapped(blocks: np.ndarray, kind: str) -> np.ndarray:
    """The blocks with every multi-byte field swapped."""
    flat = np.ascontiguousarray(blocks).reshape(-1)
    return flat.view(np.dtype(BLOCKS[kind])).byteswap().view(np.uint8).reshape(blocks.shape)


def kind_of(tensor: Any) -> str:
    return gguf.GGMLQuantizationType(tensor.tensor_type).name


def write(path: Path, tensors: list[Any], order: gguf.GGUFEndian) -> Path:
    writer = gguf.GGUFWriter(path, "test", endianess=order)
    for tensor in tensors:
        turned = swapped(tensor.data, kind_of(tensor)) if order == gguf.GGUFEndian.BIG else tensor.data
        writer.add_tensor(tensor.name, turned, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tensors(models: Path) -> list[Any]:
    return list(gguf.GGUFReader(models / ALL).tensors)


@pytest.fixture(scope="module")
def turned(tensors: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("order") / "big.gguf", tensors, gguf.GGUFEndian.BIG)


@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_every_packed_type_of_a_big_endian_file_is_read_and_decoded(
    turned: Path, tensors: list[Any], models: Path, backend: str
) -> None:
    weights, little = load_weights(turned, backend=backend), load_weights(models / ALL)
    assert len(weights) == len(tensors) == 24
    for tensor in tensors:
        value, expected = weights[tensor.name].data(), little[tensor.name].data()
        assert value.quantization_encoding == expected.quantization_encoding
        assert value.shape == expected.shape
        assert np.array_equal(np.asarray(value.data), tensor.data), tensor.name
        assert not value.data.is_mapped
        decoded = np.asarray(value.astype("float32"))
        assert decoded.tobytes() == np.asarray(expected.astype("float32")).tobytes(), tensor.name


def test_the_blocks_of_the_test_are_those_of_the_format() -> None:
    for kind, fields in BLOCKS.items():
        sizes = gguf.GGML_QUANT_SIZES.get(
            getattr(gguf.GGMLQuantizationType, kind, None), (0, np.dtype(fields).itemsize)
        )
        # gguf-py has the size of Q8_1 from before its two scales became 16-bit floats.
        assert np.dtype(fields).itemsize == (36 if kind == "Q8_1" else sizes[1]), kind


def test_types_without_a_real_file_are_swapped_by_their_structures(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    for kind, type_id, elements in (("Q8_1", 9, 32), ("Q8_K", 15, 256), ("Q1_0", 41, 128), ("Q2_0", 42, 64)):
        size = np.dtype(BLOCKS[kind]).itemsize
        blocks = random.integers(0, 256, (2, 3 * size), dtype=np.uint8)
        path = tmp_path / f"{kind}.gguf"
        record = b"".join(
            [
                *(len(b"w").to_bytes(8, "big"), b"w", (2).to_bytes(4, "big")),
                *((3 * elements).to_bytes(8, "big"), (2).to_bytes(8, "big")),
                *(type_id.to_bytes(4, "big"), (0).to_bytes(8, "big")),
            ]
        )
        header = b"GGUF" + (3).to_bytes(4, "big") + (1).to_bytes(8, "big") + (0).to_bytes(8, "big") + record
        path.write_bytes(header + bytes(-len(header) % 32) + swapped(blocks, kind).tobytes())
        value = load_weights(path).w.data()
        assert value.quantization_encoding is not None
        assert value.quantization_encoding.value == kind
        assert np.array_equal(np.asarray(value.data), blocks)


def test_a_file_that_gguf_pys_own_script_turned_round(
    tensors: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [tensor for tensor in tensors if tensor.tensor_type in gguf_convert_endian.byteswap_tensors]
    assert {kind_of(tensor) for tensor in known} == {"Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "NVFP4"}
    path = write(tmp_path / "model.gguf", known, gguf.GGUFEndian.LITTLE)
    expected = {name: np.asarray(weight.data().astype("float32")) for name, weight in load_weights(path).items()}
    monkeypatch.setattr("builtins.input", lambda _: "YES")
    reader = gguf.GGUFReader(path, "r+")
    gguf_convert_endian.convert_byteorder(reader, argparse.Namespace(order="big", dry_run=False))
    reader.data.flush()
    del reader
    assert path.read_bytes()[4:8] == b"\0\0\0\3"
    weights = load_weights(path)
    assert weights.metadata["general.architecture"] == "test"
    for name, values in expected.items():
        assert np.asarray(weights[name].data().astype("float32")).tobytes() == values.tobytes(), name
