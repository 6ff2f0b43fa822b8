"""Fingerprints of tensors: as specified, for values in any file, layout or wider dtype."""

import json
import os
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

import fingerprint_specification as specification
import max_weights
from command_line import run
from conftest import ROOT
from max_weights._fingerprint_cache import ContentCache, fingerprint_cache
from max_weights.errors import ArgumentError
from max_weights.types import Fingerprint
from refusals import refuses

VECTORS = ROOT / "tests" / "data" / "fingerprint_vectors.json"
DTYPES = (
    "bfloat16", "float16", "float32", "float64", "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32",
    "uint64", "int64", "float8_e4m3fn", "complex64",
)  # fmt: skip


def tensor_of(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Any bits, except float NaNs, whose payload NumPy may change in conversions."""
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if dtype.kind == "b":
        codes &= 1
    tensor = codes.view(dtype).reshape(shape)
    if tensor.dtype.kind == "f" or dtype.name == "bfloat16":
        with np.errstate(invalid="ignore"):
            tensor = np.where(np.isnan(tensor), np.zeros_like(tensor), tensor)
    return tensor


SHAPES = st.lists(st.integers(0, 9), max_size=4).map(tuple) | st.tuples(st.integers(60, 140), st.integers(1, 40))


@given(dtype=st.sampled_from(DTYPES), shape=SHAPES, seed=st.integers(0, 1 << 32), columns=st.integers(1, 5))
def test_every_tensor_has_the_fingerprint_of_the_specification(
    dtype: str, shape: tuple[int, ...], seed: int, columns: int
) -> None:
    tensor = tensor_of(dtype, shape, seed)
    own = max_weights.fingerprint({"x": max_weights.Buffer.from_numpy(tensor)}, column_blocks=columns)["x"]
    kind, rows_per_block, blocks = specification.fingerprint(tensor, columns)
    assert (own.kind, own.rows_per_block, own.blocks, own.shape) == (kind, rows_per_block, blocks, shape)


def test_long_rows_have_the_fingerprint_of_the_specification() -> None:
    tensor = tensor_of("float32", (3, 5000), 7)
    assert (
        max_weights.fingerprint({"x": tensor}, column_blocks=7)["x"].blocks == specification.fingerprint(tensor, 7)[2]
    )


def test_the_vectors_are_those_of_both_implementations() -> None:
    for vector in json.loads(VECTORS.read_text())["vectors"]:
        dtype = np.dtype(getattr(ml_dtypes, vector["dtype"], vector["dtype"]))
        tensor = np.frombuffer(bytes.fromhex(vector["elements"]), dtype).reshape(vector["shape"])
        own = max_weights.fingerprint({"x": max_weights.Buffer.from_numpy(tensor)}, digests=True)["x"]
        assert own.digest == vector["digest"] == specification.digest(tensor)
        assert specification.fingerprint(tensor) == (vector["kind"], vector["rows_per_block"], own.blocks)
        assert (own.kind, own.rows_per_block, own.blocks.hex()) == (
            vector["kind"], vector["rows_per_block"], vector["blocks"]
        )  # fmt: skip


def test_a_file_and_memory_and_a_wider_dtype_have_the_same(tmp_path: Path) -> None:
    state = {
        "half": torch.randn(300, 70).to(torch.bfloat16),
        "experts": torch.randn(6, 40, 30).half(),
        "bias": torch.randn(5),
        "count": torch.tensor(3),
        "empty": torch.zeros(0, 4),
    }
    save_torch(state, tmp_path / "a.safetensors")
    torch.save({name: tensor.t().contiguous().t() if tensor.ndim == 2 else tensor for name, tensor in state.items()},
               tmp_path / "b.pt")  # fmt: skip
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor.int() for name, tensor in state.items()}
    weights = max_weights.load_weights(tmp_path / "a.safetensors")
    own = max_weights.fingerprint(weights)
    for other in (state, wide, max_weights.load_weights(tmp_path / "b.pt")):
        comparison = own.compare(max_weights.fingerprint(other))
        assert comparison.ok, comparison
        assert comparison.compared == len(state)
    assert max_weights.fingerprint(weights, ["bias"]).keys() == {"bias"}


def test_real_files_of_two_formats_have_the_same(models: Path, tmp_path: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    own = max_weights.fingerprint(weights)
    weights.save(tmp_path / "shards", max_shard_size="20MB")
    torch.save(weights.load(framework="torch"), tmp_path / "one.pt")
    for path in ("shards", "one.pt"):
        comparison = own.compare(max_weights.fingerprint(max_weights.load_weights(tmp_path / path)))
        assert comparison.ok, comparison
        assert comparison.compared == len(own)


def test_blocks_of_gguf_are_compared_as_they_are(models: Path) -> None:
    weights = max_weights.load_weights(models / "smollm2-135m.Q4_1.gguf")
    own = max_weights.fingerprint(weights, ["blk.0.attn_q.weight"])["blk.0.attn_q.weight"]
    assert own.kind == "Q4_1"
    assert own.shape == (576, 576)


def test_the_parts_that_ranks_have_add_up() -> None:
    whole = np.random.default_rng(1).standard_normal((64, 48)).astype(np.float32)
    sums = np.frombuffer(max_weights.fingerprint({"x": whole}, column_blocks=4)["x"].blocks, "<u8").reshape(-1, 4, 2)
    for part in range(4):
        alone = np.zeros_like(whole)
        alone[:, part * 12 : part * 12 + 12] = whole[:, part * 12 : part * 12 + 12]
        of_part = np.frombuffer(max_weights.fingerprint({"x": alone})["x"].blocks, "<u8").reshape(-1, 2)
        assert (of_part == sums[:, part]).all()


def test_what_differs_is_named_with_its_rows_and_what_it_is_instead() -> None:
    generator = np.random.default_rng(2)
    state = {name: generator.standard_normal((512, 16)).astype(np.float32) for name in ("q", "k", "v")}
    other = {name: tensor.copy() for name, tensor in state.items()}
    other["v"][130, 3] = np.nextafter(other["v"][130, 3], 2)
    other["q"], other["k"] = other["k"], other["q"]
    del state["k"]
    other["extra"] = state["v"].astype(np.float64) + 1e-12
    comparison = max_weights.fingerprint(state).compare(max_weights.fingerprint(other))
    found = {one.name: one for one in comparison.findings}
    assert found["v"].rows == (range(128, 136),)
    assert "128-135" in str(found["v"])
    assert found["q"].other == "k"
    assert all("only the other side" in found[name].message for name in ("k", "extra"))
    assert not max_weights.fingerprint({}).compare(max_weights.fingerprint({})).ok, "nothing proves nothing"
    shape = max_weights.fingerprint({"q": state["q"].T.copy()}).compare(max_weights.fingerprint({"q": state["q"]}))
    assert "[16, 512]" in str(shape)
    kind = max_weights.fingerprint({"q": np.ones(3, np.int8)}).compare(max_weights.fingerprint({"q": np.ones(3)}))
    assert "integer, and float" in str(kind)


def test_ten_thousand_random_tensors_have_fingerprints_of_their_own() -> None:
    generator = np.random.default_rng(3)
    tensors = {str(number): generator.integers(-2, 3, 16).astype(np.float32) for number in range(10_000)}
    totals = {one.total for one in max_weights.fingerprint(tensors).values()}
    assert len(totals) == len({tensor.tobytes() for tensor in tensors.values()})


def test_a_file_of_fingerprints_is_read_again(tmp_path: Path) -> None:
    own = max_weights.fingerprint(
        {"a.b": np.arange(600, dtype=np.float32).reshape(100, 6), "c": np.int8(3) * np.ones(2, np.int8)}
    )
    own.write(tmp_path / "model.fingerprint.json")
    assert dict(Fingerprint.read(tmp_path / "model.fingerprint.json")) == dict(own)


def test_a_manifest_with_fingerprints_is_read(models: Path, tmp_path: Path) -> None:
    path, manifest = models / "minilm.safetensors", tmp_path / "manifest.json"
    assert run("manifest", "create", path, "--fingerprints", "-o", manifest).status == 0
    weights = max_weights.load_weights(path)
    comparison = max_weights.fingerprint(weights).compare(Fingerprint.read(manifest))
    assert comparison.ok, comparison
    assert comparison.compared == len(weights)
    assert run("manifest", "check", manifest, path).status == 0
    assert run("manifest", "create", path, "-o", manifest).status == 0
    with refuses(max_weights.FormatError, "fingerprint.content"):
        Fingerprint.read(manifest)
    for text in ('"tensors": 3', '"tensors": [3]', '"tensors": [{"name": "x", "fingerprint": {"kind": 3}}]'):
        with refuses(max_weights.FormatError, "fingerprint.content"):
            Fingerprint.from_json('{"schema": "max-weights.manifest/1", ' + text + "}", source="theirs.json")


COLLISION = (-27264, 24278, -13714, 21031, 24606, -27700)
"""A vector that can be added to six integers without a change of their sums: lattice reduction finds it in seconds."""


def _colliding() -> tuple[np.ndarray, np.ndarray]:
    """Two tensors with equal sums, which are linear."""
    one = np.full(6, 1 << 20, np.int32)
    return one, one + np.array(COLLISION, np.int32)


def test_tensors_that_were_made_to_collide_are_told_apart_by_their_digests(tmp_path: Path) -> None:
    one, other = ({"x": tensor} for tensor in _colliding())
    assert (one["x"] != other["x"]).any()
    assert max_weights.fingerprint(one).compare(max_weights.fingerprint(other)).ok, "sums are no signature"
    assert not max_weights.fingerprint(one).compare(max_weights.fingerprint(one), require_digests=True).ok
    own, there = (max_weights.fingerprint(tensors, digests=True) for tensors in (one, other))
    assert "its SHA-256 differs, though its sums are equal" in str(own.compare(there))
    there.write(tmp_path / "a.json")
    assert "its SHA-256 differs" in str(own.compare(Fingerprint.read(tmp_path / "a.json")))
    assert own.compare(Fingerprint.from_json(own.to_json()), require_digests=True).ok
    wide = max_weights.fingerprint({"x": one["x"].astype(np.int64)}, digests=True)
    assert own.compare(wide).ok
    assert "those of int32 and int64" in str(own.compare(wide, require_digests=True))


def test_the_digests_of_a_file_are_those_of_digests_and_of_manifests(models: Path, tmp_path: Path) -> None:
    for path in (models / "minilm.safetensors", models / "smollm2-135m.Q4_1.gguf"):
        weights = max_weights.load_weights(path)
        own = max_weights.fingerprint(weights, digests=True)
        assert {name: one.digest for name, one in own.items()} == max_weights.fingerprint(weights, digests=True).digests
        assert run("manifest", "create", path, "--fingerprints", "-o", tmp_path / "m.json").status == 0
        comparison = own.compare(Fingerprint.read(tmp_path / "m.json"), require_digests=True)
        assert comparison.ok, comparison
    assert (
        max_weights.fingerprint(weights.load(["blk.0.attn_norm.weight"]), digests=True)["blk.0.attn_norm.weight"].digest
        == own["blk.0.attn_norm.weight"].digest
    )


def _old(path: Path) -> None:
    """Age the file: fingerprints of recently written files are not cached."""
    os.utime(path, ns=(time.time_ns() - 10**10, time.time_ns() - 10**10))


def test_a_second_fingerprint_of_the_same_file_reads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"x": np.ones((100, 100), np.float32), "y": np.ones(3, np.float32)}, path)
    _old(path)
    read: list[int] = []

    def taken(**options: Any) -> Fingerprint:
        read.clear()
        return max_weights.fingerprint(
            max_weights.load_weights(path), progress=lambda _, of: read.append(of), **options
        )

    first = taken()
    assert read[-1] == 40_012
    assert dict(taken()) == dict(first)
    assert max(read, default=0) == 0
    taken(column_blocks=2)
    assert read[-1] == 40_012
    # A tree with written values differs, and its fingerprint is not cached.
    weights = max_weights.load_weights(path)
    weights.x.torch()[3, 4] = 7
    assert max_weights.fingerprint(weights)["x"] != first["x"]
    assert taken()["x"] == first["x"]
    # The same holds for a file that was overwritten, edited in place, or written just now.
    save_file({"x": np.zeros((100, 100), np.float32), "y": np.ones(3, np.float32)}, path)
    assert taken()["x"] != first["x"]
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\x41")
    changed = taken()
    assert changed["y"] != first["y"]
    _old(path)
    assert taken()["y"] == changed["y"]


def test_kept_fingerprints_are_bounded_in_bytes_and_the_oldest_are_dropped() -> None:
    cache = ContentCache(100_000)
    for number in range(1000):
        cache.put(("fingerprint", 1, f"key{number}"), number, 5_000)
        assert cache.nbytes <= 100_000
    assert cache.get(("fingerprint", 1, "key999"), None) == 999
    assert cache.get(("fingerprint", 1, "key0"), None) is None
    cache.put(("fingerprint", 1, "large"), 0, 200_000)
    assert cache.get(("fingerprint", 1, "large"), None) is None
    assert cache.get(("fingerprint", 1, "key999"), None) == 999
    before = cache.nbytes
    cache.put(("fingerprint", 1, "key999"), 1000, 5_000)
    assert (cache.nbytes, cache.get(("fingerprint", 1, "key999"), None)) == (before, 1000)
    assert cache.clear() == before
    assert cache.nbytes == 0


def test_release_memory_gives_up_the_fingerprints_that_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({f"x{number}": np.ones((64, 4), np.float32) for number in range(20)}, path)
    _old(path)
    max_weights.release_memory()
    read: list[int] = []
    for expected in (True, False):
        read.clear()
        max_weights.fingerprint(max_weights.load_weights(path), digests=True, progress=lambda _, of: read.append(of))
        assert (max(read, default=0) > 0) is expected
    assert fingerprint_cache.nbytes > 20 * 64 * 16
    assert max_weights.release_memory() >= 20 * 64 * 16
    assert fingerprint_cache.nbytes == 0
    read.clear()
    max_weights.fingerprint(max_weights.load_weights(path), progress=lambda _, of: read.append(of))
    assert max(read) > 0


@pytest.mark.filterwarnings("ignore:os.fork")  # that of JAX, which tests of this process may have imported
def test_threads_share_the_fingerprints_that_are_kept_and_a_forked_child_does_not_wait_for_them() -> None:
    cache, failures = ContentCache(50_000), []

    def use(thread: int) -> None:
        try:
            for number in range(2000):
                cache.put(("fingerprint", number % 50, str(thread)), number, 900)
                cache.get(("fingerprint", number % 50, str(1 - thread)), None)
                if number % 300 == 0:
                    cache.clear()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert 0 <= cache.nbytes <= 50_000
    assert cache.clear() >= 0
    held, cancel = threading.Event(), threading.Event()

    def hold() -> None:
        with cache._lock:
            held.set()
            cancel.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
        child = os.fork()
    if not child:
        cache.put(("fingerprint", 1, "child"), 1, 1)
        os._exit(cache.get(("fingerprint", 1, "child"), 2))
    cancel.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def record(**changes: object) -> str:
    tensor = {"kind": "float", "shape": [2, 3], "rows_per_block": 1, "column_blocks": 1, "blocks": "00" * 32} | changes
    return json.dumps({"format": "max-weights-fingerprint", "version": 1, "tensors": {"x": tensor}})


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "it is no fingerprint"),
        ('{"format": "max-weights-fingerprint", "version": 2}', "of version 2, and this release reads 1"),
        ('{"format": "max-weights-fingerprint", "version": 1}', "no object 'tensors'"),
        ('{"format": "max-weights-fingerprint", "version": 1, "tensors": {"x": 3}}', "tensor 'x': it is no object"),
        (record(kind=3), "have to be texts"),
        (record(shape=[-1]), "a list of sizes"),
        (record(shape=[True]), "a list of sizes"),
        (record(shape=[1 << 62, 1 << 62, 4]), "'rows_per_block' is 1"),
        (record(shape=[4096, 1 << 62, 4], rows_per_block=1 << 62), "are needed for its shape"),
        (record(rows_per_block=2), "and 1 for its shape"),
        (record(column_blocks=0), "has to be 1 to 64"),
        (record(column_blocks=65), "has to be 1 to 64"),
        (record(blocks="00" * 31), "and 64 are needed"),
        (record(blocks="zz" * 32), "hexadecimal"),
        (record(blocks="00 " * 21 + "0"), "hexadecimal|spaces"),
        (record(digest="sha256:" + "0" * 64), "belong together"),
        (record(digest="md5:0", digest_dtype="float32"), "64 hexadecimal digits"),
        (record(digest=3, digest_dtype="float32"), "64 hexadecimal digits"),
        (record(digest="sha256:" + "0" * 64, digest_dtype=3), "a text"),
    ],
)
def test_a_file_that_is_no_fingerprint_is_an_error_that_says_why(text: str, cause: str) -> None:
    with pytest.raises(max_weights.FormatError, match=cause):
        Fingerprint.from_json(text, source="theirs.json")


def test_a_manifest_of_another_version_is_an_error_that_says_which() -> None:
    with refuses(max_weights.FormatError, "fingerprint.version"):
        Fingerprint.from_json('{"schema": "max-weights.manifest/2", "tensors": []}')


def test_a_manifest_of_another_model_differs_in_every_tensor(models: Path) -> None:
    own = max_weights.fingerprint(max_weights.load_weights(models / "minilm.safetensors"))
    other = max_weights.fingerprint(max_weights.load_weights(models / "silero_vad_16k.safetensors"))
    comparison = own.compare(other)
    assert not comparison.ok
    assert len(comparison.findings) == len(own) + len(other)


def test_a_file_that_is_truncated_anywhere_is_an_error() -> None:
    text = max_weights.fingerprint({"x": np.ones((3, 4), np.float32), "y": np.ones(2, np.int8)}, digests=True).to_json()
    assert len(Fingerprint.from_json(text)) == 2
    for end in range(len(text)):
        with pytest.raises(max_weights.FormatError, match="it is not JSON"):
            Fingerprint.from_json(text[:end])


def test_two_entries_of_one_name_are_an_error() -> None:
    twice = record()[:-2] + ', "x": ' + json.dumps(json.loads(record())["tensors"]["x"]) + "}}"
    with refuses(max_weights.FormatError, "fingerprint.content"):
        Fingerprint.from_json(twice)


@given(at=st.integers(0, 400), byte=st.binary(min_size=0, max_size=3))
def test_whatever_is_written_into_a_file_it_is_read_or_an_error_of_the_format(at: int, byte: bytes) -> None:
    text = bytearray(record(digest="sha256:" + "0" * 64, digest_dtype="float32").encode())
    text[at : at + len(byte) or 1] = byte
    try:
        own = Fingerprint.from_json(bytes(text))
    except max_weights.FormatError:
        return
    assert own.compare(own).ok or not own


@pytest.mark.parametrize("count", [50_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def test_a_million_entries_are_read_in_bounded_time(count: int, tmp_path: Path) -> None:
    one = {"kind": "float", "shape": [1], "rows_per_block": 1, "column_blocks": 1, "blocks": "00" * 16}
    path = tmp_path / "many.json"
    path.write_text(
        json.dumps(
            {
                "format": "max-weights-fingerprint",
                "version": 1,
                "tensors": dict.fromkeys(map(str, range(count)), one),
            }
        )
    )
    assert len(Fingerprint.read(path)) == count


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    linear_file = tmp_path / "linear.safetensors"
    save_file({"weight": np.ones((2, 2))}, linear_file)
    with refuses(ValueError):
        max_weights.fingerprint({"x": np.ones(3)}, column_blocks=65)
    with refuses(ArgumentError, "argument.type"):
        max_weights.fingerprint(torch.ones(2))  # type: ignore[arg-type]
    linear = torch.nn.Linear(2, 2)
    assert max_weights.fingerprint(linear) == max_weights.fingerprint(linear.state_dict())
    with refuses(ArgumentError, "argument.part"):
        max_weights.fingerprint(linear_file, "weight", identity=True)
    with refuses(TypeError):
        max_weights.fingerprint(linear).compare({})  # type: ignore[arg-type]


def test_a_file_that_is_truncated_meanwhile_is_an_error(tmp_path: Path) -> None:
    save_file({"x": np.ones((1000, 1000), np.float32)}, tmp_path / "a.safetensors")
    weights = max_weights.load_weights(tmp_path / "a.safetensors")
    with (tmp_path / "a.safetensors").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(max_weights.FileChangedError):
        max_weights.fingerprint(weights)
