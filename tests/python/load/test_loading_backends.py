"""How files are read: backends, threads, memory budget, and use of the page cache."""

import logging
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import harness
import max_weights
from max_weights._core import get_threads
from refusals import refuses

FILES = ["minilm.safetensors", "smollm2-135m.Q4_1.gguf", "crepe-tiny.pth", "derived/sharded"]


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return list(left) == list(right) and all(
        np.array_equal(np.asarray(left[name]).view(np.uint8), np.asarray(right[name]).view(np.uint8))
        for name in left
        if left[name].shape
    )


@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize("backend", ["mmap", "read", "direct"])
@pytest.mark.parametrize("name", FILES)
def test_every_backend_gives_the_same(models: Path, name: str, backend: Any, dtype: str | None) -> None:
    weights = max_weights.load_weights(models / name)
    if isinstance(weights, max_weights.graph.weights.GGUFWeights):
        dtype = dtype or "float32"
    expected = weights.load(dtype=dtype, copy=True, framework="numpy")
    for opened in (weights, max_weights.load_weights(models / name, backend=backend)):
        assert same(opened.load(dtype=dtype, backend=backend, framework="numpy"), expected)
        assert same(opened.load(dtype=dtype, backend=backend, threads=3, framework="numpy"), expected)


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_past_the_page_cache_what_is_compressed_is_inflated_all_the_same(
    models: Path, tmp_path: Path, dtype: str | None
) -> None:
    stored, deflated = models / "crepe-tiny.pth", tmp_path / "deflated.pth"
    with zipfile.ZipFile(stored) as plain, zipfile.ZipFile(deflated, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    expected = max_weights.load_weights(stored).load(dtype=dtype, copy=True, framework="numpy")
    for threads in (1, 3):
        weights = max_weights.load_weights(deflated, backend="direct")
        assert same(weights.load(dtype=dtype, threads=threads, framework="numpy"), expected)


def test_direct_reads_need_no_io_uring(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    expected = weights.load(copy=True, framework="numpy")
    monkeypatch.setenv("MAX_WEIGHTS_IO_URING", "0")
    assert same(weights.load(backend="direct", framework="numpy"), expected)
    assert same(weights.load(backend="direct", threads=1, framework="numpy"), expected)


def test_direct_reads_go_straight_to_where_the_tensors_are(tmp_path: Path) -> None:
    arrays = {f"layer.{i}": np.full((size,), i, np.float32) for i, size in enumerate([3 << 18, 7, 1 << 19, 5 << 17])}
    file = tmp_path / "a.safetensors"
    save_file(arrays, file)
    weights = max_weights.load_weights(file)
    offsets = {info.name: info.offset for info in max_weights.infos(weights)}
    loaded = weights.load(backend="direct", framework="numpy")
    assert same(loaded, arrays)
    for name, array in loaded.items():
        if array.nbytes >= 1 << 20:  # the pages of larger tensors are those of the file
            assert (array.ctypes.data - offsets[name]) % 4096 == 0
    out = {name: np.empty_like(array) for name, array in arrays.items()}  # at any place
    assert same(weights.load(backend="direct", out=out), arrays)


def test_mmap_gives_views_and_the_others_memory_of_its_own(models: Path) -> None:
    path = models / "minilm.safetensors"
    for opened in ("auto", "mmap", "read", "direct"):
        weights = max_weights.load_weights(path, backend=opened)
        for backend, views in (("mmap", True), ("read", False), ("direct", False)):
            loaded = weights.load("pooler", backend=backend)
            assert all(tensor.is_mapped == views for tensor in loaded.values()), (opened, backend)


def test_a_backend_that_there_is_not_is_an_error_that_lists_them(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    with refuses(ValueError):
        weights.load(backend="fast")  # type: ignore[arg-type]
    with refuses(ValueError, "argument.conflict"):
        weights.load(copy=False, backend="direct")
    with refuses(ValueError, "argument.conflict"):
        weights.load(copy=False, drop_cache=True)


def test_the_log_says_what_was_chosen_and_why(
    models: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    with caplog.at_level(logging.INFO, logger="max_weights"):
        weights.load("pooler", backend="direct", threads=5)
        monkeypatch.setenv("MAX_WEIGHTS_BACKEND", "read")
        weights.load("pooler")
        weights.load("pooler", backend="mmap")
    first, second, third = (record.message for record in caplog.records)
    assert first.startswith("load: direct, 5 threads")
    assert first.endswith("it was asked for")
    assert second.startswith("load: read, ")
    assert third.startswith("load: mmap, ")
    monkeypatch.setenv("MAX_WEIGHTS_BACKEND", "nonsense")
    with refuses(ValueError):
        weights.load("pooler")


def test_the_number_of_threads_is_set_for_everything_or_by_the_environment(models: Path) -> None:
    before = get_threads()
    weights = max_weights.load_weights(models / "minilm.safetensors")
    expected = weights.load(dtype="float64", framework="numpy")
    try:
        for threads in (1, 7):
            max_weights.set_threads(threads)
            assert get_threads() == threads
            assert same(weights.load(dtype="float64", framework="numpy"), expected)
            assert weights["embeddings.word_embeddings.weight"].data().astype("float16").shape == (30522, 384)
    finally:
        max_weights.set_threads(None)
    assert get_threads() == before
    with pytest.raises((ValueError, OverflowError)):
        max_weights.set_threads(0)
    code = "from max_weights._core import get_threads; print(get_threads())"
    for text, count in (("3", "3"), ("none", str(before)), ("0", str(before))):
        environment = os.environ | {"MAX_WEIGHTS_THREADS": text}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == count


def test_more_memory_than_is_allowed_is_refused_before_anything_is_read(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    size = (models / "minilm.safetensors").stat().st_size
    with refuses(ValueError):
        weights.load(dtype="float64", max_memory=size)
    views = weights.load(max_memory=1000)
    assert all(tensor.is_mapped for tensor in views.values())
    assert weights.load("pooler", copy=True, max_memory=size)


def test_the_page_cache_forgets_what_was_loaded(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((models / "minilm.safetensors").read_bytes())
    forget(path)
    expected = max_weights.load_weights(models / "minilm.safetensors").load(copy=True, framework="numpy")
    weights = max_weights.load_weights(path, backend="read")
    assert same(weights.load(framework="numpy"), expected)
    assert harness.cached_fraction(path) > 0.9
    assert same(weights.load(drop_cache=True, framework="numpy"), expected)
    assert harness.cached_fraction(path) < 0.1
    digests = max_weights.fingerprint(weights, digests=True).digests
    assert harness.cached_fraction(path) > 0.9
    assert same(weights.load(drop_cache=True, digests=digests, framework="numpy"), expected)
    assert harness.cached_fraction(path) < 0.1


def forget(path: Path) -> None:
    """Drop a file from the page cache."""
    try:
        harness.evict(path)
    except harness.BenchError as error:
        # A RAM disk is the page cache. There tests/load/load_cuts.rs counts the bytes that are read.
        pytest.skip(f"needs a file system that gives up its cache: {error}")


def test_digests_are_those_of_the_elements_and_the_same_in_every_format(models: Path, tmp_path: Path) -> None:
    import hashlib

    import torch
    from safetensors.torch import save_file

    tensors = {"a": torch.arange(300000.0).reshape(3, -1), "b": torch.tensor(7), "c": torch.zeros(0, 2).half()}
    save_file(tensors, tmp_path / "a.safetensors")
    torch.save({**tensors, "a": tensors["a"].T.contiguous().T}, tmp_path / "a.pt")
    expected = {
        name: f"sha256:{hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()}"
        for name, tensor in tensors.items()
    }
    for name in ("a.safetensors", "a.pt"):
        weights = max_weights.load_weights(tmp_path / name)
        assert max_weights.fingerprint(weights, digests=True).digests == expected
        assert max_weights.fingerprint(weights, "b", threads=1, digests=True).digests == {"b": expected["b"]}
    packed = max_weights.load_weights(models / "smollm2-135m.Q4_1.gguf")
    raw = bytes(np.asarray(packed["output_norm.weight"].data().to_buffer()).tobytes())
    assert max_weights.fingerprint(packed, "output_norm", digests=True).digests == {
        "output_norm.weight": f"sha256:{hashlib.sha256(raw).hexdigest()}"
    }


def test_a_tensor_of_another_digest_is_not_handed_out_and_nothing_is_written(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((models / "minilm.safetensors").read_bytes())
    weights = max_weights.load_weights(path)
    digests = max_weights.fingerprint(weights, "pooler", digests=True).digests
    assert same(weights.load("pooler", digests=digests), weights.load("pooler"))
    offset = weights.load("pooler.dense.bias", backend="mmap")
    assert offset
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    weights = max_weights.load_weights(path)
    out = np.zeros((384, 384), np.float32)
    with refuses(max_weights.FormatError, "tensor.digest") as failed:
        weights.load("pooler", digests=digests, out={"pooler.dense.weight": out})
    assert "[tensor.digest]" in str(failed.value)
    assert not out.any()
    with refuses(ValueError, "argument.digests"):
        weights.load("pooler", digests={"pooler.dense.bias": digests["pooler.dense.bias"]})


@pytest.mark.parametrize("copy", [False, True])
def test_of_a_file_on_a_disk_no_more_is_read_than_the_parts_that_are_wanted(tmp_path: Path, copy: bool) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "model.safetensors"
    save_file({f"t{i:02}": np.full(1 << 20, i, np.float32) for i in range(16)}, path)
    forget(path)
    weights = max_weights.load_weights(path)
    before = harness.cached_fraction(path)
    loaded = weights.load(["t02", "t09", "t14"], copy=copy, backend="read" if copy else "mmap", framework="numpy")
    assert [int(tensor[0]) for tensor in loaded.values()] == [2, 9, 14]
    assert harness.cached_fraction(path) - before < 3 / 16 * 1.05
