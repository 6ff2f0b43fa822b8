"""Loading many weights at once: under other names, as other dtypes, as copies or into the caller's memory."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import max_weights
from max_weights.dtype import DType
from refusals import refuses

FILES = [
    "minilm.safetensors",
    "smollm2-135m.Q4_1.gguf",
    "crepe-tiny.pth",
    "lpips-v0.1-squeeze.legacy.pth",
    "derived/layer0.bf16.safetensors",
    "derived/layer0.bf16.pt",
    "derived/layer0.bf16.legacy.pt",
    "derived/sharded",
    "derived/minilm-ffn-allquants.gguf",
]


def resident(path: Path) -> int:
    """The bytes of a file's mappings that are in memory."""
    size, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            size += 1024 * int(line.split()[1])
    return size


def raw(tensor: Any) -> bytes:
    array: bytes = np.asarray(tensor.contiguous().view(DType.uint8) if tensor.shape else tensor).tobytes()
    return array


@pytest.mark.parametrize("backend", ["mmap", "read"])
@pytest.mark.parametrize("copy", [None, True])
@pytest.mark.parametrize("name", FILES)
def test_what_is_loaded_together_is_what_each_is_alone(
    models: Path, name: str, copy: bool | None, backend: Any
) -> None:
    weights = max_weights.load_weights(models / name, backend=backend)
    loaded = weights.load(copy=copy, packed="keep")
    assert list(loaded) == [info.name for info in max_weights.infos(weights)]
    for path, tensor in loaded.items():
        alone = weights[path].data().to_buffer()
        assert (tensor.dtype, tensor.shape, tensor.strides) == (alone.dtype, alone.shape, alone.strides), path
        assert raw(tensor) == raw(alone), path
        assert tensor.aligned
        assert not (copy and tensor.is_mapped)
        assert backend == "read" or copy or tensor.is_mapped == alone.is_mapped


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "float8_e4m3fn"])
@pytest.mark.parametrize("name", FILES)
def test_floats_and_packed_blocks_become_the_dtype_and_numbers_stay(models: Path, name: str, dtype: str) -> None:
    weights = max_weights.load_weights(models / name)
    # The whole largest model would take a gigabyte as float64, for twenty-nine more layers of the same kind.
    select = ["blk.0", "blk.29"] if (name, dtype) == ("smollm2-135m.Q4_1.gguf", "float64") else None
    for path, tensor in weights.load(select, dtype=dtype).items():
        data = weights[path].data()
        floats = data.quantization_encoding is not None or data.dtype.is_float()
        expected = data.astype(dtype) if floats else data
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.to_buffer().shape), path
        assert raw(tensor) == raw(expected.to_buffer()), path


def test_tied_weights_share_memory_of_their_own(tmp_path: Path) -> None:
    import torch

    base = torch.arange(24.0).reshape(4, 6)
    torch.save({"a": base, "tied": base, "transposed": base.T, "row": base[1]}, tmp_path / "tied.pt")
    loaded = max_weights.load_weights(tmp_path / "tied.pt").load(copy=True, framework="torch")
    assert loaded["a"].data_ptr() == loaded["tied"].data_ptr() == loaded["transposed"].data_ptr()
    assert loaded["row"].data_ptr() == loaded["a"][1].data_ptr()
    assert torch.equal(loaded["transposed"], base.T)
    cast = max_weights.load_weights(tmp_path / "tied.pt").load(dtype="float16", framework="torch")
    assert torch.equal(cast["transposed"], base.T.to(torch.float16))


def test_frameworks_get_their_own_arrays(models: Path) -> None:
    import jax
    import torch

    weights = max_weights.load_weights(models / "minilm.safetensors")
    for framework, kind in (("numpy", np.ndarray), ("torch", torch.Tensor), ("jax", jax.Array)):
        loaded = weights.load("pooler", framework=framework, copy=True)
        assert [type(value) for value in loaded.values()] == [kind] * 2 or all(
            isinstance(value, kind) for value in loaded.values()
        )
    with refuses(ValueError, "argument.choice"):
        weights.load(framework="tf")


@pytest.mark.parametrize(
    ("select", "count"),
    [
        ("pooler", 2),
        ("pooler.dense.bias", 1),
        ("encoder.layer.0.*.weight", 8),
        (re.compile(r"encoder\.layer\.[01]\..*bias"), 16),
        (["pooler.dense.bias", "embeddings.*"], 7),
        (lambda name: name.endswith("bias"), 50),
    ],
)
def test_weights_are_selected_in_file_order(models: Path, select: Any, count: int) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    loaded = weights.load(select)
    assert len(loaded) == count
    assert list(loaded) == [info.name for info in max_weights.infos(weights) if info.name in loaded]


def test_what_is_not_there_is_named_with_what_is_near(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    with refuses(max_weights.WeightNotFoundError, "weight.not-found"):
        weights.load(["pooler", "poolr.dense.bias"])
    with refuses(max_weights.WeightNotFoundError, "weight.not-found"):
        weights.load("pooler", out={"nothing": np.zeros(3)})


def test_new_names_are_made_by_functions_and_tables(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    loaded = weights.load("pooler", rename={"pooler.": "head.", "pooler.dense.bias": "b"})
    assert list(loaded) == ["b", "head.dense.weight"]
    assert list(weights.load("pooler", rename=lambda name: name if "bias" in name else None)) == ["pooler.dense.bias"]
    with refuses(ValueError, "argument.name-twice"):
        weights.load("pooler", rename=lambda _: "x")
    gguf = max_weights.load_weights(models / "smollm2-135m.Q4_1.gguf")
    name = "model.layers.0.self_attn.q_proj.weight"
    (tensor,) = gguf.load(name, rename="hf", dtype="float32").values()
    assert raw(tensor) == raw(max_weights.renamed(gguf, "hf")[name].data().astype("float32").to_buffer())


def test_each_pattern_has_its_dtype(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    loaded = weights.load(dtype={"*.bias": "float16", "embeddings.position_ids": "int32", "pooler": "bfloat16"})
    for name, tensor in loaded.items():
        requested = "float16" if name.endswith(".bias") else "bfloat16" if name.startswith("pooler") else None
        requested = "int32" if name == "embeddings.position_ids" else requested
        assert tensor.dtype is DType(requested or weights[name].data().dtype), name


def test_bytes_land_in_the_callers_memory(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    bias = np.zeros(384, np.float32)
    weight = np.zeros((384, 384), np.float16)
    loaded = weights.load(
        "pooler",
        dtype={"pooler.dense.weight": "float16"},
        out={"pooler.dense.bias": bias, "pooler.dense.weight": weight},
    )
    data = np.asarray(weights.pooler.dense.weight)
    assert np.array_equal(bias, weights.pooler.dense.bias)
    assert np.array_equal(weight, data.astype(np.float16))
    assert loaded["pooler.dense.bias"]._data_ptr() == bias.ctypes.data
    for wrong in (np.zeros(383, np.float32), np.zeros(384, np.float64), np.zeros(768, np.float32)[::2]):
        with refuses(ValueError):
            weights.load("pooler.dense.bias", out={"pooler.dense.bias": wrong})


def test_memory_of_the_callers_is_for_one_tensor_alone(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    names = [f"encoder.layer.{i}.output.dense.bias" for i in range(2)]
    memory = np.zeros(700, np.float32)
    with refuses(ValueError):
        weights.load(names, out={names[0]: memory[:384], names[1]: memory[316:]})
    assert not memory.any()
    memory = np.zeros((2, 384), np.float32)
    weights.load(names, out=dict(zip(names, memory, strict=True)))
    assert np.array_equal(memory, [weights[name].numpy() for name in names])


def test_a_transposed_tensor_of_a_pytorch_file_lands_in_the_callers_memory(tmp_path: Path) -> None:
    import torch

    torch.save({"t": torch.arange(6.0).reshape(2, 3).T}, tmp_path / "t.pt")
    out = np.zeros((3, 2), np.float32)
    max_weights.load_weights(tmp_path / "t.pt").load(out={"t": out})
    assert np.array_equal(out, np.arange(6.0, dtype=np.float32).reshape(2, 3).T)


@pytest.mark.parametrize("copy", [None, True])
def test_progress_counts_all_bytes_and_its_exception_ends_the_loading(models: Path, copy: bool | None) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    reported: list[tuple[int, int]] = []
    weights.load(copy=copy, progress=lambda done, of: reported.append((done, of)))
    size = sum(info.bytes for info in max_weights.infos(weights))
    assert reported[0][0] == 0
    assert reported[-1][0] == reported[-1][1]
    assert size <= reported[-1][1] <= size + (64 << 10) * len(weights)
    assert reported == sorted(reported)

    def fails(_done: int, _of: int) -> None:
        raise RuntimeError("no more")

    with refuses(RuntimeError):
        weights.load(copy=copy, progress=fails)
    assert len(weights.load(copy=copy)) == len(weights)


@pytest.mark.parametrize("copy", [None, True])
def test_a_file_that_was_truncated_is_an_error_and_no_signal(
    make_file: Callable[..., Path], copy: bool | None, tmp_path: Path
) -> None:
    path = make_file({f"w{i}": ("F32", [1 << 18], bytes(1 << 20)) for i in range(8)})
    weights = max_weights.load_weights(path)
    assert len(weights.load(copy=copy)) == 8
    with open(path, "r+b") as file:
        file.truncate(3 << 20)
    with pytest.raises(max_weights.FileChangedError, match=path.name):
        weights.load(copy=copy)
    assert tmp_path.exists()


def test_threads_load_one_tree_at_the_same_time(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda i=i: found.append(weights.load(dtype="float16", copy=True if i % 2 else None)))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {name: raw(tensor) for name, tensor in found[0].items()}
    assert all({name: raw(tensor) for name, tensor in one.items()} == expected for one in found)


def test_no_weight_at_all_is_an_empty_dict(make_file: Callable[..., Path]) -> None:
    assert max_weights.load_weights(make_file({})).load() == {}
    empty = make_file({"e": ("F32", [0, 3], b""), "s": ("F32", [], bytes(4))})
    for copy in (None, True):
        loaded = max_weights.load_weights(empty).load(copy=copy, dtype="float16")
        assert [tensor.shape for tensor in loaded.values()] == [(0, 3), ()]


def test_packed_blocks_are_decoded_where_a_dtype_is_asked_for(models: Path) -> None:
    import max_weights.jax
    import max_weights.numpy
    import max_weights.torch

    path = models / "smollm2-135m.Q4_1.gguf"
    weights = max_weights.load_weights(path)
    name = "blk.0.attn_q.weight"
    data = weights[name].data()
    expected = data.astype("float32").to_numpy()
    assert np.array_equal(weights.load(name, dtype="float32")[name].to_numpy(), expected)
    assert np.array_equal(weights.load(name, dtype={"*attn*": "float32"})[name].to_numpy(), expected)
    assert np.array_equal(weights.load(name, packed="keep", dtype="float16")[name].to_numpy(), data.to_numpy())
    for entry_point in (max_weights.torch, max_weights.numpy, max_weights.jax):
        assert np.array_equal(np.asarray(entry_point.load_file(path, select=name, dtype="float32")[name]), expected)
        assert entry_point.load_file(path, packed="keep")[name].shape == data.shape
    whole = max_weights.torch.load_file(path, dtype="float32")
    assert {str(tensor.dtype) for tensor in whole.values()} == {"torch.float32"}


@pytest.mark.parametrize(
    "entry_point",
    [
        lambda path, **options: max_weights.load_weights(path).load(**options),
        lambda path, **options: next(max_weights.load_weights(path).stream(**options)),
        lambda path, **options: max_weights.plan(max_weights.load_weights(path), **options),
        lambda path, **options: max_weights.lazy_state_dict(max_weights.load_weights(path), **options),
        lambda path, **options: max_weights.torch.load_file(path, **options),
        lambda path, **options: max_weights.torch.load_file(path, threads=2, **options),
        lambda path, **options: max_weights.numpy.load_file(path, **options),
        lambda path, **options: max_weights.jax.load_file(path, **options),
    ],
    ids=["load", "stream", "plan", "lazy_state_dict", "torch", "torch, threads", "numpy", "jax"],
)
def test_packed_blocks_are_never_decoded_unasked(models: Path, entry_point: Any) -> None:
    path = models / "smollm2-135m.Q4_1.gguf"
    for options in ({}, {"select": "blk.0"}, {"select": "blk.0", "rename": {"blk.": "b."}}):
        with refuses(ValueError, "argument.packed"):
            entry_point(path, **options)
    assert entry_point(path, select="blk.0.attn_norm") is not None  # floats unchanged
    assert entry_point(path, select="blk.0", packed="keep") is not None


def test_a_dtype_for_some_packed_blocks_says_nothing_of_the_others(models: Path) -> None:
    weights = max_weights.load_weights(models / "smollm2-135m.Q4_1.gguf")
    with refuses(ValueError, "argument.packed") as caught:
        weights.load(["blk.0.attn_q", "blk.0.ffn_down"], dtype={"*attn*": "float16"})
    assert caught.value.tensor == "blk.0.ffn_down.weight"


@pytest.mark.parametrize("entry_point", ["torch", "numpy", "jax"])
def test_load_file_is_lazy_unless_an_option_says_what_is_done_with_the_tensors(
    tmp_path: Path, entry_point: str
) -> None:
    import importlib

    path = tmp_path / "aligned.safetensors"
    max_weights.save_file({"a.w": np.ones(1 << 20, np.float32), "b.w": np.ones(1 << 20, np.float32)}, path)
    load_file = importlib.import_module(f"max_weights.{entry_point}").load_file
    keep = {"packed": "keep"}
    for options in ({}, {"select": "a"}, {"rename": {"a.": "c."}}, keep, {"select": "a", **keep}):
        held = load_file(path, **options)
        assert resident(path) < 1 << 20, options
        assert list(held)[:1] == (["c.w"] if "rename" in options else ["a.w"])
        del held
    held = load_file(path, threads=2)
    assert resident(path) >= 8 << 20
    assert len(held) == 2
    reported: list[int] = []
    load_file(path, progress=lambda done, _: reported.append(done))
    assert reported  # it was read before the call returned


def test_entry_points_select_rename_and_convert(models: Path) -> None:
    import torch

    import max_weights.numpy
    import max_weights.torch

    path = models / "derived" / "layer0.bf16.safetensors"
    plain = max_weights.torch.load_file(path)
    name = next(iter(plain))
    reported: list[int] = []
    loaded = max_weights.torch.load_file(
        path, select=[name], rename={name: "x"}, dtype=torch.float32, progress=lambda done, _: reported.append(done)
    )
    assert list(loaded) == ["x"]
    assert torch.equal(loaded["x"], plain[name].float())
    assert reported[-1] == plain[name].nbytes
    assert max_weights.numpy.load_file(path, dtype=np.float16)[name].dtype == np.float16


def test_dtypes_that_only_torch_has_stay_its_own(tmp_path: Path) -> None:
    import torch

    import max_weights.torch

    values = {"z": torch.arange(4.0).reshape(2, 2).to(torch.complex128), "f": torch.ones(3)}
    torch.save(values, tmp_path / "z.pt")
    loaded = max_weights.torch.load_file(tmp_path / "z.pt", dtype="float16")
    assert torch.equal(loaded["z"], values["z"])
    assert loaded["f"].dtype is torch.float16


def test_memory_of_a_tensor_of_its_own_goes_with_it(make_file: Callable[..., Path], tmp_path: Path) -> None:
    import torch

    import max_weights.torch

    def own_bytes() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0]) * 1024

    path = make_file({f"w{i}": np.full(4 << 20, i, np.float32) for i in range(4)})
    for copy, least in (("per-tensor", 40 << 20), (True, 0)):
        max_weights.release_memory()
        loaded = max_weights.torch.load_file(path, copy=copy)
        assert {tensor.untyped_storage().nbytes() for tensor in loaded.values()} == {16 << 20}
        before = own_bytes()
        kept = loaded["w2"]
        loaded.clear()
        max_weights.release_memory()
        released = before - own_bytes()
        assert released >= least
        assert least or released < 40 << 20
        assert torch.equal(kept, torch.full((4 << 20,), 2.0))
        del kept
    tied = torch.arange(6.0)
    torch.save({"a": tied, "tied": tied, "part": tied[2:4]}, tmp_path / "tied.pt")
    shared = max_weights.torch.load_file(tmp_path / "tied.pt", copy="per-tensor")
    assert shared["a"].data_ptr() == shared["tied"].data_ptr() == shared["part"].data_ptr() - 8
    weights = max_weights.load_weights(path)
    with refuses(ValueError, "argument.choice"):
        weights.load(copy="each")  # type: ignore[arg-type]


def test_entry_points_take_every_option_and_refuse_what_is_none(models: Path) -> None:
    import max_weights.jax
    import max_weights.numpy
    import max_weights.torch
    from max_weights._loading import LoadOptions

    path = models / "minilm.safetensors"
    plain = np.asarray(max_weights.load_weights(path).pooler.dense.bias)
    digest = max_weights.fingerprint(max_weights.load_weights(path), "pooler", digests=True).digests
    options: LoadOptions = {
        "select": "pooler",
        "copy": "per-tensor",
        "backend": "read",
        "max_memory": 1 << 30,
        "threads": 2,
        "drop_cache": False,
        "digests": digest,
    }
    for entry_point in (max_weights.torch, max_weights.numpy, max_weights.jax):
        assert np.array_equal(np.asarray(entry_point.load_file(path, **options)["pooler.dense.bias"]), plain)
        with refuses(TypeError):
            entry_point.load_file(path, foo=None)
        with refuses(ValueError, "argument.choice"):
            entry_point.load_file(path, copy="each")
        with refuses(ValueError):
            entry_point.load_file(path, copy=True, max_memory=1000)


def test_a_name_has_its_own_dtype_before_patterns(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    loaded = weights.load("pooler", dtype={"*": "float16", "pooler.dense.bias": "bfloat16"})
    assert [tensor.dtype for tensor in loaded.values()] == [DType.bfloat16, DType.float16]
