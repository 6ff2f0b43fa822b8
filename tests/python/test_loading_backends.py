"""How files are read: the backend, the threads, the memory that may be taken, and what is left in the page cache."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import max_weights
from max_weights._core import get_threads

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
    expected = weights.load(dtype=dtype, copy=True, framework="numpy")
    for opened in (weights, max_weights.load_weights(models / name, backend=backend)):
        assert same(opened.load(dtype=dtype, backend=backend, framework="numpy"), expected)
        assert same(opened.load(dtype=dtype, backend=backend, threads=3, framework="numpy"), expected)


def test_mmap_gives_views_and_the_others_memory_of_its_own(models: Path) -> None:
    path = models / "minilm.safetensors"
    for opened in ("auto", "mmap", "read", "direct"):
        weights = max_weights.load_weights(path, backend=opened)
        for backend, views in (("mmap", True), ("read", False), ("direct", False)):
            loaded = weights.load("pooler", backend=backend)
            assert all(tensor.is_mapped == views for tensor in loaded.values()), (opened, backend)


def test_a_backend_that_there_is_not_is_an_error_that_lists_them(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    with pytest.raises(ValueError, match="backend is one of 'auto', 'mmap', 'read', 'direct', not 'fast'"):
        weights.load(backend="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="copy=False asks for views"):
        weights.load(copy=False, backend="direct")
    with pytest.raises(ValueError, match="copy=False asks for views"):
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
    with pytest.raises(ValueError, match="not 'nonsense'"):
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
    size = sum(info.nbytes for info in weights.infos())
    with pytest.raises(ValueError, match=rf"bytes of memory, and max_host_bytes is {size}: select fewer"):
        weights.load(dtype="float64", max_host_bytes=size)
    views = weights.load(max_host_bytes=1000)
    assert all(tensor.is_mapped for tensor in views.values())
    assert weights.load("pooler", copy=True, max_host_bytes=size)


def test_the_page_cache_forgets_what_was_loaded(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((models / "minilm.safetensors").read_bytes())
    with path.open("rb") as file:
        os.fsync(file.fileno())
    expected = max_weights.load_weights(models / "minilm.safetensors").load(copy=True, framework="numpy")
    weights = max_weights.load_weights(path, backend="read")
    assert same(weights.load(drop_cache=True, framework="numpy"), expected)
    assert cached(path) < 0.1
    assert same(weights.load(framework="numpy"), expected)
    assert cached(path) > 0.9


def cached(path: Path) -> float:
    """The part of a file that is in the page cache."""
    with path.open("rb") as file:
        pages = range(0, path.stat().st_size, 4096)
        return sum(is_cached(file.fileno(), at) for at in pages) / len(pages)


def is_cached(descriptor: int, at: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(1)], at, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
