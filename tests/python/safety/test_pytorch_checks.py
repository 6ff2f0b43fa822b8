"""Checks of PyTorch files beyond their structure: checksums, data after the pickle, contents that torch refuses."""

import collections
import io
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import max_weights
from command_line import run
from max_weights._core import PytorchWeights, torch_globals
from max_weights.errors import FormatError
from max_weights.torch import load
from refusals import refuses
from test_pytorch_hostile import TENSOR, archive, text


def changed_member(path: Path, name: str, change: int) -> None:
    """Change a byte of the data, but not its metadata."""
    with zipfile.ZipFile(path) as read:
        info = read.getinfo(name)
    data = bytearray(path.read_bytes())
    name_len, extra_len = struct.unpack_from("<HH", data, info.header_offset + 26)
    data[info.header_offset + 30 + name_len + extra_len + change] ^= 1
    path.write_bytes(data)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.arange(100.0), "note": "a note of some length"}, path)
    return path


def packed(path: Path, method: int) -> Path:
    """The same archive with its entries compressed, or not."""
    again = path.with_name("again.pt")
    with zipfile.ZipFile(path) as read, zipfile.ZipFile(again, "w", method) as made:
        for info in read.infolist():
            made.writestr(info.filename, read.read(info))
    return again


def test_a_pickle_with_a_wrong_checksum_is_an_error_that_names_it(saved: Path) -> None:
    data = saved.read_bytes()
    changed_member(saved, "a/data.pkl", data.index(b"a note of") - data.index(b"\x80\x02}"))
    for opened in (max_weights.load_weights, load):
        with refuses(FormatError, "torch-zip.crc") as caught:
            opened(saved)
        assert caught.value.rule == "torch-zip.crc"
    assert any(
        "torch-zip.crc" in warning
        for warning in max_weights.infos(max_weights.load_weights(saved, strict=False)).warnings
    )


def test_a_compressed_storage_with_a_wrong_checksum_is_an_error_that_names_it(saved: Path) -> None:
    path = packed(saved, zipfile.ZIP_DEFLATED)
    assert max_weights.load_weights(path).w.data().shape == (100,)
    data = path.read_bytes()
    with zipfile.ZipFile(path) as read:
        message = struct.pack("<I", read.getinfo("a/data/0").CRC)
    assert data.count(message) == 2
    path.write_bytes(data.replace(message, b"\x01\x02\x03\x04"))
    weights = max_weights.load_weights(path)
    with refuses(FormatError, "torch-zip.crc") as caught:
        weights.w.data()
    assert caught.value.rule == "torch-zip.crc"
    with refuses(FormatError, "torch-zip.crc"):
        load(path)
    # 0 means not computed.
    path.write_bytes(data.replace(message, bytes(4)))
    assert max_weights.load_weights(path).w.data().shape == (100,)


def test_checksums_of_stored_tensors_are_verified_on_request(saved: Path) -> None:
    for path in (saved, packed(saved, zipfile.ZIP_DEFLATED)):
        weights = max_weights.load_weights(path)
        assert isinstance(weights, PytorchWeights)
        assert max_weights.fingerprint(weights, checksums=True).checksums == 1
    changed_member(saved, "a/data/0", 7)
    weights = max_weights.load_weights(saved)
    assert isinstance(weights, PytorchWeights)
    with refuses(FormatError, "torch-zip.crc") as caught:
        max_weights.fingerprint(weights, checksums=True)
    assert caught.value.path == str(saved)


def test_a_second_pickle_behind_the_first_is_found(tmp_path: Path) -> None:
    """As in picklescan's malicious6: torch reads the first pickle, other programs both."""
    first = b"\x80\x02}" + text("w") + TENSOR + b"s."
    path = archive(tmp_path / "a.pt", first + b"\x80\x02cos\nsystem\n" + text("true") + b"\x85R." + b"junk")
    weights = max_weights.load_weights(path)
    assert [name for _, name, _, verdict in torch_globals(weights) if verdict == "runs-code"] == ["os.system"]
    (warning,) = [warning for warning in max_weights.infos(weights).warnings if "pickle.trailing-data" in warning]
    assert "os.system" in warning
    assert run("globals", path).status == 1
    assert list(load(path)) == ["w"]
    path = archive(tmp_path / "b.pt", first + bytes(10))
    assert any("10 bytes follow" in warning for warning in max_weights.infos(max_weights.load_weights(path)).warnings)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("factory", [int, str, list, dict, float])
def test_a_defaultdict_of_a_plain_type_is_read_in_every_protocol(tmp_path: Path, protocol: int, factory: Any) -> None:
    counts = collections.defaultdict(factory, a=factory())
    path = archive(tmp_path / "a.pt", pickle.dumps({"counts": counts}, protocol))
    loaded = load(path)
    assert loaded == {"counts": {"a": factory()}}
    assert loaded["counts"].default_factory is factory
    verdicts = {verdict for *_, verdict in torch_globals(max_weights.load_weights(path))}
    assert verdicts == {"harmless"}


@pytest.mark.parametrize(
    "content",
    [b"\x8f(]\x90", b"(]\x91", b"cbuiltins\nset\n](]e\x85R", b"\x8f(]\x85\x90", b"}]\x85Ns"],
    ids=["a set", "a frozen set", "a set of a list", "a list in a tuple in a set", "a list in a tuple as a key"],
)
def test_an_element_that_python_cannot_hash_is_an_error_of_ours(tmp_path: Path, content: bytes) -> None:
    path = archive(tmp_path / "a.pt", b"\x80\x04}" + text("k") + content + b"s.")
    # The keys of a dict with named entries are not built.
    listed = (
        []
        if content.startswith(b"}")
        else [lambda path: max_weights.infos(max_weights.load_weights(path)).objects.values()]
    )
    for opened in (*listed, load):
        with pytest.raises(FormatError) as caught:
            opened(path)
        assert caught.value.rule in ("pickle.set", "torch.key")
        assert caught.value.path == str(path)


def test_what_torch_refuses_is_an_error_of_ours(tmp_path: Path) -> None:
    made = io.BytesIO()
    torch.save({"s": torch.tensor([[0.0, 1.0], [2.0, 0.0]]).to_sparse()}, made)
    path = tmp_path / "a.pt"
    # An index beyond the shape: torch raises a RuntimeError.
    path.write_bytes(made.getvalue().replace(struct.pack("<4q", 0, 1, 1, 0), struct.pack("<4q", 0, 9, 1, 0)))
    data = path.read_bytes()
    assert data != made.getvalue()
    with refuses(FormatError, "torch.refused") as caught:
        load(path)
    assert caught.value.rule == "torch.refused"
    assert isinstance(caught.value.__cause__, RuntimeError)
    device = archive(tmp_path / "b.pt", b"\x80\x02ctorch\ndevice\n" + text("nonsense\x1b[31m") + b"\x85R.")
    with pytest.raises(FormatError) as caught:
        load(device)
    assert "\x1b" not in str(caught.value)


def test_what_the_callers_function_raises_comes_to_the_caller(saved: Path) -> None:
    class OfTheirsError(RuntimeError):
        pass

    def place(_: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
        raise OfTheirsError(location)

    with refuses(OfTheirsError):
        load(saved, map_location=place)


def test_values_of_great_depth_are_made_on_a_small_stack(tmp_path: Path) -> None:
    depth = 390
    path = archive(tmp_path / "a.pt", b"\x80\x02}" + text("k") + b"]" * depth + b"a" * (depth - 1) + b"s.")
    code = """
import sys, threading
import max_weights, max_weights.torch
found = []
def read():
    found.append(max_weights.infos(max_weights.load_weights(sys.argv[1])).objects["k"])
    found.append(max_weights.torch.load(sys.argv[1])["k"])
max_weights.torch.load(sys.argv[1])  # imports, which need more
threading.stack_size(64 << 10)
thread = threading.Thread(target=read)
thread.start()
thread.join()
for value in found:
    depth = 1
    while value:
        (value,) = value
        depth += 1
    print(depth)
"""
    child = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout.split()) == (0, [str(depth)] * 2), child.stderr


def test_a_size_of_a_size_and_so_on_is_a_size(tmp_path: Path) -> None:
    chain = b"ctorch\nSize\nq\x000K\x02K\x03\x86q\x01" + b"0h\x00h\x01\x85Rq\x01" * 200_000
    path = archive(tmp_path / "a.pt", b"\x80\x02}" + text("k") + chain + b"s.")
    assert load(path) == {"k": torch.Size([2, 3])}
    assert max_weights.infos(max_weights.load_weights(path)).objects["k"] == (2, 3)


def test_one_value_of_the_file_is_one_object_under_every_name(tmp_path: Path) -> None:
    pickled = b"\x80\x02}(" + text("a") + b"](K\x01" + text("x" * 100) + b"q\x01eq\x02" + text("b") + b"h\x02"
    path = archive(tmp_path / "a.pt", pickled + text("c") + b"h\x01" + text("d") + b"h\x01u.")
    found = max_weights.infos(max_weights.load_weights(path)).objects
    assert found["a"] is found["b"] is found["a"]
    assert found["c"] is found["d"] is found["a"][1]
    values = dict(found.items())
    assert values["a"] is values["b"]
    loaded = load(path)
    assert loaded["a"] is loaded["b"]
    assert loaded["c"] is loaded["d"] is loaded["a"][1]


def test_lists_that_hold_each_other_twice_do_not_hang_the_listing(tmp_path: Path) -> None:
    body = b"]q\x000"
    for level in range(100):
        body += b"](h" + bytes([level, 0x68, level]) + b"eq" + bytes([level + 1]) + b"0"
    path = archive(tmp_path / "a.pt", b"\x80\x02" + body + b"}" + text("k") + b"hds.")
    listing = run("show", path)
    assert listing.status == 0
    assert "[[[[" in listing.stdout
    assert "…" in listing.stdout
    values = {"t": (1,), "e": (), "s": set(), "f": frozenset([1]), "d": {"a": [1, None]}, "b": b"x", "n": -1.5}
    torch.save(values, path)
    shown = run("show", path).stdout
    for name, value in values.items():
        if name != "d":
            assert f"{name}    {value!r}" in shown or f"{name}  {value!r}" in shown, (name, shown)
