"""`patch()`: replaced functions and their modules, calls passed to the originals, and complete undo."""

import inspect
import io
import os
import pickle
import struct
import subprocess
import sys
import threading
import types
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import max_weights
from max_weights._dropin import Calls
from refusals import refuses
from torch_same import assert_same

# Held where no sweep finds them: outside module attributes.
ORIGINAL = {"load": torch.load}


@pytest.fixture(autouse=True)
def unpatched_again() -> Iterator[None]:
    assert not max_weights.patched()
    yield
    max_weights.unpatch()
    assert torch.load is ORIGINAL["load"]
    assert torch.serialization.load is ORIGINAL["load"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "value.pt"
    base = torch.arange(100.0)
    torch.save({"a": base, "b": base[3:7], "p": torch.nn.Parameter(torch.ones(2, 3)), "o": OrderedDict(x=1)}, path)
    return path


def calls(name: str = "torch.load") -> Calls:
    return max_weights.patched()[name]


def outcome(function: Any, *arguments: Any, **options: Any) -> tuple[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "value", function(*arguments, **options)
    except Exception as error:
        return type(error).__name__, str(error)


def run(script: str, *arguments: str, **environment: str) -> str:
    """The output of a new process."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_names_bound_before_are_replaced_wherever_they_are_and_come_back(path: Path) -> None:
    module = types.ModuleType("a_program")
    vars(module).update(loads=torch.load, other=1)
    sys.modules["a_program"] = module
    try:
        max_weights.patch()
        assert module.loads is torch.load is torch.serialization.load  # type: ignore[attr-defined]
        assert torch.load is not ORIGINAL["load"]
        assert_same(module.loads(path), ORIGINAL["load"](path))  # type: ignore[attr-defined]
        assert calls() == Calls(fast=1, fallback=0)
        max_weights.unpatch()
        assert module.loads is ORIGINAL["load"]  # type: ignore[attr-defined]
    finally:
        del sys.modules["a_program"]


def test_to_patch_twice_changes_nothing_and_to_unpatch_without_is_fine(path: Path) -> None:
    max_weights.unpatch()
    max_weights.patch()
    first, finders = torch.load, list(sys.meta_path)
    max_weights.patch()
    assert torch.load is first
    assert sys.meta_path == finders
    max_weights.unpatch()
    max_weights.unpatch()
    max_weights.patch()
    assert torch.load is first
    assert_same(torch.load(path), ORIGINAL["load"](path))


def test_the_replacement_looks_like_the_original() -> None:
    max_weights.patch()
    assert "weights_only" in torch.load.__code__.co_varnames
    assert inspect.signature(torch.load) == inspect.signature(ORIGINAL["load"])
    assert torch.load.__doc__ == ORIGINAL["load"].__doc__
    assert torch.load.__wrapped__ is ORIGINAL["load"]  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(torch.load)) is torch.load


def test_what_still_holds_the_replacement_calls_the_original_after_unpatch(path: Path) -> None:
    max_weights.patch()
    held = [torch.load]
    max_weights.unpatch()
    assert max_weights.patched() == {}
    held[0](path)
    max_weights.patch()
    before = calls()
    held[0](path)
    assert calls().fast == before.fast + 1


def test_what_others_put_in_place_since_stays(path: Path) -> None:
    max_weights.patch()
    inner = torch.load

    def theirs(*arguments: Any, **options: Any) -> Any:
        return inner(*arguments, **options)

    theirs.__module__ = "theirs"
    try:
        torch.load = theirs
        max_weights.patch()
        assert torch.load is theirs
        max_weights.unpatch()
        assert torch.load is theirs
        assert_same(torch.load(path), ORIGINAL["load"](path))
    finally:
        torch.load = ORIGINAL["load"]


def test_what_others_replaced_before_stays_as_it_is() -> None:
    script = """
import sys, torch, logging
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
original = [torch.load]
def theirs(*arguments, **options):
    return original[0](*arguments, **options)
torch.load = theirs
import max_weights
max_weights.patch()
assert torch.load is theirs
assert "torch.load" not in max_weights.patched()
"""
    assert "torch.load is not replaced: it is __main__.theirs, which is not the library's own" in run(script)


@pytest.mark.parametrize("when", ["before", "after"])
def test_libraries_that_are_imported_later_are_patched_then(path: Path, when: str) -> None:
    script = f"""
import sys
import max_weights
if {when == "after"}:
    import torch, gguf
max_weights.patch()
assert {when == "after"} == ("torch" in sys.modules)
from torch import load
from torch.serialization import load as other
from gguf import GGUFReader
import torch, gguf.gguf_reader
assert load is other is torch.load
assert gguf.gguf_reader.GGUFReader is GGUFReader
found = sorted(max_weights.patched())
assert found == ["gguf.GGUFReader", "gguf.dequantize", "gguf.get_tensor_name_map", "torch.load"], found
torch.load(sys.argv[1])
assert max_weights.patched()["torch.load"].fast == 1
max_weights.unpatch()
assert torch.load is not load
assert globals()["load"] is torch.load
"""
    run(script.replace("assert torch.load is not load\n", ""), str(path))


def test_the_import_of_the_package_and_patch_bring_no_library_along() -> None:
    script = """
import sys, max_weights
assert not [name for name in sys.modules if name.startswith("max_weights._dropin")]
max_weights.patch()
print(sorted({"torch", "gguf", "safetensors", "numpy", "transformers", "logging", "dataclasses"} & set(sys.modules)))
"""
    assert run(script) == "[]"


def test_what_a_replacement_needs_is_imported_when_it_is_called(models: Path) -> None:
    script = """
import sys, max_weights, safetensors.torch, torch
max_weights.patch()
print(sorted({"max_weights._weights", "max_weights.torch", "max_weights.safetensors.torch"} & set(sys.modules)))
safetensors.torch.load_file(sys.argv[1])
print(max_weights.patched()["safetensors.torch.load_file"], "max_weights.safetensors.torch" in sys.modules)
"""
    assert run(script, str(models / "minilm.safetensors")) == "[]\nCalls(fast=1, fallback=0) True"


def refuse(*_: Any) -> Any:
    raise LookupError("no place")


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weights": {"weights_only": True},
    "mapped": {"mmap": True},
    "read": {"mmap": False},
    "device": {"map_location": torch.device("cpu")},
    "meta": {"map_location": "meta"},
    "dict": {"map_location": {"cuda:0": "cpu"}},
    "callable": {"map_location": lambda storage, _: storage},
    "callable that raises": {"map_location": refuse},
    "code": {"weights_only": False},
    "pickle": {"weights_only": False, "pickle_module": pickle},
    "pickle and weights": {"weights_only": True, "pickle_module": pickle},
    "encoding": {"encoding": "latin1"},
    "unknown argument": {"no_such": 1},
    "absent device": {"map_location": "cuda:7"},
    "unknown device": {"map_location": "nowhere"},
}
SERVED = {"plain", "weights", "mapped", "read", "device", "meta", "dict", "callable"}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("form", ["path", "text", "file", "bytes"])
def test_every_call_has_the_outcome_that_it_has_without(path: Path, name: str, form: str) -> None:
    forms = {"path": lambda: path, "text": lambda: str(path), "file": lambda: path.open("rb")}
    forms["bytes"] = lambda: io.BytesIO(path.read_bytes())

    def called() -> tuple[str, Any]:
        given: Any = forms[form]()
        try:
            return outcome(torch.load, given, **CALLS[name])
        finally:
            getattr(given, "close", str)()

    expected = called()
    max_weights.patch()
    before = calls()
    found = called()
    assert found[0] == expected[0]
    if expected[0] == "value":
        assert_same(found[1], expected[1])
    else:
        assert found[1] == expected[1]
    served = name in SERVED and form != "bytes" and not (form == "file" and name == "mapped")
    assert calls().fast - before.fast == served
    raised_by_the_caller = name == "callable that raises" and form != "bytes"
    assert calls().fallback - before.fallback == (not served and not raised_by_the_caller)


class Unknown:
    pass


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    ["legacy", "numpy", "code", "empty", "absent", "folder", "text", "cut", "script", "bytes", "safetensors", "small"]
    + [f"{form} of protocol {protocol}" for form in ("archive", "stream") for protocol in (0, 1, 3, 4, 5)],
)
@pytest.mark.parametrize("mmap", [None, True])
def test_every_file_has_the_outcome_that_it_has_without(models: Path, tmp_path: Path, name: str, mmap: Any) -> None:
    path = tmp_path / "value.pt"
    if name == "legacy":
        torch.save({"a": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    elif "protocol" in name:
        value = {"a": torch.ones(3), "b": b"bytes"}
        options = {"_use_new_zipfile_serialization": name.startswith("archive")}
        torch.save(value, path, pickle_protocol=int(name[-1]), **options)
    elif name == "small":  # the first bytes of an archive, and no more
        path.write_bytes(b"PK\x03\x04")
    elif name == "numpy":  # which we support, and torch only by an option
        torch.save({"a": np.arange(3)}, path)
    elif name == "code":
        torch.save({"a": Unknown()}, path)
    elif name == "bytes":  # which torch refuses, because it is a call of bytes
        torch.save({"a": b""}, path)
    elif name == "empty":
        path.write_bytes(b"")
    elif name == "folder":
        path.mkdir()
    elif name == "text":
        path.write_text("version https://git-lfs.github.com/spec/v1\n")
    elif name == "cut":
        torch.save({"a": torch.ones(3000)}, path)
        path.write_bytes(path.read_bytes()[:-200])
    elif name == "script":
        path = models / "silero_vad.jit"
    elif name == "safetensors":
        path = models / "minilm.safetensors"
    expected = outcome(torch.load, path, mmap=mmap)
    max_weights.patch()
    found = outcome(torch.load, path, mmap=mmap)
    assert found[0] == expected[0], (found, expected)
    if expected[0] == "value":
        assert_same(found[1], expected[1])
    else:
        assert found[1] == expected[1]


def test_what_torch_is_asked_to_allow_it_allows(tmp_path: Path) -> None:
    torch.save({"a": Unknown()}, tmp_path / "a.pt")
    max_weights.patch()
    with torch.serialization.safe_globals([Unknown]):
        assert type(torch.load(tmp_path / "a.pt")["a"]) is Unknown
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(tmp_path / "a.pt")


def test_modes_of_torch_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    max_weights.patch()
    with torch._subclasses.FakeTensorMode():
        assert isinstance(torch.load(path)["a"], torch._subclasses.FakeTensor)
    with torch.serialization.skip_data():
        torch.load(path)
    with torch.serialization.set_default_mmap_options(1):  # MAP_SHARED
        torch.load(path, mmap=True)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with pytest.warns(UserWarning, match="forcing weights_only=False"):
        torch.load(path)
    monkeypatch.delenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    assert calls().fallback >= 4
    with torch.device("meta"), torch.inference_mode():
        found = torch.load(path)["a"]
    assert (found.device.type, found.is_inference()) == ("cpu", True)


def test_what_is_loaded_without_mmap_outlives_its_file(path: Path) -> None:
    max_weights.patch()
    before = calls()
    found = torch.load(path)
    path.write_bytes(b"")  # torch.save does this to the file that it writes
    assert calls().fast == before.fast + 1
    assert found["a"].tolist() == list(range(100))


def test_each_reason_is_logged_once(path: Path) -> None:
    script = f"""
import sys, logging, torch, max_weights
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(name)s %(message)s")
max_weights.patch()
for _ in range(3):
    torch.load({str(path)!r}, weights_only=False)
    torch.load({str(path)!r})
"""
    assert run(script) == "max_weights.dropin torch.load: fell back to the original: not weights_only"


def test_threads_that_patch_unpatch_and_load(path: Path) -> None:
    expected, failures = torch.load(path)["a"], []

    def work(number: int) -> None:
        try:
            for _ in range(10):
                (max_weights.patch if number % 2 else max_weights.unpatch)()
                assert torch.equal(torch.load(path)["a"], expected)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    max_weights.patch()


@pytest.mark.parametrize("file", ["smollm2-135m.Q4_1.gguf", "derived/minilm-ffn-allquants.gguf"])
def test_the_reader_of_gguf_has_what_the_original_has(models: Path, file: str) -> None:
    import gguf

    theirs = gguf.GGUFReader(models / file)
    max_weights.patch()
    ours = gguf.GGUFReader(models / file)
    assert calls("gguf.GGUFReader").fast >= 1
    assert isinstance(ours, type(theirs))
    assert (ours.data_offset, ours.alignment, ours.byte_order) == (theirs.data_offset, theirs.alignment, "I")
    assert list(ours.fields) == list(theirs.fields)
    for mine, other in zip(ours.fields.values(), theirs.fields.values(), strict=True):
        assert (mine.offset, mine.name, mine.types, mine.data) == (other.offset, other.name, other.types, other.data)
        assert [part.tobytes() for part in mine.parts] == [part.tobytes() for part in other.parts]
        assert [part.dtype for part in mine.parts] == [part.dtype for part in other.parts]
        assert mine.contents() == other.contents()
        assert tuple(mine)[:2] == other[:2]
        assert mine[4] == other.types
        assert isinstance(mine, gguf.gguf_reader.ReaderField)
    for mine, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert mine[:2] == other[:2]
        assert mine[3:6] == other[3:6]
        assert mine.shape.tolist() == other.shape.tolist()
        np.testing.assert_array_equal(mine.data, other.data)
        assert isinstance(mine.data, np.memmap)


def test_subclasses_of_the_reader_keep_their_hooks(models: Path) -> None:
    import gguf

    max_weights.patch()
    seen = []

    class Reader(gguf.GGUFReader):
        def _get_field_parts(self, *arguments: Any) -> Any:
            seen.append(arguments)
            return super()._get_field_parts(*arguments)

    Reader(models / "derived/minilm-ffn-allquants.gguf")
    assert seen


def gguf_file(path: Path, endian: Any = None) -> Path:
    import gguf

    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.LITTLE if endian is None else endian)
    writer.add_array("texts", ["one", "", "three"])
    writer.add_array("numbers", [1.5, 2.5])
    writer.add_array("flags", [True, False, True])
    writer.add_string("text", "at the end")
    writer.add_tensor("w", np.arange(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read_gguf(path: Path, **options: Any) -> list[Any]:
    import gguf

    reader = gguf.GGUFReader(path, **options)
    return [*((field.name, field.contents()) for field in reader.fields.values()), reader.tensors[0].data.tolist()]


@pytest.mark.parametrize("cut", [0, 3, 60, 80, 100, 130, 150, 200, 300])
def test_cut_gguf_files_are_refused_in_our_words(tmp_path: Path, cut: int) -> None:
    path = gguf_file(tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes()[:cut])
    assert outcome(read_gguf, path)[0] != "value"
    max_weights.patch()
    kind, message = outcome(read_gguf, path)
    assert kind == "FormatError"
    assert issubclass(max_weights.FormatError, ValueError)
    assert message.startswith(str(path))
    assert calls("gguf.GGUFReader").fallback == 0


def array_in_an_array(count: int) -> bytes:
    return struct.pack("<IQIQ", 9, 1, 0, count) + bytes(count)


def array_of_bytes(count: int) -> bytes:
    return struct.pack("<IQ", 0, count) + bytes(count)


@pytest.mark.parametrize(
    ("first", "after"),
    [
        (array_of_bytes(3_000_000), "no type"),
        (array_in_an_array(3_000_000), "no type"),
        (array_in_an_array(3_000_000)[:-2_999_000], "nothing"),
        (array_of_bytes(3_000_000)[:-2_999_000], "nothing"),
    ],
    ids=["after an array", "after an array in one", "an array in one that is cut", "an array that is cut"],
)
def test_a_gguf_file_that_claims_more_than_it_has_is_not_given_to_the_original(
    tmp_path: Path, first: bytes, after: str
) -> None:
    import gguf

    path = tmp_path / "hostile.gguf"
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9) + first
    if after == "no type":
        content += struct.pack("<Q", 1) + b"b" + struct.pack("<I", 77)
    path.write_bytes(content)
    max_weights.patch()
    before = calls("gguf.GGUFReader")
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFReader.__mro__[1], "_get_field_parts", lambda *_: made.append(1))
        with refuses(max_weights.FormatError):
            gguf.GGUFReader(path)
    assert len(made) <= 1  # not one for each element
    assert calls("gguf.GGUFReader").fallback == before.fallback


def test_gguf_files_of_other_byte_order_absent_ones_and_modes(tmp_path: Path) -> None:
    import gguf

    path = gguf_file(tmp_path / "a.gguf")
    swapped = gguf_file(tmp_path / "b.gguf", gguf.GGUFEndian.BIG)
    expected = [outcome(read_gguf, swapped), outcome(read_gguf, tmp_path / "absent.gguf"), outcome(read_gguf, path)]
    max_weights.patch()
    assert [outcome(read_gguf, swapped), outcome(read_gguf, tmp_path / "absent.gguf")] == expected[:2]
    for mode in ("r", "r+", "c"):
        assert outcome(read_gguf, path, mode=mode) == expected[2]
    assert outcome(read_gguf, path, mode="no")[0] == "ValueError"


PROGRAM = """
import sys
import helper
print(__name__, __file__, sys.argv, sys.path[0], helper.here)
import torch
max_weights = sys.modules.get("max_weights")
print(bool(max_weights and "torch.load" in max_weights.patched()), file=sys.stderr)
"""


@pytest.mark.parametrize("form", ["script", "module"])
def test_a_program_that_is_run_patched_sees_what_it_sees_otherwise(tmp_path: Path, form: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("here = True")
    program = [str(tmp_path / "program.py")] if form == "script" else ["-m", "program"]

    def done(*way: str) -> tuple[str, str]:
        ran = subprocess.run(
            [sys.executable, *way, *program, "--an", "argument"],
            capture_output=True, text=True, check=True, cwd=tmp_path,
        )  # fmt: skip
        return ran.stdout, ran.stderr.split()[-1]

    plain, patched = done(), done("-m", "max_weights", "run")
    assert patched[0] == plain[0]
    assert (plain[1], patched[1]) == ("False", "True")


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["-m"], 2), (["--help"], 0)])
def test_to_run_nothing_says_how_it_is_done(arguments: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "max_weights", "run", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert "usage: python -m max_weights run (script.py | -m module)" in done.stdout + done.stderr
