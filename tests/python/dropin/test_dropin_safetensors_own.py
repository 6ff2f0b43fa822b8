"""Features of `max_weights.safetensors` beyond the package, and its behaviour without the package."""

import copy
import importlib
import io
import mmap
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch

import max_weights.safetensors
from max_weights.safetensors import PrefetchLoader, PySafeSlice, SafetensorError, TensorMeta, _prefetch, safe_open
from max_weights.safetensors.numpy import load as load_arrays
from max_weights.safetensors.numpy import load_file as load_arrays_file
from max_weights.safetensors.torch import load, load_file, save_file
from refusals import refuses
from safetensors_files import BROKEN, entry, file_bytes, write_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    write_files(made)
    return made


def run(program: str, *arguments: str) -> str:
    """The output of a program in a separate process."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_imports_no_framework_and_not_safetensors() -> None:
    program = """
import sys, max_weights, max_weights.safetensors
print([name for name in ("torch", "numpy", "jax", "safetensors", "ml_dtypes") if name in sys.modules])
import max_weights.safetensors.torch
print([name for name in ("jax", "safetensors.torch") if name in sys.modules])
"""
    assert run(program) == "[]\n[]"


def test_the_error_class_is_that_of_the_installed_package() -> None:
    assert SafetensorError is safetensors.SafetensorError
    assert max_weights.safetensors.__version__ == safetensors.__version__


def test_the_files_of_the_package_run_over_our_functions() -> None:
    for module, names in (("torch", ("_remove_duplicate_names", "save_file", "storage_ptr")), ("numpy", ("save",))):
        ours, theirs = (importlib.import_module(f"{one}safetensors.{module}") for one in ("max_weights.", ""))
        for name in names:
            assert getattr(ours, name).__code__ == getattr(theirs, name).__code__
            assert getattr(ours, name).__module__ == f"max_weights.safetensors.{module}"
        for name in ("deserialize", "safe_open", "serialize", "serialize_file"):
            assert getattr(ours, name) is getattr(max_weights.safetensors, name)
            assert getattr(theirs, name) is getattr(safetensors, name)


WITHOUT = Path(__file__).with_name("without_safetensors.py")


def test_without_the_package_files_are_read_and_saved(folder: Path, tmp_path: Path) -> None:
    program = """
import sys
import max_weights.safetensors as package, max_weights.safetensors.torch as torch_package
file = package.safe_open(sys.argv[1], "pt")
print(len(file.keys()), package.SafetensorError.__name__, package.SafetensorError.__module__, package.__version__)
def refused(function, *arguments):
    try:
        print(function(*arguments))
    except Exception as error:
        print(type(error).__name__, error)
refused(file.get_tensor, "no")
refused(package.safe_open, sys.argv[1], "tf")
tensors = file.get_tensors()
print(len(package.deserialize(torch_package.save(tensors))), package.serialize({}))
refused(torch_package.save_file, tensors, "/no/such/folder")
refused(getattr, package, "TensorSpec")
refused(getattr, torch_package, "save_model")
import jax.numpy, numpy, torch
import max_weights.safetensors.flax as jax_package, max_weights.safetensors.numpy as numpy_package
big = {"a": numpy.asfortranarray(numpy.arange(6, dtype=">i4").reshape(2, 3))}
print(numpy_package.load(numpy_package.save(big))["a"].tolist())
print(jax_package.load(jax_package.save({"a": jax.numpy.arange(3)}))["a"].tolist())
a = torch.arange(12).reshape(3, 4)
for wrong in ({"a": a, "b": a[1]}, {"a": a.T}, {"a": 3}, [a], {"__metadata__": a}, {"a": a.to_sparse()}):
    refused(torch_package.save, wrong)
print(len(torch_package.save({"a": a[:1], "b": a[1:], "c": a[:0], "d": a[:0]})))
"""
    path = tmp_path / "program.py"
    path.write_text(program)
    command = [sys.executable, str(WITHOUT), str(path), str(folder / "model.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = r"""
6 SafetensorError max_weights.safetensors 0.8.0
SafetensorError File does not contain tensor no
SafetensorError framework tensorflow is not supported by max_weights itself .* pip install safetensors
6 b'\\x08(\\x00){7}{}      '
SafetensorError Error while serializing: .* \(os error 2\) at path "/no/such/folder": cannot write
AttributeError TensorSpec is a class of safetensors 0.8 or newer: pip install -U safetensors
AttributeError 'save_model' is not here without safetensors 0.8 or newer: pip install -U safetensors
\[\[0, 1, 2\], \[3, 4, 5\]\]
\[0, 1, 2\]
RuntimeError Some tensors share memory: 'a' and 'b'. .*
ValueError tensor 'a' is not contiguous: .*
ValueError tensor 'a' must be a torch tensor, not int
ValueError tensors must be a dict of torch tensors by name, not list
SafetensorError Error while serializing: a tensor cannot be called __metadata__: .*
ArgumentError tensor 'a': it is torch.sparse_coo; save what to_dense\(\) returns
\d+
"""
    lines = done.stdout.strip().splitlines()
    for line, pattern in zip(lines, expected.strip().splitlines(), strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)


def test_beside_a_package_before_0_8_files_are_read_and_saved(tmp_path: Path) -> None:
    program = """
import sys, safetensors._safetensors_rust as extension
del extension.TensorSpec  # which its files do not use
import torch, max_weights.safetensors.torch as package
package.save_file({"a": torch.arange(3)}, sys.argv[1])
print(package.load_file(sys.argv[1])["a"].tolist(), hasattr(package, "save_model"))
"""
    assert run(program, str(tmp_path / "a.safetensors")) == "[0, 1, 2] False"


def test_in_the_place_of_the_package_it_saves_and_loads(tmp_path: Path) -> None:
    program = """
import sys, torch, max_weights.safetensors, max_weights.safetensors.torch, max_weights.safetensors.numpy
for name in ("safetensors", "safetensors.torch", "safetensors.numpy"):
    sys.modules[name] = sys.modules[f"max_weights.{name}"]
import numpy, safetensors
from safetensors.torch import save_file, load_file
from safetensors.numpy import save
save_file({"a": torch.arange(3)}, sys.argv[1])
print(load_file(sys.argv[1])["a"].tolist(), len(save({"a": numpy.arange(3)})) > 24)
print(safetensors.SafetensorError.__module__)
"""
    assert run(program, str(tmp_path / "a.safetensors")) == "[0, 1, 2] True\nsafetensors._safetensors_rust"


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_negative_steps_and_bounds_that_count_from_the_end(folder: Path, backend: str) -> None:
    expected = np.arange(50, dtype="f4").reshape(10, 5)
    of_torch = safe_open(folder / "model.safetensors", "pt", backend=backend).get_slice("z.last")
    of_numpy = safe_open(folder / "model.safetensors", "np", backend=backend).get_slice("z.last")
    for index in (np.s_[::-1], np.s_[:, ::-2], np.s_[-3:], np.s_[-2::-1, 1]):
        np.testing.assert_array_equal(of_torch[index].numpy(), expected[index])
        np.testing.assert_array_equal(of_numpy[index], expected[index])


def test_a_mapped_slice_reads_only_its_own_pages_and_is_a_view(folder: Path) -> None:
    with safe_open(folder / "model.safetensors", "pt") as file:
        whole, column = file.get_tensor("z.last"), file.get_slice("z.last")[:, 1]
    assert column.data_ptr() == whole.data_ptr() + 4
    assert column.stride() == (5,)


def test_load_takes_any_buffer(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    expected = load_file(path)
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        buffers: list[Any] = [content, bytearray(content), memoryview(content), np.frombuffer(content, "u1"), mapped]
        for data in buffers:
            tensors, arrays = load(data), load_arrays(data)
            assert list(tensors) == list(expected)
            for name, tensor in expected.items():
                assert torch.equal(tensors[name], tensor)
                np.testing.assert_array_equal(arrays[name], tensor.numpy())
    with pytest.raises(TypeError):
        load(memoryview(content * 2)[::2])


def test_load_under_the_meta_device_is_on_the_cpu(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    with torch.device("meta"):
        tensors = load(content)
        part = safe_open(folder / "model.safetensors", "pt").get_slice("z.last")[[1, 0]]
        empty = safe_open(folder / "model.safetensors", "pt").get_slice("none")[...]
    assert {tensor.device.type for tensor in (*tensors.values(), part, empty)} == {"cpu"}


def test_empty_tensors_have_storages_of_their_own(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    assert tensors["none"].shape == (0, 3)
    file = io.BytesIO()
    torch.save(tensors, file)  # which takes equal addresses for one storage
    file.seek(0)
    loaded = torch.load(file)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_bfloat16_and_small_floats_as_arrays_once_ml_dtypes_is_imported(folder: Path) -> None:
    with safe_open(folder / "dtypes.safetensors", "np") as file, safe_open(folder / "dtypes.safetensors", "pt") as same:
        for name, dtype in (("BF16", ml_dtypes.bfloat16), ("F8_E4M3", ml_dtypes.float8_e4m3fn)):
            array = file.get_tensor(name)
            assert array.dtype == dtype
            assert array.tobytes() == same.get_tensor(name).view(torch.uint8).numpy().tobytes()
            assert file.get_slice(name)[1:3].tobytes() == array[1:3].tobytes()


def test_arrays_are_aligned_and_private(folder: Path) -> None:
    path = folder / "unaligned.safetensors"
    before = path.read_bytes()
    arrays = load_arrays_file(path)
    assert all(array.flags.aligned and array.flags.writeable for array in arrays.values())
    for array in arrays.values():
        array[...] = 0
    assert path.read_bytes() == before
    assert load_arrays_file(path)["a"].tobytes() == b"abc"


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("empty", "HeaderTooSmall"),
        ("a page", "HeaderTooLarge"),
        ("gguf", "HeaderTooLarge"),
        ("header beyond the end", "InvalidHeaderLength"),
        ("truncated", "MetadataIncompleteBuffer"),
        ("trailing", "MetadataIncompleteBuffer"),
        ("hole", "InvalidOffset"),
        ("size", "TensorInvalidInfo"),
        ("no json", "InvalidHeaderDeserialization"),
        ("no utf-8", "InvalidHeader"),
    ],
)
def test_errors_have_the_names_that_older_versions_gave_and_say_where(folder: Path, name: str, token: str) -> None:
    assert name in BROKEN
    path = folder / f"{name}.safetensors"
    with pytest.raises(SafetensorError) as raised:
        safe_open(path, "pt")
    message = raised.value.args[0]
    assert f"({token})" in message
    assert str(path) in message


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    # In the package the last one wins; two readers could then see two models in one file.
    path = tmp_path / "twice.safetensors"
    path.write_bytes(file_bytes(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},' * 1 + b'"a":{"dtype":"U8",'
                                b'"shape":[1],"data_offsets":[0,1]}}', b"x"))  # fmt: skip
    with refuses(SafetensorError):
        safe_open(path, "pt")


@pytest.mark.parametrize(
    "header",
    [
        b'{"__metadata__":{"a":"1","a":"2"}}',
        b'{"a":["U8",[0],[0,0]]}',
    ],
)
def test_headers_that_only_the_package_takes_are_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(file_bytes(header))
    safetensors.safe_open(path, "pt")
    with refuses(SafetensorError):
        safe_open(path, "pt")


def test_a_path_below_a_file_is_the_systems_error(folder: Path) -> None:
    with pytest.raises(NotADirectoryError):
        safe_open(folder / "model.safetensors" / "more", "pt")


def test_what_is_read_when_it_is_taken_is_refused_once_the_file_was_written_to(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_bytes({"a": entry("U8", [4], 0, 4)}, b"abcd"))
    file = safe_open(path, "pt", backend="pread")
    path.write_bytes(file_bytes({"b": entry("U8", [4], 0, 4)}, b"efgh"))
    os.utime(path, ns=(1, 1))
    with refuses(SafetensorError):
        file.get_tensor("a")


def test_arrays_without_elements_can_be_sliced(folder: Path) -> None:
    part = safe_open(folder / "model.safetensors", "np").get_slice("none")
    assert [part[...].shape, part[0:0].shape, part[:, 1].shape] == [(0, 3), (0, 3), (0,)]


def test_several_parts_of_a_tensor_are_shared_with_it(tmp_path: Path) -> None:
    from max_weights.safetensors.torch import load_model

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(12), requires_grad=False)
            self.register_buffer("first", self.weight.data[1:3])
            self.register_buffer("second", self.weight.data[5:7])

    safetensors.torch.save_file({"weight": torch.arange(12.0)}, tmp_path / "a.safetensors")
    with pytest.raises(RuntimeError, match="no suitable name"):
        safetensors.torch.load_model(Model(), tmp_path / "a.safetensors")
    model = Model()
    assert load_model(model, tmp_path / "a.safetensors") == (set(), [])
    assert model.second.tolist() == [5, 6]


def test_open_files_take_no_descriptors(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    files = [safe_open(folder / "model.safetensors", "pt") for _ in range(100)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(torch.equal(file.get_tensor("a.first"), torch.arange(4)) for file in files)


def test_one_file_for_several_threads(folder: Path) -> None:
    file, found = safe_open(folder / "dtypes.safetensors", "pt"), []
    parts = {name: file.get_slice(name) for name in file.keys() if not name.startswith("F6")}  # noqa: SIM118
    expected = {name: part[...].clone() for name, part in parts.items()}

    def work() -> None:
        for _ in range(50):
            found.append(all(torch.equal(_bits(part[...]), _bits(expected[name])) for name, part in parts.items()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 200


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def test_keys_are_a_list_of_the_callers_own(folder: Path) -> None:
    file = safe_open(folder / "model.safetensors", "pt")
    file.keys().clear()
    assert len(file.keys()) == 6


def test_what_the_header_says_of_a_tensor(folder: Path) -> None:
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.get_tensor_meta("a.first") == TensorMeta("I64", [4], (200, 232))
        with refuses(SafetensorError):
            file.get_tensor_meta("b")
        assert isinstance(file.get_slice("a.first"), PySafeSlice)
    with refuses(SafetensorError):
        file.get_tensor_meta("a.first")


def test_a_file_that_is_read_may_be_written_to_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    content = file_bytes({"a": entry("U8", [4], 0, 4)}, b"abcd")
    path.write_bytes(content)
    file = safe_open(path, "pt")
    with path.open("r+b") as opened:
        opened.seek(len(content) - 4)
        opened.write(b"e")
    assert bytes(file.get_tensor("a").tolist()) == b"ebcd"  # nothing is remembered
    assert bytes(file.get_tensors()["a"].tolist()) == b"ebcd"


@pytest.mark.parametrize("name", ["tf", "mlx"])
def test_frameworks_that_are_not_served_are_those_of_the_package(folder: Path, name: str) -> None:
    opened = safe_open(folder / "model.safetensors", name, backend="pread")
    assert type(opened) is safetensors.safe_open
    with opened as file:
        assert len(file.keys()) == 6


def test_what_the_header_says_can_be_compared_and_counted(folder: Path) -> None:
    one, other = (safe_open(folder / "model.safetensors", "pt").get_tensor_meta("a.first") for _ in range(2))
    assert one == other
    assert len({one, other}) == 1


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_jax_arrays(folder: Path, backend: str) -> None:
    from max_weights.safetensors import flax
    from max_weights.safetensors.jax import load_file as same

    arrays = flax.load_file(folder / "model.safetensors", backend=backend)
    expected = load_arrays_file(folder / "model.safetensors")
    from_bytes = flax.load((folder / "model.safetensors").read_bytes())
    for name, array in expected.items():
        for found in (arrays[name], from_bytes[name], same(folder / "model.safetensors")[name]):
            np.testing.assert_array_equal(np.asarray(found), array)
            assert found.dtype == flax.jnp.array(array).dtype
    with safe_open(folder / "model.safetensors", "flax", backend=backend) as file:
        np.testing.assert_array_equal(np.asarray(file.get_slice("z.last")[1:3, 2]), expected["z.last"][1:3, 2])


def test_arrays_of_jax_are_saved_as_the_package_saves_them(tmp_path: Path) -> None:
    import jax.numpy as jnp
    import safetensors.flax

    from max_weights.safetensors import flax

    def arrays() -> dict[str, Any]:
        return {"a": jnp.arange(4), "b": jnp.ones((2, 2), "bfloat16")}

    expected = safetensors.flax.save(arrays(), {"format": "flax"})
    assert flax.save(arrays(), metadata={"format": "flax"}) == expected
    flax.save_file(arrays(), tmp_path / "a.safetensors", {"format": "flax"})
    assert (tmp_path / "a.safetensors").read_bytes() == expected


CTRL_C = """
import os, random, signal, sys, threading
from max_weights.safetensors import safe_open

file = safe_open(sys.argv[1], "pt")
expected = len(list(file.prefetch()))
came = 0
for attempt in range(150):
    timer = threading.Timer(random.uniform(0, 0.01), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True:
            loader = file.prefetch(threads=1)
            loader.take(loader.names()[0])
            del loader
    except KeyboardInterrupt:
        came += 1
    timer.join()
    loader = None
assert len(list(file.prefetch())) == expected
print(came)
"""


class TestPrefetch:
    """`prefetch`, on the CPU."""

    @pytest.mark.parametrize("backend", ["mmap", "pread"])
    def test_every_tensor_is_handed_out_once(self, folder: Path, backend: str) -> None:
        expected = load_file(folder / "model.safetensors")
        with safe_open(folder / "model.safetensors", "pt", backend=backend) as file:
            loader = file.prefetch(threads=2)
        with loader:
            assert isinstance(loader, PrefetchLoader)
            assert sorted(loader.names()) == sorted(expected)
            assert len(loader) == 6
            assert torch.equal(loader.take("a.first"), expected["a.first"])
            rest = dict(loader)
            assert sorted(rest) == sorted(set(expected) - {"a.first"})
            assert all(torch.equal(tensor, expected[name]) for name, tensor in rest.items())
            with refuses(SafetensorError):
                loader.take("a.first")
            with refuses(SafetensorError):
                loader.take("b")

    def test_a_plan_of_rows(self, folder: Path) -> None:
        file = safe_open(folder / "model.safetensors", "pt")
        with file.prefetch({"z.last": slice(2, 5), "scalar": None}) as loader:
            assert loader.names() == ["z.last", "scalar"]
            assert torch.equal(loader.take("z.last"), file.get_tensor("z.last")[2:5])
            assert [name for name, _ in loader] == ["scalar"]

    def test_closing_lets_go_of_what_was_not_taken(self, folder: Path) -> None:
        loader = safe_open(folder / "model.safetensors", "pt").prefetch()
        kept = loader.take("z.last")
        loader.close()
        loader.close()
        assert copy.deepcopy(kept).sum() == 1225
        assert list(loader) == []
        with refuses(SafetensorError):
            loader.take("scalar")

    def test_reading_ends_with_the_last_reference(self, tmp_path: Path) -> None:
        save_file({f"{number}": torch.zeros(1 << 20) for number in range(100)}, tmp_path / "a.safetensors")
        began, taken = threading.Event(), threading.Event()
        read = _prefetch._read

        def waits(*arguments: Any) -> Any:
            began.set()
            assert taken.wait(20)
            calls.append(arguments[1])
            return read(*arguments)

        calls: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_prefetch, "_read", waits)
            loader = safe_open(tmp_path / "a.safetensors", "pt").prefetch(threads=2)
            assert began.wait(20)
            del loader
            taken.set()
            for thread in threading.enumerate():
                if thread.name == "max_weights-prefetch":
                    thread.join(20)
                    assert not thread.is_alive()
        assert len(calls) <= 2

    def test_a_ctrl_c_that_comes_when_a_loader_goes_is_not_lost(self, folder: Path) -> None:
        command = [sys.executable, "-c", CTRL_C, str(folder / "model.safetensors")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        # Python's threads may report a Ctrl-C that comes while one is started.
        assert done.stdout == "150\n", done.stderr
        assert "KeyboardInterrupt" not in done.stderr

    def test_who_waits_for_a_tensor_learns_that_the_loader_was_closed(self, tmp_path: Path) -> None:
        save_file({"a": torch.zeros(3), "b": torch.zeros(3)}, tmp_path / "a.safetensors")
        closed = threading.Event()
        read = _prefetch._read

        def waits(*arguments: Any) -> Any:
            assert closed.wait(20)
            return read(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_prefetch, "_read", waits)
            loader = safe_open(tmp_path / "a.safetensors", "pt").prefetch(threads=1)
            first, last = loader.names()
            timer = threading.Timer(0.2, loader.close)
            timer.start()
            with refuses(SafetensorError):
                loader.take(last)
            closed.set()
            timer.join()
        with refuses(SafetensorError):
            loader.take(first)

    @pytest.mark.parametrize(
        "plan",
        [
            {"z.last": slice("a", None)},
            {"z.last": slice(0, 4, 0)},
        ],
    )
    def test_plans_that_make_no_sense(self, folder: Path, plan: Any) -> None:
        with refuses(SafetensorError):
            safe_open(folder / "model.safetensors", "pt").prefetch(plan)

    def test_arrays_are_not_prefetched(self, folder: Path) -> None:
        with refuses(SafetensorError):
            safe_open(folder / "model.safetensors", "np").prefetch()


@pytest.mark.parametrize(
    "content",
    [
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n",
        b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n",
    ],
    ids=["a pointer of git-LFS", "a web page"],
)
def test_a_file_that_is_something_else_is_named_as_that(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with refuses(SafetensorError):
        load_file(path)
