"""A system error in a save is an OSError with its number and the path, and nothing has changed."""

import builtins
import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults import (
    NAME,
    WRITES,
    Saver,
    contents,
    folder,
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

NOBODY = 65534
REFUSALS = [
    (WRITES, "", error) for error in ("ENOSPC", "EDQUOT", "EIO", "EFBIG")
] + [
    (("openat", "open"), "O_CREAT", error) for error in ("EACCES", "EROFS", "ENOSPC", "EDQUOT", "EMFILE")
] + [
    (("fallocate", "ftruncate"), "", "ENOSPC"), (("fallocate", "ftruncate"), "", "EFBIG"),
    (("fsync", "fdatasync"), "", "EIO"), (("fsync", "fdatasync"), "", "ENOSPC"),
    (("rename", "renameat", "renameat2"), "", "EXDEV"),
    (("rename", "renameat", "renameat2"), "", "EIO"), (("rename", "renameat", "renameat2"), "", "EACCES"),
]  # fmt: skip

INDEX = "model.safetensors.index.json"


@with_strace
@pytest.mark.parametrize(("kind", "has", "error"), REFUSALS)
@pytest.mark.parametrize("call", ["save_file", "SafetensorsWriter", "save_gguf"])
def test_what_the_system_refuses_is_an_oserror_and_nothing_has_changed(
    saver: Saver, folder: Path, call: str, kind: tuple[str, ...], has: str, error: str
) -> None:
    path = folder / named(call)
    saved(saver, "save_file", path=path, value=1)
    old = contents(folder)
    clean = saver.save(call, None, True, path=folder / "other", value=2)
    (folder / "other").unlink()
    name = of_kind(clean, kind)
    points = [clean.number(name, has)] if has else range(1, clean.counted()[name] + 1)
    if name in ("fsync", "fdatasync"):
        points = points[:-1]  # the last is that of the folder
    assert points
    for number in points:
        outcome = saver.save(call, f"{name}:error={error}:when={number}", path=path, value=2)
        assert outcome.signal == 0
        found = outcome.error
        assert (found.get("errno"), found.get("file")) == (getattr(errno, error), str(path)), (name, number, found)
        assert os.strerror(getattr(errno, error)) in found["text"]
        assert contents(folder) == old, (name, number)


@with_strace
@pytest.mark.parametrize("call", ["save_file", "SafetensorsWriter"])
def test_a_name_that_is_not_on_the_disk_is_an_error_after_the_file_has_taken_its_place(
    saver: Saver, folder: Path, call: str
) -> None:
    path = folder / NAME
    clean = saver.save(call, None, True, path=path, value=1)
    name = of_kind(clean, ("fsync", "fdatasync"))
    last = clean.counted()[name]
    found = saver.save(call, f"{name}:error=EIO:when={last}", path=path, value=2).error
    assert (found.get("errno"), found.get("file")) == (errno.EIO, str(path))
    assert "write its new name to the disk" in found["text"]
    assert values(path) == {2.0}
    assert unfinished(folder) == []
    # Some file systems do not support fsync of folders, and do not need it.
    saved_all_the_same = saver.save(call, f"{name}:error=EINVAL:when={last}", path=path, value=3)
    assert saved_all_the_same.error == {}
    assert values(path) == {3.0}


@with_strace
def test_a_sharded_save_that_is_refused_before_its_renames_changes_nothing(saver: Saver, folder: Path) -> None:
    options = {"path": folder, "max_shard_size": "350KB"}
    saved(saver, "save_sharded", **options, value=1)
    old = contents(folder)
    clean = saver.save("save_sharded", None, True, **options, value=1)
    for kind, error in ((WRITES, "ENOSPC"), (("fallocate", "ftruncate"), "ENOSPC"), (("fsync", "fdatasync"), "EIO")):
        name = of_kind(clean, kind)
        count = clean.counted()[name] - (name in ("fsync", "fdatasync"))
        assert count >= 3
        for number in range(1, count + 1):
            outcome = saver.save("save_sharded", f"{name}:error={error}:when={number}", **options, value=2)
            assert outcome.error.get("errno") == getattr(errno, error)
            assert Path(outcome.error["file"]).name in old
            # The last fsync but one is that of the folder, after the rename of the index with temporary hard links.
            if "fsync" in kind and number == count:
                assert values(folder) == {2.0}
                put(folder, old)
            assert contents(folder) == old, (name, number)
    name = of_kind(clean, ("rename", "renameat", "renameat2"))
    # The index with temporary hard links is first, and its readers find the new shards.
    for number, target in enumerate([INDEX, *old], 1):
        outcome = saver.save("save_sharded", f"{name}:error=EIO:when={number}", **options, value=2)
        assert (outcome.error.get("errno"), outcome.error["file"]) == (errno.EIO, str(folder / target))
        assert unfinished(folder) == []
        assert values(folder) == ({1.0} if number == 1 else {2.0})
        assert (contents(folder) == old) == (number == 1)
        put(folder, old)
    fallback = saver.save("save_sharded", "link,linkat:error=EPERM", **options, value=2)  # without hard links
    assert fallback.error == {}
    assert values(folder) == {2.0}


@with_strace
@pytest.mark.parametrize("rule", ["flock:error=ENOLCK", "fchmod:error=EPERM", "openat:error=EACCES:when=1"])
def test_a_file_system_without_locks_or_permissions_and_a_folder_that_cannot_be_listed_are_written_to(
    saver: Saver, folder: Path, rule: str
) -> None:
    path = folder / NAME
    saved(saver, "save_file", path=path, value=1)
    outcome = saver.save("save_file", rule, path=path, value=2)
    assert (outcome.signal, outcome.error) == (0, {})
    assert any("(INJECTED)" in line for _, line in outcome.calls)
    assert values(path) == {2.0}
    assert unfinished(folder) == []


PROGRAM_ON_A_SMALL_DISK = """
import errno, os, sys
import numpy as np
from max_weights import DType, SafetensorsWriter, load_weights, save_file, save_sharded

os.chdir(sys.argv[1])

def refused(call):
    try:
        call()
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        return error
    raise AssertionError("there was room")

save_file({"a": np.ones(50_000, np.float32)}, "model.safetensors")
old = open("model.safetensors", "rb").read()
# More than there is: found before anything is written.
error = refused(lambda: save_file({"a": np.ones(500_000, np.float32)}, "model.safetensors"))
assert error.filename == "model.safetensors" and "bytes free" in str(error), error
assert os.listdir() == ["model.safetensors"]
# The disk space of an unfinished file is reserved.
with SafetensorsWriter("other.safetensors", {"a": (DType.float32, (150_000,))}) as writer:
    filler = os.open("filler", os.O_CREAT | os.O_WRONLY)
    try:
        while os.write(filler, bytes(4096)): pass
    except OSError:
        os.close(filler)
    writer.write("a", np.ones(150_000, np.float32))
assert os.path.getsize("other.safetensors") > 600_000
assert sorted(os.listdir()) == ["filler", "model.safetensors", "other.safetensors"]
error = refused(lambda: save_file({"a": np.ones(50_000, np.float32)}, "model.safetensors"))
assert open("model.safetensors", "rb").read() == old
os.remove("filler"), os.remove("other.safetensors")
# The first shards fit, the last does not.
error = refused(lambda: save_sharded({str(i): np.ones(50_000, np.float32) for i in range(6)}, ".", max_shard_size=1))
assert os.listdir() == ["model.safetensors"] and open("model.safetensors", "rb").read() == old
with load_weights("model.safetensors") as weights:
    weights.save("model.safetensors", dtype="float64")
assert os.path.getsize("model.safetensors") > 400_000
print("done")
"""


PROGRAM_ON_A_DISK_WITHOUT_A_LIMIT = """
import os, sys
import numpy as np
from max_weights import save_file, save_sharded

os.chdir(sys.argv[1])
assert os.statvfs(".").f_blocks == 0
save_file({"a": np.ones(50_000, np.float32)}, "model.safetensors")
save_sharded({str(i): np.ones(50_000, np.float32) for i in range(3)}, "shards", max_shard_size=1)
assert os.path.getsize("model.safetensors") > 200_000 and len(os.listdir("shards")) == 4
print("done")
"""


@pytest.mark.parametrize(
    ("size", "program"), [("1m", PROGRAM_ON_A_SMALL_DISK), ("0", PROGRAM_ON_A_DISK_WITHOUT_A_LIMIT)]
)
def test_a_full_disk_is_an_error_with_its_number_and_one_that_says_no_size_has_room(
    tmp_path: Path, size: str, program: str
) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no unshare to mount a small disk with")
    mounted = [unshare, "-rm", "sh", "-c", f'mount -t tmpfs -o size={size} none "$0" && exec "$@"', str(tmp_path)]
    tried = subprocess.run([*mounted, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {tried.stderr.strip()}")
    command = [*mounted, sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


@pytest.mark.parametrize("call", ["save_file", "SafetensorsWriter", "save_sharded", "save_gguf"])
def test_a_limit_on_the_size_of_files_is_an_error_and_nothing_has_changed(
    saver: Saver, folder: Path, call: str
) -> None:
    file = folder / named(call)
    path = folder if call == "save_sharded" else file
    saved(saver, "save_file", path=file, value=1)
    old = contents(folder)
    outcome = saver.save(call, path=path, value=2, process={"largest_file": 200_000})
    assert outcome.signal == 0
    assert (outcome.error.get("errno"), outcome.error.get("file")) == (errno.EFBIG, str(file))
    assert contents(folder) == old


@pytest.fixture
def users(tmp_path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder of an ordinary user, and the settings of such a process: the superuser may do everything."""
    if os.geteuid() != 0:
        yield tmp_path, {}
        return
    with tempfile.TemporaryDirectory() as made:
        os.chown(made, NOBODY, NOBODY)
        yield Path(made), {"user": NOBODY}


def test_a_folder_or_file_that_may_not_be_written_to_is_a_permission_error(
    saver: Saver, users: tuple[Path, dict[str, Any]]
) -> None:
    folder, user = users
    path = folder / NAME
    saved(saver, "save_file", path=path, value=1, process=user)
    old = contents(folder)
    cases = [(folder, "save_file"), (path, "save_file"), (path, "SafetensorsWriter"), (path, "weights.save")]
    for target, call in cases:
        target.chmod(0o555)
        arguments = {"source": path} if call == "weights.save" else {"value": 2}
        found = saver.save(call, path=path, process=user, **arguments).error
        assert (found.get("error"), found.get("errno")) == ("PermissionError", errno.EACCES)
        assert found["file"] == str(path)
        target.chmod(0o755)
        assert contents(folder) == old
    folder.chmod(0o555)
    outcome = saver.save("save_sharded", path=folder / "new", value=2, process=user)
    folder.chmod(0o755)
    assert (outcome.error.get("error"), outcome.error["file"]) == ("PermissionError", str(folder / "new"))
    assert contents(folder) == old


def test_modes_follow_the_umask_or_the_file_that_is_replaced_for_all_ways_to_save(saver: Saver, folder: Path) -> None:
    for call in ("save_file", "SafetensorsWriter"):
        for umask, mode in ((0o077, 0o600), (0o002, 0o664), (0o777, 0o000)):
            saved(saver, call, path=folder / NAME, value=1, process={"umask": umask})
            assert stat.S_IMODE((folder / NAME).stat().st_mode) == mode
            (folder / NAME).chmod(0o640 | stat.S_ISUID)  # a setuid file must not become one again
            saved(saver, call, path=folder / NAME, value=2, process={"umask": umask})
            assert stat.S_IMODE((folder / NAME).stat().st_mode) == 0o640
            (folder / NAME).unlink()
    saved(saver, "save_sharded", path=folder, value=1, max_shard_size=1000, process={"umask": 0o027})
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o640}


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser has files of several owners")
def test_the_owner_of_a_replaced_file_is_kept_where_that_is_allowed(saver: Saver) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder, path = Path(made), Path(made) / NAME
        saved(saver, "save_file", path=path, value=1)
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o640)
        saved(saver, "save_file", path=path, value=2)
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (NOBODY, NOBODY, 0o640)
        # Another user may write to the file and the folder, but not give the new file away.
        folder.chmod(0o777)
        path.chmod(0o666)
        saved(saver, "save_file", path=path, value=3, process={"user": NOBODY - 1})
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (NOBODY - 1, NOBODY - 1, 0o666)
        # A group without rights gets none if the old group cannot be kept.
        os.chown(path, NOBODY - 1, NOBODY)
        path.chmod(0o660)
        saved(saver, "save_file", path=path, value=4, process={"user": NOBODY - 1})
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (NOBODY - 1, NOBODY - 1, 0o600)
        assert unfinished(folder) == []


def test_a_symbolic_link_is_replaced_and_what_it_led_to_stays(saver: Saver, folder: Path) -> None:
    other, link = folder / "other", folder / NAME
    saved(saver, "save_file", path=other, value=1)
    other.chmod(0o604)
    link.symlink_to(other)
    saved(saver, "save_file", path=link, value=2)
    assert (link.is_symlink(), values(other), values(link)) == (False, {1.0}, {2.0})
    assert stat.S_IMODE(link.stat().st_mode) == 0o604
    link.unlink()
    link.symlink_to(folder / "nothing")
    saved(saver, "save_file", path=link, value=3)
    assert (link.is_symlink(), values(link), (folder / "nothing").exists()) == (False, {3.0}, False)
    # The files of a linked folder are those of the link's target.
    (folder / "real").mkdir()
    (folder / "linked").symlink_to(folder / "real")
    saved(saver, "save_sharded", path=folder / "linked", value=4)
    assert (folder / "linked").is_symlink()
    assert values(folder / "real") == {4.0}


@pytest.mark.parametrize("call", ["save_file", "SafetensorsWriter", "weights.save", "save_gguf"])
def test_what_is_no_file_is_not_replaced(saver: Saver, folder: Path, call: str) -> None:
    source = folder / "source"
    saved(saver, "save_file", path=source, value=1)
    (folder / "folder").mkdir()
    (folder / "to folder").symlink_to(folder / "folder")
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(folder / "loop")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(folder / "socket"))
    before = {path.name: (path.lstat().st_ino, path.lstat().st_mode) for path in folder.iterdir()}
    targets = {
        folder / "folder": "replace a directory",
        folder / "to folder": "replace a directory",
        folder / "pipe": "replace a device, pipe or socket",
        folder / "socket": "replace a device, pipe or socket",
        Path("/dev/null"): "replace a device, pipe or socket",
        folder / "loop": os.strerror(errno.ELOOP),
        folder / "source" / "below": os.strerror(errno.ENOTDIR),
        folder / "missing" / "x": os.strerror(errno.ENOENT),
        folder / ("x" * 256): os.strerror(errno.ENAMETOOLONG),
    }
    for path, message in targets.items():
        arguments = {"source": source} if call == "weights.save" else {"value": 2}
        found = saver.save(call, path=path, **arguments).error
        assert message in found.get("text", ""), path
        assert (found["file"], type(found["errno"])) == (str(path), int)
        assert issubclass(getattr(builtins, found["error"]), OSError)
    assert {path.name: (path.lstat().st_ino, path.lstat().st_mode) for path in folder.iterdir()} == before
    assert Path("/dev/null").is_char_device()


def test_any_name_that_a_file_can_have_is_saved_to(saver: Saver, folder: Path) -> None:
    for name in ("x" * 255, "é" * 127, " ", "-", "a\nb", os.fsdecode(b"\xff" * 250), ".hidden", "..."):
        saved(saver, "save_file", path=name, value=1, process={"folder": str(folder)})
        assert [path.name for path in folder.iterdir()] == [name]
        saved(saver, "SafetensorsWriter", path=f"./{name}", value=2, process={"folder": str(folder)})
        assert values(folder / name) == {2.0}
        assert [path.name for path in folder.iterdir()] == [name]
        (folder / name).unlink()
