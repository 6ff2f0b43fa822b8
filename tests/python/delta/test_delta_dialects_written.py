"""Deltas written in the formats of other libraries: readable by their readers, in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from safetensors.numpy import load_file, save_file

import delta_dialects as dialects
from command_line import measured
from delta_dialects import INDEX, Tensors, publish, write_prime_rl, write_trl
from max_weights import delta, load_weights
from max_weights.errors import FormatError
from refusals import refuses
from test_delta_dialects import Chain, assert_same, chain, copied

__all__ = ["chain"]


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("kind", ["xxh3-128", "adler32"])
def test_what_is_written_is_read_as_receivers_do(chain: Chain, tmp_path: Path, encoding: Any, kind: Any) -> None:
    folder = tmp_path / "weight_v000002"
    done = delta.create(
        [chain.base, chain.delta(1)],
        {name: torch.from_numpy(tensor.copy()) for name, tensor in chain.versions[2].items()},
        folder,
        dialect=encoding,
        checksum=kind,
        sync=False,
    )
    assert (done.base, done.target, done.changed, done.unchanged, done.whole) == ("000001", "000002", 4, 1, 0)
    pairs = [(chain.versions[1][name], tensor) for name, tensor in chain.versions[2].items()]
    assert done.elements == sum(dialects.changes(old, new)[0].size for old, new in pairs)
    assert sorted(file.name for file in folder.iterdir()) == ["model-00000-of-00001.safetensors", INDEX]
    assert_same(dialects.read_published(folder, chain.versions[1]), chain.versions[2])
    assert_same(load_weights([chain.base, chain.delta(1), folder]).load(framework="numpy"), chain.versions[2])
    frames = load_file(folder / "model-00000-of-00001.safetensors")
    for name, frame in frames.items():
        # Receivers allocate this much for it.
        size = zstandard.frame_content_size(frame.tobytes())
        assert size == chain.versions[2][name].nbytes or encoding == "overwrite"
    theirs = publish(tmp_path / "theirs", *chain.versions[1:3], 2, 1, encoding)
    size = sum(frame.nbytes for frame in load_file(theirs / "model-00000-of-00001.safetensors").values())
    assert sum(frame.nbytes for frame in frames.values()) < 1.3 * size


def test_a_folder_with_blake3_is_read_again(chain: Chain, tmp_path: Path) -> None:
    folder = tmp_path / "weight_v000001"
    delta.create(chain.base, chain.versions[1], folder, dialect="xor", checksum="blake3", sync=False)
    assert_same(load_weights([chain.base, folder]).load(framework="numpy"), chain.versions[1])
    assert json.loads((folder / INDEX).read_text())["metadata"]["checksum_format"] == "blake3"


def test_large_tensors_of_every_kind_of_bytes_are_written(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    old = {
        "noise": random.integers(0, 255, 3_000_001, dtype=np.uint8),
        "zeros": np.zeros(2_000_000, np.float32),
        "one": np.zeros((), np.int64),
        "empty": np.zeros((0, 3), np.float16),
    }
    new = {
        "noise": random.integers(0, 255, 3_000_001, dtype=np.uint8),
        "zeros": np.where(np.arange(2_000_000) % 1000 < 3, np.float32(1.5), np.float32(0)),
        "one": np.ones((), np.int64),
        "empty": old["empty"],
    }
    save_file(old, tmp_path / "base.safetensors")
    for encoding in ("xor", "overwrite"):
        folder = tmp_path / encoding
        delta.create(
            tmp_path / "base.safetensors",
            new,
            folder,
            dialect=encoding,  # type: ignore[arg-type]
            version="b",
            base_version="a",
            sync=False,
        )
        assert_same(dialects.read_published(folder, old), new)
        assert_same(load_weights([tmp_path / "base.safetensors", folder]).load(framework="numpy"), new)


def test_a_version_without_changes_is_an_index_alone(chain: Chain, tmp_path: Path) -> None:
    folder = tmp_path / "weight_v000001"
    done = delta.create(chain.base, chain.versions[0], folder, dialect="xor", sync=False)
    assert (done.changed, [file.name for file in folder.iterdir()]) == (0, [INDEX])
    assert_same(load_weights([chain.base, folder]).load(framework="numpy"), chain.versions[0])


def test_what_folders_have_no_place_for_is_named(chain: Chain, tmp_path: Path) -> None:
    old = chain.versions[0]

    def refused(new: Tensors, folder: str = "weight_v000001", **options: Any) -> str:
        with refuses(ValueError) as error:
            delta.create(chain.base, new, tmp_path / folder, dialect="xor", sync=False, **options)
        return str(error.value)

    assert "'x' is not in the base" in refused({**old, "x": np.zeros(3)})
    assert "'a.weight' is not in the base with this dtype and shape" in refused({**old, "a.weight": np.zeros(3)})
    assert "'d.same' is not in the new version" in refused({name: old[name] for name in old if name != "d.same"})
    assert "or a folder weight_v000012, not 'next'" in refused(old, "next")
    assert "which differ" in refused(old, version="3", base_version="3")
    assert "there is no checksum_format 'md5'" in refused(old, checksum="md5")
    assert list(tmp_path.iterdir()) == []
    delta.create(chain.base, old, tmp_path / "weight_v000001", dialect="xor", sync=False)
    assert "already has an index" in refused(old)


def test_folders_are_written_in_the_shell(chain: Chain, tmp_path: Path) -> None:
    new, folder = tmp_path / "new.safetensors", tmp_path / "weight_v000001"
    save_file(chain.versions[1], new)
    program = [sys.executable, "-m", "max_weights", "delta", "create", chain.base, new, folder, "--no-sync"]
    program += ["--dialect", "overwrite", "--checksum", "adler32"]
    message = subprocess.run(list(map(str, program)), capture_output=True, text=True, check=True).stdout
    assert "000000 -> 000001" in message
    assert_same(dialects.read_published(folder, chain.versions[0]), chain.versions[1])
    file = tmp_path / "step_000001.safetensors"
    program = [sys.executable, "-m", "max_weights", "delta", "create", chain.base, new, file, "--dialect", "sparse"]
    assert (
        "000000 -> 000001" in subprocess.run(list(map(str, program)), capture_output=True, text=True, check=True).stdout
    )
    assert_same(dialects.read_trl(file, chain.versions[0]), chain.versions[1])


def test_a_sparse_file_is_read_as_by_trl(chain: Chain, tmp_path: Path) -> None:
    one, two = tmp_path / "step-000001.safetensors", tmp_path / "other.safetensors"
    tensors = {name: torch.from_numpy(tensor.copy()) for name, tensor in chain.versions[1].items()}
    done = delta.create(chain.base, tensors, one, dialect="sparse", sync=False)
    assert (done.base, done.target, done.changed, done.unchanged, done.whole) == ("000000", "000001", 4, 1, 0)
    pairs = [(chain.versions[0][name], tensor) for name, tensor in chain.versions[1].items()]
    assert done.elements == sum(dialects.changes(old, new)[0].size for old, new in pairs)
    assert_same(dialects.read_trl(one, chain.versions[0]), chain.versions[1])
    delta.create([chain.base, one], chain.versions[2], two, dialect="sparse", version="9", base_version="1", sync=False)
    assert_same(dialects.read_trl(two, chain.versions[1]), chain.versions[2])
    assert (delta.read(two).dialect, delta.read(two).base, delta.read(two).target) == ("sparse", "000001", "000009")
    assert_same(load_weights([chain.base, one, two]).load(framework="numpy"), chain.versions[2])
    with refuses(FormatError, "delta.chain"):
        load_weights([chain.base, two, one])
    theirs = write_trl(tmp_path / "theirs.safetensors", *chain.versions[:2], 1)
    assert load_file(one).keys() == load_file(theirs).keys()
    for name, tensor in load_file(theirs).items():
        assert (load_file(one)[name].dtype, load_file(one)[name].tobytes()) == (tensor.dtype, tensor.tobytes()), name


def test_sparse_places_far_from_each_other_have_room(tmp_path: Path) -> None:
    old: Tensors = {
        "far": np.zeros(200_000, np.uint8),
        "complex": np.zeros(300, np.complex64),
        "scalar": np.zeros((), np.int64),
        "empty": np.zeros((0, 3), np.float16),
        "all": np.arange(70_000, dtype=np.float64),
    }
    new = copied(old)
    new["far"][[7, 65543 + 1, 199_999]], new["complex"][[0, 299]], new["scalar"][...] = 1, 1j, 5
    new["all"] += 1
    save_file(old, tmp_path / "base.safetensors")
    path = tmp_path / "3.safetensors"
    delta.create(tmp_path / "base.safetensors", new, path, dialect="sparse", sync=False)
    written = load_file(path)
    assert (written["far.idx"].dtype, written["far.idx"].tolist()) == (np.uint32, [7, 65536, 134454])
    assert written["all.idx"].dtype == np.uint16
    assert_same(dialects.read_trl(path, old), new)
    assert_same(load_weights([tmp_path / "base.safetensors", path]).load(framework="numpy"), new)


def test_a_sparse_file_without_changes_has_one_tensor_that_is_none(chain: Chain, tmp_path: Path) -> None:
    path = tmp_path / "1.safetensors"
    done = delta.create(chain.base, chain.versions[0], path, dialect="sparse", sync=False)
    assert (done.changed, done.elements, list(load_file(path))) == (0, 0, ["__empty_delta__"])
    assert_same(dialects.read_trl(path, chain.versions[0]), chain.versions[0])
    assert_same(load_weights([chain.base, path]).load(framework="numpy"), chain.versions[0])


def test_what_a_sparse_file_has_no_place_for_is_named(chain: Chain, tmp_path: Path) -> None:
    old = chain.versions[0]

    def refused(new: Tensors, file: str = "1.safetensors", **options: Any) -> str:
        with refuses(ValueError) as error:
            delta.create(chain.base, new, tmp_path / file, dialect="sparse", sync=False, **options)
        return str(error.value)

    assert "'x' is not in the base" in refused({**old, "x": np.zeros(3)})
    assert "'a.weight' is not in the base with this dtype and shape" in refused({**old, "a.weight": np.zeros(3)})
    assert "'d.same' is not in the new version" in refused({name: old[name] for name in old if name != "d.same"})
    assert "as step_000012.safetensors, not 'next'" in refused(old, "next.safetensors")
    assert "the version 'b' is not a number" in refused(old, version="b")
    assert "the second is higher" in refused(old, version="3", base_version="3")
    assert list(tmp_path.iterdir()) == []


KINDS = [np.uint8, np.int8, np.float16, np.uint16, np.int32, np.float32, np.int64, np.float64]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two versions of 256 MB; half of the bytes changed to incompressible values."""
    folder = tmp_path_factory.mktemp("large")
    old = np.zeros(256_000_000, np.uint8)
    save_file({"w": old}, folder / "old.safetensors")
    old[::2] = np.random.default_rng(0).integers(1, 256, old.size // 2, np.uint8)
    save_file({"w": old}, folder / "new.safetensors")
    return folder / "old.safetensors", folder / "new.safetensors"


@pytest.mark.parametrize("dialect", ["xor", "overwrite", "sparse"])
def test_what_changed_waits_in_a_file_if_it_is_much(large: tuple[Path, Path], tmp_path: Path, dialect: str) -> None:
    path = tmp_path / ("000001.safetensors" if dialect == "sparse" else "weight_v000001")
    done, peak = measured("delta", "create", *large, path, "--dialect", dialect, "--no-sync")
    assert (done.status, done.stderr) == (0, "")
    file = path if dialect == "sparse" else path / "model-00000-of-00001.safetensors"
    assert file.stat().st_size > 128_000_000
    assert peak < 150, "the limit of 64 MiB, the program, and what a thread compares and compresses at a time"
    now, new = (load_weights(paths).w[-9000:].numpy() for paths in ([large[0], path], large[1]))
    assert np.array_equal(now, new)


def random_versions(random: np.random.Generator) -> list[Tensors]:
    """A version and the next one: some tensors are equal, and in some every element differs."""
    old, new = {}, {}
    for number in range(int(random.integers(1, 7))):
        shape = tuple(int(size) for size in random.choice([0, 1, 3, 70, 401], random.integers(0, 3)))
        kind = np.dtype(KINDS[random.integers(len(KINDS))])
        codes = random.integers(0, 256, (*shape, kind.itemsize), dtype=np.uint8)
        old[f"t{number}"] = codes.view(kind).reshape(shape)
        changed = codes.copy()
        where = random.random(shape) < random.choice([0, 0.001, 0.02, 0.5, 1])
        changed[where] ^= random.integers(1, 256, kind.itemsize, dtype=np.uint8)
        new[f"t{number}"] = changed.view(kind).reshape(shape)
    return [old, new]


@pytest.mark.parametrize("seed", range(12))
def test_random_versions_are_the_same_to_others_in_every_dialect(tmp_path: Path, seed: int) -> None:
    old, new = random_versions(np.random.default_rng(seed))
    save_file(old, base := tmp_path / "base.safetensors")
    for dialect in ("xor", "overwrite"):
        own = tmp_path / dialect / "weight_v000001"
        delta.create(base, new, own, dialect=dialect, sync=False)  # type: ignore[arg-type]
        assert_same(dialects.read_published(own, old), new)
        theirs = publish(tmp_path / dialect / "theirs", old, new, 1, 0, dialect)
        for path in (own, theirs):
            assert_same(load_weights([base, path]).load(framework="numpy"), new)
    delta.create(base, new, tmp_path / "1.safetensors", dialect="sparse", sync=False)
    assert_same(dialects.read_trl(tmp_path / "1.safetensors", old), new)
    sparse = [tmp_path / "1.safetensors", write_prime_rl(tmp_path / "prime", old, new, 1, 0)]
    if any(old[name].tobytes() != new[name].tobytes() for name in old):
        sparse.append(write_trl(tmp_path / "theirs.safetensors", old, new, 1))
    for path in sparse:
        assert_same(load_weights([base, path]).load(framework="numpy"), new)
        tensors = copied(old)
        delta.apply_into(tensors, path)
        assert_same(tensors, new)
