"""Deltas of other libraries: opened with their base and applied; errors in them are named."""

from __future__ import annotations

import json
import shutil
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
import delta_specification as specification
import max_weights
from delta_dialects import INDEX, Tensors, publish, write_prime_rl, write_trl
from fault_server import FaultServer
from max_weights import delta, load_weights, save_sharded
from max_weights.errors import ArgumentError, FormatError
from refusals import refuses


def first() -> Tensors:
    """Tensors of elements of 1 to 8 bytes, one of which never changes."""
    random = np.random.default_rng(3)
    return {
        "a.weight": random.integers(0, 1 << 16, 200_000, dtype=np.uint16).view(np.float16).reshape(200, 1000),
        "b.weight": random.standard_normal((70, 211)).astype(np.float32),
        "c.bytes": random.integers(0, 255, 14_001, dtype=np.uint8),
        "d.same": np.arange(100),
        "e.numbers": np.arange(-50, 50),
    }


def step(tensors: Tensors, seed: int) -> Tensors:
    """The next version: some elements of all but one."""
    random = np.random.default_rng(seed)
    new = {}
    for name, tensor in tensors.items():
        codes = tensor.reshape(-1).view(np.dtype(f"u{tensor.itemsize}")).copy()
        if name != "d.same":
            codes[random.random(codes.size) < 0.02] += 1
            codes[3] += 1
        new[name] = codes.view(tensor.dtype).reshape(tensor.shape)
    return new


def assert_same(one: Any, other: Tensors) -> None:
    """Every bit."""
    assert sorted(one) == sorted(other)
    for name, tensor in other.items():
        own = np.asarray(one[name])
        assert (own.dtype, own.shape, own.tobytes()) == (tensor.dtype, tensor.shape, tensor.tobytes()), name


def copied(tensors: Tensors) -> Tensors:
    return {name: tensor.copy() for name, tensor in tensors.items()}


class Chain:
    """Versions, and folders as slime publishes them, of both encodings."""

    def __init__(self, folder: Path) -> None:
        self.base, self.folder = folder / "base.safetensors", folder / "published"
        self.versions = [first()]
        save_file(self.versions[0], self.base)
        for number in (1, 2, 3):
            self.versions.append(step(self.versions[-1], number))
            publish(
                self.delta(number),
                *self.versions[-2:],
                f"{number:06}",
                f"{number - 1:06}",
                "overwrite" if number == 2 else "xor",
                kind="adler32" if number == 3 else "xxh3-128",
                shards=number,
            )

    def delta(self, number: int) -> Path:
        return self.folder / f"weight_v{number:06}"

    def deltas(self) -> list[Path]:
        return [self.delta(number) for number in range(1, len(self.versions))]


def numbers(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(tmp_path_factory.mktemp("chain"))


# --- opened with their base ----------------------------------------------------------------------------------------


def test_a_base_and_published_folders_are_one_checkpoint(chain: Chain) -> None:
    for number, version in enumerate(chain.versions):
        paths = [chain.base, *chain.deltas()[:number]]
        weights = load_weights(paths)
        assert_same(weights.load(framework="numpy"), version)
        assert_same(dict(load_weights(paths).stream(framework="numpy")), version)
        part = load_weights(paths).a.weight[17:190:30, 3:999]
        assert np.asarray(part).tobytes() == np.ascontiguousarray(version["a.weight"][17:190:30, 3:999]).tobytes()
    assert max_weights.fingerprint(paths, identity=True).identity == specification.identity(chain.versions[-1])
    assert_same(load_weights([chain.base, chain.folder]).load(framework="numpy"), chain.versions[-1])
    assert_same(load_weights([chain.base, chain.delta(1) / INDEX]).load(framework="numpy"), chain.versions[1])


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("kind", ["xxh3-128", "adler32"])
@pytest.mark.parametrize("level", [1, 3, 19])
def test_frames_of_every_level_are_unpacked(tmp_path: Path, encoding: str, kind: str, level: int) -> None:
    random = np.random.default_rng(level)
    old = {"w": random.integers(0, 1 << 16, 700_000, dtype=np.uint16), "empty": np.zeros(0, np.float32)}
    new = {**old, "w": old["w"] + (random.random(700_000) < 0.03).astype(np.uint16)}
    save_file(old, tmp_path / "base.safetensors")
    # Some trainers write numbers as numbers.
    folder = publish(tmp_path / "v", old, new, 12, 11, encoding, kind=kind, level=level)
    assert_same(load_weights([tmp_path / "base.safetensors", folder]).load(framework="numpy"), new)
    message = delta.read(folder)
    assert (message.dialect, message.base, message.target, message.changed) == (
        encoding,
        "000011",
        "000012",
        {"w": None},
    )


def test_published_folders_are_read_by_url(chain: Chain) -> None:
    with FaultServer(chain.folder.parent) as server:
        url = server.file("published/weight_v000001")
        assert_same(load_weights([chain.base, url]).load(framework="numpy"), chain.versions[1])
        assert_same(load_weights([server.file("base.safetensors"), url]).load(framework="numpy"), chain.versions[1])


def test_a_folder_of_published_ones_is_read_by_url(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultServer(chain.folder.parent.parent) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.s3)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        folder = f"s3://{chain.folder.parent.name}/published"
        assert_same(load_weights([chain.base, folder]).load(framework="numpy"), chain.versions[-1])
        tensors = copied(chain.versions[0])
        delta.apply_into(tensors, folder)
        assert_same(tensors, chain.versions[-1])


def test_sparse_files_are_read_however_places_are_written(tmp_path: Path) -> None:
    versions = [first()]
    base = tmp_path / "base.safetensors"
    save_file(versions[0], base)
    for seed in (1, 2, 3):
        versions.append(step(versions[-1], seed))
    files = [
        write_trl(tmp_path / "1.safetensors", *versions[0:2], 7, "raw"),
        write_trl(tmp_path / "2.safetensors", *versions[1:3], 9, "gap_delta"),
        write_trl(tmp_path / "3.safetensors", *versions[2:4], 10, before=9),
    ]
    assert_same(load_weights([base, *files]).load(framework="numpy"), versions[3])
    message = delta.read(files[2])
    assert (message.dialect, message.base, message.target, sorted(message.changed)) == (
        "sparse",
        "000009",
        "000010",
        ["a.weight", "b.weight", "c.bytes", "e.numbers"],
    )
    tensors = copied(versions[0])
    for _ in range(2):
        delta.apply_into(tensors, *files)
        assert_same(tensors, versions[3])
    with refuses(FormatError, "delta.alone"):
        load_weights(files[0])


def test_sparse_updates_of_prime_rl_are_read_and_their_sums_compared(tmp_path: Path) -> None:
    old = first()
    # The bits of NaN depend on the processor.
    old["a.weight"] = np.random.default_rng(1).standard_normal((200, 1000)).astype(np.float16)
    new = step(old, 1)
    save_file(old, tmp_path / "base.safetensors")
    folder = write_prime_rl(tmp_path / "step_8", old, new, 8, 7)
    for tensor in (new["a.weight"][:3], new["b.weight"], new["e.numbers"], new["c.bytes"]):
        assert dialects.hash_tensor(tensor.reshape(-1)) == torch.hash_tensor(torch.from_numpy(tensor.copy())).item()
    assert_same(load_weights([tmp_path / "base.safetensors", folder]).load(framework="numpy"), new)
    manifest = folder / "sparse_update_manifest.json"
    message = json.loads(manifest.read_text())
    message["tensors"][0]["checksum"] ^= 1
    manifest.write_text(json.dumps(message))
    with refuses(FormatError, "delta.changes"):
        np.asarray(load_weights([tmp_path / "base.safetensors", folder]).a.weight)


def test_a_delta_of_another_library_alone_is_no_checkpoint(chain: Chain) -> None:
    with refuses(FormatError, "index.delta"):
        load_weights(chain.delta(1))
    report = max_weights.validate(chain.delta(1))
    assert "index.delta" in [finding.rule for finding in report.findings]


# --- applied -------------------------------------------------------------------------------------------------------


def test_no_xor_is_applied_twice_to_tensors_in_memory(chain: Chain) -> None:
    tensors = copied(chain.versions[0])
    counts = []
    for _ in range(3):
        applied = delta.apply_into(tensors, chain.delta(1))
        assert_same(tensors, chain.versions[1])
        counts.append((applied.changed, applied.unchanged))
    assert counts == [(4, 0), (0, 4), (0, 4)]
    # One tensor already has the next version, another has an older one.
    tensors["a.weight"][:] = chain.versions[2]["a.weight"]
    tensors["b.weight"][:] = chain.versions[0]["b.weight"]
    delta.apply_into(tensors, *chain.deltas())
    assert_same(tensors, chain.versions[3])


def test_tensors_of_neither_version_are_named_before_anything_is_changed(chain: Chain) -> None:
    tensors = copied(chain.versions[0])
    tensors["c.bytes"][0] ^= 1
    before = copied(tensors)
    with refuses(FormatError, "delta.base"):
        delta.apply_into(tensors, chain.delta(1))
    assert_same(tensors, before)
    # Threads compare the tensors, and several are wrong: the error names the one that is found first.
    with pytest.raises(FormatError, match=r"tensor '\w\.\w+': its values match neither the base .*delta\.base"):
        delta.apply_into(tensors, chain.delta(3))
    assert_same(tensors, before)
    half = copied(chain.versions[0])
    half["a.weight"][:100] = chain.versions[1]["a.weight"][:100]
    with refuses(FormatError, "delta.base"):
        delta.apply_into(half, chain.delta(1))


@pytest.mark.parametrize("shards", [False, True])
def test_files_become_the_new_version_once(chain: Chain, tmp_path: Path, shards: bool) -> None:
    target = tmp_path / "target"
    if shards:
        save_sharded(chain.versions[0], target, max_shard_size="200KB", sync=False)
    else:
        target = tmp_path / "model.safetensors"
        shutil.copy(chain.base, target)
    done = delta.apply(target, chain.delta(1), sync=False)
    assert (done.applied_before, done.target) == (0, "000001")
    done = delta.apply(target, *chain.deltas(), sync=False, read_back=True)
    assert (done.applied_before, done.target) == (1, "000003")
    assert_same(load_weights(target).load(framework="numpy"), chain.versions[3])
    done = delta.apply(target, *chain.deltas(), sync=False)
    assert (done.applied_before, done.files) == (3, ())


def test_files_that_another_program_changed_in_part_become_whole(chain: Chain, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    save_file({**chain.versions[0], "b.weight": chain.versions[1]["b.weight"]}, target)
    done = delta.apply(target, chain.delta(1), chain.delta(2), sync=False)
    assert done.applied_before == 0
    assert_same(load_file(target), chain.versions[2])
    broken = {**chain.versions[0], "b.weight": chain.versions[0]["b.weight"] + np.float32(1)}
    save_file(broken, target)
    before = target.read_bytes()
    with refuses(FormatError, "delta.base"):
        delta.apply(target, chain.delta(1), sync=False)
    assert target.read_bytes() == before


def test_what_folds_folders_is_a_delta_of_this_library(chain: Chain, tmp_path: Path) -> None:
    delta.fold(chain.base, *chain.deltas(), path=tmp_path / "all.safetensors", sync=False)
    assert_same(specification.apply(chain.versions[0], tmp_path / "all.safetensors"), chain.versions[3])


def test_folders_are_followed_when_their_index_is_there(chain: Chain, tmp_path: Path) -> None:
    versions = delta.follow(chain.base, tmp_path, every=0.01, timeout=5)
    for number in (1, 2):
        folder = tmp_path / chain.delta(number).name
        folder.mkdir()
        for file in sorted(chain.delta(number).iterdir(), key=lambda file: file.name == INDEX):
            shutil.copy(file, folder)
        version = next(versions)
        assert (version.identity, len(version.deltas)) == (f"{number:06}", number)
        assert_same(version.weights().load(framework="numpy"), chain.versions[number])


def test_the_same_in_the_shell(chain: Chain, tmp_path: Path) -> None:
    def run(*words: object) -> str:
        program = [sys.executable, "-m", "max_weights", "delta", *map(str, words)]
        return subprocess.run(program, capture_output=True, text=True, check=True).stdout

    assert "changed  a.weight" in run("show", chain.delta(1))
    assert json.loads(run("show", chain.delta(2), "--json"))["dialect"] == "overwrite"
    file = tmp_path / "model.safetensors"
    shutil.copy(chain.base, file)
    run("apply", file, *chain.deltas(), "--no-sync")
    assert_same(load_file(file), chain.versions[3])


def test_what_other_dialects_change_is_shown_layer_by_layer(tmp_path: Path) -> None:
    old = {f"layers.{number}.weight": np.zeros(100, np.float32) for number in (2, 10)} | {"same": np.zeros(3)}
    new = copied(old)
    new["layers.10.weight"][:7] = np.frombuffer(b"\0\0\1\1" * 7, np.float32)
    new["layers.2.weight"][:1] = np.frombuffer(b"\1\1\1\1", np.float32)
    save_file(old, base := tmp_path / "old.safetensors")

    def message(path: Path, *words: str) -> list[str]:
        program = [
            sys.executable,
            "-m",
            "max_weights",
            *words,
            str(path),
            "--" + ("layers" if words[0] == "delta" else "changed"),
        ]
        return subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines()

    for dialect, of_ten, of_two in (("xor", "14 of 400 bytes", "4 of 400 bytes"), ("overwrite", "14 bytes", "4 bytes")):
        folder = tmp_path / dialect / "weight_v000001"
        delta.create(base, new, folder, dialect=dialect, sync=False)  # type: ignore[arg-type]
        shares = ("  1.00 %  ", "  3.50 %  ") if dialect == "xor" else ("", "")
        expected = [f"layers.2  1 tensor, {of_two}", f"layers.10  1 tensor, {of_ten}"]
        assert message(folder, "delta", "show")[1:] == [
            share + line for share, line in zip(shares, expected, strict=True)
        ]
        assert message(folder, "ls", str(base)) == [
            "  1.00 %  layers.2  1 tensor, 4 of 400 bytes",
            "  3.50 %  layers.10  1 tensor, 14 of 400 bytes",
            "",
            "2 of 3 weights changed by 1 delta",
        ]
    trl = tmp_path / "1.safetensors"
    delta.create(base, new, trl, dialect="sparse", sync=False)
    assert message(trl, "delta", "show")[1:] == ["layers.2  1 tensor, 1 elements", "layers.10  1 tensor, 7 elements"]
    prime = write_prime_rl(tmp_path / "prime", old, new, 1, 0)
    assert message(prime, "delta", "show")[1:] == [
        "  1.00 %  layers.2  1 tensor, 1 of 100 elements",
        "  7.00 %  layers.10  1 tensor, 7 of 100 elements",
    ]
    frame = zstandard.ZstdCompressor().compress(numbers(5, 1) + b"a")
    save_file(
        {"w": np.frombuffer(frame, np.uint8)},
        tmp_path / "overwrite/weight_v000001/model-00000-of-00001.safetensors",
        metadata={"w": "0" * 32},
    )
    index = json.loads((tmp_path / "overwrite/weight_v000001" / INDEX).read_text())
    dialects.write_index(
        tmp_path / "overwrite/weight_v000001", index["metadata"], {"w": "model-00000-of-00001.safetensors"}
    )
    with pytest.raises(subprocess.CalledProcessError) as error:
        message(tmp_path / "overwrite/weight_v000001", "delta", "show")
    assert "it is about 5 bytes, and has 9 bytes, not 29" in error.value.stderr


def test_sparse_files_that_say_no_base_are_followed_by_their_numbers(tmp_path: Path) -> None:
    versions = [first()]
    for seed in (1, 2, 3):
        versions.append(step(versions[-1], seed))
    save_file(versions[0], base := tmp_path / "base.safetensors")
    (folder := tmp_path / "patches").mkdir()
    write_trl(folder / "b.safetensors", *versions[0:2], 9)
    write_trl(folder / "a.safetensors", *versions[1:3], 10)
    found = delta.follow(base, folder, every=0.01, timeout=5)
    for number in (1, 2):
        assert_same(next(found).weights().load(framework="numpy"), versions[number])
    write_trl(folder / "c.safetensors", *versions[2:4], 12)
    version = next(found)
    assert (version.identity, len(version.deltas)) == ("000012", 3)
    assert_same(version.weights().load(framework="numpy"), versions[3])
    write_trl(folder / "d.safetensors", *versions[2:4], 11)
    with refuses(ArgumentError, "delta.order"):
        next(found)
