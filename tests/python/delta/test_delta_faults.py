"""Deltas applied to files by killed or concurrent programs; errors in deltas and chains are named."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import delta_specification as specification
import max_weights
from faults import Saver, contents, killed_at_each_call, put, saver, with_strace
from max_weights import delta, load_weights, save_gguf, save_sharded
from max_weights.errors import ArgumentError, FormatError, UnsupportedError
from refusals import refuses
from test_delta import BLOCKS, CHANGES, Chain, Tensors, assert_same, chain, first, memory, rewritten, step

__all__ = ["chain", "saver"]


# --- to files ------------------------------------------------------------------------------------------------------


def test_a_file_and_a_folder_become_the_new_version(chain: Chain, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    shutil.copy(chain.version(0), file)
    done = delta.apply(file, chain.delta(1), sync=False)
    assert (done.applied_before, done.target) == (0, delta.read(chain.delta(1)).target)
    assert_same(load_file(file), chain.versions[1])
    assert dict(load_weights(file).metadata) == {"step": "0"}
    done = delta.apply(file, *chain.deltas(), sync=False, read_back=True)
    assert (done.applied_before, done.files) == (1, (file,))
    assert_same(load_file(file), chain.versions[3])
    assert delta.apply(file, *chain.deltas(), sync=False).files == ()

    folder = tmp_path / "shards"
    save_sharded(chain.versions[0], folder, max_shard_size="400KB", sync=False)
    delta.apply(folder, *chain.deltas(), sync=False)
    assert_same(load_weights(folder).load(framework="numpy"), chain.versions[3])
    assert len(list(folder.glob("*.safetensors"))) > 2


def test_a_file_that_is_no_version_of_the_chain_stays_as_it_is(chain: Chain, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    other = memory(chain.versions[0])
    other["d.same"][3] += 1  # not touched by the delta
    save_file(other, file)
    before = file.read_bytes()
    with refuses(FormatError, "delta.base"):
        delta.apply(file, chain.delta(1))
    assert file.read_bytes() == before
    path = tmp_path / "model.pt"
    torch.save({name: torch.from_numpy(tensor) for name, tensor in chain.versions[0].items()}, path)
    with refuses(ValueError):
        delta.apply(path, chain.delta(1))


@with_strace
@pytest.mark.parametrize("shards", [False, True])
def test_whoever_is_killed_at_any_call_leaves_the_version_before_or_the_new_one(
    saver: Saver, tmp_path: Path, shards: bool
) -> None:
    old = {f"t{number}": np.full((200, 256), number, np.float32) for number in range(3)}
    new = step(old, 0.05, 1)
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder if shards else folder / "model.safetensors"
    if shards:
        save_sharded(old, folder, max_shard_size="210KB", sync=False)
    else:
        save_file(old, path)
    delta.create(path, new, tmp_path / "d.safetensors", sync=False)
    before, seen = contents(folder), set()
    identities = [max_weights.fingerprint(path, identity=True).identity, delta.read(tmp_path / "d.safetensors").target]
    arguments = {"path": path, "deltas": [str(tmp_path / "d.safetensors")]}
    for point, _ in killed_at_each_call(saver, folder, before, "delta.apply", again=False, **arguments):
        there = max_weights.fingerprint(path, identity=True).identity
        assert there in identities, point
        seen.add(there)
    assert seen == set(identities)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@with_strace
def test_a_thousand_kills_at_all_system_calls_leave_the_version_before_or_the_new_one(
    saver: Saver, tmp_path: Path
) -> None:
    old = {f"t{number:02}": np.full((60, 256), number, np.float32) for number in range(3)}
    new = step(old, 0.05, 1)
    save_file(old, tmp_path / "old.safetensors")
    deltas = {"max-weights": "d.safetensors", "xor": "weight_v000001"}
    for dialect, name in deltas.items():
        delta.create(tmp_path / "old.safetensors", new, tmp_path / name, dialect=dialect, sync=False)  # type: ignore[arg-type]
    kills: Counter[str] = Counter()
    for dialect, name in deltas.items():
        for shards in (False, True):
            folder = tmp_path / f"{dialect}-{shards}"
            folder.mkdir()
            path = folder if shards else folder / "model.safetensors"
            if shards:
                save_sharded(old, folder, max_shard_size="130KB", sync=False)
            else:
                save_file(old, path)
            before, seen = contents(folder), set()
            arguments: dict[str, Any] = {"path": path, "deltas": [str(tmp_path / name)], "calls": "all"}
            clean = saver.save("delta.apply", None, True, **arguments)
            assert (clean.signal, clean.error) == (0, {})
            identities = [
                max_weights.fingerprint(tmp_path / "old.safetensors", identity=True).identity,
                max_weights.fingerprint(path, identity=True).identity,
            ]
            for call, count in clean.counted().items():
                # Before it begins it reads "go" and a newline, byte by byte.
                for number in range(4 if call == "read" else 1, count + 1):
                    put(folder, before)
                    outcome = saver.save("delta.apply", f"{call}:signal=SIGKILL:when={number}", **arguments)
                    # A thread that waits for another may wait one time fewer.
                    if outcome.signal:
                        assert outcome.signal == signal.SIGKILL
                        kills[f"{dialect}, {'folder' if shards else 'file'}"] += 1
                    there = max_weights.fingerprint(path, identity=True).identity
                    assert there in identities, (dialect, shards, call, number)
                    seen.add(there)
            assert seen == set(identities)
    print(dict(kills), kills.total())
    assert kills.total() >= 1000


# --- what is wrong -------------------------------------------------------------------------------------------------


def test_chains_that_are_none_are_named(chain: Chain, tmp_path: Path) -> None:
    def refused(*paths: Path) -> str:
        with pytest.raises(FormatError) as error:
            load_weights(list(paths))
        return str(error.value)

    base = chain.version(0)
    assert "one between them is missing [delta.chain]" in refused(base, chain.delta(1), chain.delta(3))
    assert "it is the same change as" in refused(base, chain.delta(1), chain.delta(1))
    assert "one between them is missing" in refused(base, chain.delta(2), chain.delta(1))
    assert "it builds on" in refused(base, chain.delta(3), chain.delta(2), chain.delta(1))
    other = tmp_path / "fork.safetensors"
    delta.create(base, step(chain.versions[0], 0.01, 99), other, sync=False)
    assert "the chain forks" in refused(base, chain.delta(1), other)
    assert "this is a delta" in refused(chain.delta(1))
    assert "[delta.alone]" in refused(chain.delta(1))


def test_folders_whose_deltas_lead_back_are_named(chain: Chain, tmp_path: Path) -> None:
    shutil.copy(chain.delta(1), tmp_path / "there.safetensors")
    delta.create(chain.version(1), chain.version(0), tmp_path / "back.safetensors", sync=False)
    with refuses(FormatError, "delta.chain"):
        load_weights([chain.version(0), tmp_path])
    paths = [chain.version(0), tmp_path / "there.safetensors", tmp_path / "back.safetensors"]
    assert_same(load_weights(paths).load(framework="numpy"), chain.versions[0])


def test_steps_that_change_nothing_are_no_versions(chain: Chain, tmp_path: Path) -> None:
    for number in (0, 1):
        name = f"{number}-nothing.safetensors"
        delta.create(chain.version(number), chain.version(number), tmp_path / name, sync=False)
    nothing = [chain.version(0), tmp_path]
    (tmp_path / "1-nothing.safetensors").rename(other := tmp_path / "other")
    assert_same(load_weights(nothing).load(framework="numpy"), chain.versions[0])
    other.rename(tmp_path / "1-nothing.safetensors")
    for number in (1, 2):
        shutil.copy(chain.delta(number), tmp_path / f"{number}.safetensors")
    assert_same(load_weights([chain.version(0), tmp_path]).load(framework="numpy"), chain.versions[2])
    found = list(delta.follow(chain.version(0), tmp_path, every=0.01, timeout=0))
    assert [len(version.deltas) for version in found] == [1, 2]
    listed = [chain.version(0), tmp_path / "0-nothing.safetensors", chain.delta(1), tmp_path / "1-nothing.safetensors"]
    assert_same(load_weights([*listed, chain.delta(2)]).load(framework="numpy"), chain.versions[2])


@pytest.mark.parametrize("dialect", ["max-weights", "xor"])
def test_several_that_apply_at_once_leave_one_version(tmp_path: Path, dialect: Any) -> None:
    old = {f"t{number}": np.full((300, 256), number, np.float32) for number in range(4)}
    versions = [old, step(old, 0.05, 1), step(old, 0.05, 2)]
    save_file(old, base := tmp_path / "base.safetensors")
    paths = []
    for number, new in enumerate(versions[1:], 1):
        name = f"{number}/weight_v000001" if dialect == "xor" else f"{number}.safetensors"
        paths.append(tmp_path / name)
        paths[-1].parent.mkdir(exist_ok=True)
        delta.create(base, new, paths[-1], dialect=dialect, sync=False)
    file = tmp_path / "model.safetensors"
    program = "import sys; from max_weights import delta; delta.apply(sys.argv[1], sys.argv[2], sync=False)"
    for _ in range(3):
        shutil.copy(base, file)
        running = [
            subprocess.Popen(
                [sys.executable, "-c", program, file, paths[number % 2]], stderr=subprocess.PIPE, text=True
            )
            for number in range(6)
        ]
        message = [process.communicate()[1] for process in running]
        ended = [process.returncode for process in running]
        there = load_file(file)
        assert any(all(there[name].tobytes() == one[name].tobytes() for name in old) for one in versions[1:])
        assert 0 in ended
        # The later process finds another base than its delta needs, or its file replaced.
        assert all("Error" in text for text, status in zip(message, ended, strict=True) if status), message
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith("unfinished")] == []


def test_a_wrong_base_is_named_before_a_value_of_it_is_used(chain: Chain, tmp_path: Path) -> None:
    with refuses(FormatError, "delta.base"):
        load_weights([chain.version(1), chain.delta(1)])
    # The blocks of a large base are compared when they are read.
    old = {"a.weight": np.zeros(9 << 20, np.uint16), "b.weight": np.ones(9, np.float32)}
    new = memory(old)
    new["a.weight"][:7] = 1
    save_file(old, tmp_path / "old.safetensors")
    delta.create(tmp_path / "old.safetensors", new, tmp_path / "d.safetensors", sync=False)
    old["a.weight"][100] = 1
    save_file(old, tmp_path / "old.safetensors")
    weights = load_weights([tmp_path / "old.safetensors", tmp_path / "d.safetensors"])
    with refuses(FormatError, "delta.base"):
        weights.a.weight[0:1].to_numpy()
    with refuses(FormatError, "delta.base"):
        weights.load(framework="numpy")


def test_deltas_that_are_damaged_are_named(chain: Chain, tmp_path: Path) -> None:
    def refused(change: Callable[[Tensors, dict[str, Any]], object]) -> str:
        path = rewritten(chain.delta(1), tmp_path / "d.safetensors", change)
        with pytest.raises(FormatError) as error:
            load_weights([chain.version(0), path]).load(framework="numpy")
        return str(error.value)

    def row(position: int, column: int, value: int) -> Callable[[Tensors, dict[str, Any]], object]:
        def change(tensors: Tensors, _: dict[str, Any]) -> None:
            tensors[f"{BLOCKS}a.weight"][position, column] = value

        return change

    def record(place: int, value: int) -> Callable[[Tensors, dict[str, Any]], object]:
        def change(tensors: Tensors, _: dict[str, Any]) -> None:
            tensors[f"{CHANGES}a.weight"][place] ^= value

        return change

    for change in (record(0, 1), record(-1, 1), row(0, 6, 5)):
        assert "[delta.changes]" in refused(change)
        assert "tensor 'a.weight'" in refused(change)
    assert "[delta.base]" in refused(row(1, 5, 5))
    assert "is not in order" in refused(row(1, 0, 0))
    assert "beyond the end" in refused(row(4, 0, 1 << 40))
    assert "beyond the end" in refused(row(1, 1, 1 << 60))
    assert "counts that no block has" in refused(row(0, 2, 1 << 32))
    assert "are not changes of" in refused(row(0, 2, 5))
    assert "leaves bytes out" in refused(row(0, 1, 1))
    assert "are not changes of" in refused(row(0, 4, 1))
    assert f"no '{CHANGES}a.weight'" in refused(lambda tensors, _: tensors.pop(f"{CHANGES}a.weight"))
    assert "[delta.header]" in refused(lambda tensors, _: tensors.pop(f"{BLOCKS}a.weight"))
    assert "of which its metadata say nothing" in refused(lambda tensors, _: tensors.update(more=np.zeros(1)))
    name = f"{BLOCKS}a.weight"
    assert "columns of U64" in refused(lambda t, _: t.update({name: t[name][:, :6].copy()}))
    assert "[delta.header]" in refused(lambda _, message: message.update(version=9))
    assert "version 9" in refused(lambda _, message: message.update(version=9))
    assert "it is a delta of version 1" in refused(lambda _, message: message.update(version=1))
    assert "not an identity" in refused(lambda _, message: message.update(base="xyz"))
    assert "unknown field `more`" in refused(lambda _, message: message.update(more=1))
    for field in sorted(specification.metadata(chain.delta(1))):
        if field not in ("changed", "whole"):
            assert f"missing field `{field}`" in refused(lambda _, message, field=field: message.pop(field))
    assert "both changed and removed" in refused(lambda _, message: message.update(removed=["a.weight"]))
    assert "it is removed, but is missing" in refused(
        lambda _, message: message.update(removed=["nothing"], base_tensors="0" * 32)
    )
    wider = refused(
        lambda _, message: (
            message.update(base_tensors="0" * 32) or message["changed"].update({"a.weight": ["F32", [300, 1000], ""]})
        )
    )
    assert "it has float16 elements in the shape [300, 1000], but F32 in [300, 1000] changed" in wider


def test_tensors_in_memory_are_what_they_were_if_a_delta_cannot_be_applied(tmp_path: Path) -> None:
    versions = [{"a.weight": first()["a.weight"]}]
    save_file(versions[0], tmp_path / "base.safetensors")
    deltas = [tmp_path / f"d{number}.safetensors" for number in (1, 2, 3)]
    for number, path in enumerate(deltas, 1):
        versions.append(step(versions[-1], 0.05, number))
        delta.create(versions[-2], versions[-1], path, sync=False)

    def damage(at: int) -> Callable[[Tensors, dict[str, Any]], object]:
        def change(tensors: Tensors, _: dict[str, Any]) -> None:
            tensors[f"{CHANGES}a.weight"][at] ^= 1

        return change

    # Blocks of three versions: each is applied as far as possible, then rolled back.
    tensors = memory(versions[0])
    codes = tensors["a.weight"].reshape(-1)
    for number in (1, 2):
        start = 65_536 * number
        codes[start : start + 65_536] = versions[number]["a.weight"].reshape(-1)[start : start + 65_536]
    before = memory(tensors)
    for number, at in [(3, -1), (3, 0), (2, -1), (1, 70)]:
        damaged = rewritten(deltas[number - 1], tmp_path / "damaged.safetensors", damage(at))
        with refuses(FormatError, "delta.changes"):
            delta.apply_into(tensors, *deltas[: number - 1], damaged, *deltas[number:])
        assert_same(tensors, before)
    other = tensors["a.weight"].reshape(-1)[-1:].view(np.uint16)
    other ^= 1
    with refuses(FormatError, "delta.base"):
        delta.apply_into(tensors, *deltas)
    other ^= 1
    assert_same(tensors, before)
    delta.apply_into(tensors, *deltas)
    assert_same(tensors, versions[3])


def test_what_has_no_deltas_is_said(chain: Chain, tmp_path: Path) -> None:
    with refuses(ArgumentError, "argument.part"):
        delta.create(load_weights(chain.version(0)).a, chain.version(0), tmp_path / "d.safetensors")
    with refuses(FormatError, "delta.header"):
        delta.read(chain.version(0))
    with refuses(ValueError):
        delta.apply(chain.version(0))
    save_gguf({"a.weight": np.zeros((2, 32), np.float32)}, tmp_path / "a.gguf", quantize="q8_0")
    with refuses(UnsupportedError, "cast.pair"):
        max_weights.fingerprint(tmp_path / "a.gguf", identity=True)
