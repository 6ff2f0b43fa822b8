"""Malicious PyTorch files, end to end: they open, their tensors are read, and none of their globals is executed.

The attacks are those of CVE-2024-5480, CVE-2025-1716, CVE-2025-1889, CVE-2025-1944, CVE-2025-1945, CVE-2025-32434,
CVE-2025-10155 to 10157 and CVE-2026-24747, and of scanner bypasses by submodule names.
"""

import _compat_pickle
import io
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import max_weights
from max_weights._core import torch_globals
from max_weights.errors import FormatError, UnsupportedError, WeightsError
from max_weights.torch import load
from refusals import refuses

TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
    b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQK\x00K\x04\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR"
)
"""The instructions for a tensor of four float32 in storage 0."""


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def archive(path: Path, pickled: bytes, storage: bytes = struct.pack("<4f", 1, 2, 3, 4), **more: bytes) -> Path:
    """A file as torch.save writes it, with any pickle."""
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("a/data.pkl", pickled)
        made.writestr("a/byteorder", b"little")
        made.writestr("a/data/0", storage)
        made.writestr("a/version", b"3\n")
        for name, data in more.items():
            made.writestr(f"a/{name}", data)
    return path


def stream(path: Path, pickled: bytes) -> Path:
    """The same in the form from before 1.6."""
    parts = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}]
    head = b"".join(pickle.dumps(part, 2) for part in parts)
    pickled = pickled.replace(b"K\x04tQ", b"K\x04NtQ")
    path.write_bytes(head + pickled + pickle.dumps(["0"], 2) + struct.pack("<q4f", 4, 1, 2, 3, 4))
    return path


def call(module: str, name: str, *arguments: str) -> bytes:
    """The instructions that import a function and call it."""
    return f"c{module}\n{name}\n(".encode() + b"".join(map(text, arguments)) + b"tR"


def stacked_call(module: str, name: str, *arguments: str) -> bytes:
    """The same by STACK_GLOBAL, which takes the names from the stack."""
    return text(module) + text(name) + b"\x93(" + b"".join(map(text, arguments)) + b"tR"


MARKER = "max-weights-was-here"
COMMAND = f"touch {MARKER}"
ATTACKS = {
    "os.system": call("os", "system", COMMAND),
    "posix.system": call("posix", "system", COMMAND),
    "nt.system": call("nt", "system", COMMAND),
    "builtins.eval": call("builtins", "eval", f"open('{MARKER}', 'w')"),
    "builtins.exec": call("builtins", "exec", f"open('{MARKER}', 'w')"),
    "__builtin__.eval": call("__builtin__", "eval", f"open('{MARKER}', 'w')"),
    "sys.setrecursionlimit": b"csys\nsetrecursionlimit\n(K\x01tR",
    "sys.modules, and an attribute of it": stacked_call("sys", "modules.get", "os"),
    "socket.create_connection": call("socket", "create_connection", "x"),
    "shutil.rmtree": call("shutil", "rmtree", "nothing-here"),
    "subprocess.getoutput": call("subprocess", "getoutput", COMMAND),
    "runpy._run_code": call("runpy", "_run_code", f"open('{MARKER}', 'w')"),
    "pkgutil.resolve_name": call("pkgutil", "resolve_name", "os:system")[:-1] + b"R" + b"(" + text(COMMAND) + b"tR",
    "asyncio.unix_events, a submodule": call("asyncio.unix_events", "_UnixSubprocessTransport._start", COMMAND),
    "pip.main (CVE-2025-1716)": call("pip", "main", "install"),
    "torch.jit.unsupported_tensor_ops.execWrapper": call(
        "torch.jit.unsupported_tensor_ops", "execWrapper", f"open('{MARKER}', 'w')"
    ),
    "torch.serialization.load": call("torch.serialization", "load", "other.pt"),
    "torch.storage._load_from_bytes": b"ctorch.storage\n_load_from_bytes\n(C\x00tR",
    "a dotted name, os through a module": stacked_call("torch.serialization", "os.system", COMMAND),
    "STACK_GLOBAL os.system": stacked_call("os", "system", COMMAND),
    "INST": b"(" + text(COMMAND) + b"ios\nsystem\n",
    "OBJ": b"(cos\nsystem\n" + text(COMMAND) + b"o",
    "getattr": call("builtins", "getattr", "x", "y"),
    "an unknown class": b"c__main__\nModel\n)\x81}(" + text("x") + b"K\x01ub",
    "functools.partial": b"cfunctools\npartial\n(cos\nsystem\n" + text(COMMAND) + b"tR)R",
    "numpy.testing runstring": call("numpy.testing._private.utils", "runstring", f"open('{MARKER}', 'w')"),
}


def attack(instructions: bytes) -> bytes:
    """A dict of a tensor and of what the instructions make."""
    return b"\x80\x02}(" + text("weight") + TENSOR + text("evil") + instructions + b"u."


@pytest.mark.parametrize("form", [archive, stream])
@pytest.mark.parametrize("name", ATTACKS)
def test_the_tensors_are_read_and_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = form(tmp_path / "a.pt", attack(ATTACKS[name]))
    weights = max_weights.load_weights(path)
    np.testing.assert_array_equal(np.asarray(weights.weight.data()), [1, 2, 3, 4])
    assert all(value is not None for value in max_weights.infos(weights).objects.values())
    repr(max_weights.infos(weights).objects.items())
    assert {verdict for *_, verdict in torch_globals(weights)} - {"harmless"}
    with pytest.raises((UnsupportedError, FormatError)):
        load(path)
    with pytest.raises((pickle.UnpicklingError, RuntimeError, KeyError)):
        torch.load(path, weights_only=True)
    assert not (tmp_path / MARKER).exists()


def test_names_of_python_2_are_listed_as_what_python_3_imports(tmp_path: Path) -> None:
    modules = {(old, "anything"): (new, "anything") for old, new in _compat_pickle.IMPORT_MAPPING.items()}
    expected = modules | _compat_pickle.NAME_MAPPING
    named = b"".join(f"c{module}\n{name}\n0".encode() for module, name in expected)
    for protocol, names in (2, expected.values()), (3, expected):
        path = archive(tmp_path / f"{protocol}.pt", b"\x80" + bytes([protocol]) + named + b"}.")
        found = [name for _, name, _, _ in torch_globals(max_weights.load_weights(path))]
        assert found == [".".join(name) for name in names]


def test_a_hostile_file_is_read_where_torch_was_never_imported(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", attack(ATTACKS["os.system"]))
    script = f"""
import sys, max_weights
from max_weights._core import torch_globals
weights = max_weights.load_weights({str(path)!r})
assert weights.weight.data().to_buffer().nbytes == 16
[found] = [row for row in torch_globals(weights) if row[1] == "os.system"]
assert found[3] == "runs-code" and open({str(path)!r}, "rb").read()[found[2]:].startswith(b"cos"), found
print(max_weights.infos(weights).objects["evil"])
assert not {{"torch", "numpy", "pickle", "subprocess"}} & set(sys.modules)"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "os.system" in done.stdout
    assert "not built" in done.stdout
    assert not (tmp_path / MARKER).exists()


def test_the_refusal_names_the_global_its_place_and_the_way_out(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", attack(ATTACKS["builtins.eval"]))
    with refuses(UnsupportedError, "torch.global") as caught:
        load(path)
    assert caught.value.rule == "torch.global"
    assert "builtins.eval" in str(caught.value)
    assert caught.value.offset is not None
    assert path.read_bytes()[caught.value.offset :].startswith(b"cbuiltins\neval")


def test_items_are_never_set_on_what_is_no_dict_cve_2026_24747(tmp_path: Path) -> None:
    for instructions in (TENSOR + b"K\x00K\x01s", TENSOR + b"(K\x00K\x01u", TENSOR + b"K\x00a"):
        path = archive(tmp_path / "a.pt", attack(instructions))
        with pytest.raises(WeightsError):
            load(path)


@pytest.mark.parametrize(
    ("shape", "stride", "offset"),
    [
        (b"K\x05\x85", b"K\x01\x85", b"K\x00"),
        (b"K\x04\x85", b"K\x01\x85", b"K\x01"),
        (b"K\x02\x85", b"J\xff\xff\xff\xff\x85", b"K\x00"),
        (b"K\x02\x85", b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85", b"K\x00"),
        (b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85", b"K\x01\x85", b"K\x00"),
        (b"K\x02\x85", b"K\x01\x85", b"J\xff\xff\xff\xff"),
    ],
    ids=["longer", "offset", "negative stride", "huge stride", "huge shape", "negative offset"],
)
def test_a_tensor_that_reaches_out_of_its_storage(tmp_path: Path, shape: bytes, stride: bytes, offset: bytes) -> None:
    tensor = TENSOR.replace(b"QK\x00K\x04\x85K\x01\x85", b"Q" + offset + shape + stride)
    path = archive(tmp_path / "a.pt", attack(tensor))
    for opened in (max_weights.load_weights, load):
        with pytest.raises(FormatError):
            opened(path)


def test_a_storage_smaller_than_the_pickle_says(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", b"\x80\x02" + TENSOR + b".", storage=b"1234567")
    for opened in (max_weights.load_weights, load):
        with refuses(FormatError, "torch.storage-size") as caught:
            opened(path)
        assert caught.value.rule == "torch.storage-size"


def test_a_storage_that_is_missing(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", b"\x80\x02" + TENSOR.replace(b"\x01\x00\x00\x000", b"\x01\x00\x00\x009") + b".")
    for opened in (max_weights.load_weights, load):
        with refuses(FormatError, "torch.missing-storage") as caught:
            opened(path)
        assert caught.value.rule == "torch.missing-storage"


def test_an_empty_tensor_whose_place_is_no_number(tmp_path: Path) -> None:
    offset = b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x40"
    tensor = TENSOR.replace(b"QK\x00K\x04\x85K\x01\x85", b"Q" + offset + b"K\x00\x85K\x01\x85")
    with refuses(FormatError, "torch.outside-storage") as caught:
        max_weights.load_weights(archive(tmp_path / "a.pt", b"\x80\x02" + tensor + b"."))
    assert caught.value.rule == "torch.outside-storage"


def test_a_bomb_is_refused_before_it_is_inflated(tmp_path: Path) -> None:
    count = 75 << 20
    pickled = b"\x80\x02" + TENSOR.replace(b"K\x04t", b"J" + struct.pack("<i", count) + b"t") + b"."
    pickled = pickled.replace(b"K\x04\x85", b"J" + struct.pack("<i", count) + b"\x85")
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a/data.pkl", pickled)
        with made.open("a/data/0", "w") as entry:
            for _ in range(300):
                entry.write(bytes(1 << 20))
    assert (tmp_path / "a.pt").stat().st_size < 400_000
    weights = max_weights.load_weights(tmp_path / "a.pt")
    assert len(weights) == 1
    with refuses(FormatError, "torch-zip.bomb"):
        weights.tensor.data()


def test_a_list_that_holds_itself_and_one_of_great_depth(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", b"\x80\x02}(" + text("w") + TENSOR + text("l") + b"]q\x01h\x01au.")
    found = load(path)
    assert found["l"][0] is found["l"]
    weights = max_weights.load_weights(path)
    loop = max_weights.infos(weights).objects["l"]
    assert loop[0] is loop
    path = archive(
        tmp_path / "b.pt", b"\x80\x02}(" + text("w") + TENSOR + text("l") + b"]" * 9000 + b"a" * 8999 + b"u."
    )
    for opened in (lambda p: max_weights.infos(max_weights.load_weights(p)).objects["l"], load):
        with refuses(FormatError, "torch.depth"):
            opened(path)


def test_a_damaged_file_raises_errors_of_ours_and_nothing_else(tmp_path: Path) -> None:
    made = io.BytesIO()
    torch.save({"a": torch.arange(20.0), "b": [1, {"c": torch.ones(2, 2)}]}, made)
    old = io.BytesIO()
    torch.save({"a": torch.arange(20.0), "b": 1}, old, _use_new_zipfile_serialization=False)
    path = tmp_path / "a.pt"
    random = np.random.default_rng(0)
    for content in (made.getvalue(), old.getvalue()):
        for _ in range(300):
            data = bytearray(content)
            for _ in range(random.integers(1, 4)):
                data[random.integers(len(data))] = random.integers(256)
            path.write_bytes(data[: random.integers(len(data))] if random.integers(4) == 0 else data)
            try:
                weights = max_weights.load_weights(path)
                for _, node in weights.items():
                    node.data().to_buffer().copy()
                max_weights.infos(weights).objects.values()
            except WeightsError:
                pass
