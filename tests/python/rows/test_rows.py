"""Rows of tables by their numbers: equal to the whole tensor, indexed by NumPy, for every format, dtype and packing."""

import contextlib
import copy
import ctypes
import json
import mmap
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import torch
import torch.distributed.checkpoint
from hypothesis import given
from hypothesis import strategies as st

import max_weights
from max_weights import WeightNotFoundError
from max_weights.errors import ArgumentError, UnsupportedError
from max_weights.remote import source
from refusals import refuses

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 300, (7, 11))
DTYPES = [
    *(
        [
            "bool",
            "int8",
            "uint8",
            "int16",
            "uint16",
            "int32",
            "uint32",
            "int64",
            "uint64",
            "float16",
            "float32",
            "float64",
        ]
    ),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu),
]


def bits(array: Any) -> bytes:
    """The bytes of an array, so that NaN equals itself."""
    return np.ascontiguousarray(array).tobytes()


def random(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Any bits, but booleans of 0 and 1."""
    dtype = np.dtype(dtype)
    values = RNG.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
    return (values & 1 if dtype.kind == "b" else values).view(dtype)[..., 0]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 rows, of 40 floats, and of other shapes."""
    path = tmp_path_factory.mktemp("rows") / "model.safetensors"
    tensors = {
        "w": RNG.standard_normal((300, 40)).astype(np.float32),
        "deep": RNG.integers(-9, 9, (300, 3, 5), dtype=np.int16),
        "line": RNG.standard_normal(300),
        "scalar": np.float32(3),
        "none": np.empty((0, 4), np.float32),
        "thin": np.empty((300, 0), np.float32),
        "long": RNG.integers(0, 256, (20, 100_000), dtype=np.uint8),
    }
    safetensors.numpy.save_file({name: np.asarray(value) for name, value in tensors.items()}, path)
    return path


@pytest.mark.parametrize("cache", [0, "64MB"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_rows_of_every_dtype_are_those_of_the_file(tmp_path: Path, dtype: Any, cache: int | str) -> None:
    whole = random(dtype, (300, 5, 3))
    safetensors.numpy.save_file({"before": np.zeros(3, np.uint8), "t": whole}, tmp_path / "t.safetensors")
    table = max_weights.table(tmp_path / "t.safetensors", "t", cache=cache)
    for _ in range(2):
        assert bits(table.take(IDS, framework="numpy")) == bits(whole[IDS])
    if np.dtype(dtype).kind == "f" or np.dtype(dtype).itemsize < 2:
        cast = max_weights.load_weights(tmp_path / "t.safetensors").load("t", dtype={"t": "float32"}, framework="numpy")
        assert bits(table.take(IDS, "float32", framework="numpy")) == bits(cast["t"][IDS])


@pytest.mark.parametrize("name", ["w", "deep", "line", "thin", "long"])
@pytest.mark.parametrize("ids", [0, [], [5, 5, 5], [[19, 0], [0, 19]], range(19, -1, -1)], ids=str)
def test_ids_of_any_shape_have_rows_of_any_shape(path: Path, name: str, ids: Any) -> None:
    whole = safetensors.numpy.load_file(path)[name]
    array = np.asarray(ids, np.int64)
    for cache in (0, "1MB"):
        found = max_weights.table(path, name, cache=cache).take(ids, framework="numpy")
        assert (found.dtype, found.shape) == (whole.dtype, whole[array].shape)
        assert bits(found) == bits(whole[array])


@pytest.mark.parametrize(
    "convert",
    [
        lambda ids: ids.astype(np.uint16),
        lambda ids: ids.astype(">i4"),
        lambda ids: np.asfortranarray(ids)[::-1],
        torch.from_numpy,
        lambda ids: torch.from_numpy(ids).to(torch.int32),
        lambda ids: max_weights.Buffer.from_numpy(ids),
        lambda ids: ids.tolist(),
    ],
    ids=["uint16", "big-endian", "strided", "torch", "torch int32", "Buffer", "list"],
)
def test_ids_may_be_arrays_of_any_library(path: Path, convert: Callable[[Any], Any]) -> None:
    whole, ids = safetensors.numpy.load_file(path)["w"], convert(IDS)
    expected = whole[np.asarray(ids.to_numpy() if isinstance(ids, max_weights.Buffer) else ids)]
    assert bits(max_weights.table(path, "w").take(ids, framework="numpy")) == bits(expected)


def test_results_are_tensors_of_the_framework_or_go_to_the_callers_memory(path: Path) -> None:
    whole, table = safetensors.numpy.load_file(path)["w"], max_weights.table(path, "w")
    assert isinstance(table.take([1]), max_weights.Buffer)
    assert torch.equal(table.take(IDS, framework="torch"), torch.from_numpy(whole[IDS]))
    half = torch.empty((7, 11, 40), dtype=torch.float16)
    assert table.take(IDS, "float16", out=half) is half
    assert bits(half.numpy()) == bits(whole[IDS].astype(np.float16))
    out = np.full((2, 40), 7, np.float32)
    pending = table.take([4, 2], out=out, wait=False)
    assert pending.result() is out
    assert bits(out) == bits(whole[[4, 2]])
    assert pending.done()
    assert bits(table.take(IDS, framework="numpy", wait=False).result()) == bits(whole[IDS])


def test_a_table_describes_itself(path: Path) -> None:
    table = max_weights.table(path, "deep", cache="10 kB")
    assert (tuple(table.shape), table.nbytes, len(table)) == ((300, 3, 5), 9000, 300)
    assert table.dtype is max_weights.DType.int16
    assert (table.names, repr(table)) == (["deep"], "Table([300, 3, 5] int16, deep)")
    assert "deep" in table._repr_html_()
    assert max_weights.table(path, "deep", cache=0).cache_counts is None


def of_source(path: Path) -> Any:
    """The file as a source of functions: none of it is in the page cache."""
    content = path.read_bytes()
    return source(lambda ranges: [content[start:end] for start, end in ranges], len(content), name="model.safetensors")


def test_rows_in_the_page_cache_are_not_kept_twice(path: Path) -> None:
    path.read_bytes()
    table = max_weights.table(path, "w")
    table.take([7, 3, 7])
    table.take([7])
    counts = table.cache_counts
    assert counts is not None
    assert (counts.hits, counts.misses, counts.rows) == (0, 3, 0)


def test_each_row_is_read_once_and_comes_from_the_cache_afterwards(path: Path) -> None:
    table = max_weights.table(of_source(path), "w")
    table.take([7, 7, 3, 7])
    table.take([[3], [8]])
    counts = table.cache_counts
    assert counts is not None
    assert (counts.misses, counts.hits, counts.rows) == (3, 1, 3)
    assert 3 * 160 < counts.bytes <= counts.limit == 64_000_000
    small = max_weights.table(of_source(path), "w", cache=1000)
    small.take(np.arange(300))
    counts = small.cache_counts
    assert counts is not None
    assert 0 < counts.bytes <= 1000


def test_hints_are_read_into_the_cache(path: Path) -> None:
    table = max_weights.table(of_source(path), "w")
    table.hint(np.arange(60))
    table.hint(np.arange(30, 100))
    for _ in range(1000):
        counts = table.cache_counts
        assert counts is not None
        if counts.rows == 100:
            break
        time.sleep(0.01)
    table.take(np.arange(100))
    counts = table.cache_counts
    assert counts is not None
    assert (counts.hits, counts.misses) == (100, 100)
    max_weights.table(path, "w", cache=0).hint([1])


def test_hints_end_when_the_cache_is_full(path: Path) -> None:
    for cache in (1, 200, 2000):
        table = max_weights.table(of_source(path), "w", cache=cache)
        table.hint(np.arange(300))
        table.hint(np.arange(300))
        del table
    until = time.monotonic() + 20
    while (names := threads()) & {"max_weights-row"} and time.monotonic() < until:
        time.sleep(0.01)
    assert "max_weights-row" not in names


def threads() -> set[str]:
    """The names of the threads of this process, as Linux shortens them."""
    names = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has ended
            names.add((task / "comm").read_text().strip())
    return names


def test_shapes_without_bytes_are_tables_of_any_length(tmp_path: Path) -> None:
    entries = {
        "t": {"dtype": "F32", "shape": [2**62, 0], "data_offsets": [0, 0]},
        "u": {"dtype": "F8_E4M3", "shape": [2**40, 0], "data_offsets": [0, 0]},
        "s": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
    }
    header = json.dumps(entries).encode()
    (tmp_path / "t").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    weights = max_weights.load_weights(tmp_path / "t")
    assert max_weights.table(weights, "t").take([2**62 - 1, 0]).shape == (2, 0)
    assert weights["t"][[-1]].shape == (1, 0)
    assert max_weights.table(weights, "u", scales="s").take([2**40 - 1], "float32").shape == (1, 0)


def test_many_ids_are_read_in_batches(tmp_path: Path) -> None:
    whole = RNG.integers(0, 256, (50_000, 160), dtype=np.uint8)
    safetensors.numpy.save_file({"t": whole}, tmp_path / "t.safetensors")
    ids = RNG.integers(0, 50_000, 200_000)
    for cache in (0, "2MB"):
        assert bits(max_weights.table(tmp_path / "t.safetensors", "t", cache=cache).take(ids)) == bits(whole[ids])


def test_numbered_weights_are_joined_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    sizes = [4, 0, 9, 1, 30, 2, 2, 2, 2, 2, 50]
    shards = {f"t.shard_{number}": random(np.int32, (size, 6)) for number, size in enumerate(sizes)}
    safetensors.numpy.save_file({**shards, "t.shard_x": np.zeros(1), "t.shard_3.other": np.zeros(1)}, tmp_path / "a")
    whole = np.concatenate(list(shards.values()))
    for cache in (0, "1MB"):
        table = max_weights.table(max_weights.load_weights(tmp_path / "a").t, "shard_*", cache=cache)
        ids = RNG.integers(0, len(whole), 500)
        assert (len(table), table.nbytes, len(table.names)) == (len(whole), whole.nbytes, 11)
        assert bits(table.take(ids, framework="numpy")) == bits(whole[ids])


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS", "BF16", "F16"])
@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16", "float8_e4m3fn"])
def test_packed_rows_are_decoded(tmp_path: Path, kind: str, dtype: str | None) -> None:
    quantization = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[quantization]
    stored = RNG.integers(0, 256, (40, 512 // block * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("t", stored, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = max_weights.load_weights(tmp_path / "m.gguf")
    ids, packed = [3, 39, 0, 3], max_weights.infos(weights)[0].encoding is not None
    table = max_weights.table(weights, "t")
    expected = weights.load(dtype=dtype or ("bfloat16" if packed else None))["t"].to_numpy()
    assert tuple(table.shape) == (40, 512)
    assert bits(table.take(ids, dtype).to_numpy()) == bits(expected[ids])
    if kind in {"Q4_0", "Q8_0", "Q4_K", "Q6_K"} and dtype == "float32":
        with np.errstate(invalid="ignore"):
            assert bits(table.take(ids, dtype)) == bits(gguf.dequantize(stored, quantization)[ids])
    assert bits(weights["t"][ids]) == bits(weights["t"][:].to_numpy()[ids]), "an index has the bytes of the blocks"
    lazy = max_weights.lazy_state_dict(weights, dtype=dtype, packed=None if dtype else "keep")["t"]
    whole = expected if dtype or not packed else stored
    assert bits(max_weights.Buffer.from_dlpack(lazy[ids]).to_numpy()) == bits(whole[ids])


def test_packed_matrices_are_rows(tmp_path: Path) -> None:
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q8_0]
    stored = RNG.integers(0, 128, (6, 5, 64 // block * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("t", stored, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("s", np.ones(6, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = max_weights.load_weights(tmp_path / "m.gguf")
    expected = weights.load("t", dtype="float32")["t"].to_numpy()
    table = max_weights.table(weights, "t")
    assert table.shape == (6, 5, 64)
    assert bits(table.take([4, 0], "float32").to_numpy()) == bits(expected[[4, 0]])
    assert bits(weights["t"][[4, 0], 1:3].to_numpy()) == bits(stored[[4, 0], 1:3])
    with refuses(ArgumentError):
        max_weights.table(weights, "t", scales="s")


def test_rows_of_pytorch_files_have_their_strides_and_ties(tmp_path: Path) -> None:
    base = torch.randn(64, 32)
    tensors = {"whole": base, "turned": base.T, "some": base[10:20, 4:9], "back": base.flip(0), "tied": base[:32]}
    torch.save(tensors, tmp_path / "m.pt")
    weights = max_weights.load_weights(tmp_path / "m.pt")
    for name, tensor in tensors.items():
        ids = RNG.integers(0, len(tensor), (4, 5))
        found = max_weights.table(weights, name).take(ids, framework="torch")
        assert torch.equal(found, tensor[torch.from_numpy(ids)]), name


@pytest.mark.filterwarnings("ignore")
def test_rows_of_a_distributed_checkpoint(tmp_path: Path) -> None:
    whole = torch.randn(500, 24)
    torch.distributed.checkpoint.save({"t": whole}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    ids = RNG.integers(0, 500, 900)
    for cache in (0, "1MB"):
        found = max_weights.table(tmp_path / "dcp", "t", cache=cache).take(ids, framework="torch")
        assert torch.equal(found, whole[torch.from_numpy(ids)])


_COLD = """
import os, sys, numpy as np, max_weights
path = sys.argv[1]
whole = np.memmap(path, np.uint8, "r")[8 + int.from_bytes(open(path, "rb").read(8), "little"):].reshape(-1, 160)
rng = np.random.default_rng(int(sys.argv[2]))
for ids in (rng.integers(0, len(whole), 3000), np.arange(len(whole) - 50, len(whole)), np.array([0, 1, 2, 25, 26, 26])):
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    np.save(sys.stdout.buffer, np.asarray(max_weights.table(path, "t", cache=0).take(ids, framework="numpy")))
    np.save(sys.stdout.buffer, ids)
"""


def resident_pages(path: Path) -> int:
    """The pages of a file in the page cache, counted by mincore(2)."""
    libc, size = ctypes.CDLL(None), path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapping:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        view = ctypes.c_char.from_buffer(mapping)
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size), pages) == 0
        del view
    return sum(page & 1 for page in bytes(pages))


@pytest.mark.parametrize("ring", ["0", "1"])
def test_cold_rows_bypass_the_page_cache(tmp_path: Path, ring: str) -> None:
    whole = RNG.integers(0, 256, (100_000, 160), dtype=np.uint8)
    path = tmp_path / "t.safetensors"
    safetensors.numpy.save_file({"t": whole}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    environment = {**os.environ, "MAX_WEIGHTS_IO_URING": ring}
    program = [sys.executable, "-c", _COLD, str(path), ring]
    run = subprocess.run(program, env=environment, stdout=subprocess.PIPE, check=True)
    with (tmp_path / "out").open("wb") as file:
        file.write(run.stdout)
    with (tmp_path / "out").open("rb") as file:
        for _ in range(3):
            found, ids = np.load(file), np.load(file)
            assert bits(found) == bits(whole[ids])
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    if resident_pages(path) > 0:
        pytest.skip("this filesystem keeps files in memory, so nothing is cold")
    table = max_weights.table(path, "t", cache=0)
    header = resident_pages(path)
    table.take(RNG.integers(0, 100_000, 500))
    assert resident_pages(path) == header


@given(st.data())
def test_an_integer_array_indexes_as_in_numpy(path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["w", "deep", "line"]))
    whole, weights = safetensors.numpy.load_file(path)[name], max_weights.load_weights(path)
    ids = data.draw(st.lists(st.integers(-300, 299), max_size=6))
    array: Any = data.draw(st.sampled_from([np.array(ids, np.int64), np.array(ids + ids, np.int32).reshape(2, -1)]))
    rest = data.draw(st.sampled_from([(), (slice(None),), (..., slice(1, 3)), (2,), (None,)]))
    if name == "line" and rest != (None,):
        rest = ()
    expected = whole[(array, *rest)]
    found = weights[name][(array, *rest)] if rest else weights[name][array]
    assert isinstance(found, max_weights.Buffer)
    assert (found.shape, bits(found.to_numpy())) == (expected.shape, bits(expected))
    if ids:
        assert bits(weights[name][ids].to_numpy()) == bits(whole[ids])


def test_lazy_tensors_take_integer_arrays(path: Path) -> None:
    whole = torch.from_numpy(safetensors.numpy.load_file(path)["w"])
    lazy = max_weights.lazy_state_dict(path, "w", dtype="bfloat16")["w"]
    assert torch.equal(lazy[[3, -1, 3]], whole[[3, -1, 3]].bfloat16())
    assert torch.equal(lazy[torch.tensor([[5]]), 2:], whole[torch.tensor([[5]]), 2:].bfloat16())


def test_rows_that_are_spread_over_the_file_are_read_without_the_others(tmp_path: Path) -> None:
    base = torch.arange(3 * 400_000, dtype=torch.int32).view(3, 400_000)
    views = {"turned": base.T, "stepped": base.view(-1, 8)[1::3, 2:5], "deep": base.view(100, 60, 200).permute(1, 2, 0)}
    torch.save(views, tmp_path / "m.pt")
    weights = max_weights.load_weights(tmp_path / "m.pt")
    for name, view in views.items():
        ids = RNG.integers(0, len(view), 50)
        with (tmp_path / "m.pt").open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        table = max_weights.table(weights, name, cache=0)
        assert torch.equal(table.take(ids, framework="torch"), view[torch.from_numpy(ids)])
        assert torch.equal(table.take(ids[:1], framework="torch"), view[torch.from_numpy(ids[:1])])


def test_rows_whose_elements_are_too_far_apart_are_refused(tmp_path: Path) -> None:
    torch.save({"t": torch.zeros(20_000, 1000, dtype=torch.float16).T}, tmp_path / "m.pt")
    with refuses(ArgumentError):
        max_weights.table(tmp_path / "m.pt", "t")


def test_a_table_is_copied_and_pickled_as_its_checkpoint_is(path: Path) -> None:
    table = max_weights.table(path, "w", cache="1MB")
    assert copy.copy(table) is copy.deepcopy(table) is table
    again = pickle.loads(pickle.dumps(table))
    assert bits(again.take(IDS)) == bits(table.take(IDS))
    counts = again.cache_counts
    assert counts is not None
    assert counts.limit == 1_000_000


def test_more_ids_than_are_sorted_at_a_time(path: Path) -> None:
    whole = safetensors.numpy.load_file(path)["line"].astype(np.int8)
    ids = RNG.integers(0, 300, 2_500_000).astype(np.uint16)
    assert bits(max_weights.table(path, "line").take(ids, "int8")) == bits(whole[ids])


def test_bad_ids_are_named(path: Path) -> None:
    table = max_weights.table(path, "w")
    with refuses(IndexError):
        table.take([[3, 300], [-1, 5]])
    with refuses(IndexError):
        table.take(np.array([2**63 + 5], np.uint64))
    with refuses(IndexError):
        max_weights.table(path, "none").take([0])
    with refuses(IndexError):
        table.hint([-7])
    with refuses(IndexError):
        max_weights.load_weights(path)["w"][[3, -301]]
    with refuses(ArgumentError, "argument.meta"):
        table.take(torch.empty(3, dtype=torch.int64, device="meta"))
    assert table.take(torch.Size([3, 4])).shape == (2, 40)
    for wrong in (1.5, [True, False], "5", None, [2**70], np.array([1.0]), [[1], [2, 3]]):
        with refuses(ArgumentError, "argument.type"):
            table.take(wrong)
    with refuses(ArgumentError, "argument.type"):
        max_weights.load_weights(path)["w"][np.array([True])]
    with refuses(TypeError):
        max_weights.load_weights(path)["w"][[1], [2]]


def test_bad_tables_are_refused(path: Path, tmp_path: Path) -> None:
    with refuses(WeightNotFoundError):
        max_weights.table(path, "ww")
    with refuses(WeightNotFoundError):
        max_weights.table(path, "w_*")
    with refuses(ArgumentError):
        max_weights.table(path, "scalar")
    with refuses(ArgumentError, "argument.number"):
        max_weights.table(path, "w", cache="much")
    with refuses(ArgumentError, "argument.name"):
        max_weights.table(path, "*w*")
    with refuses(ArgumentError, "argument.type"):
        max_weights.table(5, "w")  # type: ignore[arg-type]
    with refuses(ArgumentError, "argument.type"):
        max_weights.table(path, 5)  # type: ignore[arg-type]
    with refuses(ArgumentError, "argument.type"):
        max_weights.table(path, "w", scales=b"s")  # type: ignore[arg-type]
    shards = {"a.0": np.zeros((2, 3)), "a.2": np.zeros((2, 3)), "b.0": np.zeros((2, 3)), "b.1": np.zeros((2, 4))}
    shards |= {"e.0": np.zeros((2, 3)), "e.400000000000": np.zeros((2, 3))}
    shards |= {"c.1": np.zeros((2, 3)), "c.01": np.zeros((2, 3)), "d.0": np.zeros(3), "d.1": np.zeros(3, np.float32)}
    safetensors.numpy.save_file(shards, tmp_path / "s")
    for name, rule in (
        ("a.*", "argument.name"),
        ("b.*", None),
        ("c.*", "argument.name"),
        ("e.*", "argument.name"),
        ("d.*", None),
    ):
        with refuses(ArgumentError, rule):
            max_weights.table(tmp_path / "s", name)


def test_bad_options_of_take_are_refused(path: Path) -> None:
    table = max_weights.table(path, "w")
    with refuses(ArgumentError, "argument.choice"):
        table.take([1], framework="tensorflow")
    with refuses(ArgumentError, "argument.type"):
        table.take([1], out=[0.0])  # type: ignore[arg-type]
    with refuses(ValueError):
        table.take([1], out=np.empty((1, 41), np.float32))
    with refuses(ValueError):
        table.take([1], "float16", out=np.empty((1, 40), np.float32))
    frozen = np.empty((1, 40), np.float32)
    frozen.flags.writeable = False
    with refuses((ValueError, BufferError)):
        table.take([1], out=frozen)
    with refuses((ArgumentError, ValueError)):
        table.take([1], "float19")
    with refuses(UnsupportedError, "cast.pair"):
        table.take([1], "complex64")
    overlapping = max_weights.load_weights(path)["w"].data().to_numpy()
    rows = overlapping[:2]
    expected = overlapping[[1, 0]].copy()
    max_weights.table(path, "w").take([1, 0], out=rows)
    assert bits(rows) == bits(expected)
