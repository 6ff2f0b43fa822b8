"""`max_weights.torch.load` takes what `torch.load` takes: file objects, and every kind of `map_location`."""

import gzip
import io
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from max_weights.errors import ArgumentError, UnsupportedError
from max_weights.torch import load
from max_weights.torch._opened import path_of
from refusals import refuses
from torch_same import assert_same


@pytest.fixture(params=["zip", "legacy"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    base = torch.arange(4000.0)
    value = {"a": base, "part": base[10:30:2], "none": torch.empty(0), "nested": [1, {"b": torch.ones(3).bfloat16()}]}
    path = tmp_path / "value.pt"
    torch.save(value, path, _use_new_zipfile_serialization=request.param == "zip")
    return path


def after_other_bytes(path: Path) -> Any:
    file = io.BytesIO(b"before" + path.read_bytes())
    file.seek(6)
    return file


def in_a_gzip_file(path: Path) -> Any:
    packed = path.with_suffix(".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return gzip.open(packed)


def in_a_tar_file(path: Path) -> Any:
    archive = path.with_suffix(".tar")
    with tarfile.open(archive, "w") as file:
        file.add(path, "value.pt")
    return tarfile.open(archive).extractfile("value.pt")


def in_a_zip_file(path: Path) -> Any:
    archive = path.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as file:
        file.write(path, "value.pt")
    return zipfile.ZipFile(archive).open("value.pt")


def deleted(path: Path) -> Any:
    file = path.open("rb")
    path.rename(path.with_name("elsewhere.pt"))
    path.write_bytes(b"another file")
    return file


def temporary(path: Path) -> Any:
    file = tempfile.NamedTemporaryFile()  # noqa: SIM115
    file.write(path.read_bytes())
    file.seek(0)
    return file


def by_fsspec(path: Path) -> Any:
    import fsspec

    return fsspec.open(str(path), "rb").open()


OPENERS: dict[str, tuple[Callable[[Path], Any], bool]] = {
    # how it is opened, and whether it is the file of its name
    "buffered": (lambda path: path.open("rb"), True),
    "unbuffered": (lambda path: path.open("rb", buffering=0), True),
    "to be written": (lambda path: path.open("r+b"), True),
    "temporary": (temporary, True),
    "fsspec": (by_fsspec, True),
    "bytes": (lambda path: io.BytesIO(path.read_bytes()), False),
    "offset": (after_other_bytes, False),
    "gzip": (in_a_gzip_file, False),
    "tar": (in_a_tar_file, False),
    "zip": (in_a_zip_file, False),
    "deleted": (deleted, False),
}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_file_objects_load_as_torch_loads_them(path: Path, opener: str, mmap: bool) -> None:
    open_it, is_the_file = OPENERS[opener]
    expected = torch.load(path, weights_only=True)
    with open_it(path) as file:
        assert (path_of(file) is not None) == is_the_file
        found = load(file, mmap=mmap)
        assert not file.closed
    assert_same(found, expected)
    found["a"][3] = -1  # separate pages
    assert found["part"].storage_offset() == 10


def test_a_path_like_object(path: Path) -> None:
    assert_same(load(path), torch.load(str(path), weights_only=True))


@pytest.mark.parametrize("what", [7, None, b"value.pt", io.StringIO("text")])
def test_what_is_no_path_and_no_file_of_bytes_is_refused(what: Any) -> None:
    with refuses(ArgumentError, "argument.type"):
        load(what)


def test_an_empty_file_object_is_an_error_of_its_format() -> None:
    with pytest.raises(ValueError, match="empty"):
        load(io.BytesIO())


def keep(storage: Any, _: str) -> Any:
    return storage


def doubled(storage: Any, _: str) -> Any:
    return torch.cat([torch.tensor(storage, dtype=torch.uint8)] * 1).untyped_storage()


LOCATIONS = {
    "none": None,
    "text": "cpu",
    "device": torch.device("cpu"),
    "meta": "meta",
    "meta device": torch.device("meta"),
    "dict": {"cuda:0": "cpu", "cpu": "cpu"},
    "dict without it": {"cuda:0": "cuda:1"},
    "dict to meta": {"cpu": "meta"},
    "keep": keep,
    "copy": doubled,
    "says nothing": lambda _storage, _location: None,
}


@pytest.mark.parametrize("name", LOCATIONS)
@pytest.mark.parametrize("mmap", [True, False])
def test_every_kind_of_map_location(path: Path, name: str, mmap: bool) -> None:
    where: Any = LOCATIONS[name]
    assert_same(load(path, where, mmap=mmap), torch.load(path, where, weights_only=True))


def test_what_the_function_for_locations_sees_and_raises(path: Path) -> None:
    def reported(seen: list[tuple[int, str]]) -> Callable[[Any, str], Any]:
        return lambda storage, location: seen.append((storage.nbytes(), location))

    ours: list[tuple[int, str]] = []
    theirs: list[tuple[int, str]] = []
    load(path, reported(ours))
    torch.load(path, reported(theirs), weights_only=True)
    assert ours == theirs

    def broken(*_: Any) -> Any:
        raise LookupError("no place for this")

    with refuses(LookupError):
        load(path, broken)


def test_the_device_of_a_context_changes_nothing(path: Path) -> None:
    with torch.device("meta"):
        found = load(path)
    assert_same(found, torch.load(path, weights_only=True))


@pytest.mark.parametrize(
    "options",
    [{"weights_only": False}, {"pickle_module": io}, {"encoding": "latin1"}],
    ids=lambda options: next(iter(options)),
)
def test_what_could_run_code_is_refused(path: Path, options: dict[str, Any]) -> None:
    with refuses(UnsupportedError, "unsupported.option"):
        load(path, **options)
    assert_same(load(path, weights_only=None, encoding="utf-8"), torch.load(path, weights_only=True))
