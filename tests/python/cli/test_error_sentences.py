"""Common mistakes in Python and on the command line: one clear sentence each, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import max_weights
from command_line import run
from conftest import safetensors_bytes
from refusals import refuses

GOOD = safetensors_bytes({"w": ("F32", [16], bytes(64))})
# The file's name, its content, the class, the rule, and the expected sentence.
CASES: dict[str, tuple[str, bytes, type[Exception], str, str]] = {
    "truncated download": (
        "m.safetensors",
        GOOD[:-28],
        max_weights.FormatError,
        "safetensors.truncated",
        "ends 28 bytes early",
    ),
    "cut in the header": (
        "m.safetensors",
        GOOD[:20],
        max_weights.FormatError,
        "safetensors.truncated",
        "still downloading",
    ),
    "git-LFS pointer": (
        "m.safetensors",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 4096\n",
        max_weights.FormatError,
        "format.lfs-pointer",
        "git lfs pull",
    ),
    "web page": ("m.safetensors", b"<!doctype html><html>", max_weights.FormatError, "format.web-page", "web page"),
    "partial download": (
        "m.safetensors.incomplete",
        GOOD,
        max_weights.FormatError,
        "file.partial",
        "incomplete download",
    ),
    "wrong extension": (
        "m.safetensors",
        b"PK\x03\x04....",
        max_weights.FormatError,
        "torch-zip.truncated",
        "named .safetensors but is a PyTorch",
    ),
    "empty file": ("m.safetensors", b"", max_weights.FormatError, "format.empty", "the file is empty"),
    "out-of-file offsets": (
        "m.safetensors",
        safetensors_bytes({"w": ("F32", [16], bytes(64))}).replace(b"[0, 64]", b"[8, 72]"),
        max_weights.FormatError,
        "safetensors.outside",
        "tensor 'w'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_python_gets_the_sentence_with_its_parts(tmp_path: Path, case: str) -> None:
    name, content, error, rule, _ = CASES[case]
    path = tmp_path / name
    path.write_bytes(content)
    with refuses(error, rule) as caught:
        max_weights.load_weights(path)
    assert isinstance(caught.value, max_weights.WeightsError)
    assert str(caught.value.path) == str(path)
    assert caught.value.help
    help = caught.value.help
    assert help[0].upper() + help[1:] in str(caught.value), "a sentence of its own"


@pytest.mark.parametrize("case", CASES)
def test_the_command_line_prints_the_sentence_in_one_line(tmp_path: Path, case: str) -> None:
    name, content, _, _, sentence = CASES[case]
    (tmp_path / name).write_bytes(content)
    done = run("ls", tmp_path / name)
    assert (done.status, done.stdout) == (3, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_missing_path_and_a_directory_without_weights(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        max_weights.load_weights(tmp_path / "nothing.safetensors")
    assert (caught.value.errno, caught.value.filename) == (2, str(tmp_path / "nothing.safetensors"))
    assert isinstance(caught.value, ValueError)
    with refuses(max_weights.FormatError, "directory.empty"):
        max_weights.load_weights(tmp_path)


def test_a_file_that_may_not_be_read_keeps_its_errno(tmp_path: Path) -> None:
    script = f"""
import os, max_weights
try:
    max_weights.load_weights("/nonexistent/m.safetensors")  # imports what an error needs, while this user still may
except FileNotFoundError:
    pass
os.setuid(65534)
try:
    max_weights.load_weights({str(tmp_path / "m.safetensors")!r})
except PermissionError as error:
    print(error.errno, error.filename)
"""
    (tmp_path / "m.safetensors").write_bytes(GOOD)
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    (tmp_path / "m.safetensors").chmod(0)
    if os.getuid() != 0:
        script = script.replace("os.setuid(65534)\n", "")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"13 {tmp_path / 'm.safetensors'}"


def test_a_tensor_that_is_too_large_for_memory_is_a_memory_error(tmp_path: Path) -> None:
    size = 1 << 46
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
    path = tmp_path / "huge.safetensors"
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        try:
            file.truncate(8 + len(header) + size)
        except OSError:
            size = 1 << 43  # what the file system allows
            header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
            file.seek(0)
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + size)
    weights = max_weights.load_weights(path, backend="read")
    with pytest.raises(MemoryError):
        weights.w.data()
    assert np.asarray(max_weights.load_weights(path).w.data()).nbytes == size
