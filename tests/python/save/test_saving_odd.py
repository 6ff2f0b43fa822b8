"""Saving edge cases: invalid sizes, names that are keys, packed weights, tensors of every kind and library."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from max_weights import DType, SafetensorsWriter, WeightData, load_weights, save_file, save_gguf, save_sharded
from max_weights._quantization import QuantizationEncoding
from max_weights.errors import ArgumentError, UnsupportedError
from max_weights.safetensors.numpy import load_file

FLOATS = np.random.default_rng(20).standard_normal((6, 64)).astype(np.float32)


@pytest.mark.parametrize("size", [-1, -1.0, math.inf, math.nan, 1 << 64, "-5GB", "infGB", "nan", "1e400", b"5GB"])
@pytest.mark.parametrize("save", [save_sharded, save_gguf])
def test_a_size_that_is_none_is_refused_in_the_same_words(
    tmp_path: Path, save: Callable[..., object], size: Any
) -> None:
    with pytest.raises(ArgumentError, match=r"max_shard_size=.*give a number of bytes, or a string such as"):
        save({"a": np.zeros(4, np.float32)}, tmp_path / "out", max_shard_size=size)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [5e3, np.int64(5000), np.float64(5000), "5e3", "5 kB"])
def test_a_size_may_be_any_number(tmp_path: Path, size: Any) -> None:
    assert len(save_sharded({name: np.zeros(1000) for name in "abc"}, tmp_path, max_shard_size=size)) == 4


def test_a_tied_tensor_whose_name_is_a_key_of_the_metadata_is_written(tmp_path: Path) -> None:
    shared = torch.arange(4.0)
    tensors = {"a": shared, "b": shared, "format": shared, "noted": shared}
    save_file(tensors, tmp_path / "x", {"noted": "by the user"}, tied="alias")
    found = safetensors.numpy.load_file(tmp_path / "x")
    assert found.keys() == {"a", "format", "noted"}
    assert all(array.tolist() == [0, 1, 2, 3] for array in found.values())
    with safetensors.safe_open(tmp_path / "x", "pt") as file:
        assert file.metadata() == {"format": "pt", "noted": "by the user", "b": "a"}


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_name_that_is_not_loaded_again_is_refused_by_all_that_save(tmp_path: Path, name: str) -> None:
    save_file({"a": np.zeros(1)}, tmp_path / "x")
    for save in (
        lambda: save_file({name: np.zeros(1)}, tmp_path / "y"),
        lambda: save_sharded({name: np.zeros(1)}, tmp_path / "y"),
        lambda: SafetensorsWriter(tmp_path / "y", {name: ("float32", (1,))}),
        lambda: load_weights(tmp_path / "x").save(tmp_path / "y", rename={"a": name}),
    ):
        with pytest.raises(ArgumentError, match="not a name that can be loaded again"):
            save()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A GGUF file with metadata, a packed weight and a plain one."""
    save_gguf(
        {"w.weight": FLOATS, "norm.weight": FLOATS[0]},
        tmp_path / "packed.gguf",
        {"general.architecture": "llama", "small": np.uint8(7)},
        quantize={"w.weight": "q4_1"},
    )
    return tmp_path / "packed.gguf"


def test_packed_weights_are_refused_where_their_encoding_would_be_lost(tmp_path: Path, packed: Path) -> None:
    weights = load_weights(packed)
    for tensors in (weights, {"w.weight": weights["w.weight"]}, {"w.weight": weights["w.weight"].data()}):
        for save in (save_file, save_sharded):
            with pytest.raises(
                ArgumentError, match=r"'w\.weight' .*packed in blocks, .*: weights\.save\(path, dtype='bfloat16'\)"
            ):
                save(tensors, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    bytes_of_blocks = weights["w.weight"].data().to_buffer()
    save_file({"blocks": bytes_of_blocks, "norm": weights["norm.weight"]}, tmp_path / "out")
    found = safetensors.numpy.load_file(tmp_path / "out")
    assert found["blocks"].tobytes() == bytes_of_blocks.to_numpy().tobytes()
    assert np.array_equal(found["norm"], FLOATS[0])


def test_elements_of_a_type_that_no_other_file_has_are_no_bytes(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3, dtype=torch.complex128)}, tmp_path / "a.pt")
    weights = load_weights(tmp_path / "a.pt")
    for save in (
        lambda: weights.save(tmp_path / "out"),
        lambda: save_gguf(weights, tmp_path / "out"),
        lambda: save_file(weights, tmp_path / "out"),
        lambda: save_file(weights, tmp_path / "out", tied="refuse"),
        lambda: save_file({"a": weights["a"]}, tmp_path / "out"),
        lambda: save_gguf({"a": weights["a"]}, tmp_path / "out"),
    ):
        with pytest.raises(UnsupportedError, match="complex128"):
            save()
    assert not (tmp_path / "out").exists()


def kinds(path: Path) -> dict[str, str]:
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}


def test_a_table_of_encodings_leaves_the_rest_of_a_gguf_file_as_it_is(tmp_path: Path, packed: Path) -> None:
    weights, out = load_weights(packed), tmp_path / "out.gguf"
    save_gguf(weights, out, {"general.name": "new"}, quantize={"norm*": "q8_0"})
    assert kinds(out) == {"w.weight": "Q4_1", "norm.weight": "Q8_0"}
    fields = gguf.GGUFReader(out).fields
    assert fields["small"].types == [gguf.GGUFValueType.UINT8]
    assert fields["small"].contents() == 7
    assert fields["general.name"].contents() == "new"
    save_gguf(weights, out, quantize={"w": "q8_0"})  # packed anew
    assert kinds(out) == {"w.weight": "Q8_0", "norm.weight": "F32"}
    decoded = weights["w.weight"].data().astype(DType.float32).to_numpy()
    (anew,) = (tensor.data for tensor in gguf.GGUFReader(out).tensors if tensor.name == "w.weight")
    assert np.array_equal(anew, gguf.quants.quantize(decoded, gguf.GGMLQuantizationType.Q8_0))


def test_nodes_of_a_tree_are_written_as_gguf_by_any_name(tmp_path: Path, packed: Path) -> None:
    weights, out = load_weights(packed), tmp_path / "out.gguf"
    save_gguf({"one": weights["w.weight"], "two": weights.norm.weight}, out)
    assert kinds(out) == {"one": "Q4_1", "two": "F32"}
    save_gguf({"one": weights["w.weight"], "two": weights["w.weight"].data()}, out, quantize={"two": "q5_0"})
    assert kinds(out) == {"one": "Q4_1", "two": "Q5_0"}


def test_an_encoding_may_be_the_member_that_it_is(tmp_path: Path) -> None:
    save_gguf({"a.weight": FLOATS}, tmp_path / "a.gguf", quantize=QuantizationEncoding.Q8_0)
    assert kinds(tmp_path / "a.gguf") == {"a.weight": "Q8_0"}
    save_gguf({"a.weight": FLOATS}, tmp_path / "a.gguf", quantize={"a": QuantizationEncoding.Q5_1})
    assert kinds(tmp_path / "a.gguf") == {"a.weight": "Q5_1"}
    with pytest.raises(ValueError, match="8 is not a quantization encoding"):
        save_gguf({"a.weight": FLOATS}, tmp_path / "a.gguf", quantize=8)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1e39, -1e300, [0.5, 1e39]])
def test_a_number_that_32_bits_do_not_hold_is_not_written_as_infinity(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"metadata 'big': .* is too large .* give np\.float64"):
        save_gguf({}, tmp_path / "a.gguf", {"big": value})
    save_gguf({}, tmp_path / "a.gguf", {"big": np.float64(1e300), "infinite": math.inf})
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    assert [fields[key].contents() for key in ("big", "infinite")] == [1e300, math.inf]


def test_a_value_of_megabytes_does_not_fill_the_error(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="metadata 'tokens'") as error:
        save_gguf({}, tmp_path / "a.gguf", {"tokens": ["token"] * 100_000 + [1]})
    assert len(str(error.value)) < 500
    with pytest.raises(TypeError, match="the keys of metadata must be strings, not 3"):
        save_gguf({}, tmp_path / "a.gguf", {3: "x"})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
            "it is quantized; save what dequantize",
        ),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "it is nested; save its parts"),
        (lambda: torch.zeros(2, 2).to_sparse_csr(), "it is torch.sparse_csr; save what to_dense"),
        (lambda: torch.nn.parameter.UninitializedParameter(), "tensor 'a': "),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_that_does_not_lie_in_memory_is_refused_with_what_to_do(
    tmp_path: Path, make: Callable[[], torch.Tensor], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message.replace(".", r"\.")):
        save_file({"a": make()}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tensor_that_is_spread_over_processes_is_refused_with_what_to_do(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        tensor = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
        with pytest.raises(ArgumentError, match=r"'a': it is spread .* save what full_tensor\(\) returns"):
            save_file({"a": tensor}, tmp_path / "out")
        save_file({"a": tensor.full_tensor()}, tmp_path / "out")
    finally:
        torch.distributed.destroy_process_group()
    assert load_file(tmp_path / "out")["a"].tolist() == list(range(8))


@pytest.mark.parametrize("save", [save_file, save_gguf, save_sharded])
def test_a_path_of_bytes_is_a_path(tmp_path: Path, save: Callable[..., object]) -> None:
    save({"a": np.zeros(4, np.float32)}, os.fsencode(tmp_path / "out"))
    assert (tmp_path / "out").exists()


def test_arrays_of_any_order_shape_and_byte_order_are_saved_by_their_values(tmp_path: Path) -> None:
    grid = np.arange(24.0).reshape(4, 6)
    arrays: dict[str, Any] = {
        "swapped": grid.astype(">f8").T,
        "swapped number": np.array(3, ">i4"),
        "swapped complex": np.array([1 + 2j], ">c8"),
        "number": np.float32(3),
        "nothing": np.zeros((3, 0, 2), ">u2"),
        "of a record": np.array([(1, 2.5), (3, 4.5)], "i4,f8")["f1"],
        "of a packed record": np.array([(1, 2.5), (3, 4.5)], "u1,f4")["f1"],
        "one for all": np.broadcast_to(np.uint16(7), (2, 3)),
        "backwards": grid[::-1, ::-2],
        "small": grid.astype(ml_dtypes.float8_e4m3fn)[::2],
        "swapped small": np.array([1, 2], ">f2").astype(ml_dtypes.bfloat16),
        "read-only": np.frombuffer(bytes(8), np.int64),
    }
    save_file(arrays, tmp_path / "x")
    found = load_file(tmp_path / "x")
    for name, array in arrays.items():
        assert found[name].shape == array.shape, name
        assert found[name].dtype == array.dtype.newbyteorder("="), name
        np.testing.assert_array_equal(found[name].astype(np.complex64), array.astype(np.complex64), err_msg=name)


def test_the_elements_of_a_weight_that_is_not_packed_are_saved(tmp_path: Path) -> None:
    data = WeightData.from_numpy(FLOATS[::2].astype(">f4"), "another name")
    save_file({"a": data}, tmp_path / "x")
    assert np.array_equal(safetensors.numpy.load_file(tmp_path / "x")["a"], FLOATS[::2])
