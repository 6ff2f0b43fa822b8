"""Commands that write a file are killed, or get an error, at each system call: the old or the new file remains."""

from pathlib import Path
from typing import Any

import pytest

from faults import Saver, contents, folder, killed_at_each_call, put, saved, saver, with_strace

__all__ = ["folder", "saver"]

# The output and the command. `{}` is the folder.
COMMANDS = {
    "meta set, in place": "meta set {}/model.safetensors note=short",
    "meta set, with a longer header": f"meta set {{}}/model.safetensors note={'long' * 2000}",
    "meta unset": "meta unset {}/model.safetensors note",
    "convert, over its source": (
        "convert {}/model.safetensors {}/model.safetensors --dtype float16 --if-exists replace"
    ),
    "convert, read back": "convert {}/model.safetensors {}/out.safetensors --dtype bfloat16 --verify",
    "convert to GGUF": "convert {}/model.safetensors {}/out.gguf",
    "merge": "merge {}/../shards {}/out.safetensors",
}
IN_PLACE = ("meta set, in place", "meta unset")


def words(name: str, folder: Path) -> list[str]:
    return COMMANDS[name].replace("{}", str(folder)).split()


def prepared(saver: Saver, folder: Path) -> dict[str, bytes]:
    """Puts files into a folder, which the commands read or write."""
    path = folder / "model.safetensors"
    saved(saver, "save_file", path=path, value=2)
    saved(saver, "command", words=["convert", str(path), str(folder / "out.gguf"), "--dtype", "float16"])
    saved(saver, "save_file", path=folder / "out.safetensors", value=3)
    saved(saver, "save_sharded", path=folder.parent / "shards", value=4, max_shard_size="350KB")
    saved(saver, "save_file", path=path, value=1, metadata={"note": "x" * 100})
    return contents(folder)


@with_strace
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_killed_at_any_call_leaves_the_old_file_or_the_new_one(
    saver: Saver, folder: Path, name: str
) -> None:
    old = prepared(saver, folder)
    arguments: dict[str, Any] = {"words": words(name, folder)}
    saved(saver, "command", **arguments)
    new = contents(folder)
    assert sum(old[file] != new[file] for file in old) == 1
    again = name != "meta unset"  # a missing file cannot be removed
    found = [files for _, files in killed_at_each_call(saver, folder, old, "command", again, **arguments)]
    assert all(files in (old, new) for files in found)
    assert old in found
    assert new in found


@with_strace
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("kind", ["pwrite64", "fsync", "fallocate", "rename"])
def test_what_the_system_refuses_a_command_is_an_error_and_the_old_file_is_whole(
    saver: Saver, folder: Path, name: str, kind: str
) -> None:
    old = prepared(saver, folder)
    arguments: dict[str, Any] = {"words": words(name, folder)}
    clean = saver.save("command", None, True, **arguments)
    new = contents(folder)
    count = clean.counted()[kind]
    if name in IN_PLACE:  # there is no other file, and writes go there directly
        assert clean.counted()["rename"] == 0
        old_or_new = (old, new) if kind == "fsync" else (old,)
    else:
        count -= kind == "fsync"  # the last is that of the folder
        old_or_new = (old,)
        assert count > 0
    for number in range(1, count + 1):
        put(folder, old)
        error = "EXDEV" if kind == "rename" else "ENOSPC"
        outcome = saver.save("command", f"{kind}:error={error}:when={number}", **arguments)
        assert (outcome.signal, outcome.error.get("error"), outcome.error.get("text")) == (0, "SystemExit", "3"), number
        assert contents(folder) in old_or_new, number


@with_strace
@pytest.mark.parametrize("error", ["EXDEV", "EOPNOTSUPP", "ENOSYS", "EINVAL", "EIO"])
@pytest.mark.parametrize("name", ["meta set, with a longer header", "convert to GGUF", "merge"])
def test_bytes_that_the_system_does_not_copy_are_copied_all_the_same(
    saver: Saver, folder: Path, name: str, error: str
) -> None:
    old = prepared(saver, folder)
    arguments: dict[str, Any] = {"words": words(name, folder)}
    clean = saver.save("command", None, True, **arguments)
    new = contents(folder)
    copies = clean.counted()["copy_file_range"]
    assert copies > 0
    for number in range(1, copies + 1):
        put(folder, old)
        outcome = saver.save("command", f"copy_file_range:error={error}:when={number}+", **arguments)
        assert (outcome.signal, outcome.error) == (0, {})
        assert contents(folder) == new
