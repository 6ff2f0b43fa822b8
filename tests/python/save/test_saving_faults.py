"""Crash safety: a save that is killed or interrupted at any moment leaves the complete old or new file."""

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from faults import (
    NAME,
    WRITES,
    Saver,
    contents,
    folder,
    killed_at_each_call,
    named,
    of_kind,
    put,
    saved,
    saver,
    unfinished,
    values,
    with_strace,
)

__all__ = ["folder", "saver"]


@with_strace
@pytest.mark.parametrize("call", ["save_file", "SafetensorsWriter", "weights.save", "save_gguf"])
def test_a_save_that_is_killed_at_any_call_leaves_the_old_file_or_the_new_one(
    saver: Saver, folder: Path, call: str
) -> None:
    path = folder / named(call)
    saved(saver, "save_file", path=path, value=1)
    old = contents(folder)
    arguments = {"path": path, "value": 2}
    if call == "weights.save":  # over the file that is loaded
        arguments = {"path": path, "source": path, "dtype": "float16"}
    saved(saver, call, **arguments)
    new = contents(folder)
    assert old != new
    found = list(killed_at_each_call(saver, folder, old, call, again="value" in arguments, **arguments))
    assert len(found) > 12
    assert all(files in (old, new) for _, files in found)
    replaced = next(i for i, (point, _) in enumerate(found) if point.startswith("rename"))
    assert found[replaced][1] == old
    assert any(files == new for _, files in found), "none was killed after the rename, before the folder is synced"


@with_strace
def test_a_save_of_a_new_file_that_is_killed_leaves_it_whole_or_nothing(saver: Saver, folder: Path) -> None:
    saved(saver, "save_file", path=folder / NAME, value=1)
    new = contents(folder)
    for point, files in killed_at_each_call(saver, folder, {}, "save_file", path=folder / NAME, value=1):
        assert files in ({}, new), point


@with_strace
def test_a_save_that_is_killed_while_it_removes_what_another_left_loses_nothing(saver: Saver, folder: Path) -> None:
    saved(saver, "save_file", path=folder / NAME, value=1)
    old = contents(folder) | {".model.safetensors.1-0.max-weights-unfinished": b"half"}
    points = set()
    for point, files in killed_at_each_call(saver, folder, old, "save_file", path=folder / NAME, value=1):
        assert files == {NAME: old[NAME]}, point
        points.add(point.split()[0])
    assert points & {"unlink", "unlinkat"}


@with_strace
def test_shards_of_other_names_are_the_old_save_until_the_index_is_there_and_then_the_new_one(
    saver: Saver, folder: Path
) -> None:
    options = {"path": folder, "max_shard_size": "350KB"}
    saved(saver, "save_sharded", **options, value=1)
    old = contents(folder)
    found = []
    for point, files in killed_at_each_call(saver, folder, old, "save_sharded", **options, value=2, scale=2):
        seen = values(folder)
        assert seen in ({1.0}, {2.0}), point
        assert (seen == {1.0}) == (files["model.safetensors.index.json"] == old["model.safetensors.index.json"]), point
        found.append(seen)
    assert {1.0} in found
    assert {2.0} in found


@with_strace
@pytest.mark.parametrize("to_shards", [True, False])
def test_between_one_file_and_shards_the_folder_is_the_old_save_or_the_new_one(
    saver: Saver, folder: Path, to_shards: bool
) -> None:
    small, large = ({"path": folder, "max_shard_size": size} for size in ("350KB", "5GB"))
    saved(saver, "save_sharded", **(large if to_shards else small), value=1)
    old, found = contents(folder), []
    arguments = {**(small if to_shards else large), "value": 2}
    for point, files in killed_at_each_call(saver, folder, old, "save_sharded", **arguments):
        found.append(values_of(files, folder.parent / "seen"))
        assert found[-1] in ({1.0}, {2.0}), point
        # Other libraries accept the file if one exists.
        if NAME in files:
            assert values_of({NAME: files[NAME]}, folder.parent / "seen") in ({1.0}, {2.0}), point
    assert {1.0} in found
    assert {2.0} in found


def values_of(files: dict[str, bytes], folder: Path) -> set[float]:
    """The values in a folder of these files."""
    put(folder, files)
    return values(folder)


@with_strace
@pytest.mark.parametrize("call", ["save_sharded", "weights.save"])
def test_shards_of_the_same_names_are_the_old_save_or_the_new_one(saver: Saver, folder: Path, call: str) -> None:
    def shards(files: dict[str, bytes]) -> list[bytes]:
        """The files named by the index."""
        named = json.loads(files["model.safetensors.index.json"])["weight_map"].values()
        return [files[name] for name in sorted(set(named))]

    options = {"path": folder, "max_shard_size": "350KB"}
    saved(saver, "save_sharded", **options, value=1)
    old = contents(folder)
    arguments: dict[str, Any] = {**options, "value": 2}
    if call == "weights.save":  # over the folder that is loaded
        arguments = {**options, "source": folder, "metadata": {"step": "2"}}
    saved(saver, call, **arguments)
    new = contents(folder)
    assert list(new) == list(old)
    found = []
    for point, files in killed_at_each_call(saver, folder, old, call, again="value" in arguments, **arguments):
        seen = shards(files)
        assert seen in (shards(old), shards(new)), point
        if call == "save_sharded":
            assert values(folder) in ({1.0}, {2.0}), point
        found.append(seen == shards(new))
    assert set(found) == {False, True}


def test_a_large_save_that_is_killed_at_any_time_leaves_the_old_file_or_the_new_one(saver: Saver, folder: Path) -> None:
    path = folder / NAME
    saved(saver, "save_file", path=path, value=2, scale=100)
    new = contents(folder)
    saved(saver, "save_file", path=path, value=1)
    old = contents(folder)
    chance, ends = random.Random(20), set()
    for _ in range(12):
        child = saver.begin("save_file", {"path": path, "value": 2, "scale": 100})
        saver.go()
        while not unfinished(folder) and contents(folder) == old:
            pass
        time.sleep(chance.uniform(0, 0.05))
        with contextlib.suppress(ProcessLookupError):  # it was done before
            os.kill(child, signal.SIGKILL)
        ends.add(saver.end().signal)
        left = unfinished(folder)
        assert {name: data for name, data in contents(folder).items() if name not in left} in (old, new)
        saved(saver, "save_file", path=path, value=1)
        assert contents(folder) == old
    assert signal.SIGKILL in ends


@with_strace
@pytest.mark.parametrize("call", ["save_file", "SafetensorsWriter", "weights.save", "save_gguf"])
def test_ctrl_c_at_any_write_ends_in_keyboard_interrupt_and_a_whole_file(saver: Saver, folder: Path, call: str) -> None:
    path = folder / named(call)
    saved(saver, "save_file", path=path, value=1, scale=30)  # several parts of each tensor
    old = contents(folder)
    arguments: dict[str, Any] = {"path": path, "value": 2, "scale": 30}
    if call == "weights.save":
        arguments = {"path": path, "source": path, "dtype": "float64"}
    clean = saver.save(call, None, True, **arguments)
    new, name = contents(folder), of_kind(clean, WRITES)
    assert new != old
    found = []
    for number in range(1, clean.counted()[name] + 1):
        put(folder, old)
        outcome = saver.save(call, f"{name}:signal=SIGINT:delay_exit=60000:when={number}", **arguments)
        assert (outcome.signal, outcome.error) == (0, {"error": "KeyboardInterrupt"}), number
        found.append(contents(folder))
    # Ctrl-C is polled: a file that is complete before the poll is renamed into place.
    assert all(files in (old, new) for files in found)
    assert old in found


def test_ctrl_c_in_a_large_save_ends_in_keyboard_interrupt_and_leaves_nothing_behind(
    saver: Saver, folder: Path
) -> None:
    path = folder / NAME
    saved(saver, "save_file", path=path, value=2, scale=200)
    new = contents(folder)
    saved(saver, "save_file", path=path, value=1)
    old = contents(folder)
    ends = []
    for delay in (0, 0.002, 0.005, 0.01, 0.02):
        child = saver.begin("save_file", {"path": path, "value": 2, "scale": 200})
        saver.go()
        while not unfinished(folder):
            pass
        time.sleep(delay)
        os.kill(child, signal.SIGINT)
        outcome = saver.end()
        assert (outcome.signal, outcome.error) == (0, {"error": "KeyboardInterrupt"})
        ends.append(contents(folder))
        assert ends[-1] in (old, new)
        put(folder, old)
    assert old in ends


def test_of_two_processes_that_save_to_one_path_one_wins_and_the_file_is_whole(folder: Path) -> None:
    path = folder / NAME
    with Saver() as one, Saver() as other:
        expected = []
        for value, scale in ((1, 10), (2, 12)):
            saved(one, "save_file", path=path, value=value, scale=scale)
            expected.append(contents(folder))
        for _ in range(15):
            one.begin("save_file", {"path": path, "value": 1, "scale": 10})
            other.begin("SafetensorsWriter", {"path": path, "value": 2, "scale": 12})
            one.go()
            other.go()
            for _ in range(5):  # concurrent readers
                safetensors.numpy.load(path.read_bytes())
            assert [one.end().error, other.end().error] == [{}, {}]
            assert contents(folder) in expected
