"""Files that are opened repeatedly, as accelerate does for each weight, show their current content."""

import mmap
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import save_file

from max_weights.safetensors import safe_open
from refusals import refuses
from safetensors_files import entry, file_bytes

NAMES = {"a": entry("U8", [4], 0, 4), "b": entry("U8", [2, 2], 4, 8)}
OTHER_NAMES = {"a": entry("U8", [4], 0, 4), "c": entry("U8", [2, 2], 4, 8)}
BEFORE, RENAMED = file_bytes(NAMES, b"abcdefgh"), file_bytes(OTHER_NAMES, b"abcdefgh")


def contents(library: Any, path: str | Path) -> Any:
    """The content of a file, or the error on opening it."""
    try:
        with library(path, "pt") as file:
            tensors = {name: file.get_tensor(name).tolist() for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata(), file.offset_keys()
    except (OSError, safetensors.SafetensorError) as error:
        return type(error), str(error).split(" (")[0].split(": ")[:2]


def written_in_place(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def written_to_a_shared_mapping(path: Path, content: bytes) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[: len(content)] = content


def saved_over(path: Path, content: bytes) -> None:
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").replace(path)


def linked(path: Path, content: bytes) -> None:
    path.with_suffix(".other").write_bytes(content)
    path.unlink()
    path.symlink_to(path.with_suffix(".other"))


@pytest.mark.parametrize("write", [written_in_place, written_to_a_shared_mapping, saved_over, linked])
@pytest.mark.parametrize("times", ["new", "kept"])
@pytest.mark.parametrize("keep", [False, True], ids=["closed", "open"])
def test_what_was_changed_is_seen_however_it_was(
    tmp_path: Path, write: Callable[[Path, bytes], None], times: str, keep: bool
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(BEFORE)
    status, opened = path.stat(), []
    # Another name; other values; both restored; and again, without waiting.
    for content in (RENAMED, file_bytes(OTHER_NAMES, b"ABCDEFGH"), BEFORE, RENAMED) * 3:
        if keep:
            opened.append(safe_open(path, "pt"))
        assert contents(safe_open, path) == contents(safe_open, path)
        write(path, content)
        if times == "kept":
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        found = contents(safe_open, path)
        assert found == contents(safetensors.safe_open, path)
        assert ("c" in found[0]) == (content is not BEFORE)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: os.truncate(path, path.stat().st_size - 1),
        lambda path: os.truncate(path, path.stat().st_size + 1),
        lambda path: os.truncate(path, 5),
        lambda path: written_in_place(path, BEFORE.replace(b"U8", b"Q8")),
        lambda path: written_in_place(path, BEFORE.replace(b"[4]", b"[5]")),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["shorter", "longer", "no header", "dtype", "shape", "absent", "folder"],
)
def test_what_became_wrong_fails_as_there_and_works_when_it_is_right_again(
    tmp_path: Path, change: Callable[[Path], Any]
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(BEFORE)
    expected = contents(safe_open, path)
    change(path)
    for _ in range(2):
        assert contents(safe_open, path) == contents(safetensors.safe_open, path)
        assert contents(safe_open, path) != expected
    if path.is_dir():
        path.rmdir()
    path.write_bytes(BEFORE)
    assert contents(safe_open, path) == expected


def test_a_path_that_leads_elsewhere_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, content in (("one", BEFORE), ("other", RENAMED), ("third", file_bytes(NAMES, b"ABCDEFGH"))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.safetensors").write_bytes(content)
    for folder in ("one", "other", "third", "one"):
        monkeypatch.chdir(tmp_path / folder)
        assert contents(safe_open, "a.safetensors") == contents(safetensors.safe_open, "a.safetensors")


def test_what_is_written_to_a_tensor_no_other_handle_sees(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(BEFORE)
    first = safe_open(path, "pt")
    tensor = first.get_tensor("a")
    tensor.zero_()
    assert safe_open(path, "pt").get_tensor("a").tolist() == list(b"abcd")
    assert first.get_tensor("a").tolist() == [0] * 4
    assert path.read_bytes() == BEFORE


def test_messages_have_the_path_of_the_file_that_was_asked_for(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(BEFORE)
        safe_open(tmp_path / name, "pt")
        os.truncate(tmp_path / name, len(BEFORE) - 1)
        with refuses(safetensors.SafetensorError):
            safe_open(tmp_path / name, "pt")


def test_threads_that_open_many_files_while_one_is_saved_over(tmp_path: Path) -> None:
    paths, failures = [tmp_path / f"{number}.safetensors" for number in range(24)], []
    for number, path in enumerate(paths):
        save_file({f"w{number}": torch.full((8,), float(number))}, path)
    shutil.copy(paths[0], tmp_path / "kept")
    done = threading.Event()

    def work(start: int) -> None:
        try:
            for turn in range(120):
                number = (start + turn) % len(paths)
                with safe_open(paths[number], "pt") as file:
                    (name,) = file.keys()
                    found = file.get_tensor(name).tolist()
                assert (name, found) in ((f"w{number}", [float(number)] * 8), ("other", [-1.0] * 8))
        except Exception as error:
            failures.append(error)

    def save() -> None:
        while not done.is_set():
            save_file({"other": torch.full((8,), -1.0)}, paths[0])
            saved_over(paths[0], (tmp_path / "kept").read_bytes())

    saver = threading.Thread(target=save)
    threads = [threading.Thread(target=work, args=(6 * i,)) for i in range(4)]
    for thread in (saver, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    saver.join()
    assert failures == []


FORKING = """
import os, sys, threading
from max_weights.safetensors import safe_open

def contents():
    with safe_open(sys.argv[1], "np") as file:
        return {name: file.get_tensor(name).tobytes() for name in file.keys()}

expected, done = contents(), threading.Event()

def work():
    while not done.is_set():
        safe_open(sys.argv[1], "np")

threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        os._exit(any(contents() != expected for _ in range(3)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
done.set()
print(expected)
"""


def test_forked_while_files_are_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(BEFORE)
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(path)], capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout.strip()) == (0, "{'a': b'abcd', 'b': b'efgh'}"), done.stderr
