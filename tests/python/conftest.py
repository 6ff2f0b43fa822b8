"""Shared by all tests: the real model files, and a writer of small safetensors files."""

import ctypes
import functools
import gc
import json
import os
import signal
import struct
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

import max_weights
import refusals
import warm as warm_processes
from durations import Durations, Recorder
from max_weights._core import files
from max_weights.types import QuantizedWeight

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
Entry = tuple[str, list[int], bytes]

# No test has a deadline: a busy machine is no defect.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# A process started with `nohup`, or in the background of a script, ignores SIGINT, and its children inherit that. The
# children of the tests must not.
signal.signal(signal.SIGINT, signal.default_int_handler)


DURATIONS = Durations()


def pytest_addoption(parser: pytest.Parser) -> None:
    """A part of the files, so that several machines share the work; and what their spreading goes by."""
    parser.addoption("--shard", default="1/1", metavar="N/OF", help="run the N-th of OF parts of about equal length")
    parser.addoption("--record-durations", action="store_true", help="write what each file took to durations.json")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of other shards are not even imported."""
    if not collection_path.is_relative_to(HERE) or not collection_path.match("test_*.py"):
        return None
    return None if collection_path in shard_files(config.getoption("--shard")) else True


@functools.cache
def shard_files(shard: str) -> set[Path]:
    """The files of a part of the tests: N/OF."""
    number, shards = map(int, shard.split("/"))
    return DURATIONS.shard(HERE.glob("*/test_*.py"), number, shards)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first, so that none of them runs alone at the end; the tests of each file keep
    their order.
    """
    refusals.collect(items)
    places = {path: place for place, path in enumerate(DURATIONS.longest_first({item.path for item in items}))}
    items.sort(key=lambda item: places[item.path])


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection, which would otherwise take half a second per test."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test that passed has had all of its errors."""
    if report.when == "call" and report.passed:
        refusals.passed(report.nodeid)


@pytest.fixture(autouse=True, scope="session")
def folder_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What stands for the folder of this run in the texts of errors."""
    refusals.PLACES[str(tmp_path_factory.getbasetemp())] = "<tmp>"


@pytest.fixture(autouse=True, scope="module")
def texts_of_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    """The texts of errors of a file are written, or each of them was used: see refusals.py."""
    yield
    is_whole = not any("::" in argument for argument in request.config.args) and not request.config.getoption("lf", 0)
    refusals.finish(request.path, is_whole=is_whole)


@pytest.fixture(autouse=True)
def memory_is_given_back() -> Iterator[None]:
    """After a test of a whole model, max_weights would keep gigabytes for reuse."""
    yield
    max_weights.release_memory()


@pytest.fixture(autouse=True, scope="module")
def freed_memory_is_returned() -> Iterator[None]:
    """Return memory freed by torch and NumPy to the system after each file: the C allocator would keep half of it."""
    yield
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def pytest_configure(config: pytest.Config) -> None:
    """One server of warm processes per run; the workers inherit its address."""
    if not hasattr(config, "workerinput"):
        config.add_cleanup(warm_processes.Server().close)
        if config.getoption("--record-durations"):
            config.pluginmanager.register(Recorder())


@pytest.fixture(scope="session")
def warm() -> warm_processes.Parent:
    """Processes that start with torch imported: see warm.py."""
    return warm_processes.Parent("torch")


@pytest.fixture(scope="session")
def warm_transformers() -> warm_processes.Parent:
    """Processes that start with transformers and its models imported."""
    return warm_processes.Parent("transformers")


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of the real model files, as `tools/get_models.py --derive` leaves it."""
    folder = Path(os.environ.get("MAX_WEIGHTS_MODELS", ROOT / ".models"))
    assert (folder / "derived").is_dir(), (
        f"no model files in {folder}: run `make test`, or tools/get_models.py --derive"
    )
    return folder


def safetensors_bytes(tensors: dict[str, Entry], metadata: dict[str, str] | None = None, pad: int = 8) -> bytes:
    """A safetensors file by hand: {name: (dtype, shape, bytes)}; the header is padded to a multiple of `pad`."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, (dtype, shape, payload) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(payload)]}
        data += payload
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % pad)
    return struct.pack("<Q", len(text)) + text + data


@pytest.fixture
def make_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a small safetensors file of NumPy arrays (or raw entries) and give its path."""
    names = {
        "f4": "F32",
        "f8": "F64",
        "f2": "F16",
        "i8": "I64",
        "i4": "I32",
        "i2": "I16",
        "i1": "I8",
        "u1": "U8",
        "b1": "BOOL",
    }

    def make(tensors: dict[str, Any], name: str = "model.safetensors", **options: Any) -> Path:
        entries = {}
        for key, value in tensors.items():
            if isinstance(value, np.ndarray):
                value = (names[value.dtype.str[1:]], list(value.shape), value.tobytes())
            entries[key] = value
        path = tmp_path / name
        path.write_bytes(safetensors_bytes(entries, **options))
        return path

    return make


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for PYTHONPATH with the metadata of an installed package: the entry points of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("site") / "max_weights_under_test-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: max_weights_under_test\nVersion: 1\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name}_under_test = {value}" for name, value in entries.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return os.pathsep.join([str(folder.parent), *filter(None, [os.environ.get("PYTHONPATH")])])


OF_PARTS = {
    *("quantized.dtype", "quantized.order-missing", "quantized.scale-missing", "quantized.scale-orphan"),
    *("quantized.scale-shape", "quantized.shape", "quantized.zero-point-missing", "quantized.zero-point-shape"),
}
"""Rules about the parts of a quantized weight, independent of its configuration."""


@pytest.fixture(autouse=True)
def quantized_agrees(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tests of `quantized`, validation accepts what `quantized` decodes, and reports the same errors."""
    if not request.path.name.startswith("test_quantized"):
        return
    read = max_weights.quantized

    def reported(node: Any, tensors: set[str]) -> set[str]:
        path = Path(files(node)[0])
        path = path if path.is_relative_to(ROOT) else path.parent
        findings = max_weights.validate(path, rules="MW-QU").findings
        # Other block sizes in the configuration are no error of the parts.
        of_parts = [finding for finding in findings if "for blocks of" not in finding.message]
        return {finding.rule for finding in of_parts if finding.name in tensors} & OF_PARTS

    def require_no(rules: set[str]) -> None:
        assert not rules

    def checked(node: Any, name: str | None = None) -> Any:
        try:
            found = read(node, name)
        except max_weights.FormatError as error:
            if error.rule in OF_PARTS:
                require_no(reported(node, {str(error.tensor)}) - {error.rule})
            raise
        if isinstance(found, QuantizedWeight):
            require_no(reported(node, {part.name for part in found.parts.values()}))
        return found

    monkeypatch.setattr(max_weights, "quantized", checked)
